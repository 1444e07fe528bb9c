#include "app/plan_inference.h"

#include <ATen/Parallel.h>
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/options.h"
#include "attnres/formats/gguf_model.h"
#include "attnres/plan/inference.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/machine.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {
namespace {

constexpr int64_t kContext = 8192;  // tokens of a conversation

struct PlannedInference {
  std::string name;
  ModelConfig config;
  int64_t vocab_size = 0;
  WeightFormats formats;
};

// A name of --weights, or of a mixture of llama.cpp's.
WeightFormats formats_of(const Transformer& shapes, const std::string& name) {
  const auto is_mixture = [&](const GgufFileType& type) {
    return type.is_mixed && type.name == name;
  };
  const auto mixture = std::find_if(kGgufFileTypes.begin(), kGgufFileTypes.end(), is_mixture);
  return mixture == kGgufFileTypes.end() ? WeightFormats(parse_weight_format(name, "--weights"))
                                         : gguf_formats(shapes, *mixture);
}

PlannedInference of_model(const InferencePlanOptions& options) {
  require_usage(options.recipe.empty() && options.weights.empty() && options.overrides.empty(),
                "--model is a file whose weights are stored already: leave --recipe, --set and "
                "--weights out");
  const ModelDirectory directory(find_model_or_name(options.model));
  return {directory.path().string(), directory.config(), directory.vocab_size(),
          directory.weight_formats()};
}

PlannedInference of_recipe(const InferencePlanOptions& options) {
  require_usage(!options.recipe.empty(),
                "--weights: of which model? Name a recipe (--recipe), or a file (--model)");
  const Recipe recipe = load_recipe(find_recipe(options.recipe), options.overrides);
  const int64_t vocab_size = recipe.tokenizer.vocab_size;
  const Transformer shapes(recipe.model, vocab_size, /*seed=*/std::nullopt, at::kFloat, at::kMeta);
  return {fmt::format("{} in {}", recipe.name, options.weights), recipe.model, vocab_size,
          formats_of(shapes, options.weights)};
}

Json to_json(const PlannedInference& planned, const InferenceSize& size, double memory,
             double seconds) {
  return {{"model", planned.name},
          {"parameters", size.parameters},
          {"weight_bytes", size.weights},
          {"expert_bytes", size.experts},
          {"read_bytes_per_token", size.read},
          {"copy_bytes", size.copies},
          {"sequence_bytes", size.kept},
          {"memory_bytes", memory},
          {"seconds_per_token", seconds},
          {"threads", at::get_num_threads()}};
}

void print(const PlannedInference& planned, const InferenceSize& size, int64_t context,
           double memory, double seconds) {
  const double needed = size.weights + size.copies + size.kept;
  fmt::print("{}: {} parameters\n", planned.name,
             format_count(static_cast<double>(size.parameters)));
  fmt::print("weights   {}, of which a token reads {}\n", format_bytes(size.weights),
             format_bytes(size.read));
  fmt::print("memory    {}: with {} of a sequence of {} tokens{}\n", format_bytes(needed),
             format_bytes(size.kept), context,
             size.copies > 0
                 ? fmt::format(" and {} of copies in float32", format_bytes(size.copies))
                 : "");
  const double short_of = needed - memory;
  if (short_of <= 0) {
    fmt::print("fits      {} of memory\n", format_bytes(memory));
  } else if (short_of < size.experts) {
    fmt::print(
        "too large for {} of memory: {:.0f} % of the experts come from the disk when they are "
        "chosen\n",
        format_bytes(memory), 100 * short_of / size.experts);
  } else {
    fmt::print("too large for {} of memory: all of it would come from the disk, token by token\n",
               format_bytes(memory));
  }
  fmt::print(
      "speed     {:.3g} tokens/s ({:.3g} ms a token), where all lies in memory, on {} here\n",
      1 / seconds, 1000 * seconds, counted(at::get_num_threads(), "thread"));
}

}  // namespace

void plan_inference(const InferencePlanOptions& options) {
  const PlannedInference planned = options.model.empty() ? of_recipe(options) : of_model(options);
  const int64_t context = options.context > 0 ? options.context : kContext;
  const InferenceSize size =
      inference_size(planned.config, planned.vocab_size, planned.formats, context);
  const double memory = options.memory > 0 ? options.memory * static_cast<double>(1 << 30)
                                           : static_cast<double>(describe_machine().memory);
  const double seconds = measure_token(planned.config, planned.vocab_size, planned.formats);
  if (options.json) {
    fmt::print("{}\n", to_json(planned, size, memory, seconds).dump());
  } else {
    print(planned, size, context, memory, seconds);
  }
}

}  // namespace attnres
