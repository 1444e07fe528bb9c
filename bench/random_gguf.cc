// A GGUF file with the shapes and names of a recipe's model and random numbers, written tensor by
// tensor, so that it may be larger than memory: bench_random_gguf --recipe FILE --out FILE
// [OPTIONS]. For measuring what models take that nobody trained here.
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "attnres/formats/gguf_model.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/pretrained/gguf_tokenizer.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/train/recipe/recipe.h"
#include "bench/benchmark.h"

namespace attnres::bench {
namespace {

struct Options {
  std::filesystem::path recipe, out;
  std::vector<std::string> overrides;
  std::string type = "q4_k_m";
  int64_t context = 8192;
};

constexpr int64_t kRows = 256;  // that are drawn of a matrix

// Numbers with which no activation grows or vanishes, as they are stored.
at::Tensor numbers_of(const GgufTensor& tensor) {
  if (tensor.name.ends_with("norm.weight")) return at::ones(tensor.shape);
  if (tensor.name.ends_with("ssm_a")) return at::rand(tensor.shape).mul_(-15).sub_(1);
  const double scale = 1 / std::sqrt(static_cast<double>(tensor.shape.back()));
  if (tensor.type == GgufType::f32) return at::randn(tensor.shape).mul_(scale);
  // Rows that are alike take the same time.
  const int64_t all = std::accumulate(tensor.shape.begin(), tensor.shape.end() - 1, int64_t{1},
                                      std::multiplies<>());
  const int64_t drawn = std::gcd(all, kRows);
  const PackedMatrix rows =
      pack_weight(at::randn({drawn, tensor.shape.back()}).mul_(scale), weight_format(tensor.type));
  return rows.bytes.repeat({all / drawn, 1});
}

void run(const Options& options) {
  const Recipe recipe = load_recipe(options.recipe, options.overrides);
  const Transformer shapes(recipe.model, recipe.tokenizer.vocab_size, /*seed=*/std::nullopt,
                           at::kFloat, at::kMeta);
  const GgufFileType& type = gguf_file_type(options.type);
  std::vector<GgufTensor> tensors = gguf_tensors(shapes, type);
  for (GgufTensor& tensor : tensors) {
    tensor.values = [of = tensor] { return numbers_of(of); };
  }
  GgufMetadata metadata = gguf_metadata(shapes, options.context, type);
  const GgufMetadata ids = gguf_without_tokenizer();
  metadata.insert(metadata.end(), ids.begin(), ids.end());
  metadata.emplace_back("tokenizer.ggml.eos_token_id", uint32_t{0});
  write_gguf(options.out, metadata, tensors);
  fmt::print("{}: {:.2f} billion parameters, {:.2f} GB\n", options.out.string(),
             static_cast<double>(shapes.parameters().count()) / 1e9,
             static_cast<double>(std::filesystem::file_size(options.out)) / 1e9);
}

}  // namespace
}  // namespace attnres::bench

int main(int argc, char** argv) {
  attnres::bench::Options options;
  CLI::App app("A GGUF file of random numbers");
  app.add_option("--recipe", options.recipe, "whose model it is")->required();
  app.add_option("--set", options.overrides, "override keys of the recipe");
  app.add_option("--type", options.type, "as of attnres export")->capture_default_str();
  app.add_option("--context", options.context, "tokens")->capture_default_str();
  app.add_option("--out", options.out, "the file")->required();
  CLI11_PARSE(app, argc, argv);
  try {
    attnres::bench::run(options);
  } catch (const attnres::Error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
  return 0;
}
