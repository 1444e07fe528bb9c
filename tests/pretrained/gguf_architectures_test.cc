// GGUF files of architectures that llama.cpp has. The fixtures were made by transformers, converted
// by llama.cpp's own converter, and their log-probabilities computed by llama.cpp
// (tests/interop/make_fixtures.py).

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "attnres/formats/gguf_load.h"
#include "attnres/formats/gguf_model.h"
#include "attnres/layers/attention.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/config.h"
#include "tests/formats/changed_gguf.h"
#include "tests/model/small_models.h"
#include "tests/pretrained/fixture_models.h"

namespace attnres::testing::gguf_architectures_test {
namespace {

namespace fs = std::filesystem;

// One, and keys of its file each of which changes what it computes.
struct Architecture {
  std::string name;
  Json matters;
  double bound = 1e-4;
};

std::vector<Architecture> architectures() {
  return {
      {"llama3", {{"llama.rope.freq_base", 600.0}}},
      {"qwen2", {{"qwen2.rope.scaling.factor", 3.0}}},
      {"qwen3",
       {{"qwen3.rope.scaling.factor", 2.0},
        {"qwen3.rope.scaling.type", "linear"},
        {"qwen3.rope.scaling.attn_factor", 1.5},
        {"qwen3.rope.scaling.original_context_length", 16}}},
      {"smollm3", {{"smollm3.rope.scaling.factor", 3.0}}},
      // llama.cpp takes GeGLU from a table of float16 numbers.
      {"gemma3",
       {{"gemma3.attention.sliding_window", 6},
        {"gemma3.attention.sliding_window_pattern", 2},
        {"gemma3.rope.freq_base_swa", 30.0}},
       1e-2},
      {"mixtral", {{"llama.expert_used_count", 1}}},
      {"qwen3_moe", {{"qwen3moe.expert_used_count", 3}}},
      {"gpt_oss",
       {{"gpt-oss.expert_used_count", 2},
        {"gpt-oss.attention.sliding_window", 6},
        {"gpt-oss.rope.scaling.factor", 2.0}}},
      {"deepseek_v3",
       {{"deepseek2.expert_group_used_count", 1},
        {"deepseek2.expert_weights_norm", false},
        {"deepseek2.expert_weights_scale", 1.0},
        {"deepseek2.rope.scaling.attn_factor", 1.5},
        {"deepseek2.rope.scaling.yarn_log_multiplier", 0.0}}},
  };
}

GgufValue as_gguf(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_float()) return value.get<float>();
  return value.get<uint32_t>();
}

class GgufArchitectures : public ::testing::TestWithParam<Architecture> {
 protected:
  const std::string name_ = GetParam().name + "_gguf_tiny";
  const fs::path file_ = fixture(name_) / "model.gguf";
};

INSTANTIATE_TEST_SUITE_P(Names, GgufArchitectures, ::testing::ValuesIn(architectures()),
                         [](const auto& info) { return info.param.name; });

fs::path copy_in_fresh_folder(const fs::path& file) {
  const fs::path copy = fresh_folder("gguf") / "model.gguf";
  fs::copy_file(file, copy);
  return copy;
}

TEST_P(GgufArchitectures, ScoreAsLlamaCppDoes) {
  EXPECT_LT(error_against_fixture(*load_model(file_), name_), GetParam().bound);
  for (const auto& [key, value] : GetParam().matters.items()) {
    const fs::path changed = changed_gguf(
        copy_in_fresh_folder(file_),
        [&key = key, &value = value](GgufContents& file) { file.key(key) = as_gguf(value); });
    EXPECT_GT(error_against_fixture(*load_model(changed), name_), 5 * GetParam().bound) << key;
  }
}

fs::path saved(const Transformer& model) {
  const fs::path path = fresh_folder("gguf") / "model.gguf";
  save_gguf(model, path, /*context=*/128, {{"tokenizer.ggml.model", "none"}},
            gguf_file_type("f32"));
  return path;
}

// As a number; other values as they are.
double number(const GgufValue& value) {
  return std::visit(
      [](const auto& held) -> double {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(held)>>) return held;
        return 0;
      },
      value);
}

// What llama.cpp's converter writes, but for how it says the factors of DeepSeek's YaRN.
TEST_P(GgufArchitectures, AreWrittenAsLlamaCppsConverterDoes) {
  const fs::path written = saved(*load_model(file_));
  EXPECT_LT(error_against_fixture(*load_model(written), name_), GetParam().bound);
  const GgufFile ours(written), theirs(file_);
  EXPECT_EQ(std::set(ours.names().begin(), ours.names().end()),
            std::set(theirs.names().begin(), theirs.names().end()));
  for (const std::string& name : theirs.names()) {
    EXPECT_EQ(ours.info(name).shape, theirs.info(name).shape) << name;
    EXPECT_TRUE(at::allclose(ours.numbers(name), theirs.numbers(name), 1e-6, 0)) << name;
  }
  const std::string architecture = theirs.text("general.architecture", "");
  EXPECT_EQ(ours.text("general.architecture", ""), architecture);
  int common = 0;
  for (const auto& [key, value] : ours.metadata()) {
    const GgufValue* said = key.starts_with(architecture + ".") ? theirs.find(key) : nullptr;
    if (said == nullptr) continue;
    EXPECT_EQ(value.index(), said->index()) << key;
    EXPECT_NEAR(number(value), number(*said), 1e-6 * std::abs(number(*said))) << key;
    ++common;
  }
  EXPECT_GT(common, 8);
}

// The rows of Llama's queries in the order of Qwen's, and the other way round.
TEST(RotaryRowsInGguf, MatterInTheirOrder) {
  for (const auto& [name, heads] : {std::pair("llama3", 4), {"qwen3", 4}}) {
    const std::string folder = std::string(name) + "_gguf_tiny";
    const fs::path changed = changed_gguf(
        copy_in_fresh_folder(fixture(folder) / "model.gguf"), [heads = heads](GgufContents& file) {
          GgufTensor& queries = file.tensor("blk.0.attn_q.weight");
          const at::Tensor rows = queries.values();
          const int64_t pairs = rows.size(0) / heads / 2;
          queries.values = [=] {
            return rows.view({heads, pairs, 2, -1}).transpose(1, 2).reshape(rows.sizes());
          };
        });
    EXPECT_GT(error_against_fixture(*load_model(changed), folder), 1e-2) << name;
  }
}

// What transformers computes, through a GGUF file.
TEST(ModelsOfTransformers, SurviveGguf) {
  for (const std::string name : {"llama3_tiny", "qwen3_tiny", "deepseek_v3_tiny"}) {
    const auto model = load_model(fixture(name));
    const auto back = load_model(saved(*model));
    EXPECT_LT(error_against_fixture(*back, name), 1e-4) << name;
    EXPECT_EQ(public_layout(back->config()), public_layout(model->config())) << name;
  }
}

TEST(ModelsOfTransformers, AreRefusedWhereLlamaCppComputesOthers) {
  const auto refusal = [](const char* name) {
    const ModelConfig config = load_model(fixture(name))->config();
    return message_of<Error>([&] { gguf_architecture(config); });
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal("mistral_tiny"), HasSubstr("Mistral as Llama, without a window"));
  EXPECT_THAT(refusal("qwen2_tiny"), HasSubstr("computes qwen2 without windows"));
  EXPECT_THAT(refusal("smollm3_tiny"), HasSubstr("but layer 1 (from 0) is nope"));
  EXPECT_THAT(refusal("gemma3_tiny"), HasSubstr("query_pre_attn_scalar"));
  EXPECT_THAT(refusal("mixtral_tiny"), HasSubstr("computes llama with experts and no windows"));
  EXPECT_THAT(refusal("qwen3_moe_tiny"), HasSubstr("layer 0 (from 0) is sliding_window"));
  ModelConfig whole = load_model(fixture("qwen3_moe_tiny"))->config();
  whole.attention = {kGroupedQuery};
  EXPECT_THAT(
      message_of<Error>([&] { gguf_architecture(whole); }),
      HasSubstr("model.experts.renormalize false: llama.cpp computes only true in qwen3moe"));
  EXPECT_THAT(refusal("gpt_oss_tiny"), HasSubstr("truncate false: llama.cpp computes only true"));
}

}  // namespace
}  // namespace attnres::testing::gguf_architectures_test
