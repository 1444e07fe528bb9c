#include "attnres/formats/gguf_model.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>

#include "attnres/support/error.h"
#include "tests/formats/gguf_parser.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"

namespace attnres::testing::gguf_model_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class SavedGguf : public ParsedGguf {
 public:
  explicit SavedGguf(const Transformer& model, const std::string& type = "f32")
      : ParsedGguf(saved(model, type)) {}

 private:
  static fs::path saved(const Transformer& model, const std::string& type) {
    const fs::path path = fresh_folder("gguf") / "model.gguf";
    save_gguf(model, path, /*context=*/64, {{"tokenizer.ggml.model", "none"}},
              gguf_file_type(type));
    return path;
  }
};

const at::Tensor& parameter(const Transformer& model, int site, const std::string& role) {
  const Parameter* found = model.parameters().find(site, role);
  require(found != nullptr, "no parameter {} at site {}", role, site);
  return found->tensor;
}

// Whether a tensor of the file has these numbers, in this order and shape, as float32.
bool holds(const ParsedTensor& stored, const at::Tensor& expected) {
  const at::Tensor flat = expected.detach().to(at::kFloat).contiguous().view(-1);
  if (stored.sizes != std::vector<int64_t>(expected.sizes().rbegin(), expected.sizes().rend())) {
    return false;
  }
  for (int64_t i = 0; i < flat.numel(); ++i) {
    if (stored.at(i) != flat.const_data_ptr<float>()[i]) return false;
  }
  return true;
}

// Kimi Linear's layers: two of delta attention, one of latent attention; a dense one, then experts.
// The rows of most matrices are multiples of 32.
Json kimi_json(const Json& changes = Json::object()) {
  Json json = {{"layers", 3},
               {"width", 64},
               {"heads", 4},
               {"ffn_width", 96},
               {"norm_eps", 1e-6},
               {"attention", {"delta", "delta", "latent"}},
               {"delta_attention", {{"head_width", 32}}},
               {"latent_attention",
                {{"kv_rank", 32}, {"key_width", 24}, {"shared_key_width", 8}, {"value_width", 16}}},
               {"experts", {{"count", 4}, {"chosen", 2}, {"width", 32}, {"scaling", 2.5}}},
               {"depth_mixing", residual()}};
  json.merge_patch(changes);
  return json;
}

// Everything that Kimi K3 adds.
Json k3_json() {
  return kimi_json({{"delta_attention", {{"output_gate", "full_rank"}, {"gate_lower_bound", -5.0}}},
                    {"latent_attention", {{"q_rank", 32}, {"output_gate", true}}},
                    {"experts", {{"latent_width", 32}}},
                    {"activation", {{"type", "situ"}, {"beta", 4.0}, {"linear_beta", 25.0}}},
                    {"depth_mixing", block_attn_res(4)}});
}

Transformer kimi_model(const Json& json) {
  Transformer model(read_model_config(json), kSmallVocabulary, /*seed=*/1);
  for (const Parameter& p : model.parameters().all()) add_noise(p, 0.1);
  return model;
}

TEST(GgufModel, LlamaHasItsKeys) {
  const SavedGguf file(small_model(residual()));
  EXPECT_EQ(file.at("general.architecture"), "llama");
  EXPECT_EQ(file.at("general.file_type"), 0);
  EXPECT_EQ(file.at("llama.vocab_size"), kSmallVocabulary);
  EXPECT_EQ(file.at("llama.context_length"), 64);
  EXPECT_EQ(file.at("llama.embedding_length"), 32);
  EXPECT_EQ(file.at("llama.block_count"), 3);
  EXPECT_EQ(file.at("llama.feed_forward_length"), 48);
  EXPECT_EQ(file.at("llama.attention.head_count"), 4);
  EXPECT_EQ(file.at("llama.attention.head_count_kv"), 2);
  EXPECT_EQ(file.at("llama.rope.dimension_count"), 8);
  EXPECT_EQ(file.at("llama.rope.freq_base"), 500);
  EXPECT_FLOAT_EQ(file.at("llama.attention.layer_norm_rms_epsilon").get<float>(), 1e-5f);
  EXPECT_EQ(file.at("tokenizer.ggml.model"), "none");
}

TEST(GgufModel, LlamaHasItsTensors) {
  const Transformer model = small_model(residual());
  const SavedGguf file(model);
  EXPECT_TRUE(
      holds(file.tensor("token_embd.weight"), parameter(model, kEmbeddingSite, "token_embedding")));
  EXPECT_TRUE(holds(file.tensor("output_norm.weight"), parameter(model, 6, "input_norm")));
  EXPECT_TRUE(holds(file.tensor("output.weight"), parameter(model, 6, "head")));
  for (int layer = 0; layer < 3; ++layer) {
    const auto stored = [&](const char* name, int site, const char* role) {
      return holds(file.tensor(fmt::format("blk.{}.{}.weight", layer, name)),
                   parameter(model, 2 * layer + site, role));
    };
    EXPECT_TRUE(stored("attn_norm", 0, "input_norm"));
    EXPECT_TRUE(stored("attn_v", 0, "v_proj"));
    EXPECT_TRUE(stored("attn_output", 0, "o_proj"));
    EXPECT_TRUE(stored("ffn_norm", 1, "input_norm"));
    EXPECT_TRUE(stored("ffn_gate", 1, "gate_proj"));
    EXPECT_TRUE(stored("ffn_up", 1, "up_proj"));
    EXPECT_TRUE(stored("ffn_down", 1, "down_proj"));
    EXPECT_FALSE(stored("attn_q", 0, "q_proj")) << "its rows are in another order";
  }
  EXPECT_EQ(file.tensors().size(), 3 + 3 * 9u);
}

// llama.cpp turns channels 2c and 2c + 1 of a head by the angle by which c and c + K/2 are turned
// here.
TEST(GgufModel, LlamaPairsNeighbouringChannels) {
  const Transformer model = small_model(residual());
  const SavedGguf file(model);
  const int64_t K = 8, width = 32;
  for (const auto& [name, role, heads] :
       {std::tuple("blk.1.attn_q.weight", "q_proj", 4), {"blk.1.attn_k.weight", "k_proj", 2}}) {
    const at::Tensor weight = parameter(model, 2, role).to(at::kFloat);
    const ParsedTensor& stored = file.tensor(name);
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t c = 0; c < K / 2; ++c) {
        for (int64_t i = 0; i < width; ++i) {
          const int64_t row = head * K + 2 * c;
          EXPECT_EQ(stored.at(row * width + i), weight[head * K + c][i].item<float>());
          EXPECT_EQ(stored.at((row + 1) * width + i),
                    weight[head * K + c + K / 2][i].item<float>());
        }
      }
    }
  }
}

TEST(GgufModel, TiedHeadIsLeftToLlama) {
  const SavedGguf llama(small_model(residual(), {.tied = true}));
  EXPECT_THROW(llama.tensor("output.weight"), Error);
  const Transformer tied = kimi_model(kimi_json({{"tie_embeddings", true}}));
  EXPECT_TRUE(holds(SavedGguf(tied).tensor("output.weight"),
                    parameter(tied, kEmbeddingSite, "token_embedding")));
}

TEST(GgufModel, StoresMatricesAsAsked) {
  const Transformer model = kimi_model(kimi_json());
  const std::map<GgufType, uint32_t> file_types = {{GgufType::f32, 0},
                                                   {GgufType::f16, 1},
                                                   {GgufType::q4_0, 2},
                                                   {GgufType::q8_0, 7},
                                                   {GgufType::bf16, 32}};
  for (const auto& [type, file_type] : file_types) {
    const SavedGguf file(model, blocks_of(weight_format(type)).name);
    EXPECT_EQ(file.at("general.file_type"), file_type);
    EXPECT_EQ(file.has("general.quantization_version"), has_blocks(weight_format(type)));
    for (const ParsedTensor& tensor : file.tensors()) {
      const bool exact = tensor.sizes.size() == 1 ||
                         tensor.name.find("ssm_a") < std::string::npos ||
                         tensor.name.find("conv1d") < std::string::npos ||
                         tensor.name.find("ffn_gate_inp") < std::string::npos;
      const bool short_rows = has_blocks(weight_format(type)) && tensor.sizes[0] % 32 != 0;
      const GgufType expected = exact ? GgufType::f32 : short_rows ? GgufType::f16 : type;
      EXPECT_EQ(tensor.type, static_cast<uint32_t>(expected)) << tensor.name;
    }
  }
}

TEST(GgufModel, KimiLinearHasItsKeys) {
  const SavedGguf file(kimi_model(kimi_json()));
  EXPECT_EQ(file.at("general.architecture"), "kimi-linear");
  const auto at = [&](const std::string& key) { return file.at("kimi-linear." + key); };
  EXPECT_EQ(at("attention.head_count"), 4);
  EXPECT_EQ(at("attention.head_count_kv"), Json({0, 0, 1}));
  EXPECT_EQ(at("ssm.conv_kernel"), 4);
  EXPECT_EQ(at("kda.head_dim"), 32);
  EXPECT_EQ(at("attention.kv_lora_rank"), 32);
  EXPECT_EQ(at("attention.key_length"), 40);
  EXPECT_EQ(at("attention.value_length"), 32);
  EXPECT_EQ(at("attention.key_length_mla"), 32);
  EXPECT_EQ(at("attention.value_length_mla"), 16);
  EXPECT_EQ(at("rope.dimension_count"), 8);
  EXPECT_EQ(at("leading_dense_block_count"), 1);
  EXPECT_EQ(at("expert_count"), 4);
  EXPECT_EQ(at("expert_used_count"), 2);
  EXPECT_EQ(at("expert_shared_count"), 1);
  EXPECT_EQ(at("expert_feed_forward_length"), 32);
  EXPECT_EQ(at("expert_gating_func"), 2);
  EXPECT_EQ(at("expert_weights_scale"), 2.5);
  for (const char* key : {"kda.gate_lower_bound", "attention.q_lora_rank", "attn_res.block_size",
                          "activation.situ_beta", "expert_latent_length"}) {
    EXPECT_FALSE(file.has(fmt::format("kimi-linear.{}", key))) << key;
  }
}

TEST(GgufModel, KimiLinearHasItsTensors) {
  const Transformer model = kimi_model(kimi_json());
  const SavedGguf file(model);
  const auto stored = [&](const char* name, int site, const char* role) {
    return holds(file.tensor(fmt::format("blk.{}.{}", site / 2, name)),
                 parameter(model, site, role));
  };
  EXPECT_TRUE(stored("ssm_f_a.weight", 0, "f_a_proj"));
  EXPECT_TRUE(stored("ssm_f_b.weight", 0, "f_b_proj"));
  EXPECT_TRUE(stored("ssm_beta.weight", 0, "b_proj"));
  EXPECT_TRUE(stored("ssm_dt.bias", 0, "dt_bias"));
  EXPECT_TRUE(stored("ssm_g_a.weight", 0, "g_a_proj"));
  EXPECT_TRUE(stored("ssm_g_b.weight", 0, "g_b_proj"));
  EXPECT_TRUE(stored("ssm_norm.weight", 0, "o_norm"));
  EXPECT_TRUE(stored("attn_q.weight", 0, "q_proj"));
  EXPECT_TRUE(stored("attn_kv_a_mqa.weight", 4, "kv_a_proj_with_mqa"));
  EXPECT_TRUE(stored("attn_kv_a_norm.weight", 4, "kv_a_layernorm"));
  EXPECT_TRUE(stored("ffn_gate.weight", 1, "gate_proj"));
  EXPECT_TRUE(stored("ffn_gate_inp.weight", 3, "gate"));
  EXPECT_TRUE(stored("exp_probs_b.bias", 3, "e_score_correction_bias"));
  EXPECT_TRUE(stored("ffn_gate_exps.weight", 3, "w1"));
  EXPECT_TRUE(stored("ffn_down_exps.weight", 3, "w2"));
  EXPECT_TRUE(stored("ffn_up_exps.weight", 3, "w3"));
  EXPECT_TRUE(stored("ffn_up_shexp.weight", 3, "shared_w3"));

  const ParsedTensor& decay = file.tensor("blk.0.ssm_a");
  EXPECT_THAT(decay.sizes, ElementsAre(1, 4, 1, 1));
  const at::Tensor A_log = parameter(model, 0, "A_log");
  for (int64_t head = 0; head < 4; ++head) {
    EXPECT_FLOAT_EQ(decay.at(head), -std::exp(A_log[head].item<float>()));
  }
  const ParsedTensor& kernels = file.tensor("blk.0.ssm_conv1d_k.weight");
  EXPECT_THAT(kernels.sizes, ElementsAre(4, 1, 128, 1));
  const at::Tensor k_conv1d = parameter(model, 0, "k_conv1d").view({128, 4});
  EXPECT_EQ(kernels.at(4 * 5 + 3), k_conv1d[5][3].item<float>());
}

TEST(GgufModel, LatentMapIsSplit) {
  const Transformer model = kimi_model(kimi_json());
  const SavedGguf file(model);
  const int64_t H = 4, key = 24, value = 16, R = 32;
  const at::Tensor kv_b = parameter(model, 4, "kv_b_proj");
  const ParsedTensor &k_b = file.tensor("blk.2.attn_k_b.weight"),
                     &v_b = file.tensor("blk.2.attn_v_b.weight");
  EXPECT_THAT(k_b.sizes, ElementsAre(key, R, H));
  EXPECT_THAT(v_b.sizes, ElementsAre(R, value, H));
  for (int64_t head = 0; head < H; ++head) {
    for (int64_t r = 0; r < R; ++r) {
      const auto weight = [&](int64_t row) {
        return kv_b[head * (key + value) + row][r].item<float>();
      };
      for (int64_t i = 0; i < key; ++i) EXPECT_EQ(k_b.at((head * R + r) * key + i), weight(i));
      for (int64_t i = 0; i < value; ++i) {
        EXPECT_EQ(v_b.at((head * value + i) * R + r), weight(key + i));
      }
    }
  }
}

TEST(GgufModel, K3HasItsKeysAndTensors) {
  const Transformer model = kimi_model(k3_json());
  const SavedGguf file(model);
  EXPECT_EQ(file.at("general.architecture"), "kimi-k3");
  EXPECT_EQ(file.at("kimi-k3.attn_res.block_size"), 2) << "in Transformer layers";
  EXPECT_EQ(file.at("kimi-k3.activation.situ_beta"), 4);
  EXPECT_EQ(file.at("kimi-k3.activation.situ_linear_beta"), 25);
  EXPECT_EQ(file.at("kimi-k3.kda.gate_lower_bound"), -5);
  EXPECT_EQ(file.at("kimi-k3.attention.q_lora_rank"), 32);
  EXPECT_EQ(file.at("kimi-k3.expert_latent_length"), 32);
  EXPECT_EQ(file.at("kimi-k3.expert_weights_norm"), true);

  const auto stored = [&](const char* name, int site, const char* role) {
    return holds(file.tensor(fmt::format("blk.{}.{}", site / 2, name)),
                 parameter(model, site, role));
  };
  EXPECT_TRUE(stored("ssm_g.weight", 0, "g_proj"));
  EXPECT_TRUE(stored("attn_q_a.weight", 4, "q_a_proj"));
  EXPECT_TRUE(stored("attn_q_a_norm.weight", 4, "q_a_layernorm"));
  EXPECT_TRUE(stored("attn_q_b.weight", 4, "q_b_proj"));
  EXPECT_TRUE(stored("attn_gate.weight", 4, "g_proj"));
  EXPECT_TRUE(stored("ffn_routed_down.weight", 3, "routed_expert_down_proj"));
  EXPECT_TRUE(stored("ffn_routed_norm.weight", 3, "routed_expert_norm"));
  EXPECT_TRUE(stored("ffn_routed_up.weight", 3, "routed_expert_up_proj"));
  EXPECT_THAT(file.tensor("blk.0.ssm_a").sizes, ElementsAre(4));

  const auto score_is = [&](const char* name, int site) {
    return holds(file.tensor(name),
                 parameter(model, site, "key_norm") * parameter(model, site, "pseudo_query"));
  };
  EXPECT_TRUE(holds(file.tensor("blk.0.attn_res_score.weight"), at::zeros({64})));
  EXPECT_TRUE(score_is("blk.0.ffn_res_score.weight", 1));
  EXPECT_TRUE(score_is("blk.2.attn_res_score.weight", 4));
  EXPECT_TRUE(score_is("blk.2.ffn_res_score.weight", 5));
  EXPECT_TRUE(score_is("output_res_score.weight", 6));
  EXPECT_FALSE(score_is("blk.1.ffn_res_score.weight", 5));
}

// The report's own model: Kimi Linear's layers and AttnRes.
TEST(GgufModel, KimiLinearLayersWithAttnResAreK3) {
  const Transformer model = kimi_model(kimi_json({{"depth_mixing", block_attn_res(2)}}));
  const SavedGguf file(model);
  EXPECT_EQ(file.at("general.architecture"), "kimi-k3");
  EXPECT_EQ(file.at("kimi-k3.attn_res.block_size"), 1);
  EXPECT_EQ(file.at("kimi-k3.activation.situ_beta"), 65536);
  EXPECT_EQ(file.at("kimi-k3.activation.situ_linear_beta"), 0);
  EXPECT_FALSE(file.has("kimi-k3.kda.gate_lower_bound"));
  EXPECT_TRUE(holds(file.tensor("blk.0.ssm_g.weight"),
                    at::mm(parameter(model, 0, "g_b_proj"), parameter(model, 0, "g_a_proj"))));
  EXPECT_THROW(file.tensor("blk.0.ssm_g_a.weight"), Error);
}

TEST(GgufModel, EveryFeatureOfK3NeedsItsArchitecture) {
  EXPECT_EQ(gguf_architecture(read_model_config(kimi_json())), "kimi-linear");
  for (const Json& change : std::vector<Json>{
           {{"delta_attention", {{"output_gate", "full_rank"}}}},
           {{"delta_attention", {{"gate_lower_bound", -5.0}}}},
           {{"latent_attention", {{"q_rank", 32}}}},
           {{"latent_attention", {{"output_gate", true}}}},
           {{"experts", {{"latent_width", 32}}}},
           {{"experts", {{"shared", 0}}}},
           {{"activation", {{"type", "situ"}}}},
       }) {
    const Transformer model = kimi_model(kimi_json(change));
    const SavedGguf file(model);
    EXPECT_EQ(file.at("general.architecture"), "kimi-k3") << change;
    EXPECT_EQ(file.at("kimi-k3.attn_res.block_size"), 0);
    EXPECT_THROW(file.tensor("output_res_score.weight"), Error);
  }
}

TEST(GgufModel, DenseModelsHaveNoExperts) {
  Json json = kimi_json();
  json.erase("experts");
  const SavedGguf file(kimi_model(json));
  EXPECT_EQ(file.at("kimi-linear.leading_dense_block_count"), 3);
  EXPECT_EQ(file.at("kimi-linear.expert_count"), 0);
  EXPECT_EQ(file.at("kimi-linear.expert_used_count"), 0);
}

TEST(GgufModel, SaysWhatLlamaCppDoesNotCompute) {
  const auto refusal = [](const Json& json) {
    const ModelConfig config = read_model_config(json);
    return message_of<Error>([&] { gguf_architecture(config); });
  };
  const auto mixed = [](const Json& depth_mixing) {
    return kimi_json({{"depth_mixing", depth_mixing}});
  };
  EXPECT_THAT(refusal(mixed(attn_res())), AllOf(HasSubstr("Full AttnRes"), HasSubstr("even")));
  EXPECT_THAT(refusal(mixed(block_attn_res(3))), HasSubstr("block_size 3 (sublayers)"));
  EXPECT_THAT(refusal(mixed({{"type", "rezero"}})), HasSubstr("type rezero"));
  EXPECT_THAT(refusal(mixed({{"type", "block_attn_res"}, {"block_size", 2}, {"window", 1}})),
              HasSubstr("window 1: llama.cpp computes only 6"));
  EXPECT_THAT(
      refusal(mixed({{"type", "block_attn_res"}, {"block_size", 2}, {"score_scale", "learned"}})),
      HasSubstr("model.depth_mixing.score_scale \"learned\": llama.cpp computes only 1.0"));
  EXPECT_THAT(
      refusal(mixed({{"type", "block_attn_res"}, {"block_size", 2}, {"block_summary", "rms"}})),
      HasSubstr("model.depth_mixing.block_summary \"rms\": llama.cpp computes only \"sum\""));
  EXPECT_THAT(
      refusal(mixed({{"type", "block_attn_res"}, {"block_size", 2}, {"value_query", true}})),
      HasSubstr("model.depth_mixing.value_query true: llama.cpp computes only false"));
  EXPECT_THAT(
      refusal(mixed({{"type", "block_attn_res"}, {"block_size", 2}, {"weights", "sigmoid"}})),
      HasSubstr("weights \"sigmoid\""));
  const Json retrofitted = {
      {"type", "block_attn_res"}, {"block_size", 2}, {"norm_eps", "per_source_count"}};
  EXPECT_THAT(refusal(mixed(retrofitted)),
              AllOf(HasSubstr("norm_eps \"per_source_count\""), HasSubstr("--approximate")));
  EXPECT_THAT(refusal({{"depth_mixing", retrofitted}}),
              AllOf(HasSubstr("grouped_query"), Not(HasSubstr("--approximate"))));
  // How the queries began is not computed.
  EXPECT_NO_THROW(gguf_architecture(read_model_config(
      mixed({{"type", "block_attn_res"}, {"block_size", 2}, {"query_init", 0.5}}))));
  EXPECT_THAT(refusal({{"depth_mixing", block_attn_res(2)}}), HasSubstr("grouped_query"));
  EXPECT_THAT(refusal({{"activation", {{"type", "situ"}}}}), HasSubstr("activation.type situ"));
  EXPECT_THAT(refusal({{"experts", {{"count", 4}}}}), HasSubstr("model.experts"));
  EXPECT_THAT(refusal(kimi_json({{"attention", {"delta", "grouped_query", "latent"}}})),
              HasSubstr("no other mixture"));
  EXPECT_THAT(refusal(kimi_json({{"delta_attention", {{"heads", 2}}}})), HasSubstr("heads 2"));
  EXPECT_THAT(refusal(kimi_json({{"experts", {{"renormalize", false}}}})),
              HasSubstr("experts.renormalize"));
  Json only_delta = kimi_json({{"attention", {"delta"}}});
  only_delta.erase("latent_attention");
  EXPECT_THAT(refusal(only_delta), HasSubstr("some layers of each"));
}

}  // namespace
}  // namespace attnres::testing::gguf_model_test
