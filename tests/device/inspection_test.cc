// Inspection of models on a device that is not the CPU.
#include "attnres/inspect/inspection.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/inspect/measure.h"
#include "attnres/text/bytes.h"
#include "tests/device/device_models.h"
#include "tests/device/near_json.h"

namespace attnres::testing::device_inspection_test {
namespace {

constexpr int64_t kContext = 8;

const std::vector<int32_t> kTokens = as_vector(random_ids(1, kContext + 5));

// Everything that there is to measure.
Json inspection_of(const Transformer& model) {
  Inspection inspection = inspect_model(model, kContext);
  measure_tokens(model, ByteTokenizer(), kContext, kTokens, inspection);
  measure_depth_weights(model, kContext, kTokens, inspection);
  measure_matrices(model, kContext, kTokens, /*ranks=*/true, inspection);
  measure_effects(model, ByteTokenizer(), kContext, kTokens, /*on_progress=*/{}, inspection);
  return inspection_to_json(inspection);
}

// What depends on the mechanism alone.
Json mixing_of(const Transformer& model) {
  Inspection inspection;
  measure_depth_weights(model, kContext, kTokens, inspection);
  measure_matrices(model, kContext, kTokens, /*ranks=*/false, inspection);
  return inspection_to_json(inspection);
}

class DeviceInspectionOf : public ::testing::TestWithParam<Mixing> {};

INSTANTIATE_TEST_SUITE_P(Mechanisms, DeviceInspectionOf, ::testing::ValuesIn(every_mechanism()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DeviceInspectionOf, MixingIsAsOnTheCpu) {
  const Transformer here = small_model(GetParam().json, {.layers = 2});
  expect_near(mixing_of(on_pretend_device(here)), mixing_of(here), 1e-8);
}

TEST(DeviceInspection, IsAsOnTheCpu) {
  for (const Json& mixing : {residual(), block_attn_res()}) {
    const Transformer here = small_model(mixing, {.layers = 2, .vocab_size = 256});
    expect_near(inspection_of(on_pretend_device(here)), inspection_of(here), 1e-8);
  }
}

TEST(DeviceInspection, OfOtherLayersIsAsOnTheCpu) {
  for (const bool kimi : {false, true}) {
    const Transformer here =
        kimi ? kimi_model(/*k3=*/true, block_attn_res()) : relative_model(block_attn_res());
    expect_near(mixing_of(on_pretend_device(here)), mixing_of(here), 1e-8);
  }
}

}  // namespace
}  // namespace attnres::testing::device_inspection_test
