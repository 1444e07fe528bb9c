// Folders that transformers saves of a model which attnres.retrofit of the Python package changed:
// config.json wraps the model's own, and the tensors of depth attention lie beside the model's.

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/formats/tensor_files.h"
#include "attnres/model/retrofit.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"
#include "tests/model/small_models.h"
#include "tests/pretrained/fixture_models.h"

namespace attnres::testing::retrofitted_directory_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const Json kMixing = {
    {"type", "block_attn_res"}, {"block_size", 3}, {"norm_eps", "per_source_count"}};

// With pseudo-queries and key gains that matter.
std::unique_ptr<Transformer> retrofitted(const std::string& name) {
  const auto residual = load_model(fixture(name));
  auto model = retrofit(*residual, DepthMixing(kMixing, residual->config().mixer_shape()));
  for (const Parameter& p : model->parameters().all()) {
    if (p.role == "pseudo_query" || p.role == "key_norm") add_noise(p, 0.5);
  }
  return model;
}

// Vectors of every site, in the package's names, whose site 0 has vectors that nothing reads.
NamedTensors vectors_of_sites(const Transformer& model) {
  NamedTensors tensors;
  const auto width = model.config().width;
  tensors.emplace_back("model.depth_attention.pseudo_query.0", at::zeros(width));
  tensors.emplace_back("model.depth_attention.key_gain.0", at::ones(width));
  tensors.emplace_back("model.depth_attention.sublayers_a_block", at::full({}, 3, at::kLong));
  for (const Parameter& p : model.parameters().all()) {
    if (p.role != "pseudo_query" && p.role != "key_norm") continue;
    const char* list = p.role == "pseudo_query" ? "pseudo_query" : "key_gain";
    tensors.emplace_back(fmt::format("model.depth_attention.{}.{}", list, p.site),
                         p.tensor.detach());
  }
  return tensors;
}

fs::path saved(const std::string& name, const NamedTensors& of_sites) {
  const fs::path folder = fresh_folder("retrofitted");
  const TensorFiles own(fixture(name));
  NamedTensors tensors = of_sites;
  for (const std::string& tensor : own.names()) tensors.emplace_back(tensor, own.read(tensor));
  write_tensor_files(folder, kWeights, tensors);
  Json base = read_json(fixture(name) / "config.json");
  const Json type = base["model_type"];
  base.erase("model_type");
  const Json config = {{"model_type", "attnres_retrofitted"},
                       {"base_model_type", type},
                       {"base", base},
                       {"depth_mixing", kMixing},
                       {"hidden_size", "in base"}};
  write_file(folder / "config.json", config.dump());
  return folder;
}

double difference(const Transformer& a, const Transformer& b) {
  const at::Tensor ids = random_ids(2, 30, 3, a.vocab_size());
  return (a.hidden(ids) - b.hidden(ids)).abs().max().item<double>();
}

class RetrofittedDirectory : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Names, RetrofittedDirectory,
                         ::testing::Values("llama3_tiny", "mistral_tiny", "qwen2_tiny",
                                           "qwen3_tiny", "smollm3_tiny", "gemma3_tiny",
                                           "deepseek_v3_tiny"),
                         [](const auto& info) { return info.param; });

TEST_P(RetrofittedDirectory, IsReadAsTheModelThatWasSaved) {
  const at::NoGradGuard no_grad;
  const auto model = retrofitted(GetParam());
  NamedTensors of_sites = vectors_of_sites(*model);
  const auto read = load_model(saved(GetParam(), of_sites));
  EXPECT_EQ(read->config().depth_mixing, model->config().depth_mixing);
  EXPECT_EQ(difference(*read, *model), 0);
  EXPECT_GT(difference(*read, *load_model(fixture(GetParam()))), 1e-2);
  std::swap(of_sites[3].second, of_sites[5].second);
  EXPECT_GT(difference(*load_model(saved(GetParam(), of_sites)), *model), 1e-3);
}

TEST_P(RetrofittedDirectory, IsSavedAsAModelOfThisProgram) {
  const at::NoGradGuard no_grad;
  const auto read = load_model(saved(GetParam(), vectors_of_sites(*retrofitted(GetParam()))));
  const fs::path folder = fresh_folder("own");
  save_model(*read, folder, /*context=*/128, /*document_ids=*/0);
  EXPECT_EQ(read_json(folder / "config.json")["model_type"], "attnres");
  EXPECT_EQ(difference(*load_model(folder), *read), 0);
}

TEST(RetrofittedDirectories, ThatDoNotFitAreRefused) {
  const auto model = retrofitted("qwen3_tiny");
  const NamedTensors all = vectors_of_sites(*model);
  const auto refusal = [&](const NamedTensors& tensors, const std::string& key, const Json& value) {
    const fs::path folder = saved("qwen3_tiny", tensors);
    edit(folder / "config.json", [&](Json& json) {
      if (!key.empty()) json[Json::json_pointer(key)] = value;
    });
    return message_of<Error>([&] { load_model(folder); });
  };
  const NamedTensors without_last(all.begin(), all.end() - 2);
  EXPECT_THAT(refusal(without_last, "", {}), HasSubstr("is missing"));
  EXPECT_THAT(refusal({}, "", {}), HasSubstr("_res_proj.weight is missing"));
  NamedTensors narrow = all;
  narrow[3].second = narrow[3].second.narrow(0, 0, 3);
  EXPECT_THAT(refusal(narrow, "", {}), HasSubstr("model.depth_attention."));
  EXPECT_THAT(refusal(all, "/depth_mixing", nullptr), HasSubstr("the key depth_mixing is missing"));
  EXPECT_THAT(refusal(all, "/depth_mixing/block_size", 99),
              HasSubstr("config.json: depth_mixing.block_size: expected 1 to 8"));
  EXPECT_THAT(refusal(all, "/base", 3), HasSubstr("base: expected an object"));
  EXPECT_THAT(refusal(all, "/base_model_type", "attnres_retrofitted"),
              HasSubstr("is itself a retrofitted model"));
  EXPECT_THAT(refusal(all, "/base_model_type", "phi3"), HasSubstr("model_type phi3 is unknown"));
}

}  // namespace
}  // namespace attnres::testing::retrofitted_directory_test
