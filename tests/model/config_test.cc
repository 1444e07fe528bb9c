#include "attnres/model/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "attnres/support/config.h"

namespace attnres::config_test {
namespace {

std::string refusal(const Json& model) {
  try {
    read_model_config(model);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(ModelConfig, FillsInWhatIsLeftOut) {
  const ModelConfig config = read_model_config({{"width", 96}, {"heads", 6}});
  EXPECT_EQ(config.kv_heads, 6);
  EXPECT_EQ(config.ffn_width, 256);
  EXPECT_TRUE(config.is_residual());
  // What it writes, it reads back the same.
  EXPECT_EQ(write_config(read_model_config(write_config(config))), write_config(config));
}

TEST(ModelConfig, NamesWhatCannotBe) {
  const std::vector<std::pair<Json, std::string>> cases = {
      {{{"width", 100}, {"heads", 3}}, "model.width: 100 is not divisible by 3 heads"},
      {{{"width", 12}, {"heads", 4}}, "model.head_width: rotary positions need an even one, got 3"},
      {{{"heads", 4}, {"kv_heads", 3}}, "model.kv_heads: 4 heads are not divisible by 3"},
      {{{"layers", 0}}, "model.layers: expected a whole number from 1"},
      {{{"layers", -2}}, "got -2"},
      {{{"layers", 1000000}}, "model.layers: expected a whole number from 1 to 1024"},
      {{{"experts", {{"count", int64_t{1} << 40}}}},
       "model.experts.count: expected a whole number"},
      {{{"experts", {{"count", 4}, {"shared", int64_t{1} << 40}}}}, "model.experts.shared"},
      {{{"attention", {"latent"}}, {"latent_attention", {{"kv_rank", int64_t{1} << 40}}}},
       "model.latent_attention.kv_rank"},
      {{{"layers", 2.5}}, "model.layers: expected a whole number, got 2.5"},
      {{{"width", "wide"}}, "model.width: expected a whole number, got \"wide\""},
      {{{"widht", 64}}, "the nearest known key is model.width"},
      {{{"norm_eps", 0}}, "model.norm_eps: expected 1e-30 to 1, got 0"},
      {{{"norm_eps", 1e30}}, "model.norm_eps: expected 1e-30 to 1, got 1e+30"},
      {{{"rope_theta", 1}}, "model.rope_theta: expected above 1 and at most 1000000000000, got 1"},
      {{{"rope_theta", 1e30}}, "model.rope_theta: expected above 1"},
      {{{"rope_scaling", {{"type", "linear"}, {"factor", 1e30}}}},
       "model.rope_scaling.factor: expected 1 to 1000000, got 1e+30"},
      {{{"embedding_scale", 1e30}}, "model.embedding_scale: expected above 0 and at most 1000000"},
      {{{"grouped_query", {{"score_scale", 1e30}}}}, "model.grouped_query.score_scale: expected 0"},
      {{{"experts", {{"count", 4}, {"scaling", 1e30}}}}, "model.experts.scaling: expected above 0"},
      {{{"depth_mixing", 3}}, "model.depth_mixing: expected an object"},
      {{{"depth_mixing", "residual"}}, "write model.depth_mixing.type=residual"},
      {{{"depth_mixing", Json::object()}}, "model.depth_mixing.type"},
  };
  for (const auto& [model, expected] : cases) {
    EXPECT_NE(refusal(model).find(expected), std::string::npos)
        << model.dump() << ": " << refusal(model);
  }
}

TEST(ModelConfig, AWindowsOwnFrequenciesHaveABaseOfMoreThanOne) {
  Json model = {{"attention", {"sliding_window"}}, {"sliding_window", {{"rope_theta", 1}}}};
  EXPECT_NE(refusal(model).find("sliding_window.rope_theta: expected 0 or more than 1, got 1"),
            std::string::npos)
      << refusal(model);
  model["sliding_window"]["rope_theta"] = 1.5;
  EXPECT_EQ(refusal(model), "accepted");
}

TEST(ModelConfig, TakesTheLargestNumbersThatItNames) {
  const ModelConfig config =
      read_model_config({{"norm_eps", 1}, {"rope_theta", 1e12}, {"embedding_scale", 1e6}});
  EXPECT_EQ(config.norm_eps, 1);
  EXPECT_EQ(config.rope_theta, 1e12);
  EXPECT_EQ(config.embedding_scale, 1e6);
}

}  // namespace
}  // namespace attnres::config_test
