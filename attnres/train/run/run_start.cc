#include "attnres/train/run/run_start.h"

#include <ATen/Parallel.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "attnres/formats/tensor_files.h"
#include "attnres/ops/matmul/provider.h"
#include "attnres/support/build_info.h"
#include "attnres/support/compute_device.h"
#include "attnres/support/config.h"
#include "attnres/support/format.h"
#include "attnres/support/machine.h"
#include "attnres/text/ids.h"
#include "attnres/train/estimate/estimate.h"
#include "attnres/train/recipe/schedule.h"
#include "attnres/train/recipe/update_factors.h"
#include "attnres/train/run/first_weights.h"
#include "attnres/train/run/restarts.h"
#include "attnres/train/run_folder/run_folder.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void refuse_to_begin_over(const RunPaths& paths) {
  const int64_t step = path_exists(paths.last()) ? read_training_state(paths.last()).step : 0;
  const Json run = read_run_json(paths);
  const int64_t steps = run["recipe"]["train"]["steps"];
  if (step >= steps) {
    fail("{}: holds a finished run of {}; choose another --out", paths.folder.string(),
         counted(steps, "step"));
  }
  fail(
      "{}: holds an unfinished run (step {} of {}); add --resume to go on with it, or choose "
      "another --out",
      paths.folder.string(), step, steps);
}

// Throws Error unless the recipe describes this model and its tokenizer.
void require_same_model(const Recipe& recipe, const ModelDirectory& from,
                        const Tokenizer& tokenizer) {
  ModelConfig model = from.config();
  if (model.lora.rank == 0) model.lora = recipe.model.lora;  // which the run adds
  const Json there = {
      {"model", write_config(model)},
      {"tokenizer", write_config(TokenizerConfig{tokenizer.kind(), tokenizer.vocab_size()})}};
  const Json here = {{"model", write_config(recipe.model)},
                     {"tokenizer", write_config(recipe.tokenizer)}};
  std::string list;
  for (const std::string& difference : differences(there, here)) list += "\n  " + difference;
  require(list.empty(),
          "{}: to begin with its weights, the recipe must describe the same model and tokenizer, "
          "but these differ:{}\nundo the change, or leave --recipe out and set only train keys",
          from.path().string(), list);
}

void require_described(const Tokenizer& tokenizer, const TokenizerConfig& config) {
  require(tokenizer.kind() == config.kind && tokenizer.vocab_size() == config.vocab_size,
          "tokenizer: the recipe describes {} with {} tokens, but it is given {} with {}; set "
          "tokenizer.kind={} and tokenizer.vocab_size={}",
          config.kind, config.vocab_size, tokenizer.kind(), tokenizer.vocab_size(),
          tokenizer.kind(), tokenizer.vocab_size());
}

// Which weights a run began with, wherever they lie.
Json describe_origin(const ModelDirectory& from) {
  Json origin = {{"name", model_name(from.path())}};
  if (path_exists(from.path() / "training_state.json")) {
    origin["step"] = read_training_state(from.path()).step;
  }
  if (from.files() == nullptr) return origin;
  const std::string checksum = from.files()->checksum();
  if (!checksum.empty()) origin["checksum"] = checksum;
  return origin;
}

// Who computes the products of a feed-forward's first map, which are most of a step.
Json describe_products(const Recipe& recipe) {
  const TrainConfig& train = recipe.train;
  const at::ScalarType dtype = precision_of(train).activations;
  const ProductSizes sizes = {.M = train.batch_size / train.accumulate * train.context,
                              .N = recipe.model.ffn_width,
                              .K = recipe.model.width};
  const auto name = [&](Product product) {
    return provider_name(provider_for(processor(), dtype, product, sizes), dtype);
  };
  return {{"output", name(Product::output)},
          {"input_gradient", name(Product::input_gradient)},
          {"weight_gradient", name(Product::weight_gradient)}};
}

// run.json of a run that begins.
Json describe_run(const Recipe& recipe, const RunText& text, int64_t embeddings) {
  const Transformer shapes(recipe.model, embeddings, /*seed=*/std::nullopt,
                           precision_of(recipe.train), at::kMeta);
  return {{"recipe", recipe_to_json(recipe)},
          {"parameters", shapes.parameters().count()},
          {"data", text.record},
          {"build", describe_build()},
          {"machine",
           {{"cpu", describe_machine().cpu},
            {"device", compute_device().is_cpu() ? "cpu" : device_memory(compute_device()).name},
            {"threads", at::get_num_threads()},
            {"products", describe_products(recipe)}}}};
}

// Where the same text lies now, so that the next to resume need not be told.
void take_new_paths(Json& run, const Json& now, TrainObserver& observer) {
  for (const char* key : {"paths", "validation_paths", "tokenizer"}) {
    const Json &from = run["data"].value(key, Json()), &to = now.at("data").value(key, Json());
    if (from == to || to.is_null()) continue;
    run["data"][key] = to;
    observer.on_message(fmt::format("from here on, data.{}: {}", key, shown(to)));
  }
}

// The settings that a run may go on with changed, and where its text lies; that it diverged is to
// be seen again.
void change_settings(const TrainJob& job, const Json& before, const Json& now, int64_t step,
                     TrainObserver& observer) {
  Json changed = with_changes(before, now, step);
  changed.erase("diverged");
  take_new_paths(changed, now, observer);
  if (changed == before) return;
  for (const std::string& change : differences(before.at("recipe"), changed.at("recipe"))) {
    observer.on_message(fmt::format("from step {} on, {}", step + 1, change));
  }
  const TrainConfig& config = job.recipe.train;
  if (const int64_t steps = before.at("recipe").at("train").at("steps"); steps < config.steps) {
    TrainConfig old = config;
    old.steps = steps;
    const auto rate = [](const TrainConfig& train, int64_t at) {
      return fmt::format("{:.2e} at step {}", learning_rate_at(train, at), at);
    };
    observer.on_message(
        fmt::format("learning rate: {}from here on that of a run of {} steps, {}, {}",
                    step > 0 ? rate(old, step) + "; " : "", config.steps, rate(config, step + 1),
                    rate(config, config.steps)));
  }
  write_file(RunPaths{job.out}.run_json(), changed.dump(2) + "\n");
}

// With the run's lock held.
void take_up_run(const TrainJob& job, const RunText& text, TrainObserver& observer,
                 RunProcesses& processes) {
  const RunPaths paths{job.out};
  const Json now = {{"recipe", recipe_to_json(job.recipe)}, {"data", text.record}};
  Json before = read_run_json(paths);
  // With the defaults of keys that are younger than the run.
  before["recipe"] = recipe_to_json(parse_recipe(before["recipe"]));
  require_same_run(paths.folder, before, now);
  const bool saved = path_exists(paths.last());
  require(saved || !before.contains("from"), "{}: the weights that this run began with are gone",
          paths.last().string());
  if (!saved) {
    observer.on_message(
        fmt::format("warning: {} is not there: the run begins anew at step 1, and so do its logs",
                    paths.last().string()));
  }
  processes.begin(saved ? FirstWeights::of_checkpoint : FirstWeights::drawn);
  change_settings(job, before, now, processes.state().step, observer);
}

// Throws UsageError where maps of low rank would be beside nothing that was trained, or are many
// processes'.
void require_base_of_low_rank(const TrainJob& job) {
  if (job.recipe.model.lora.rank == 0) return;
  require_usage(job.from != nullptr,
                "model.lora: its maps are trained beside those of a model; name it: --from PATH");
  require_usage(job.recipe.parallel.processes() == 1,
                "model.lora: its maps are trained by one process, not by {}",
                job.recipe.parallel.processes());
}

// In a folder that nobody else has begun a run in meanwhile.
std::unique_ptr<FolderLock> begin_run(const TrainJob& job, const RunText& text,
                                      RunProcesses& processes) {
  require_base_of_low_rank(job);
  const RunPaths paths{job.out};
  const FirstWeights weights = job.from == nullptr ? FirstWeights::drawn : FirstWeights::of_model;
  processes.begin(weights);
  make_folder(paths.checkpoints());
  auto lock = std::make_unique<FolderLock>(paths.folder);
  // By another process, since we looked.
  if (path_exists(paths.run_json())) refuse_to_begin_over(paths);
  Json record =
      describe_run(job.recipe, text, embeddings_of(job, text.tokenizer->vocab_size(), weights));
  if (job.from != nullptr) {
    record["from"] = describe_origin(*job.from);
    // Before there is a run to resume: it could not find the weights again.
    processes.save_last();
  }
  write_file(paths.run_json(), record.dump(2) + "\n");
  return lock;
}

// The model's ids, of which one must end a document.
std::shared_ptr<const Tokenizer> ids_of_model(const ModelDirectory& model) {
  std::shared_ptr<const Tokenizer> ids = model.ids();
  require(ids->end_of_document() >= 0,
          "{}: does not say which token ends a document (eos_token_id of config.json); name a "
          "folder with the files of its tokenizer (--tokenizer)",
          model.path().string());
  return ids;
}

// The model's own, or where it has none that is read the one that is named, or that the tokens
// bring along, or none but ids.
std::shared_ptr<const Tokenizer> tokenizer_of_model(const TrainJob& job) {
  std::shared_ptr<const Tokenizer> own;
  try {
    own = job.from->tokenizer();
  } catch (const UnreadTokenizer& unread) {
    if (!job.tokenizer.empty()) return load_tokenizer(job.tokenizer);
    if (!are_tokens(job.data)) {
      fail("{}; to train on text, name a folder with a tokenizer's files (--tokenizer)",
           unread.what());
    }
    const auto folder = tokenizer_of_tokens(job.data);
    return folder ? load_tokenizer(*folder) : ids_of_model(*job.from);
  }
  require_usage(job.tokenizer.empty(),
                "--from brings the model's tokenizer, so --tokenizer cannot name another");
  return own;
}

// That of a run which goes on.
std::shared_ptr<const Tokenizer> saved_tokenizer(const TrainJob& job) {
  const fs::path last = RunPaths{job.out}.last();
  if (job.recipe.tokenizer.kind == kIds) return ids_of_model(ModelDirectory(last));
  return load_tokenizer(last);
}

// Whether some parameter has a learning rate above zero.
bool moves_weights(const Recipe& recipe) {
  if (recipe.train.learning_rate == 0) return false;
  if (recipe.train.rates.empty()) return true;
  const Transformer shapes(recipe.model, recipe.tokenizer.vocab_size, /*seed=*/std::nullopt,
                           precision_of(recipe.train), at::kMeta);
  const std::vector<UpdateFactors> factors =
      update_factors(shapes.parameters(), shapes.sublayers(), recipe.train);
  for (size_t i = 0; i < factors.size(); ++i) {
    if (is_differentiated(shapes.parameters().all()[i].kind) && factors[i].rate > 0) return true;
  }
  return false;
}

// Warns of learning rates that are hardly meant.
void warn_of_rates(const Recipe& recipe, TrainObserver& observer) {
  const TrainConfig& train = recipe.train;
  const auto steps = static_cast<double>(train.steps), warmup = static_cast<double>(train.warmup);
  const double decay = train.schedule == "wsd" ? train.decay_fraction * steps : 0;
  if (train.warmup > train.steps) {
    observer.on_message(
        fmt::format("warning: train.warmup has {} steps and the run {}: the learning rate ends on "
                    "its way up, at {:.1e}",
                    train.warmup, train.steps, learning_rate_at(train, train.steps)));
  } else if (train.warmup < train.steps && warmup + decay > steps) {
    observer.on_message(fmt::format(
        "warning: train.warmup has {} steps and the decay (train.decay_fraction) {:.0f}, which are "
        "more than the run's {}: after the warm-up the learning rate falls at once, from {:.1e} to "
        "{:.1e}",
        train.warmup, decay, train.steps, train.learning_rate,
        learning_rate_at(train, train.warmup + 1)));
  }
  if (moves_weights(recipe)) return;
  observer.on_message(fmt::format(
      "warning: {}: no weight will move",
      train.learning_rate == 0 ? "train.learning_rate is 0" : "train.rates are 0 for all weights"));
}

// Where the weights are of a run that trained on some of what is held out now: of the same text it
// held out another part, or the text has changed since.
void warn_of_known_text(const fs::path& from, const Json& now, TrainObserver& observer) {
  const std::optional<RunPaths> run = run_of_checkpoint(from);
  if (!run || now.at("split") == "given") return;
  const Json record = read_run_json(*run), &before = record.at("data");
  const auto differs = [&](const char* key) {
    return before.value(key, Json()) != now.value(key, Json());
  };
  if (differs("paths") && differs("hash")) return;
  if (!differs("hash") && !differs("split") && !differs("validation_tokens")) return;
  const Recipe recipe = parse_recipe(record.at("recipe"));
  observer.on_message(fmt::format(
      "warning: {} held out another part of this text, and has trained on some of what is held out "
      "here: losses on that flatter. Validate on text of its own (--validation), or hold out the "
      "same (there data.validation_fraction was {})",
      run->folder.string(), recipe.data.validation_fraction));
}

}  // namespace

std::unique_ptr<FolderLock> prepare_run(const TrainJob& job, TrainObserver& observer) {
  if (job.recipe.train.precision == kBfloat16Precision && compute_device().is_cpu()) {
    require_bfloat16_products("train.precision");
  }
  warn_of_rates(job.recipe, observer);
  const RunPaths paths{job.out};
  std::unique_ptr<FolderLock> lock;
  if (path_exists(paths.run_json())) {
    lock = std::make_unique<FolderLock>(paths.folder);
    if (!job.resume) refuse_to_begin_over(paths);
    recover_folder(paths.last());
    recover_folder(paths.best());
    if (job.restarts) count_restart(job, observer);
  } else {
    require_free_folder(paths);
  }
  observer.on_activity("planning");
  for (const std::string& warning :
       check_resources(job.recipe, job.recipe.tokenizer.vocab_size,
                       find_resources(paths.checkpoints()), job.force, kept_weights(job))) {
    observer.on_message("warning: " + warning);
  }
  return lock;
}

std::shared_ptr<const Tokenizer> given_tokenizer(const TrainJob& job) {
  if (job.loaded != nullptr) return job.loaded;
  if (job.from != nullptr) return tokenizer_of_model(job);
  if (!job.tokenizer.empty()) return load_tokenizer(job.tokenizer);
  if (!are_tokens(job.data)) return nullptr;
  const auto folder = tokenizer_of_tokens(job.data);
  require_usage(folder.has_value(),
                "{}: does not say which tokenizer its tokens are of; name a folder with its files "
                "(--tokenizer), or a model of that tokenizer (--from)",
                job.data.front().string());
  return load_tokenizer(*folder);
}

RunText read_text(const TrainJob& job, TrainObserver& observer) {
  if (job.from != nullptr) {
    require_usage(!job.data.empty(),
                  "--data: name the text to train on: {} does not say what it was trained on, as a "
                  "run's checkpoints do",
                  job.from->path().string());
  }
  const RunPaths run{job.out};
  const bool goes_on = job.resume && path_exists(run.run_json());
  std::shared_ptr<const Tokenizer> tokenizer;
  if (job.resume && path_exists(run.last())) {
    // Training a tokenizer again would give the same one, but takes its time.
    tokenizer = saved_tokenizer(job);
  } else if (tokenizer = given_tokenizer(job); tokenizer != nullptr) {
    if (job.from != nullptr) {
      require_same_model(job.recipe, *job.from, *tokenizer);
      // Throws where there are not enough.
      embeddings_of(job, tokenizer->vocab_size(), FirstWeights::of_model);
    }
    require_described(*tokenizer, job.recipe.tokenizer);
  }
  RunText text = read_run_text(
      {job.data, job.validation, /*runs=*/fs::absolute(job.out).lexically_normal().parent_path()},
      job.recipe, goes_on ? read_run_json(run) : Json(), std::move(tokenizer), observer);
  if (!job.tokenizer.empty()) text.record["tokenizer"] = fs::absolute(job.tokenizer).string();
  if (job.from != nullptr) warn_of_known_text(job.from->path(), text.record, observer);
  return text;
}

std::unique_ptr<FolderLock> start_run(const TrainJob& job, const RunText& text,
                                      std::unique_ptr<FolderLock> lock, TrainObserver& observer,
                                      RunProcesses& processes) {
  if (lock == nullptr) {
    lock = begin_run(job, text, processes);
  } else {
    take_up_run(job, text, observer, processes);
  }
  processes.check_folder();
  return lock;
}

}  // namespace attnres
