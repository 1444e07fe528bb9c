#include "attnres/formats/gguf_load.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "attnres/formats/gguf_model.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"

namespace attnres::testing::gguf_load_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kContext = 64;

// Rows of most matrices are multiples of 32.
ModelConfig llama_config() {
  return read_model_config({{"layers", 2},
                            {"width", 64},
                            {"heads", 4},
                            {"kv_heads", 2},
                            {"ffn_width", 96},
                            {"norm_eps", 1e-5},
                            {"rope_theta", 500.0},
                            {"init_std", 0.2}});
}

ModelConfig kimi(const Json& changes = Json::object()) {
  Json json = {{"layers", 3},
               {"width", 64},
               {"heads", 4},
               {"ffn_width", 96},
               {"norm_eps", 1e-6},
               {"init_std", 0.2},
               {"attention", {"delta", "delta", "latent"}},
               {"delta_attention", {{"head_width", 32}}},
               {"latent_attention",
                {{"kv_rank", 32}, {"key_width", 24}, {"shared_key_width", 8}, {"value_width", 16}}},
               {"experts", {{"count", 4}, {"chosen", 2}, {"width", 32}, {"scaling", 2.446}}},
               {"depth_mixing", residual()}};
  json.merge_patch(changes);
  return read_model_config(json);
}

ModelConfig k3() {
  return kimi({{"delta_attention", {{"output_gate", "full_rank"}, {"gate_lower_bound", -5.0}}},
               {"latent_attention", {{"q_rank", 32}, {"output_gate", true}}},
               {"experts", {{"latent_width", 32}}},
               {"activation", {{"type", "situ"}}},
               {"depth_mixing", block_attn_res(4)}});
}

struct Case {
  std::string name;
  ModelConfig config;
};
std::ostream& operator<<(std::ostream& out, const Case& of) {
  return out << of.name;
}

// One of each architecture that is written.
std::vector<Case> cases() {
  return {{"llama", llama_config()}, {"kimi_linear", kimi()}, {"kimi_k3", k3()}};
}

Transformer model_of(const ModelConfig& config) {
  return perturbed(Transformer(config, kSmallVocabulary, /*seed=*/1, at::kFloat));
}

fs::path saved(const Transformer& model, GgufType type = GgufType::f32) {
  const fs::path path = fresh_folder("gguf") / "model.gguf";
  save_gguf(
      model, path, kContext,
      {{"tokenizer.ggml.bos_token_id", uint32_t{1}}, {"tokenizer.ggml.eos_token_id", uint32_t{2}}},
      type);
  return path;
}

std::unique_ptr<Transformer> loaded(const fs::path& path, Precision precision = {},
                                    SiteRange sites = {}) {
  const GgufFile file(path);
  return load_gguf(file, read_gguf_config(file), precision, sites);
}

at::Tensor log_probabilities(const Transformer& model) {
  const at::Tensor ids = random_ids(2, 13);
  return model.log_probabilities(ids.narrow(1, 0, 12), ids.narrow(1, 1, 12));
}

double difference(const Transformer& a, const Transformer& b) {
  return (log_probabilities(a) - log_probabilities(b)).abs().max().item<double>();
}

// The same numbers in memory as a folder's would be with this format of weights.
Transformer packed_again(const Transformer& model, WeightFormat format) {
  Transformer packed(model.config(), model.vocab_size(), /*seed=*/std::nullopt,
                     {at::kFloat, at::kFloat, format});
  for (const Parameter& parameter : packed.parameters().all()) {
    const at::Tensor from =
        model.parameters().find(parameter.site, parameter.role)->tensor.detach();
    if (parameter.packed.defined()) {
      pack_weight(from, parameter.packed);
    } else {
      parameter.tensor.detach().copy_(from);
    }
  }
  return packed;
}

class GgufLoad : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Architectures, GgufLoad, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(GgufLoad, GivesTheSameModel) {
  const Transformer model = model_of(GetParam().config);
  const fs::path path = saved(model);
  const auto back = loaded(path);
  EXPECT_EQ(write_config(back->config()), write_config([&] {
              ModelConfig config = model.config();
              config.init_std = ModelConfig().init_std;  // which no file holds
              return config;
            }()));
  EXPECT_EQ(back->vocab_size(), kSmallVocabulary);
  EXPECT_LT(difference(model, *back), 1e-5);
  const StoredConfig stored = read_gguf_config(GgufFile(path)).stored;
  EXPECT_EQ(stored.context, kContext);
  EXPECT_EQ(stored.document_ids.begin, 1);
  EXPECT_THAT(stored.document_ids.ends(), ::testing::ElementsAre(2));
}

// Every parameter, as it was or as the product that it was folded into. A router's bias too, which
// hardly shows.
TEST_P(GgufLoad, FillsEveryParameter) {
  const Transformer model = model_of(GetParam().config);
  const auto back = loaded(saved(model));
  ASSERT_EQ(back->parameters().all().size(), model.parameters().all().size());
  for (const Parameter& parameter : model.parameters().all()) {
    at::Tensor expected = parameter.tensor.detach();
    if (parameter.role == "pseudo_query") {
      expected = expected * model.parameters().find(parameter.site, "key_norm")->tensor.detach();
    }
    if (parameter.role == "key_norm") expected = at::ones_like(expected);
    const at::Tensor found = back->parameters().find(parameter.site, parameter.role)->tensor;
    const double bound = parameter.role == "A_log" ? 1e-6 : 0;
    EXPECT_TRUE(at::allclose(found, expected, bound, bound)) << parameter.role;
  }
}

// What the file's rows are rounded to, which are the parameter's but for the map to keys.
TEST_P(GgufLoad, RoundsAsTheFormatDoes) {
  const Transformer model = model_of(GetParam().config);
  for (const GgufType type : {GgufType::f16, GgufType::q8_0, GgufType::q4_0}) {
    const auto back = loaded(saved(model, type));
    const WeightFormat format = weight_format(type);
    for (const Parameter& parameter : model.parameters().all()) {
      const bool is_weight = parameter.kind == ParameterKind::matrix ||
                             parameter.kind == ParameterKind::embedding ||
                             parameter.kind == ParameterKind::head;
      if (!is_weight || parameter.role == "gate" || parameter.role == "kv_b_proj") continue;
      const bool fits = !has_blocks(format) || parameter.tensor.size(-1) % kPackedBlock == 0;
      const at::Tensor expected =
          unpack_weight(pack_weight(parameter.tensor.detach(), fits ? format : WeightFormat::f16));
      EXPECT_TRUE(
          at::equal(back->parameters().find(parameter.site, parameter.role)->tensor, expected))
          << parameter.role;
      EXPECT_FALSE(at::equal(parameter.tensor, expected)) << "or this says nothing";
    }
  }
}

// Packed in memory as in the file: bit by bit what packing the model itself gives.
TEST_P(GgufLoad, TakesStoredBytes) {
  const Transformer model = model_of(GetParam().config);
  for (const GgufType type : {GgufType::f16, GgufType::bf16, GgufType::q8_0, GgufType::q4_0}) {
    const fs::path path = saved(model, type);
    const WeightFormat format = weight_format(type);
    {
      const GgufFile file(path);
      ASSERT_EQ(gguf_weight_format(file, read_gguf_config(file)), format);
    }
    const auto back = loaded(path, Precision(at::kFloat, at::kFloat, format));
    int packed = 0;
    for (const Parameter& parameter : back->parameters().all()) {
      if (!parameter.packed.defined() || parameter.role == "kv_b_proj") continue;
      const at::Tensor of = model.parameters().find(parameter.site, parameter.role)->tensor;
      const PackedWeight expected = pack_weight(of.detach(), parameter.packed.format);
      EXPECT_TRUE(at::equal(parameter.packed.bytes, expected.bytes)) << parameter.role;
      ++packed;
    }
    EXPECT_GT(packed, 10);
    EXPECT_EQ(difference(*back, packed_again(*loaded(path), format)), 0);
  }
}

TEST_P(GgufLoad, LoadsStages) {
  const Transformer model = model_of(GetParam().config);
  const fs::path path = saved(model);
  const auto whole = loaded(path), stage = loaded(path, {}, {1, 3});
  EXPECT_LT(stage->parameters().all().size(), whole->parameters().all().size());
  for (const Parameter& parameter : stage->parameters().all()) {
    EXPECT_TRUE(at::equal(parameter.tensor,
                          whole->parameters().find(parameter.site, parameter.role)->tensor));
  }
}

TEST(GgufLoaded, StaysInTheFileWhereItCan) {
  const fs::path path = saved(model_of(llama_config()), GgufType::q8_0);
  std::unique_ptr<Transformer> model;
  at::Tensor expected;
  {
    const GgufFile file(path);
    model = load_gguf(file, read_gguf_config(file), {at::kFloat, at::kFloat, WeightFormat::q8_0});
    const auto is_view = [&](int site, const char* role, const char* name) {
      return model->parameters().find(site, role)->packed.bytes.const_data_ptr() ==
             file.stored(name).bytes.const_data_ptr();
    };
    EXPECT_TRUE(is_view(kEmbeddingSite, "token_embedding", "token_embd.weight"));
    EXPECT_TRUE(is_view(2, "o_proj", "blk.1.attn_output.weight"));
    EXPECT_TRUE(is_view(3, "down_proj", "blk.1.ffn_down.weight"));
    EXPECT_FALSE(is_view(3, "up_proj", "blk.1.ffn_up.weight")) << "it lies beside gate_proj";
    expected = log_probabilities(*model);
  }
  fs::remove(path);
  EXPECT_TRUE(at::equal(log_probabilities(*model), expected)) << "the model keeps it mapped";
}

TEST(GgufLoaded, KnowsTiedHeads) {
  for (ModelConfig config : {llama_config(), kimi()}) {
    config.tie_embeddings = true;
    const Transformer model = model_of(config);
    const auto back = loaded(saved(model));
    EXPECT_TRUE(back->config().tie_embeddings);
    EXPECT_LT(difference(model, *back), 1e-5);
  }
}

// Kimi Linear's layers with AttnRes: the gate's two maps come back as one, which rounds otherwise,
// and AttnRes on random weights amplifies rounding; SwiGLU comes back as itself.
TEST(GgufLoaded, GivesTheSameModelWithFoldedGates) {
  const Transformer model = model_of(kimi({{"depth_mixing", block_attn_res(2)}}));
  const auto back = loaded(saved(model));
  EXPECT_TRUE(back->config().delta_attention.has_full_rank_gate());
  EXPECT_FALSE(back->config().activation.is_situ());
  EXPECT_LT(difference(model, *back), 2e-4);
  // As another gate would not pass.
  const at::NoGradGuard not_recording;
  at::Tensor(back->parameters().find(0, "g_proj")->tensor).mul_(1.01);
  EXPECT_GT(difference(model, *back), 1e-3);
}

TEST(GgufLoaded, DenseModelsHaveNoExperts) {
  Json json = write_config(kimi());
  json["experts"] = {{"count", 0}};
  const Transformer model = model_of(read_model_config(json));
  EXPECT_LT(difference(model, *loaded(saved(model))), 1e-5);
}

// A file as it was, but for its keys and tensors.
struct Contents {
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;

  GgufValue& key(const std::string& name) {
    for (auto& [key, value] : metadata) {
      if (key == name) return value;
    }
    return metadata.emplace_back(name, GgufValue()).second;
  }
  void erase_key(const std::string& name) {
    std::erase_if(metadata, [&](const auto& entry) { return entry.first == name; });
  }
  GgufTensor& tensor(const std::string& name) {
    for (GgufTensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    fail("no tensor {}", name);
  }
};

fs::path changed(const fs::path& path, const std::function<void(Contents&)>& change) {
  const GgufFile file(path);
  Contents contents = {file.metadata(), {}};
  for (const std::string& name : file.names()) {
    const at::Tensor numbers = file.numbers(name);
    contents.tensors.push_back(
        {name, file.info(name).shape, GgufType::f32, [numbers] { return numbers; }});
  }
  change(contents);
  const fs::path to = path.parent_path() / "changed.gguf";
  write_gguf(to, contents.metadata, contents.tensors);
  return to;
}

std::string refusal(const fs::path& path, const std::function<void(Contents&)>& change) {
  const fs::path file = changed(path, change);
  const std::string message = message_of<Error>([&] { loaded(file); });
  EXPECT_THAT(message, HasSubstr("changed.gguf: "));
  return message;
}

TEST(GgufLoaded, RefusesWhatItDoesNotCompute) {
  const fs::path llama = saved(model_of(llama_config()));
  const auto with_key = [&](const std::string& key, const GgufValue& value) {
    return refusal(llama, [&](Contents& contents) { contents.key(key) = value; });
  };
  const auto without_key = [&](const std::string& key) {
    return refusal(llama, [&](Contents& contents) { contents.erase_key(key); });
  };
  EXPECT_LT(difference(*loaded(llama), *loaded(changed(llama, [](Contents&) {}))), 1e-12);
  EXPECT_THAT(with_key("general.architecture", std::string("gemma3")),
              AllOf(HasSubstr("'gemma3'"), HasSubstr("llama, kimi-linear and kimi-k3")));
  EXPECT_THAT(without_key("general.architecture"), HasSubstr("general.architecture is ''"));
  EXPECT_THAT(without_key("llama.context_length"), HasSubstr("context_length is missing"));
  EXPECT_THAT(without_key("llama.attention.layer_norm_rms_epsilon"), HasSubstr("is missing"));
  EXPECT_THAT(with_key("llama.block_count", uint32_t{1'000'000}),
              HasSubstr("1000000 layers do not fit"));
  EXPECT_THAT(with_key("llama.block_count", 2.5f), HasSubstr("expected a whole number"));
  EXPECT_THAT(with_key("llama.attention.head_count", uint32_t{0}), HasSubstr("1 or more"));
  EXPECT_THAT(with_key("llama.attention.head_count", uint32_t{3}),
              HasSubstr("3 heads are not divisible by 2"));
  EXPECT_THAT(with_key("llama.attention.head_count_kv", uint32_t{3}), HasSubstr("kv_heads"));
  EXPECT_THAT(with_key("llama.rope.scaling.type", std::string("yarn")), HasSubstr("\"yarn\""));
  EXPECT_THAT(with_key("llama.rope.scaling.factor", 8.f), HasSubstr("rope.scaling.factor is 8"));
  EXPECT_NO_THROW(loaded(changed(llama, [](Contents& contents) {
    contents.key("llama.rope.scaling.factor") = 1.f;
    contents.key("llama.rope.scaling.type") = std::string("none");
    contents.key("llama.expert_count") = uint32_t{0};
  })));
  EXPECT_THAT(with_key("llama.rope.dimension_count", uint32_t{8}), HasSubstr("computes only 16"));
  EXPECT_THAT(with_key("llama.attention.key_length", uint32_t{8}),
              HasSubstr("value_length is 16, but attnres computes only 8"));
  EXPECT_THAT(with_key("llama.expert_count", uint32_t{8}), HasSubstr("expert_count is 8"));
  EXPECT_THAT(with_key("llama.logit_scale", 2.f), HasSubstr("logit_scale"));
  EXPECT_THAT(with_key("llama.vocab_size", uint32_t{51}),
              HasSubstr("token_embd.weight has the shape [50, 64], expected [51, 64]"));

  const fs::path k3_file = saved(model_of(k3()));
  const auto with_k3_key = [&](const std::string& key, const GgufValue& value) {
    return refusal(k3_file, [&](Contents& contents) { contents.key("kimi-k3." + key) = value; });
  };
  EXPECT_THAT(with_k3_key("expert_gating_func", uint32_t{1}), HasSubstr("expert_gating_func is 1"));
  EXPECT_THAT(with_k3_key("expert_weights_norm", false), HasSubstr("expert_weights_norm is false"));
  EXPECT_THAT(with_k3_key("expert_group_count", uint32_t{4}), HasSubstr("expert_group_count is 4"));
  EXPECT_THAT(with_k3_key("attention.head_count_kv", std::vector<int32_t>{0, 1}),
              HasSubstr("head_count_kv has 2 entries, but block_count is 3"));
  EXPECT_THAT(with_k3_key("attention.key_length_mla", uint32_t{8}), HasSubstr("key_length_mla 8"));
  EXPECT_THAT(with_k3_key("attn_res.block_size", int32_t{-1}), HasSubstr("attn_res.block_size"));
}

TEST(GgufLoaded, RefusesOtherTensors) {
  const fs::path path = saved(model_of(k3()));
  EXPECT_THAT(refusal(path, [](Contents& contents) { contents.tensors.pop_back(); }),
              HasSubstr("is missing"));
  EXPECT_THAT(
      refusal(path,
              [](Contents& contents) { contents.tensor("blk.0.ssm_a").name = "blk.0.ssm_b"; }),
      HasSubstr("blk.0.ssm_a is missing"));
  EXPECT_THAT(refusal(path,
                      [](Contents& contents) {
                        contents.tensors.push_back(contents.tensor("output_norm.weight"));
                        contents.tensors.back().name = "blk.0.attn_q.bias";
                      }),
              HasSubstr("blk.0.attn_q.bias is no tensor of a model"));
  EXPECT_THAT(refusal(path,
                      [](Contents& contents) {
                        GgufTensor& decay = contents.tensor("blk.0.ssm_a");
                        decay.values = [shape = decay.shape] { return at::ones(shape); };
                      }),
              HasSubstr("blk.0.ssm_a: expected negative numbers"));
  EXPECT_THAT(refusal(path,
                      [](Contents& contents) {
                        GgufTensor& norm = contents.tensor("output_norm.weight");
                        norm.values = [] { return at::full({64}, NAN); };
                      }),
              HasSubstr("output_norm.weight holds numbers that are not finite"));
}

TEST(GgufLoaded, ChoosesTheFormatThatKeepsMost) {
  const fs::path path = saved(model_of(llama_config()));
  const auto format = [&](GgufType most, GgufType embedding) {
    const GgufFile file(changed(path, [&](Contents& contents) {
      for (GgufTensor& tensor : contents.tensors) {
        if (tensor.shape.size() == 2) tensor.type = most;
      }
      contents.tensor("token_embd.weight").type = embedding;
    }));
    return gguf_weight_format(file, read_gguf_config(file));
  };
  EXPECT_EQ(format(GgufType::q4_0, GgufType::q4_0), WeightFormat::q4_0);
  EXPECT_EQ(format(GgufType::q4_0, GgufType::q8_0), WeightFormat::q8_0);
  EXPECT_EQ(format(GgufType::q8_0, GgufType::f16), WeightFormat::f16);
  EXPECT_EQ(format(GgufType::f16, GgufType::bf16), WeightFormat::f32);
}

// Any damage of what stands before the data is refused, or gives a model all the same.
TEST(GgufLoaded, SurvivesDamage) {
  Json json = write_config(llama_config());
  json["layers"] = 1;
  json["width"] = 32;
  const fs::path path = saved(model_of(read_model_config(json)));
  const std::string bytes = read_file(path);
  const size_t header = bytes.size() - 4 * (2 * 50 * 32 + 3 * 32 + 3 * 32 * 32 + 3 * 32 * 96);
  const fs::path damaged_path = path.parent_path() / "damaged.gguf";
  int refused = 0, loads = 0;
  for (size_t at = 0; at < header; at += 3) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (at % 2 == 0 ? 0xff : 0x01));
    write_text(damaged_path, damaged);
    try {
      loaded(damaged_path);
      ++loads;
    } catch (const Error& e) {
      EXPECT_FALSE(std::string(e.what()).empty());
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(loads, 0) << "some keys say nothing that a model needs";
}

}  // namespace
}  // namespace attnres::testing::gguf_load_test
