#include "attnres/depth/depth_mixing.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/depth/mechanisms/block_attn_res.h"
#include "attnres/depth/mechanisms/residual.h"
#include "attnres/support/error.h"

namespace attnres::testing::depth_mixing_test {
namespace {

using ::testing::HasSubstr;

const MixerShape kShape = {.width = 32, .sublayers = 12, .heads = 4, .kv_heads = 2};

DepthMixing mixing(const Json& json, const MixerShape& shape = kShape) {
  return {json, shape};
}

// What the program wrote when it kept a recipe's JSON: keys in this order, every default.
TEST(DepthMixing, IsWrittenAsEver) {
  EXPECT_EQ(DepthMixing().to_json().dump(), R"({"type":"residual"})");
  EXPECT_EQ(mixing({{"type", "block_attn_res"}, {"num_blocks", 3}}).to_json().dump(),
            R"({"type":"block_attn_res","block_size":4,"query":"learned","weights":"softmax",)"
            R"("key_norm":true,"window":12,"heads":1,"norm_eps":"fixed","query_init":0.0,)"
            R"("score_scale":1.0,"value_query":false,"block_summary":"sum"})");
  EXPECT_EQ(mixing({{"heads", 2}, {"type", "attn_res"}}).to_json().dump(),
            R"({"type":"attn_res","query":"learned","weights":"softmax",)"
            R"("key_norm":true,"window":12,"heads":2,"norm_eps":"fixed","query_init":0.0,)"
            R"("score_scale":1.0,"value_query":false})");
  EXPECT_EQ(mixing({{"type", "laurel"}, {"variant", "rw"}}).to_json().dump(),
            R"({"type":"laurel","variant":"rw","rank":32})");
}

TEST(DepthMixing, ReadsWhatItWritesWhateverTheMechanism) {
  size_t changed = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    const DepthMixing defaults = mixing({{"type", mechanism.text.name}});
    const Json json = defaults.to_json();
    EXPECT_EQ(mixing(json).to_json().dump(), json.dump());
    EXPECT_EQ(json.size(), 1 + mechanism.settings.size()) << json;
    for (const ConfigKey& setting : mechanism.settings) {
      const std::string& key = setting.name;
      Json without = json;
      without.erase(key);
      EXPECT_EQ(mixing(without), defaults) << json << " without " << key;
      if (!json.at(key).is_boolean()) continue;
      Json other = json;
      other[key] = !json.at(key).get<bool>();
      EXPECT_EQ(mixing(other).to_json(), other);
      EXPECT_FALSE(mixing(other) == defaults) << other;
      ++changed;
    }
  }
  EXPECT_GE(changed, 5U);
}

TEST(DepthMixing, HasTheSettingsOfItsMechanismOnly) {
  EXPECT_NE(DepthMixing().settings<ResidualSettings>(), nullptr);
  const DepthMixing full = mixing({{"type", "attn_res"}, {"window", 3}});
  ASSERT_NE(full.settings<AttnResSettings>(), nullptr);
  EXPECT_EQ(full.settings<AttnResSettings>()->window, 3);
  EXPECT_EQ(full.settings<BlockAttnResSettings>(), nullptr);
  const DepthMixing block = mixing({{"type", "block_attn_res"}, {"block_size", 5}});
  ASSERT_NE(block.settings<BlockAttnResSettings>(), nullptr);
  EXPECT_EQ(block.settings<BlockAttnResSettings>()->block_size, 5);
  EXPECT_EQ(block.settings<AttnResSettings>(), nullptr);

  EXPECT_EQ(attn_res_settings(full)->block_size, 1);
  EXPECT_EQ(attn_res_settings(block)->block_size, 5);
  for (const Mechanism& mechanism : mechanisms()) {
    const DepthMixing some = mixing({{"type", mechanism.text.name}});
    const std::string& name = some.name();
    EXPECT_EQ(some.settings<ResidualSettings>() != nullptr, name == "residual") << name;
    EXPECT_EQ(attn_res_settings(some) != nullptr, name == "attn_res" || name == "block_attn_res");
  }
}

TEST(DepthMixing, IsPlainWithoutAnArm) {
  for (const char* type : {"attn_res", "block_attn_res"}) {
    const auto is_plain = [&](const Json& settings) {
      Json json = {{"type", type}};
      json.update(settings);
      return attn_res_settings(mixing(json))->is_plain(kShape);
    };
    EXPECT_TRUE(is_plain(Json::object()));
    EXPECT_TRUE(is_plain({{"window", 12}}));
    EXPECT_TRUE(is_plain({{"query_init", 0.5}}));  // how it starts, not what it computes
    for (const Json& arm : std::vector<Json>{{{"query", "none"}},
                                             {{"query", "input_dependent"}},
                                             {{"weights", "sigmoid"}},
                                             {{"weights", "factorised"}},
                                             {{"key_norm", false}},
                                             {{"window", 11}},
                                             {{"heads", 2}},
                                             {{"norm_eps", "per_source_count"}}}) {
      EXPECT_FALSE(is_plain(arm)) << arm;
    }
  }
  EXPECT_TRUE(
      attn_res_settings(mixing({{"type", "block_attn_res"}, {"block_size", 7}}))->is_plain(kShape));
}

TEST(DepthMixing, IsOfTheShapeThatItWasReadFor) {
  ParameterRegistry parameters(at::kDouble, /*seed=*/0);
  MixerShape shorter = kShape;
  shorter.sublayers = 4;
  const DepthMixing block = mixing({{"type", "block_attn_res"}, {"block_size", 5}});
  try {
    block.make_mixer(shorter, parameters);
    ADD_FAILURE() << "a block of 5 sublayers in a model of 4";
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), HasSubstr("model.depth_mixing.block_size: expected 1 to 4"));
  }
  EXPECT_NE(block.make_mixer(kShape, parameters), nullptr);
}

}  // namespace
}  // namespace attnres::testing::depth_mixing_test
