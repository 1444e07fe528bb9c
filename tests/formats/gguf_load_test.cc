#include "attnres/formats/gguf_load.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/formats/gguf_model.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/formats/changed_gguf.h"
#include "tests/formats/gguf_models.h"

namespace attnres::testing::gguf_load_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Case {
  std::string name;
  ModelConfig config;
};
std::ostream& operator<<(std::ostream& out, const Case& of) {
  return out << of.name;
}

// One of each architecture that is written.
std::vector<Case> cases() {
  const Json llama3 = {{"type", "llama3"}, {"factor", 8.0}, {"original_context", 16}};
  return {{"llama", gguf_llama()},
          {"llama3", gguf_relative({{"head_width", 24}, {"rope_scaling", llama3}})},
          {"qwen2", gguf_relative({{"grouped_query", {{"qkv_bias", true}}}})},
          {"qwen3", gguf_relative({{"head_width", 24},
                                   {"grouped_query", {{"qk_norm", true}}},
                                   {"rope_scaling", gguf_yarn()}})},
          {"smollm3", gguf_smollm3()},
          {"gemma3", gguf_gemma3()},
          {"deepseek2", gguf_deepseek2()},
          {"kimi_linear", gguf_kimi()},
          {"kimi_k3", gguf_k3()}};
}

WeightFormats formats_of(const fs::path& path) {
  const GgufFile file(path);
  return gguf_weight_formats(file, read_gguf_config(file));
}

// The same numbers in memory as a folder's would be with these formats of weights.
Transformer packed_again(const Transformer& model, const WeightFormats& formats) {
  Transformer packed(model.config(), model.vocab_size(), /*seed=*/std::nullopt,
                     {at::kFloat, at::kFloat, formats});
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
  const Transformer model = perturbed_model(GetParam().config);
  const fs::path path = saved_gguf(model);
  const auto back = loaded_gguf(path);
  EXPECT_EQ(write_config(back->config()), write_config([&] {
              ModelConfig config = model.config();
              config.init_std = ModelConfig().init_std;  // which no file holds
              return config;
            }()));
  EXPECT_EQ(back->vocab_size(), kSmallVocabulary);
  EXPECT_LT(difference(model, *back), 1e-5);
  const StoredConfig stored = read_gguf_config(GgufFile(path)).stored;
  EXPECT_EQ(stored.context, kGgufContext);
  EXPECT_EQ(stored.document_ids.begin, 1);
  EXPECT_THAT(stored.document_ids.ends(), ::testing::ElementsAre(2));
}

// llama.cpp ends a text at the end of a document, of a turn and of a message.
TEST(GgufLoaded, EndsWhereTheFileSays) {
  const fs::path path = changed_gguf(saved_gguf(perturbed_model(gguf_llama())), [](auto& file) {
    file.key("tokenizer.ggml.eot_token_id") = uint32_t{7};
    file.key("tokenizer.ggml.eom_token_id") = uint32_t{2};
  });
  const StoredConfig stored = read_gguf_config(GgufFile(path)).stored;
  EXPECT_THAT(stored.document_ids.ends(), ::testing::ElementsAre(2, 7));
}

TEST(GgufLoaded, EndsAtTokensOfTheModel) {
  const fs::path path = changed_gguf(saved_gguf(perturbed_model(gguf_llama())), [](auto& file) {
    file.key("tokenizer.ggml.bos_token_id") = int32_t{-1};
    file.key("tokenizer.ggml.eos_token_id") = UINT32_MAX;
    file.key("tokenizer.ggml.eot_token_id") = int32_t{7};
    file.key("tokenizer.ggml.eom_token_id") = std::string("<end>");
  });
  const StoredConfig stored = read_gguf_config(GgufFile(path)).stored;
  EXPECT_EQ(stored.document_ids.begin, nullptr);
  EXPECT_EQ(stored.document_ids.end, 7);
  EXPECT_THAT(stored.notes, ::testing::ElementsAre(HasSubstr("bos_token_id: not read: -1"),
                                                   HasSubstr("eos_token_id: not read: 4294967295"),
                                                   HasSubstr("eom_token_id: not read: \"<end>\"")));
}

// As llama.cpp writes GLM's: block_count has the layers that predict further tokens.
TEST(GgufLoaded, LeavesOutLayersForFurtherTokens) {
  const Transformer model = perturbed_model(gguf_deepseek2());
  const fs::path plain = saved_gguf(model);
  const auto with_layers = [&](uint32_t blocks, uint32_t further) {
    return changed_gguf(plain, [=](GgufContents& file) {
      file.key("deepseek2.block_count") = blocks;
      file.key("deepseek2.nextn_predict_layers") = further;
      for (const char* name : {"blk.2.attn_norm.weight", "blk.2.nextn.eh_proj.weight"}) {
        const at::Tensor ones = at::ones({32});
        file.tensors.push_back({name, {32}, GgufType::f32, [ones] { return ones; }});
      }
    });
  };
  const fs::path path = with_layers(3, 1);
  EXPECT_LT(difference(model, *loaded_gguf(path)), 1e-5);
  EXPECT_THAT(read_gguf_config(GgufFile(path)).stored.notes,
              ::testing::ElementsAre(HasSubstr("changed.gguf: of its 3 layers the last 1, which")));
  EXPECT_THAT(read_gguf_config(GgufFile(plain)).stored.notes, ::testing::IsEmpty());
  const auto refusal = [&](uint32_t blocks, uint32_t further) {
    return message_of<Error>([&] { loaded_gguf(with_layers(blocks, further)); });
  };
  EXPECT_THAT(refusal(2, 0), HasSubstr("blk.2.attn_norm.weight is no tensor"));
  EXPECT_THAT(refusal(3, 3), HasSubstr("nextn_predict_layers: expected 0 to 2, got 3"));
  EXPECT_THAT(refusal(4, 1), HasSubstr("blk.2."));
}

// Every parameter, as it was or as the product that it was folded into. A router's bias too, which
// hardly shows.
TEST_P(GgufLoad, FillsEveryParameter) {
  const Transformer model = perturbed_model(GetParam().config);
  const auto back = loaded_gguf(saved_gguf(model));
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
  const Transformer model = perturbed_model(GetParam().config);
  for (const GgufType type : {GgufType::f16, GgufType::q8_0, GgufType::q4_0}) {
    const auto back = loaded_gguf(saved_gguf(model, blocks_of(weight_format(type)).name));
    const WeightFormat format = weight_format(type);
    for (const Parameter& parameter : model.parameters().all()) {
      const bool is_weight = parameter.kind == ParameterKind::matrix ||
                             parameter.kind == ParameterKind::embedding ||
                             parameter.kind == ParameterKind::head;
      if (!is_weight || parameter.role == "gate" || parameter.role == "kv_b_proj") continue;
      const at::Tensor expected = unpack_weight(
          pack_weight(parameter.tensor.detach(),
                      fits(format, parameter.tensor.size(-1)) ? format : WeightFormat::f16));
      EXPECT_TRUE(
          at::equal(back->parameters().find(parameter.site, parameter.role)->tensor, expected))
          << parameter.role;
      EXPECT_FALSE(at::equal(parameter.tensor, expected)) << "or this says nothing";
    }
  }
}

// Packed in memory as in the file: bit by bit what packing the model itself gives.
TEST_P(GgufLoad, TakesStoredBytes) {
  const Transformer model = perturbed_model(GetParam().config);
  for (const GgufType type : {GgufType::f16, GgufType::bf16, GgufType::q8_0, GgufType::q4_0}) {
    const fs::path path = saved_gguf(model, blocks_of(weight_format(type)).name);
    const WeightFormat format = weight_format(type);
    const auto back = loaded_gguf(path, Precision(at::kFloat, at::kFloat, formats_of(path)));
    int packed = 0;
    for (const Parameter& parameter : back->parameters().all()) {
      if (!parameter.packed.defined() || parameter.role == "kv_b_proj") continue;
      EXPECT_EQ(parameter.packed.format,
                fits(format, parameter.packed.columns) ? format : WeightFormat::f16);
      const at::Tensor of = model.parameters().find(parameter.site, parameter.role)->tensor;
      const PackedMatrix expected = pack_weight(of.detach(), parameter.packed.format);
      EXPECT_TRUE(at::equal(parameter.packed.bytes, expected.bytes)) << parameter.role;
      ++packed;
    }
    EXPECT_GT(packed, 10);
    EXPECT_EQ(difference(*back, packed_again(*loaded_gguf(path), formats_of(path))), 0);
  }
}

TEST_P(GgufLoad, LoadsStages) {
  const Transformer model = perturbed_model(GetParam().config);
  const fs::path path = saved_gguf(model);
  const auto whole = loaded_gguf(path), stage = loaded_gguf(path, {}, {1, 3});
  EXPECT_LT(stage->parameters().all().size(), whole->parameters().all().size());
  for (const Parameter& parameter : stage->parameters().all()) {
    EXPECT_TRUE(at::equal(parameter.tensor,
                          whole->parameters().find(parameter.site, parameter.role)->tensor));
  }
}

TEST(GgufLoaded, StaysInTheFileWhereItCan) {
  const fs::path path = saved_gguf(perturbed_model(gguf_llama()), "q8_0");
  std::unique_ptr<Transformer> model;
  at::Tensor expected;
  {
    const GgufFile file(path);
    const GgufConfig config = read_gguf_config(file);
    model =
        load_gguf(file, config, config.stored.model, {at::kFloat, at::kFloat, WeightFormat::q8_0});
    const auto is_view = [&](int site, const char* role, const char* name) {
      return model->parameters().find(site, role)->packed.bytes.const_data_ptr() ==
             file.stored(name).bytes.const_data_ptr();
    };
    EXPECT_TRUE(is_view(kEmbeddingSite, "token_embedding", "token_embd.weight"));
    EXPECT_TRUE(is_view(2, "o_proj", "blk.1.attn_output.weight"));
    EXPECT_TRUE(is_view(3, "down_proj", "blk.1.ffn_down.weight"));
    EXPECT_TRUE(is_view(3, "up_proj", "blk.1.ffn_up.weight"));
    EXPECT_FALSE(is_view(2, "q_proj", "blk.1.attn_q.weight")) << "its rows have another order";
    expected = log_probabilities(*model);
  }
  fs::remove(path);
  EXPECT_TRUE(at::equal(log_probabilities(*model), expected)) << "the model keeps it mapped";
}

TEST(GgufLoaded, KnowsTiedHeads) {
  for (ModelConfig config : {gguf_llama(), gguf_kimi()}) {
    config.tie_embeddings = true;
    const Transformer model = perturbed_model(config);
    const auto back = loaded_gguf(saved_gguf(model));
    EXPECT_TRUE(back->config().tie_embeddings);
    EXPECT_LT(difference(model, *back), 1e-5);
  }
}

// Kimi Linear's layers with AttnRes: the gate's two maps come back as one, which rounds otherwise,
// and AttnRes on random weights amplifies rounding; SwiGLU comes back as itself.
TEST(GgufLoaded, GivesTheSameModelWithFoldedGates) {
  const Transformer model = perturbed_model(gguf_kimi({{"depth_mixing", block_attn_res(2)}}));
  const auto back = loaded_gguf(saved_gguf(model));
  EXPECT_TRUE(back->config().settings<DeltaAttentionSettings>().has_full_rank_gate());
  EXPECT_FALSE(back->config().activation.is_situ());
  EXPECT_LT(difference(model, *back), 2e-4);
  // As another gate would not pass.
  const at::NoGradGuard not_recording;
  at::Tensor(back->parameters().find(0, "g_proj")->tensor).mul_(1.01);
  EXPECT_GT(difference(model, *back), 1e-3);
}

TEST(GgufLoaded, DenseModelsHaveNoExperts) {
  Json json = write_config(gguf_kimi());
  json["experts"] = {{"count", 0}};
  const Transformer model = perturbed_model(read_model_config(json));
  EXPECT_LT(difference(model, *loaded_gguf(saved_gguf(model))), 1e-5);
}

// A file with llama3 has what each frequency is divided by, and from another program no more.
TEST(GgufLoaded, FindsTheSettingsOfLlama3) {
  for (const int64_t head_width : {8, 24, 128}) {
    const ModelConfig config = gguf_relative(
        {{"head_width", head_width},
         {"rope_theta", 500000.0},
         {"rope_scaling", {{"type", "llama3"}, {"factor", 32.0}, {"original_context", 8192}}}});
    const Transformer model = perturbed_model(config);
    const fs::path path = changed_gguf(saved_gguf(model), [](GgufContents& contents) {
      for (const char* key : {"original_context_length", "low_freq_factor", "high_freq_factor"}) {
        contents.erase_key(fmt::format("llama.rope.scaling.{}", key));
      }
    });
    const auto back = loaded_gguf(path);
    EXPECT_LT(difference(model, *back), 1e-5);
    EXPECT_EQ(back->config().rope_scaling.factor, 32);
    if (head_width == 128) {
      EXPECT_EQ(back->config().rope_scaling.original_context, 8192);
    }
    const fs::path squared = changed_gguf(path, [](GgufContents& contents) {
      GgufTensor& factors = contents.tensor("rope_freqs.weight");
      factors.values = [values = factors.values()] { return values * values; };
    });
    EXPECT_THAT(message_of<Error>([&] { loaded_gguf(squared); }),
                HasSubstr("rope_freqs.weight holds factors other than those of llama3"));
  }
}

// deepseek2 says three factors (of cosine and sine, of scores, of both) with two numbers.
TEST(GgufLoaded, KeepsTheFactorsOfDeepseeksScores) {
  const double usual = 1 / std::sqrt(32.0), plain = 1 + 0.1 * std::log(4.0);
  for (const auto& [magnitude, scores] : {std::pair(0.0, 1.0),
                                          {1.0, plain * plain},
                                          {1.05, 1.3},
                                          {plain, plain * plain},
                                          {1.0, 1.0}}) {
    Json scaling = gguf_yarn();
    scaling["attention_factor"] = magnitude;
    const ModelConfig config =
        gguf_deepseek2({{"rope_scaling", scaling},
                        {"latent_attention", {{"score_scale", scores == 1 ? 0 : usual * scores}}}});
    const Transformer model = perturbed_model(config);
    const auto back = loaded_gguf(saved_gguf(model));
    EXPECT_LT(difference(model, *back), 2e-5) << magnitude << " " << scores;
    // As another factor would not pass.
    const Transformer other = perturbed_model(gguf_deepseek2(
        {{"rope_scaling", gguf_yarn()}, {"latent_attention", {{"score_scale", usual * 2}}}}));
    EXPECT_GT(difference(model, other), 1e-3);
  }
}

TEST(GgufLoaded, KeepsTheFormatOfEachTensor) {
  const Transformer exact = perturbed_model(gguf_llama());
  const std::map<std::string, GgufType> types = {{"token_embd.weight", GgufType::f16},
                                                 {"blk.0.attn_q.weight", GgufType::q4_0},
                                                 {"blk.0.attn_k.weight", GgufType::bf16},
                                                 {"blk.0.ffn_up.weight", GgufType::q5_0}};
  const fs::path path = changed_gguf(saved_gguf(exact), [&](GgufContents& contents) {
    for (GgufTensor& tensor : contents.tensors) {
      if (tensor.shape.size() == 2) tensor.type = GgufType::q8_0;
    }
    for (const auto& [name, type] : types) contents.tensor(name).type = type;
    contents.tensor("blk.1.attn_v.weight").type = GgufType::f32;
  });
  const auto model = loaded_gguf(path, Precision(at::kFloat, at::kFloat, formats_of(path)));
  const auto format_at = [&](int site, const char* role) {
    return model->parameters().find(site, role)->packed.format;
  };
  EXPECT_EQ(format_at(kEmbeddingSite, "token_embedding"), WeightFormat::f16);
  EXPECT_EQ(format_at(0, "q_proj"), WeightFormat::q4_0);
  EXPECT_EQ(format_at(0, "k_proj"), WeightFormat::bf16);
  EXPECT_EQ(format_at(0, "v_proj"), WeightFormat::q8_0);
  EXPECT_EQ(format_at(1, "up_proj"), WeightFormat::q5_0);
  EXPECT_FALSE(model->parameters().find(2, "v_proj")->packed.defined()) << "float32 is not packed";
  // Both ways of multiplying, and of reading the file.
  const auto numbers = loaded_gguf(path);
  EXPECT_LT(difference(*model, *numbers), 0.3);
  EXPECT_GT(difference(*numbers, exact), 1e-4) << "or this says nothing";
}

// Any damage of what stands before the data is refused, or gives a model all the same.
TEST(GgufLoaded, SurvivesDamage) {
  Json json = write_config(gguf_llama());
  json["layers"] = 1;
  json["width"] = 32;
  const fs::path path = saved_gguf(perturbed_model(read_model_config(json)));
  const std::string bytes = read_file(path);
  const size_t header = bytes.size() - 4 * (2 * 50 * 32 + 3 * 32 + 3 * 32 * 32 + 3 * 32 * 96);
  const fs::path damaged_path = path.parent_path() / "damaged.gguf";
  int refused = 0, loads = 0;
  for (size_t at = 0; at < header; at += 3) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (at % 2 == 0 ? 0xff : 0x01));
    write_text(damaged_path, damaged);
    try {
      loaded_gguf(damaged_path);
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
