// The machines that a plan is for, described in a JSON file of recipes/clusters/: all in bytes,
// seconds, FLOP/s and bytes/s, per device.
//
//   {"name": "one node", "devices": 8, "devices_per_node": 8,
//    "device": {"name": "H100", "memory": 80e9, "bandwidth": 3.35e12,
//               "flops": {"bfloat16": 989e12}},
//    "within_node": {"bandwidth": 450e9, "latency": 5e-6},
//    "between_nodes": {"bandwidth": 50e9, "latency": 10e-6}}
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "attnres/support/json.h"

namespace attnres {

// FLOP/s of matrix products, by train.precision; 0 where the device has none.
struct DeviceFlops {
  double float32 = 0, bfloat16 = 0;

  template <class V>
  void visit(V& v) {
    v("float32", float32);
    v("bfloat16", bfloat16);
  }
};

struct Device {
  std::string name = "unnamed";
  double memory = 0;     // bytes
  double reserved = 0;   // bytes of it that are not the model's: libraries, a context
  double bandwidth = 0;  // of its memory, each byte counted as read once or written once
  DeviceFlops flops;
  // The part of `flops` that the products of a step reach, at most 1. Of measured ones that is 1; a
  // data sheet's are reached by nobody.
  double efficiency = 1;

  template <class V>
  void visit(V& v) {
    v("name", name);
    v("memory", memory);
    v("reserved", reserved);
    v("bandwidth", bandwidth);
    v("flops", flops);
    v("efficiency", efficiency);
  }
};

// Between two devices, in one direction.
struct Link {
  double bandwidth = 0;  // of each device
  double latency = 0;    // of a message

  double seconds(double bytes, double messages) const {
    return bytes / bandwidth + latency * messages;
  }
  template <class V>
  void visit(V& v) {
    v("bandwidth", bandwidth);
    v("latency", latency);
  }
};

struct Cluster {
  std::string name = "unnamed";
  int64_t devices = 0;           // one process each
  int64_t devices_per_node = 0;  // ranks go node by node; the last may have fewer
  Device device = {};
  Link within_node = {};
  Link between_nodes = {};  // may be left out where there is one node

  template <class V>
  void visit(V& v) {
    v("name", name);
    v("devices", devices);
    v("devices_per_node", devices_per_node);
    v("device", device);
    v("within_node", within_node);
    v("between_nodes", between_nodes);
  }

  // FLOP/s in a recipe's train.precision, as the file has them. Throws UsageError where it has
  // none.
  double flops(const std::string& precision) const;
  const Link& link(bool same_node) const { return same_node ? within_node : between_nodes; }
};

// Throw UsageError naming the key where one is unknown, missing, or not possible; the file is named
// before it.
Cluster parse_cluster(const Json& json);
Cluster read_cluster(const std::filesystem::path& file);
Json cluster_to_json(const Cluster& cluster);

}  // namespace attnres
