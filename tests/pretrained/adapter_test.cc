#include "attnres/pretrained/adapter.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "attnres/model/merge_low_rank.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/formats/gguf_models.h"
#include "tests/model/small_models.h"
#include "tests/pretrained/fixture_models.h"
#include "tests/text/test_files.h"
#include "tests/tolerances.h"

namespace attnres::testing::adapter_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kConfig = "adapter_config.json";

// A model in a folder or a file, and one with maps of low rank beside it that matter.
struct Adapted {
  fs::path base, adapter = fresh_folder("adapter");
  std::unique_ptr<Transformer> model;

  explicit Adapted(fs::path of, const LoraSettings& lora = {.rank = 3, .alpha = 5})
      : base(std::move(of)) {
    const ModelDirectory directory(base);
    ModelConfig config = directory.config();
    config.lora = lora;
    model = directory.load_as(config, /*seed=*/4);
    for (const Parameter& p : model->parameters().all()) {
      if (is_low_rank(p)) add_noise(p, 0.1);
    }
    save_adapter(*model, base, directory.adapter_layout(), is_low_rank, adapter);
  }
};

fs::path saved(const ModelConfig& config) {
  const fs::path folder = fresh_folder("base");
  save_model(perturbed_model(config), folder, kGgufContext, /*document_ids=*/0);
  return folder;
}

std::vector<ModelConfig> configs() {
  return {gguf_llama(), gguf_gemma3(), gguf_kimi(), gguf_k3(), gguf_deepseek2()};
}

TEST(Adapters, GiveTheModelThatWasSaved) {
  for (const ModelConfig& config : configs()) {
    for (const fs::path& base : {saved(config), saved_gguf(perturbed_model(config))}) {
      const Adapted adapted(base);
      const at::Tensor expected = log_probabilities(*adapted.model);
      const ModelDirectory by_itself(adapted.adapter), of_a_model(base, adapted.adapter);
      EXPECT_EQ(by_itself.path(), adapted.adapter);
      EXPECT_EQ(by_itself.base(), fs::weakly_canonical(base));
      EXPECT_TRUE(at::equal(log_probabilities(*by_itself.load()), expected)) << base;
      EXPECT_TRUE(at::equal(log_probabilities(*of_a_model.load()), expected)) << base;
      // They matter.
      EXPECT_FALSE(close(log_probabilities(*load_model(base)), expected, 1e-3)) << base;
    }
  }
}

// The rows of DeepSeek's maps lie in another order in files; those of what is beside them too.
TEST(Adapters, LieAsTheFilesOfTheirModel) {
  for (const ModelConfig& config : configs()) {
    const Adapted adapted(saved(config), {.rank = 64, .alpha = 64});
    const TensorFiles base(adapted.base), added(adapted.adapter, kAdapterWeights);
    const auto merged = merge_low_rank(*adapted.model);
    const fs::path whole = fresh_folder("merged");
    save_model(*merged, whole, kGgufContext, /*document_ids=*/0, at::kFloat,
               ModelDirectory(adapted.base).stored().layout);
    const TensorFiles expected(whole);
    int maps = 0;
    for (const std::string& a : added.names()) {
      if (!a.ends_with(".lora_A.weight")) continue;
      const std::string module = a.substr(0, a.size() - std::string(".lora_A.weight").size());
      std::string weight = module.substr(std::string("base_model.model.").size()) + ".weight";
      if (!base.contains(weight)) {  // as modules of transformers are called
        for (const auto& [theirs, ours] :
             {std::pair(".mlp.", ".block_sparse_moe."), std::pair(".forget_gate.", ".")}) {
          const size_t at = weight.find(theirs);
          if (at != std::string::npos) weight.replace(at, std::string(theirs).size(), ours);
        }
      }
      const at::Tensor sum = base.read(weight).to(at::kDouble) +
                             at::mm(added.read(module + ".lora_B.weight").to(at::kDouble),
                                    added.read(a).to(at::kDouble));
      EXPECT_TRUE(close(expected.read(weight), sum, 1e-6)) << weight;
      EXPECT_FALSE(close(base.read(weight), sum, 1e-2)) << weight;
      ++maps;
    }
    EXPECT_GE(maps, 14);
  }
}

TEST(Adapters, HoldWhatARetrofitAdds) {
  const fs::path base = saved_gguf(perturbed_model(gguf_llama()), "q8_0");
  const ModelDirectory directory(base);
  ModelConfig config = directory.config();
  config.depth_mixing =
      DepthMixing({{"type", "block_attn_res"}, {"block_size", 2}, {"norm_eps", "per_source_count"}},
                  config.mixer_shape());
  const Precision precision = {at::kFloat, at::kFloat, directory.weight_formats()};
  const auto model = directory.load_as(config, /*seed=*/0, precision);
  EXPECT_TRUE(
      close(log_probabilities(*model), log_probabilities(*directory.load(precision)), 1e-5));
  perturb(*model, ParameterKind::pseudo_query, 1.0);
  const fs::path folder = fresh_folder("adapter");
  const auto is_query = [](const Parameter& p) { return p.kind == ParameterKind::pseudo_query; };
  save_adapter(*model, base, directory.adapter_layout(), is_query, folder);

  const ModelDirectory adapter(folder);
  EXPECT_EQ(adapter.config().depth_mixing.name(), "block_attn_res");
  const auto loaded = adapter.load({at::kFloat, at::kFloat, adapter.weight_formats()});
  EXPECT_TRUE(at::equal(log_probabilities(*loaded), log_probabilities(*model)));
  int packed = 0;
  for (const Parameter& p : loaded->parameters().all()) packed += p.packed.defined() ? 1 : 0;
  EXPECT_GE(packed, 14);
}

// What was trained whole is as exact as it was trained, whatever the model's file stores.
TEST(Adapters, KeepTheNumbersOfWholeParameters) {
  const fs::path base = saved_gguf(perturbed_model(gguf_llama()), "q4_0");
  const ModelDirectory directory(base);
  const auto model = directory.load();
  const auto is_part = [](const Parameter& p) { return p.site == 2 && p.role == "q_proj"; };
  for (const Parameter& p : model->parameters().all()) {
    if (is_part(p)) add_noise(p, 0.1);
  }
  const fs::path folder = fresh_folder("adapter");
  save_adapter(*model, base, directory.adapter_layout(), is_part, folder);
  const ModelDirectory adapter(folder);
  const auto loaded = adapter.load({at::kFloat, at::kFloat, adapter.weight_formats()});
  const Parameter& own = *loaded->parameters().find(2, "q_proj");
  EXPECT_FALSE(own.packed.defined());
  EXPECT_TRUE(at::equal(own.tensor, model->parameters().find(2, "q_proj")->tensor));
  EXPECT_TRUE(loaded->parameters().find(2, "k_proj")->packed.defined());
}

// Of Llama's two layers of three, the output's norm and alpha over the root of the rank; of
// DeepSeek and Kimi all kinds of maps of latent and delta attention.
TEST(Adapters, ComputeWhatPeftDoes) {
  for (const char* name : {"llama3", "deepseek_v3", "kimi_linear"}) {
    const std::string adapter = fmt::format("{}_adapter_tiny", name);
    EXPECT_LT(error_against_fixture(*load_model(fixture(adapter)), adapter), 5e-5) << name;
    // The model alone is another.
    EXPECT_GT(error_against_fixture(*load_model(fixture(fmt::format("{}_tiny", name))), adapter),
              0.1)
        << name;
  }
}

class DamagedAdapter : public ::testing::Test {
 protected:
  // As PEFT writes it, with these changes.
  std::unique_ptr<Transformer> loaded(const Json& changes) const {
    fs::remove(adapted_.adapter / "adapter_recipe.json");
    Json config = config_;
    config.update(changes);
    write_file(adapted_.adapter / kConfig, config.dump());
    return load_model(adapted_.adapter);
  }
  std::string refusal(const Json& changes) const {
    return message_of<Error>([&] { loaded(changes); });
  }
  std::string refusal(const std::function<void(NamedTensors&)>& change) const {
    NamedTensors tensors = tensors_;
    change(tensors);
    write_tensor_files(adapted_.adapter, kAdapterWeights, tensors);
    return refusal(Json::object());
  }

  const Adapted adapted_{saved(gguf_llama())};
  const Json config_ = read_json(adapted_.adapter / kConfig);
  const NamedTensors tensors_ = [this] {
    NamedTensors tensors;
    const TensorFiles files(adapted_.adapter, kAdapterWeights);
    for (const std::string& name : files.names()) tensors.emplace_back(name, files.read(name));
    return tensors;
  }();
};

TEST_F(DamagedAdapter, IsOneOfPeftWithoutOurSettings) {
  const at::Tensor expected = log_probabilities(*adapted_.model);
  EXPECT_TRUE(at::equal(log_probabilities(*loaded(Json::object())), expected));
  // alpha / sqrt(r) in the place of alpha / r.
  const Json by_root = {{"use_rslora", true}, {"lora_alpha", 5 / std::sqrt(3.0)}};
  EXPECT_TRUE(close(log_probabilities(*loaded(by_root)), expected, 1e-6));
  EXPECT_FALSE(close(log_probabilities(*loaded({{"lora_alpha", 4}})), expected, 1e-4));
}

TEST_F(DamagedAdapter, IsRefusedByName) {
  EXPECT_THAT(refusal({{"use_dora", true}}), HasSubstr("use_dora is true, but"));
  EXPECT_THAT(refusal({{"bias", "all"}}), HasSubstr("bias is \"all\""));
  EXPECT_THAT(refusal({{"peft_type", "IA3"}}), HasSubstr("peft_type"));
  EXPECT_THAT(refusal({{"rank_pattern", {{"q_proj", 2}}}}), HasSubstr("rank_pattern"));
  EXPECT_THAT(refusal({{"target_parameters", {"experts.w1"}}}), HasSubstr("target_parameters"));
  EXPECT_THAT(refusal({{"r", 0}}), HasSubstr("r: expected 1 or more, got 0"));
  EXPECT_THAT(refusal({{"r", 2}}),
              AllOf(HasSubstr("lora_A.weight"), HasSubstr("has the shape [3, ")));
  EXPECT_THAT(refusal({{"base_model_name_or_path", "org/model"}}),
              AllOf(HasSubstr("org/model, which is not here"), HasSubstr("--adapter")));
  EXPECT_THAT(refusal({{"base_model_name_or_path", nullptr}}), HasSubstr("does not say"));
  EXPECT_THAT(refusal({{"base_model_name_or_path", adapted_.adapter.string()}}),
              HasSubstr("is an adapter itself"));
}

TEST_F(DamagedAdapter, HasNoTensorTooManyOrTooFew) {
  EXPECT_THAT(refusal([](NamedTensors& t) { t.pop_back(); }), HasSubstr("is missing"));
  EXPECT_THAT(refusal([](NamedTensors& t) { t.emplace_back("x.weight", at::ones({1})); }),
              HasSubstr("x.weight is no tensor beside this model's"));
  EXPECT_THAT(refusal([](NamedTensors& t) { t[0].second = t[0].second.t().contiguous(); }),
              HasSubstr("has the shape"));
}

}  // namespace
}  // namespace attnres::testing::adapter_test
