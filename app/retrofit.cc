// The retrofit subcommand.
#include "attnres/model/retrofit.h"

#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "app/commands.h"
#include "app/options.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr int64_t kTokensCompared = 64;

struct RetrofitOptions {
  ModelOption model;
  std::string mechanism = "attn_res";
  int64_t block_size = 0;  // 0 where it is not given
  bool full = false;
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

void run_retrofit(const RetrofitOptions& options) {
  require_usage(options.full != (options.block_size != 0),
                "retrofit: give --block-size S (in sublayers, two a Transformer layer) or --full");
  require_new("--out", options.out, "folder");
  const OpenedModel opened = open_model(options.model);
  const DepthMixing mixing(exact_mixing(options), opened.model->config().mixer_shape());
  const auto model = retrofit(*opened.model, mixing);
  const double difference = largest_difference(*opened.model, *model, kTokensCompared);
  write_new("--out", options.out, "folder",
            [&] { save_model_folder_like(options.out, *model, opened.directory, opened.context); });
  fmt::print(
      "{}: {} of {} parameters are new; log-probabilities of {} random tokens differ by at most "
      "{:.1e} from those of {}\n",
      options.out, model->parameters().count() - opened.model->parameters().count(),
      model->parameters().count(), kTokensCompared, difference, opened.directory.path().string());
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
  add_path(command, "--out DIR", options->out, "the new model directory")->required();
  command.footer(
      "Examples:\n  attnres retrofit --model runs/residual --block-size 4 --out "
      "models/retrofitted\n"
      "  attnres train --from models/retrofitted --data text --out runs/further\n"
      "  attnres retrofit --model qwen3 --mechanism delta_attn_res --full --out models/delta");
  command.callback([options] { run_retrofit(*options); });
}

}  // namespace attnres
