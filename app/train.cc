// The train subcommand.
#include <c10/util/Exception.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "app/commands.h"
#include "app/key_listing.h"
#include "app/options.h"
#include "app/processes.h"
#include "attnres/data/token_folder.h"
#include "attnres/parallel/mpi_communicator.h"
#include "attnres/parallel/together.h"
#include "attnres/pretrained/find_model.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/interrupt.h"
#include "attnres/support/program.h"
#include "attnres/support/progress.h"
#include "attnres/support/shell.h"
#include "attnres/text/ids.h"
#include "attnres/text/tokenizer.h"
#include "attnres/train/parallel/parallel_start.h"
#include "attnres/train/run/run_start.h"
#include "attnres/train/run_folder/run_folder.h"
#include "attnres/train/step/training_step.h"
#include "attnres/train/trainer.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

struct TrainOptions {
  MachineOptions machine;
  std::string recipe, from, tokenizer;
  std::vector<std::string> data, validation, overrides;
  std::string out, trace;
  bool resume = false;
  std::optional<int64_t> restarts;
  bool force = false;
  bool json = false;
  KeyListingOptions keys;
  bool markdown = false;
};

// The name becomes a folder's, and a recipe may come from anywhere.
fs::path folder_of(const std::string& name) {
  const bool plain = !name.empty() && name != "." && name != ".." &&
                     name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
  require_usage(plain, "name: \"{}\" cannot be a folder in runs/; change it, or give --out", name);
  return fs::path("runs") / name;
}

// What the user would type to go on with an interrupted run. The threads belong to it: with others
// the numbers would differ in their last bits.
std::string resume_command(const fs::path& out, const MachineOptions& machine) {
  return fmt::format("{} train --resume --out {}{}{}", program(), for_shell(out.string()),
                     machine.threads > 0 ? fmt::format(" --threads {}", machine.threads) : "",
                     machine.device != "cpu" ? fmt::format(" --device {}", machine.device) : "");
}

// Says what the overrides took with them; of several processes one does.
void apply_overrides_aloud(Json& recipe, const std::vector<std::string>& overrides, bool aloud) {
  for (const std::string& dropped : apply_overrides(recipe, overrides)) {
    if (!aloud) continue;
    const std::string note =
        fmt::format("note: {} is left out: it has no meaning with what --set chooses\n", dropped);
    std::fputs(note.c_str(), stderr);
  }
}

// A recipe need not say which tokenizer is taken as it is.
void describe_tokenizer(TrainJob& job, Json& recipe) {
  job.loaded = given_tokenizer(job);
  if (job.loaded == nullptr) return;
  recipe["tokenizer"] = write_config(TokenizerConfig{job.loaded->kind(), job.loaded->vocab_size()});
}

// Paths that run.json has of the run's text; those that are given stay.
void recall(const Json& run, const char* key, std::vector<fs::path>& given) {
  if (!given.empty()) return;
  for (const Json& path : run.at("data").value(key, Json::array())) {
    given.emplace_back(path.get<std::string>());
  }
}

// A run's model goes on with the run's text where no other is named. Then this is how the run took
// it, of its recipe; else null.
Json take_text_of_run(TrainJob& job, bool aloud) {
  if (!job.data.empty()) return nullptr;
  const std::optional<RunPaths> paths = run_of_checkpoint(job.from->path());
  require_usage(paths.has_value(),
                "--data: name the text to train on: {} does not say what it was trained on, as a "
                "run's checkpoints do",
                job.from->path().string());
  const Json run = read_run_json(*paths);
  recall(run, "paths", job.data);
  recall(run, "validation_paths", job.validation);
  if (aloud) {
    const std::string more =
        job.data.size() > 1 ? fmt::format(" and {} more", job.data.size() - 1) : "";
    const std::string note =
        fmt::format("note: trains on the text of {}, {}{}; --data names another\n",
                    paths->folder.string(), job.data.front().string(), more);
    std::fputs(note.c_str(), stderr);
  }
  return run.at("recipe").at("data");
}

// The recipe of the model that the job begins with, with the defaults of training. `data`: how the
// text is taken, or null.
Recipe recipe_of_model(TrainJob& job, const Json& data, const std::vector<std::string>& overrides,
                       bool aloud) {
  Json recipe = {{"name", model_name(job.from->path()) + "-continued"},
                 {"model", write_config(job.from->config())}};
  if (!data.is_null()) recipe["data"] = data;
  describe_tokenizer(job, recipe);
  apply_overrides_aloud(recipe, overrides, aloud);
  return parse_recipe(recipe);
}

// The same command begins a run and goes on with it.
TrainOptions begun_or_gone_on_with(TrainOptions options) {
  if (!options.restarts) return options;
  require_usage(!options.out.empty(), "--restarts: name the run's folder with --out");
  options.resume = path_exists(RunPaths{options.out}.run_json());
  if (options.resume) options.from.clear();
  return options;
}

// A run that resumes knows its own recipe and data; what is given all the same is compared.
TrainJob make_job(const TrainOptions& options, bool aloud = true) {
  require_usage(!options.resume || options.from.empty(),
                "--from begins a new run, --resume goes on with one that has begun; choose one");
  TrainJob job;
  job.resume = options.resume;
  job.restarts = options.restarts;
  if (!options.from.empty()) {
    job.from = std::make_shared<ModelDirectory>(find_model(options.from));
    if (aloud) print_notes(*job.from);
  }
  job.data.assign(options.data.begin(), options.data.end());
  job.validation.assign(options.validation.begin(), options.validation.end());
  job.tokenizer = options.tokenizer;
  Json data_of_run;
  if (job.from != nullptr) data_of_run = take_text_of_run(job, aloud);
  if (!options.recipe.empty()) {
    const fs::path file = find_recipe(options.recipe);
    const Json written = read_recipe(file);
    Json recipe = written;
    apply_overrides_aloud(recipe, options.overrides, aloud);
    if (!job.resume && job.from == nullptr) describe_tokenizer(job, recipe);
    job.recipe = parse_recipe_of(file, written, recipe);
  } else if (!options.from.empty()) {
    job.recipe = recipe_of_model(job, data_of_run, options.overrides, aloud);
  } else {
    require_usage(options.resume && !options.out.empty(),
                  "--recipe: name a recipe file, for example recipes/tiny-block-attn-res.json (or "
                  "go on with a run: --resume --out DIR, or from a model: --from DIR)");
    const RunPaths paths{options.out};
    require_run("--resume --out", options.out);
    const Json written = read_run_json(paths).at("recipe");
    Json recipe = written;
    apply_overrides_aloud(recipe, options.overrides, aloud);
    job.recipe = parse_recipe_of(paths.run_json(), written, recipe);
  }
  job.force = options.force;
  job.trace = options.trace;
  job.out = options.out.empty() ? folder_of(job.recipe.name) : fs::path(options.out);
  if (!job.resume) require_out_beside(job.out, options.data);
  const RunPaths paths{job.out};
  if (job.resume && path_exists(paths.run_json())) {
    const Json run = read_run_json(paths);
    recall(run, "paths", job.data);
    recall(run, "validation_paths", job.validation);
    if (job.tokenizer.empty()) job.tokenizer = run.at("data").value("tokenizer", "");
  }
  return job;
}

// Shows a run on a line of standard error, and stops it when the user does.
class ShownRun : public TrainObserver {
 public:
  void on_activity(std::string_view activity) override { line_.update(std::string(activity)); }
  void on_message(std::string_view line) override { line_.message(line); }
  void on_begin(int64_t step, int64_t steps) override {
    interrupt_.emplace(
        "\nattnres: stopping after this step, which is saved; Ctrl-C again stops at once\n");
    eta_.emplace(steps, step);
    steps_ = steps;
  }
  void on_step(const StepReport& report) override { line_.update(describe(report)); }
  bool should_stop() override { return interrupted(); }

 private:
  // What matters most comes first: a narrow terminal cuts the rest.
  std::string describe(const StepReport& report) const {
    std::string text = fmt::format("step {}/{}", report.step, steps_);
    if (report.step < steps_) {
      text += fmt::format(" | {} left", format_duration(eta_->left(report.step)));
    }
    text += fmt::format(
        " | loss {:.4f} | val {} | {} tok/s | {:.0f} ms | lr {:.2e} | norm {:.2f}", report.loss,
        report.validation_loss ? fmt::format("{:.4f}", *report.validation_loss) : "-",
        format_count(report.tokens_per_second), report.seconds * 1000, report.learning_rate,
        report.gradient_norm);
    if (report.depth_weights) {
      text += fmt::format(" | depth entropy {:.2f}, embedding {:.0f} %",
                          report.depth_weights->relative_entropy,
                          100 * report.depth_weights->embedding_share);
    }
    return text;
  }

  ProgressLine line_;
  std::optional<InterruptGuard> interrupt_;
  std::optional<Eta> eta_;
  int64_t steps_ = 0;
};

void print_for_a_program(const TrainSummary& summary) {
  fmt::print("{}\n", Json{{"name", summary.name},
                          {"folder", summary.folder.string()},
                          {"steps", summary.steps},
                          {"tokens", summary.tokens},
                          {"seconds", summary.seconds},
                          {"val_loss", summary.final_loss},
                          {"best_val_loss", summary.best_loss},
                          {"best_step", summary.best_step},
                          {"unigram_entropy", summary.unigram_entropy},
                          {"tokens_per_second", summary.tokens_per_second},
                          {"peak_bytes", summary.peak_bytes}}
                         .dump());
}

// Who trained a model on conversations talks to it; one without a tokenizer goes on with ids.
std::string next_command(const TrainSummary& summary, const TrainJob& job) {
  const bool chats = std::any_of(job.data.begin(), job.data.end(), [](const fs::path& data) {
    return is_token_folder(data) && read_token_index(data).marks_targets();
  });
  return fmt::format("{} generate --model {} {}", program(), for_shell(summary.folder.string()),
                     job.recipe.tokenizer.kind == kIds ? "--ids 0"
                     : chats                           ? "--chat"
                                                       : "--prompt \"The \"");
}

void print_for_a_person(const TrainSummary& summary, const TrainJob& job) {
  if (summary.was_finished) {
    fmt::print("{}: this run had already finished its {}\n", summary.folder.string(),
               counted(summary.steps, "step"));
  }
  fmt::print("{}, {} tokens in {} ({}); peak memory {}\n", counted(summary.steps, "step"),
             format_count(static_cast<double>(summary.tokens)), format_duration(summary.seconds),
             format_rate(summary.tokens_per_second, "tokens"),
             format_bytes(static_cast<double>(summary.peak_bytes)));
  fmt::print("validation loss {:.4f}, best {:.4f} at step {}\n", summary.final_loss,
             summary.best_loss, summary.best_step);
  const double gain = summary.unigram_entropy - summary.best_loss;
  if (summary.final_loss > summary.uniform_loss) {
    fmt::print(
        "it ends worse than a guess: {:.2f} nats above the loss of equal probabilities, {:.4f}; "
        "try a lower train.learning_rate\n",
        summary.final_loss - summary.uniform_loss, summary.uniform_loss);
  } else {
    fmt::print("{}: {:.2f} nats {} the unigram entropy of the text, {:.4f}\n",
               gain > 0 ? "it learned from context" : "it has not learned from context yet",
               std::abs(gain), gain > 0 ? "below" : "above", summary.unigram_entropy);
  }
  fmt::print("model: {}\nnext:  {}\n", (RunPaths{summary.folder}.best()).string(),
             next_command(summary, job));
}

void show(const TrainSummary& summary, const TrainJob& job, const TrainOptions& options) {
  if (summary.was_stopped) {
    throw Interrupted(fmt::format("interrupted; step {} of {} is saved. To go on:\n  {}",
                                  summary.steps, job.recipe.train.steps,
                                  resume_command(job.out, options.machine)));
  }
  if (options.json) {
    print_for_a_program(summary);
  } else {
    print_for_a_person(summary, job);
  }
}

// As one of the processes that a launcher has started. What all of them find wrong rank 0 says;
// what only this one does ends them all.
void run_train_with_others(const TrainOptions& options) {
  const std::unique_ptr<Communicator> world = start_processes();
  const bool leads = world->rank() == 0;
  try {
    std::optional<TrainJob> job;
    std::string problem;
    try {
      options.machine.apply();
      job = make_job(options, /*aloud=*/leads);
    } catch (const Error& error) {
      problem = error.what();
    }
    require_all_began(problem, *world);
    if (options.machine.threads == 0) share_cpus(*world);
    if (leads) {
      ShownRun shown;
      show(train(*job, shown, *world), *job, options);
    } else {
      follow_training(*job, *world);
    }
  } catch (const CommonError&) {
    // With an exit code of their own the others could end the job before it is said.
    if (leads) throw;
  } catch (const CommonFailure&) {
    if (leads) throw;
  } catch (const Diverged&) {  // all have seen it, and the others have left
    throw;
  } catch (const Interrupted&) {
    throw;
  } catch (const c10::Error& error) {
    world->abort(error.what_without_backtrace());
  } catch (const std::exception& error) {
    world->abort(error.what());
  }
}

void run_train(const TrainOptions& given) {
  const TrainOptions options = begun_or_gone_on_with(given);
  if (options.markdown) return print_keys_page();
  if (options.keys.is_asked()) {
    return show_keys(options.keys, recipe_keys(), recipe_schema(), options.json);
  }
  if (launched_processes() > 1) return run_train_with_others(options);
  options.machine.apply();
  const TrainJob job = make_job(options);
  ShownRun shown;
  show(train(job, shown), job, options);
}

}  // namespace

void add_train_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "train",
      "Train a model from a recipe. The run folder keeps the recipe, metrics, probes, samples and\n"
      "checkpoints. Ctrl-C saves, and --resume goes on exactly where the run stopped.");
  const auto options = std::make_shared<TrainOptions>();
  add_path(command, "--recipe RECIPE", options->recipe,
           "a JSON file, or the name of one of those in recipes/");
  add_path(command, "--data PATH", options->data,
           "files and folders of text, or folders of tokens (attnres tokenize --out) and .bin "
           "files of nanoGPT and llm.c (default: with --from the text of that run, else the "
           "compiler's C and C++ headers)");
  add_path(command, "--validation PATH", options->validation,
           "text to validate on, and not to train on where --data holds it too (default: a part "
           "of the data, data.validation_fraction of the recipe)");
  add_path(command, "--tokenizer DIR", options->tokenizer,
           "take the tokenizer whose files lie in this folder, and train none; not needed with "
           "--from, and with tokens that bring their own");
  add_path(command, "--out DIR", options->out,
           "the run's folder (default: runs/ and the recipe's name)");
  add_option(command, "--set KEY=VALUE", options->overrides,
             "override keys of the recipe, for example model.depth_mixing.block_size=4");
  add_path(command, "--from DIR", options->from,
           "begin a new run with the weights and tokenizer of a model directory or of a run's best "
           "checkpoint; the recipe must describe the same model (default: that model's), its train "
           "part is free, and the optimizer starts anew");
  command.add_flag("--resume", options->resume,
                   "go on with the run in --out; recipe and data are then known; --set can make "
                   "train.steps larger (the learning rate then follows the longer schedule), and "
                   "change train.eval_every, train.checkpoint_every and train.sample_tokens");
  add_whole(
      command, "--restarts N", options->restarts, {1},
      "for a scheduler or a loop that gives the same command again: it begins the run, or goes "
      "on with it as --resume does, at most N times from one checkpoint; a run that diverged "
      "is left alone");
  command.add_flag("--force", options->force, "train even where memory or disk look too small");
  add_path(command, "--trace FILE", options->trace,
           "write a Chrome trace of the first steps, of torch's operations and a GPU's kernels or "
           "of what several processes do, which ui.perfetto.dev opens");
  command.add_flag("--json", options->json, "print the summary as JSON");
  options->keys.add_to(command, "recipe");
  command.add_flag("--markdown", options->markdown, "with --keys: print docs/recipe.md")
      ->needs(options->keys.keys);
  options->machine.add_to(command);
  group_options(command, "Text", {"--data", "--validation", "--tokenizer"});
  command.footer(
      "Exit code 3: losses or weights are no longer finite. The last good checkpoint stands, and\n"
      "run.json says why, as \"diverged\".\n\n"
      "With parallel.data, pipeline or tensor in the recipe several processes train one model,\n"
      "started by mpirun or srun: docs/parallel.md.\n\n"
      "Examples:\n"
      "  attnres train --keys model.experts\n"
      "  attnres train --recipe recipes/tiny-block-attn-res.json --out runs/tiny\n"
      "  attnres train --recipe recipes/tiny-residual.json --data book.txt \\\n"
      "    --set train.steps=200 train.seed=2\n"
      "  attnres train --resume --out runs/tiny\n"
      "  attnres train --resume --out runs/tiny --set train.steps=2000\n"
      "  attnres train --from runs/tiny --set train.context=1024 --out runs/tiny-long\n"
      "  mpirun -n 2 attnres train --out runs/two \\\n"
      "    --recipe recipes/tiny-block-attn-res.json \\\n"
      "    --set parallel.pipeline=2 train.accumulate=4");
  command.callback([options] { run_train(*options); });
}

}  // namespace attnres
