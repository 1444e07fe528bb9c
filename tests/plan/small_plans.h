// Recipes and clusters for tests of plans.
#pragma once

#include <nlohmann/json.hpp>

#include "attnres/plan/plan.h"

namespace attnres::testing {

inline Json cluster_json(int64_t devices = 16, int64_t devices_per_node = 8) {
  return {{"name", "test"},
          {"devices", devices},
          {"devices_per_node", devices_per_node},
          {"device",
           {{"memory", 80e9},
            {"bandwidth", 3e12},
            {"flops", {{"float32", 60e12}, {"bfloat16", 900e12}}}}},
          {"within_node", {{"bandwidth", 400e9}, {"latency", 5e-6}}},
          {"between_nodes", {{"bandwidth", 50e9}, {"latency", 10e-6}}}};
}

inline Cluster small_cluster(int64_t devices = 16, int64_t devices_per_node = 8) {
  return parse_cluster(cluster_json(devices, devices_per_node));
}

// A recipe of L = 2 `layers` sublayers; `parallel` as in a recipe.
inline Recipe small_plan_recipe(const Json& depth_mixing, int64_t layers, const Json& parallel,
                                const Json& train = Json::object()) {
  Json recipe = {{"model",
                  {{"layers", layers},
                   {"width", 32},
                   {"heads", 4},
                   {"kv_heads", 2},
                   {"ffn_width", 48},
                   {"depth_mixing", depth_mixing}}},
                 {"train", {{"batch_size", 8}, {"accumulate", 8}, {"context", 16}}},
                 {"parallel", parallel}};
  recipe["train"].update(train);
  return parse_recipe(recipe);
}

inline Json blocks_of(int64_t block_size) {
  return {{"type", "block_attn_res"}, {"block_size", block_size}};
}

}  // namespace attnres::testing
