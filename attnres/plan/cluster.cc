#include "attnres/plan/cluster.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/parameters/precision.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// More than anyone means, and few enough that products of them do not overflow.
constexpr int64_t kMostDevices = 1 << 18;
// Beyond these, quotients are no numbers.
constexpr double kLeast = 1e-30, kLargest = 1e30;

void check_count(const char* key, int64_t value) {
  require_usage(value >= 1 && value <= kMostDevices,
                "{}: expected a whole number from 1 to {}, got {}", key, kMostDevices, value);
}

void check_positive(const char* key, double value) {
  require_usage(std::isfinite(value) && value > 0,
                "{}: expected a number above 0, got {}; units are bytes, seconds, FLOP/s and "
                "bytes/s",
                key, value);
  require_usage(value >= kLeast && value <= kLargest, "{}: expected {} to {}, got {}", key, kLeast,
                kLargest, value);
}

void check_not_negative(const char* key, double value) {
  require_usage(std::isfinite(value) && value >= 0, "{}: expected 0 or more, got {}", key, value);
  if (value > 0) check_positive(key, value);
}

void check_link(const std::string& name, const Link& link) {
  check_positive((name + ".bandwidth").c_str(), link.bandwidth);
  check_not_negative((name + ".latency").c_str(), link.latency);
}

void check_device(const Device& device) {
  check_positive("device.memory", device.memory);
  check_not_negative("device.reserved", device.reserved);
  require_usage(device.reserved < device.memory,
                "device.reserved: {} bytes of device.memory = {} leave nothing for a model",
                device.reserved, device.memory);
  check_positive("device.bandwidth", device.bandwidth);
  check_not_negative("device.flops.float32", device.flops.float32);
  check_not_negative("device.flops.bfloat16", device.flops.bfloat16);
  require_usage(device.flops.float32 > 0 || device.flops.bfloat16 > 0,
                "device.flops: name the FLOP/s of float32 or bfloat16, or of both");
  check_positive("device.efficiency", device.efficiency);
  require_usage(device.efficiency <= 1, "device.efficiency: expected above 0 and at most 1, got {}",
                device.efficiency);
}

void check(const Cluster& cluster) {
  check_count("devices", cluster.devices);
  check_count("devices_per_node", cluster.devices_per_node);
  check_device(cluster.device);
  if (cluster.devices_per_node > 1) check_link("within_node", cluster.within_node);
  if (cluster.devices > cluster.devices_per_node) {
    check_link("between_nodes", cluster.between_nodes);
  }
}

}  // namespace

double Cluster::flops(const std::string& precision) const {
  const double flops =
      precision == kBfloat16Precision ? device.flops.bfloat16 : device.flops.float32;
  require_usage(flops > 0,
                "train.precision: {} is asked for, but cluster {} has no device.flops.{}; add it, "
                "or choose the other precision",
                precision, name, precision);
  return flops;
}

Cluster parse_cluster(const Json& json) {
  Cluster cluster;
  read_config(json, "", cluster);
  check(cluster);
  return cluster;
}

Cluster read_cluster(const std::filesystem::path& file) {
  const Json json = read_json(file);
  try {
    return parse_cluster(json);
  } catch (const UsageError& error) {
    fail_usage("cluster {}: {}", file.string(), error.what());
  }
}

Json cluster_to_json(const Cluster& cluster) {
  return write_config(cluster);
}

}  // namespace attnres
