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
  int64_t block_size = 0;  // 0 where it is not given
  bool full = false;
  std::string out;
};

void run_retrofit(const RetrofitOptions& options) {
  require_usage(options.full != (options.block_size != 0),
                "retrofit: give --block-size S (in sublayers, two a Transformer layer) or --full");
  require_new("--out", options.out, "folder");
  const OpenedModel opened = open_model(options.model);
  Json mixing = {{"type", options.full ? "attn_res" : "block_attn_res"},
                 {"norm_eps", "per_source_count"}};
  if (!options.full) mixing["block_size"] = options.block_size;
  const auto model =
      retrofit(*opened.model, DepthMixing(mixing, opened.model->config().mixer_shape()));
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
  add_whole(command, "--block-size S", options->block_size, {1},
            "Block Attention Residuals of S sublayers in a block");
  command.add_flag("--full", options->full, "Full Attention Residuals: every output is a source");
  add_path(command, "--out DIR", options->out, "the new model directory")->required();
  command.footer(
      "Examples:\n  attnres retrofit --model runs/residual --block-size 4 --out "
      "models/retrofitted\n"
      "  attnres train --from models/retrofitted --data text --out runs/further");
  command.callback([options] { run_retrofit(*options); });
}

}  // namespace attnres
