// The retrofit subcommand.
#include "attnres/model/retrofit.h"

#include <fmt/core.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/options.h"
#include "attnres/pretrained/adapter.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres {
namespace {

constexpr int64_t kTokensCompared = 64;

struct RetrofitOptions {
  ModelOption model;
  std::string mechanism = "attn_res";
  int64_t block_size = 0;  // 0 where it is not given
  bool full = false;
  bool beside = false;
  std::string out;
};

// What computes the same as residual connections at first.
Json exact_mixing(const RetrofitOptions& options) {
  if (options.mechanism == "delta_attn_res") {
    return {{"type", "delta_attn_res"},
            {"block_size", options.full ? 1 : options.block_size},
            {"gate", "zero"}};
  }
  Json mixing = {{"type", options.full ? "attn_res" : "block_attn_res"},
                 {"norm_eps", "per_source_count"}};
  if (!options.full) mixing["block_size"] = options.block_size;
  return mixing;
}

// Writes it by `write`, where the two models' numbers are finite.
void write_retrofitted(const RetrofitOptions& options, const Transformer& before,
                       const Transformer& model, const std::filesystem::path& path,
                       const std::function<void()>& write) {
  const double difference = largest_difference(before, model, kTokensCompared);
  write_new("--out", options.out, "folder", write);
  fmt::print(
      "{}: {} of {} parameters are new; log-probabilities of {} random tokens differ by at most "
      "{:.1e} from those of {}\n",
      options.out, model.parameters().count() - before.parameters().count(),
      model.parameters().count(), kTokensCompared, difference, path.string());
}

// What is new alone; the model's weights stay as they are stored.
void retrofit_beside(const RetrofitOptions& options) {
  const ModelDirectory directory = options.model.open();
  require_usage(directory.adapter() == nullptr,
                "--beside: {} has an adapter already; merge it into its model first (attnres "
                "export)",
                directory.path().string());
  print_notes(directory);
  Precision precision;
  precision.weights = directory.weight_formats();
  const auto before = directory.load(precision);
  require_residual(*before);
  ModelConfig config = directory.config();
  config.depth_mixing = DepthMixing(exact_mixing(options), config.mixer_shape());
  const auto model = directory.load_as(config, /*seed=*/0, precision);
  const auto is_new = [added = directory.beyond_base(*model)](const Parameter& p) {
    return added.contains({p.site, p.role});
  };
  write_retrofitted(options, *before, *model, directory.path(), [&] {
    write_folder(options.out, [&](const std::filesystem::path& filling) {
      save_adapter(*model, directory.base(), directory.adapter_layout(), is_new, filling);
    });
  });
}

void run_retrofit(const RetrofitOptions& options) {
  require_usage(options.full != (options.block_size != 0),
                "retrofit: give --block-size S (in sublayers, two a Transformer layer) or --full");
  require_new("--out", options.out, "folder");
  if (options.beside) return retrofit_beside(options);
  const OpenedModel opened = open_model(options.model);
  const DepthMixing mixing(exact_mixing(options), opened.model->config().mixer_shape());
  const auto model = retrofit(*opened.model, mixing);
  write_retrofitted(options, *opened.model, *model, opened.directory.path(), [&] {
    save_model_folder_like(options.out, *model, opened.directory, opened.context);
  });
  std::string why;
  if (opened.directory.gguf() != nullptr && opened.tokenizer_if_read(&why) == nullptr) {
    fmt::print("no tokenizer: {}\n", why);
  }
}

}  // namespace

void add_retrofit_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "retrofit",
      "Give a model Attention Residuals that compute the same at first. Takes one with plain "
      "residual connections, a Hugging Face folder or one trained here; the new one is to be "
      "trained further.");
  const auto options = std::make_shared<RetrofitOptions>();
  options->model.add_to(command);
  add_option(command, "--mechanism NAME", options->mechanism,
             "attn_res takes the residual connections' place, delta_attn_res adds to them")
      ->check(one_word_of({"attn_res", "delta_attn_res"}))
      ->capture_default_str();
  add_whole(command, "--block-size S", options->block_size, {1},
            "with blocks of S sublayers as sources");
  command.add_flag("--full", options->full, "every sublayer's output is a source");
  command.add_flag("--beside", options->beside,
                   "write what is new alone, as an adapter of the model, whose weights stay where "
                   "and as they are, packed ones too");
  add_path(command, "--out DIR", options->out, "the new model directory, or adapter")->required();
  command.footer(
      "Examples:\n  attnres retrofit --model runs/residual --block-size 4 --out "
      "models/retrofitted\n"
      "  attnres train --from models/retrofitted --data text --out runs/further\n"
      "  attnres retrofit --model qwen3 --mechanism delta_attn_res --full --out models/delta");
  command.callback([options] { run_retrofit(*options); });
}

}  // namespace attnres
