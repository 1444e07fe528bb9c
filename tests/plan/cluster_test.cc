#include "attnres/plan/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "attnres/plan/layout.h"
#include "attnres/support/error.h"
#include "tests/plan/small_plans.h"
#include "tests/text/test_files.h"

namespace attnres::testing::cluster_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string refusal(const std::function<void(Json&)>& change) {
  Json json = cluster_json();
  change(json);
  try {
    parse_cluster(json);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Cluster, IsReadAndWritten) {
  const Cluster cluster = small_cluster();
  EXPECT_EQ(cluster.devices, 16);
  EXPECT_EQ(cluster.device.memory, 80e9);
  EXPECT_EQ(cluster.flops("float32"), 60e12);
  EXPECT_EQ(cluster.flops("bfloat16"), 900e12);
  EXPECT_EQ(cluster.link(true).bandwidth, 400e9);
  EXPECT_EQ(cluster.link(false).latency, 10e-6);
  EXPECT_EQ(cluster_to_json(parse_cluster(cluster_to_json(cluster))), cluster_to_json(cluster));
}

TEST(Cluster, RefusesWhatIsNone) {
  EXPECT_EQ(refusal([](Json&) {}), "");
  EXPECT_THAT(refusal([](Json& json) { json["devcies"] = 3; }),
              HasSubstr("unknown key devcies: the nearest known key is devices"));
  EXPECT_THAT(refusal([](Json& json) { json["device"]["flops"]["bf16"] = 1; }),
              HasSubstr("device.flops.bf16: the nearest known key is device.flops."));
  EXPECT_THAT(refusal([](Json& json) { json["devices"] = 0; }),
              HasSubstr("devices: expected a whole number from 1"));
  EXPECT_THAT(refusal([](Json& json) { json["devices"] = -4; }), HasSubstr("got -4"));
  EXPECT_THAT(refusal([](Json& json) { json["devices"] = 2.5; }), HasSubstr("a whole number"));
  EXPECT_EQ(refusal([](Json& json) { json["devices"] = 262144; }), "");
  EXPECT_THAT(refusal([](Json& json) { json["devices"] = 262145; }),
              HasSubstr("devices: expected a whole number from 1 to 262144"));
  EXPECT_THAT(refusal([](Json& json) { json["device"]["bandwidth"] = 1e-300; }),
              HasSubstr("device.bandwidth: expected 1e-30 to 1e+30, got 1e-300"));
  EXPECT_THAT(refusal([](Json& json) { json["within_node"]["latency"] = 1e300; }),
              HasSubstr("within_node.latency: expected 1e-30 to 1e+30"));
  EXPECT_THAT(refusal([](Json& json) { json.erase("devices_per_node"); }),
              HasSubstr("devices_per_node"));
  EXPECT_THAT(refusal([](Json& json) { json["device"]["memory"] = -80e9; }),
              HasSubstr("device.memory: expected a number above 0, got -8"));
  EXPECT_THAT(refusal([](Json& json) { json["device"]["memory"] = "80 GB"; }),
              HasSubstr("device.memory: expected a number"));
  EXPECT_THAT(refusal([](Json& json) { json["device"]["reserved"] = 80e9; }),
              HasSubstr("device.reserved"));
  EXPECT_THAT(refusal([](Json& json) { json["device"].erase("flops"); }),
              HasSubstr("device.flops: name the FLOP/s"));
  EXPECT_THAT(refusal([](Json& json) { json["device"]["flops"]["bfloat16"] = -1; }),
              HasSubstr("device.flops.bfloat16: expected 0 or more"));
  EXPECT_THAT(refusal([](Json& json) { json["device"]["efficiency"] = 1.2; }),
              HasSubstr("device.efficiency"));
  EXPECT_THAT(refusal([](Json& json) { json["within_node"]["bandwidth"] = 0; }),
              HasSubstr("within_node.bandwidth: expected a number above 0"));
  EXPECT_THAT(refusal([](Json& json) { json["between_nodes"]["latency"] = -1e-6; }),
              HasSubstr("between_nodes.latency: expected 0 or more"));
  EXPECT_THAT(refusal([](Json& json) { json.erase("between_nodes"); }),
              HasSubstr("between_nodes.bandwidth"));
  EXPECT_EQ(refusal([](Json& json) {
              json["devices"] = 8;
              json.erase("between_nodes");
            }),
            "");
}

TEST(Cluster, FilesAreNamed) {
  const fs::path folder = fresh_folder("clusters");
  write_text(folder / "empty.json", "");
  EXPECT_THROW(read_cluster(folder / "empty.json"), Error);
  EXPECT_THROW(read_cluster(folder / "none.json"), Error);
  write_text(folder / "zero.json", R"({"devices": 0})");
  try {
    read_cluster(folder / "zero.json");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("zero.json: devices: expected"));
  }
}

TEST(Cluster, FilesOfTheProjectAreRead) {
  int files = 0;
  for (const auto& entry :
       fs::directory_iterator(fs::path(ATTNRES_SOURCE_DIR) / "recipes" / "clusters")) {
    const Cluster cluster = read_cluster(entry.path());
    EXPECT_EQ(cluster.name, entry.path().stem().string());
    ++files;
  }
  EXPECT_EQ(files, 3);
}

TEST(Cluster, WithoutTheRecipesPrecisionIsRefused) {
  Json json = cluster_json();
  json["device"]["flops"] = {{"float32", 1e12}};
  EXPECT_EQ(parse_cluster(json).flops("float32"), 1e12);
  EXPECT_THROW(parse_cluster(json).flops("bfloat16"), UsageError);
}

TEST(Layout, LiesOnNodesRankByRank) {
  Layout layout = {.data = 4, .size = {4, 1}};
  const Cluster cluster = small_cluster(16, 8);
  EXPECT_TRUE(share_node(layout, cluster, 0, 3));
  EXPECT_FALSE(replicas_share_node(layout, cluster));
  EXPECT_TRUE(replicas_share_node(layout, small_cluster(16, 16)));
  // Replicas of 3 ranks begin at 0, 3, 6, 9: the third lies on two nodes.
  layout.size.ranks = 3;
  EXPECT_TRUE(share_node(layout, cluster, 0, 1));
  EXPECT_FALSE(share_node(layout, cluster, 1, 2));
  layout.data = 2;
  EXPECT_TRUE(share_node(layout, cluster, 1, 2));
}

// Against every pair of processes that talk to each other.
TEST(Layout, LiesOnNodesAsItsProcessesDo) {
  for (const int64_t node : {1, 2, 3, 4, 5, 6, 8, 12, 64}) {
    const Cluster cluster = small_cluster(64, node);
    for (const int64_t data : {1, 2, 3, 5}) {
      for (const int ranks : {1, 2, 3, 4}) {
        for (const int64_t tensor : {1, 2, 3}) {
          const Layout layout = {.data = data, .size = {ranks, 1}, .tensor = tensor};
          bool groups = true;
          for (int a = 0; a < ranks; ++a) {
            for (int b = 0; b < ranks; ++b) {
              bool together = true;
              for (int64_t replica = 0; replica < data; ++replica) {
                for (int64_t process = 0; process < tensor; ++process) {
                  const auto node_of = [&](int rank, int64_t number) {
                    return ((replica * ranks + rank) * tensor + number) / node;
                  };
                  together = together && node_of(a, process) == node_of(b, process);
                  groups = groups && node_of(a, process) == node_of(a, 0);
                }
              }
              EXPECT_EQ(share_node(layout, cluster, a, b), together)
                  << layout.describe() << " on nodes of " << node << ": " << a << ", " << b;
            }
          }
          EXPECT_EQ(tensor_groups_share_node(layout, cluster), groups)
              << layout.describe() << " on nodes of " << node;
        }
      }
    }
  }
}

TEST(Layout, LargerThanTheClusterIsRefused) {
  const Recipe recipe = small_plan_recipe(blocks_of(2), 4, {{"data", 4}, {"pipeline", 2}});
  EXPECT_NO_THROW(require_devices(layout_of(recipe), small_cluster(8)));
  try {
    require_devices(layout_of(recipe), small_cluster(7));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("4 x 2 x 1 are 8 processes, but cluster test has 7 devices"));
  }
}

}  // namespace
}  // namespace attnres::testing::cluster_test
