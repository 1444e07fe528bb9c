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

Json inspection_of(const Transformer& model) {
  const std::vector<int32_t> tokens = as_vector(random_ids(1, kContext + 5));
  Inspection inspection = inspect_model(model, kContext);
  measure_tokens(model, ByteTokenizer(), kContext, tokens, inspection);
  measure_depth_weights(model, kContext, tokens, inspection);
  measure_matrices(model, kContext, tokens, /*ranks=*/true, inspection);
  measure_effects(model, ByteTokenizer(), kContext, tokens, /*on_progress=*/{}, inspection);
  return inspection_to_json(inspection);
}

class DeviceInspectionOf : public ::testing::TestWithParam<Mixing> {};

INSTANTIATE_TEST_SUITE_P(Mechanisms, DeviceInspectionOf, ::testing::ValuesIn(every_mechanism()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DeviceInspectionOf, IsInspectedAsOnTheCpu) {
  const Transformer here = small_model(GetParam().json, {.layers = 2, .vocab_size = 256});
  expect_near(inspection_of(on_pretend_device(here)), inspection_of(here), 1e-8);
}

TEST(DeviceInspection, OfEveryKindOfLayerIsAsOnTheCpu) {
  for (const bool kimi : {false, true}) {
    const Transformer here =
        kimi ? kimi_model(/*k3=*/true, block_attn_res()) : relative_model(block_attn_res());
    const auto matrices = [](const Transformer& model) {
      Inspection inspection;
      measure_matrices(model, kContext, as_vector(random_ids(1, kContext)), /*ranks=*/false,
                       inspection);
      measure_depth_weights(model, kContext, as_vector(random_ids(1, kContext)), inspection);
      return inspection_to_json(inspection);
    };
    expect_near(matrices(on_pretend_device(here)), matrices(here), 1e-8);
  }
}

}  // namespace
}  // namespace attnres::testing::device_inspection_test
