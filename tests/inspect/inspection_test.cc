#include "attnres/inspect/inspection.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/inspect/measure.h"
#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "tests/model/small_models.h"

namespace attnres::testing::inspection_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr int64_t kContext = 8;

// Everything that there is to measure.
Inspection inspection_of(const Json& mixing) {
  const Transformer model = small_model(mixing, {.vocab_size = 256});
  const std::vector<int32_t> tokens = as_vector(random_ids(1, 2 * kContext + 5));
  Inspection inspection = inspect_model(model, kContext);
  measure_tokens(model, ByteTokenizer(), kContext, tokens, inspection);
  measure_depth_weights(model, kContext, tokens, inspection);
  measure_matrices(model, kContext, tokens, /*ranks=*/true, inspection);
  measure_effects(model, ByteTokenizer(), kContext, tokens, /*on_progress=*/{}, inspection);
  return inspection;
}

std::vector<std::string> keys_of(const Json& json) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  return keys;
}

TEST(Inspection, IsTheSameAfterItWasWrittenAndRead) {
  const Json written = inspection_to_json(inspection_of(block_attn_res()));
  EXPECT_THAT(
      keys_of(written),
      ElementsAre("model", "vocab_size", "context", "parameters", "sites", "embedding_share",
                  "inter_block", "intra_block", "mixing_matrices", "tokens", "effects",
                  "effective_depth", "magnitudes", "similarity", "by_position", "by_token_class"));
  Json expected = written;
  expected.erase("model");
  const Inspection read = read_inspection(parse_json(written.dump(), "written"), "written");
  EXPECT_FALSE(read.model);
  EXPECT_TRUE(std::isnan(read.mixing_matrices.at(0).mean.at(0).at(1)));  // above the diagonal
  EXPECT_EQ(inspection_to_json(read).dump(), expected.dump());
}

// A drawing shows none.
TEST(Inspection, HasRanksWhereTheyAreAskedFor) {
  const Transformer model = small_model(residual(), {.vocab_size = 256});
  const std::vector<int32_t> tokens = as_vector(random_ids(1, kContext));
  Inspection with, without;
  measure_matrices(model, kContext, tokens, /*ranks=*/true, with);
  measure_matrices(model, kContext, tokens, /*ranks=*/false, without);
  const InspectedMatrix &ranked = with.mixing_matrices.at(0), &bare = without.mixing_matrices.at(0);
  EXPECT_EQ(ranked.semiseparable_rank, 1) << "every site reads the sum of all before it";
  EXPECT_EQ(bare.semiseparable_rank, 0);
  EXPECT_EQ(bare.semiseparable_rank_of_samples, 0);
  EXPECT_EQ(bare.mean.back(), ranked.mean.back());
}

TEST(Inspection, LeavesOutWhatAModelDoesNotHave) {
  const Json json = inspection_to_json(inspection_of(residual()));
  EXPECT_THAT(keys_of(json), ElementsAre("model", "vocab_size", "context", "parameters", "sites",
                                         "mixing_matrices", "tokens", "effects", "effective_depth",
                                         "magnitudes", "similarity"));
  EXPECT_THAT(json.at("sites"), IsEmpty());
  EXPECT_THAT(keys_of(json.at("effects")), ElementsAre("loss", "layers", "sublayers"));
}

TEST(Inspection, TakesNoNumberThatWouldOverflow) {
  const Inspection read = read_inspection(
      Json{{"effects", {{"loss", 1e200}, {"layers", {{{"layer", 1LL << 40}, {"change", "a"}}}}}},
           {"mixing_matrices", {{{"mean", {{1e101, 2}}}}}}},
      "x");
  EXPECT_TRUE(std::isnan(read.effects->loss));
  EXPECT_EQ(read.effects->layers.at(0).layer, 0);
  EXPECT_TRUE(std::isnan(read.mixing_matrices.at(0).mean.at(0).at(0)));
  EXPECT_EQ(read.mixing_matrices.at(0).mean.at(0).at(1), 2);
}

TEST(Inspection, RefusesTokensThatTheModelLacks) {
  const Transformer model = small_model(residual(), {.vocab_size = 50});
  const std::vector<int32_t> tokens = {1, 2, 50};
  Inspection inspection = inspect_model(model, kContext);
  const auto expect_refusal = [](const auto& measure) {
    EXPECT_THAT(measure, ThrowsMessage<Error>(HasSubstr("token id 50 is out of range")));
  };
  expect_refusal([&] { measure_tokens(model, ByteTokenizer(), kContext, tokens, inspection); });
  expect_refusal([&] { measure_depth_weights(model, kContext, tokens, inspection); });
  expect_refusal([&] { measure_matrices(model, kContext, tokens, /*ranks=*/true, inspection); });
  expect_refusal(
      [&] { measure_effects(model, ByteTokenizer(), kContext, tokens, {}, inspection); });
}

TEST(Inspection, OfTheModelAloneCountsItsParameters) {
  const Transformer model = small_model(block_attn_res(), {});
  const Inspection inspection = inspect_model(model, kContext);
  int64_t sum = 0;
  for (const auto& [part, count] : inspection.parameters) {
    EXPECT_GT(count, 0) << part;
    if (part != "total") sum += count;
  }
  EXPECT_EQ(inspection.parameters.back().second, sum);
  EXPECT_EQ(sum, model.parameters().count());
  EXPECT_THAT(keys_of(inspection_to_json(inspection)),
              ElementsAre("model", "vocab_size", "context", "parameters"));
}

TEST(Inspection, OfAnotherVersionIsReadAsFarAsItIsKnown) {
  const Json json = parse_json(R"({"effects": {"layers": [{"layer": 2}], "loss": "much"},
      "mixing_matrices": [{"mean": [[1, null], 7]}], "effective_depth": null, "by_position": 3,
      "eyes": 2})",
                               "a file");
  const Inspection read = read_inspection(json, "a file");
  EXPECT_TRUE(std::isnan(read.effects->loss));
  EXPECT_EQ(read.effects->layers.at(0).layer, 2);
  EXPECT_TRUE(std::isnan(read.effects->layers.at(0).change));
  EXPECT_EQ(read.mixing_matrices.at(0).mean.at(0).at(0), 1);
  EXPECT_TRUE(std::isnan(read.mixing_matrices.at(0).mean.at(0).at(1)));
  EXPECT_THAT(read.mixing_matrices.at(0).mean.at(1), IsEmpty());
  EXPECT_EQ(read.mixing_matrices.at(0).semiseparable_rank, 0);
  EXPECT_FALSE(read.effective_depth);
  EXPECT_FALSE(read.similarity);
  EXPECT_THAT(read.by_position, IsEmpty());
  EXPECT_THAT([] { read_inspection(Json::array(), "a file"); },
              ThrowsMessage<Error>(HasSubstr("a file: not an inspection")));
}

}  // namespace
}  // namespace attnres::testing::inspection_test
