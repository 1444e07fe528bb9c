#include "attnres/train/trainer.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "attnres/formats/safetensors.h"
#include "attnres/infer/evaluate.h"
#include "attnres/infer/generate.h"
#include "attnres/model/transformer.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/build_info.h"
#include "attnres/support/config.h"
#include "attnres/support/format.h"
#include "attnres/support/interrupt.h"
#include "attnres/support/machine.h"
#include "attnres/support/progress.h"
#include "attnres/text/batches.h"
#include "attnres/train/checkpoint.h"
#include "attnres/train/estimate.h"
#include "attnres/train/expert_balance.h"
#include "attnres/train/line_log.h"
#include "attnres/train/optimizer.h"
#include "attnres/train/probe.h"
#include "attnres/train/run_folder.h"
#include "attnres/train/run_text.h"
#include "attnres/train/schedule.h"
#include "attnres/train/training_step.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kPromptTokens = 32;  // of validation text, for samples.jsonl

[[noreturn]] void refuse_to_begin_over(const RunPaths& paths) {
  const int64_t step = fs::exists(paths.last()) ? read_training_state(paths.last()).step : 0;
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

// Locks the run that the job goes on with, and repairs its checkpoints; null where there is none.
std::unique_ptr<FolderLock> take_up(const TrainJob& job) {
  const RunPaths paths{job.out};
  if (!fs::exists(paths.run_json())) {
    require_free_folder(paths);
    return nullptr;
  }
  auto lock = std::make_unique<FolderLock>(paths.folder);
  if (!job.resume) refuse_to_begin_over(paths);
  recover_folder(paths.last());
  recover_folder(paths.best());
  return lock;
}

// Before the text is read: that can take long.
std::unique_ptr<FolderLock> prepare(const TrainJob& job, ProgressLine& progress) {
  const TrainConfig& train = job.recipe.train;
  if (train.warmup > train.steps) {
    progress.message(
        fmt::format("warning: train.warmup has {} steps and the run {}: the learning rate ends on "
                    "its way up, at {:.1e}",
                    train.warmup, train.steps, learning_rate_at(train, train.steps)));
  }
  auto lock = take_up(job);
  progress.update("planning");
  for (const std::string& warning :
       check_resources(job.recipe, job.recipe.tokenizer.vocab_size,
                       find_resources(RunPaths{job.out}.checkpoints()), job.force)) {
    progress.message("warning: " + warning);
  }
  return lock;
}

// Throws Error unless the recipe describes the model and the tokenizer of the folder.
void require_same_model(const Recipe& recipe, const fs::path& folder, const Tokenizer& tokenizer) {
  const Json there = {
      {"model", write_config(model_config(folder))},
      {"tokenizer", write_config(TokenizerConfig{tokenizer.kind(), tokenizer.vocab_size()})}};
  const Json here = {{"model", write_config(recipe.model)},
                     {"tokenizer", write_config(recipe.tokenizer)}};
  std::string list;
  for (const std::string& difference : differences(there, here)) list += "\n  " + difference;
  require(list.empty(),
          "{}: to begin with its weights, the recipe must describe the same model and tokenizer, "
          "but these differ:{}\nundo the change, or leave --recipe out and set only train keys",
          folder.string(), list);
}

// A model of the recipe to begin a run with.
std::unique_ptr<Transformer> make_model(const TrainJob& job, int64_t vocab_size) {
  if (job.from.empty()) {
    return std::make_unique<Transformer>(job.recipe.model, vocab_size, job.recipe.train.seed);
  }
  auto model = load_model(job.from);
  require(model->vocab_size() == vocab_size,
          "{}: the model has {} token embeddings, but its tokenizer has {} tokens",
          job.from.string(), model->vocab_size(), vocab_size);
  return model;
}

RunText read_text(const TrainJob& job, ProgressLine& progress) {
  const RunPaths run{job.out};
  const bool goes_on = job.resume && fs::exists(run.run_json());
  const auto tokenizer_for = [&](const std::vector<Passage>& training_text) {
    // Training a tokenizer again would give the same one, but takes its time.
    if (job.resume && fs::exists(run.last())) return load_tokenizer(run.last());
    if (job.from.empty()) return make_tokenizer(job.recipe.tokenizer, training_text);
    auto tokenizer = load_tokenizer(job.from);
    require_same_model(job.recipe, job.from, *tokenizer);
    return tokenizer;
  };
  return read_run_text({job.data, job.validation}, job.recipe,
                       goes_on ? read_run_json(run) : Json(), tokenizer_for, progress);
}

// Which weights a run began with, wherever they lie.
Json describe_origin(const fs::path& folder) {
  Json origin = {{"name", model_name(folder)}};
  if (fs::exists(folder / "training_state.json")) {
    origin["step"] = read_training_state(folder).step;
  }
  const SafetensorsMetadata metadata = SafetensorsFile(folder / "model.safetensors").metadata();
  if (const auto checksum = metadata.find(kSafetensorsChecksum); checksum != metadata.end()) {
    origin["checksum"] = checksum->second;
  }
  return origin;
}

Json run_json(const Recipe& recipe, const RunText& text, const Transformer& model) {
  return {{"recipe", recipe_to_json(recipe)},
          {"parameters", model.parameters().count()},
          {"data", text.record},
          {"build",
           {{"version", program_version()},
            {"compiler", compiler_version()},
            {"torch", torch_version()}}},
          {"machine", {{"cpu", describe_machine().cpu}, {"threads", at::get_num_threads()}}}};
}

class Run {
 public:
  Run(const TrainJob& job, ProgressLine& progress)
      : job_(job),
        config_(job.recipe.train),
        paths_{job.out},
        progress_(progress),
        lock_(prepare(job, progress)),
        text_(read_text(job, progress)),
        train_batches_(text_.split.train.tokens, config_.context, config_.seed),
        // Checks, before anything is written, that there is enough to validate on.
        validation_(text_.split.validation.tokens, config_.context, kProbeWindows) {
    model_ = make_model(job, text_.tokenizer->vocab_size());
    optimizer_.emplace(model_->parameters(), config_);
    step_.emplace(*model_, *optimizer_, config_);
  }

  TrainSummary train() {
    open_folder();
    const bool was_finished = state_.step == config_.steps;
    const InterruptGuard guard;
    const Eta eta(config_.steps, state_.step);
    while (state_.step < config_.steps) {
      step(eta);
      const bool last = state_.step == config_.steps;
      const bool due = last || state_.step % config_.checkpoint_every == 0;
      const bool stop = interrupted();
      if (due && config_.sample_tokens > 0) sample();
      if (due || stop) checkpoint();
      if (stop && !last) fail_interrupted();
    }
    progress_.finish();
    return summary(was_finished);
  }

 private:
  // Begins a run in the folder, or takes up the one that stopped.
  void open_folder() {
    Json now = run_json(job_.recipe, text_, *model_);
    if (lock_ != nullptr) {
      Json before = read_run_json(paths_);
      // With the defaults of keys that are younger than the run.
      before["recipe"] = recipe_to_json(parse_recipe(before["recipe"]));
      require_same_run(paths_.folder, before, now);
      if (fs::exists(paths_.last())) {
        state_ = load_checkpoint(paths_.last(), *model_, *optimizer_);
      } else {
        require(!before.contains("from"), "{}: the weights that this run began with are gone",
                paths_.last().string());
      }
      change_settings(before, now);
    } else {
      make_folder(paths_.checkpoints());
      lock_ = std::make_unique<FolderLock>(paths_.folder);
      // By another process, since we looked.
      if (fs::exists(paths_.run_json())) refuse_to_begin_over(paths_);
      if (!job_.from.empty()) {
        now["from"] = describe_origin(job_.from);
        // Before there is a run to resume: it could not find the weights again.
        save_checkpoint(paths_.last(), *model_, *text_.tokenizer, config_.context, *optimizer_,
                        state_);
      }
      write_file(paths_.run_json(), now.dump(2) + "\n");
    }
    metrics_.emplace(paths_.metrics(), state_.metrics_bytes);
    probes_.emplace(paths_.probes(), state_.probes_bytes);
    samples_.emplace(paths_.samples(), state_.samples_bytes);
  }

  // The settings that a run may go on with changed.
  void change_settings(const Json& before, const Json& now) {
    const Json changed = with_changes(before, now, state_.step);
    if (changed == before) return;
    for (const std::string& change : differences(before.at("recipe"), changed.at("recipe"))) {
      progress_.message(fmt::format("from step {} on, {}", state_.step + 1, change));
    }
    if (const int64_t steps = before.at("recipe").at("train").at("steps"); steps < config_.steps) {
      TrainConfig old = config_;
      old.steps = steps;
      const auto rate = [](const TrainConfig& config, int64_t step) {
        return fmt::format("{:.2e} at step {}", learning_rate_at(config, step), step);
      };
      progress_.message(
          fmt::format("learning rate: {}from here on that of a run of {} steps, {}, {}",
                      state_.step > 0 ? rate(old, state_.step) + "; " : "", config_.steps,
                      rate(config_, state_.step + 1), rate(config_, config_.steps)));
    }
    write_file(paths_.run_json(), changed.dump(2) + "\n");
  }

  [[noreturn]] void fail_interrupted() const {
    throw Interrupted(fmt::format("interrupted; step {} of {} is saved. To go on:\n  {}",
                                  state_.step, config_.steps, job_.resume_command));
  }

  void step(const Eta& eta) {
    const auto begin = std::chrono::steady_clock::now();
    const int64_t number = state_.step + 1;
    const int64_t rows = config_.batch_size / config_.accumulate;
    for (int64_t part = 0; part < config_.accumulate; ++part) {
      step_->forward_backward(train_batches_.batch(number, part, rows));
    }
    const double rate = learning_rate_at(config_, number);
    StepResult result;
    try {
      result = step_->update(rate);
    } catch (const Diverged& e) {
      fail_diverged(number, e.what());
    }

    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const int64_t tokens = config_.batch_size * config_.context;
    state_.step = number;
    state_.tokens += tokens;
    state_.seconds += seconds;
    Json line = {{"step", number},
                 {"tokens", state_.tokens},
                 {"seconds", state_.seconds},
                 {"loss", result.loss},
                 {"lr", rate},
                 {"grad_norm", result.gradient_norm},
                 {"tokens_per_second", static_cast<double>(tokens) / seconds}};
    if (!result.expert_loads.empty()) {
      const LoadRange range = load_range(result.expert_loads);
      line["expert_load_max"] = range.most;
      line["expert_load_min"] = range.least;
    }
    if (number % config_.eval_every == 0 || number == config_.steps) {
      line["val_loss"] = validate();
    }
    metrics_->append(line);
    show(line, seconds, eta);
  }

  [[noreturn]] void fail_diverged(int64_t step, const std::string& what) const {
    const std::string saved =
        fs::exists(paths_.last())
            ? fmt::format("{} is the last good checkpoint", paths_.last().string())
            : "there is no earlier checkpoint";
    fail(
        "step {}: {}; training stopped, {}. Try a lower train.learning_rate or a longer "
        "train.warmup",
        step, what, saved);
  }

  // Evaluates, looks inside, and keeps the best model.
  double validate() {
    const double loss = evaluate(*model_, *text_.tokenizer, text_.split.validation.tokens,
                                 {.context = config_.context, .max_tokens = config_.eval_tokens})
                            .loss;
    if (!std::isfinite(loss)) {
      fail_diverged(state_.step, fmt::format("the validation loss is {}", loss));
    }
    reading_ = probe(*model_, validation_[0]);
    for (Json& line : reading_->lines) {
      Json stamped = {{"step", state_.step}};
      stamped.update(line);
      probes_->append(stamped);
    }
    state_.validation_loss = loss;
    if (loss < state_.best_loss) {
      state_.best_loss = loss;
      state_.best_step = state_.step;
      save_model_folder(paths_.best(), *model_, *text_.tokenizer, config_.context);
    }
    return loss;
  }

  void checkpoint() {
    // The next step's loss would say so too, but then this checkpoint had replaced a good one.
    for (const Parameter& p : model_->parameters().all()) {
      if (!p.tensor.isfinite().all().item<bool>()) {
        fail_diverged(state_.step, "the weights are no longer finite");
      }
    }
    metrics_->sync();
    probes_->sync();
    samples_->sync();
    state_.metrics_bytes = metrics_->bytes();
    state_.probes_bytes = probes_->bytes();
    state_.samples_bytes = samples_->bytes();
    save_checkpoint(paths_.last(), *model_, *text_.tokenizer, config_.context, *optimizer_, state_);
  }

  void sample() {
    const auto& tokens = text_.split.validation.tokens;
    const int64_t length = std::min<int64_t>(
        {kPromptTokens, config_.context / 2, static_cast<int64_t>(tokens.size())});
    const std::vector<int32_t> prompt(tokens.begin(), tokens.begin() + length);
    GenerationSettings settings;
    settings.max_tokens = config_.sample_tokens;
    settings.context = config_.context;
    settings.ends = {text_.tokenizer->end_of_document()};
    settings.seed = static_cast<uint64_t>(config_.seed);
    const Generation generation = generate(*model_, prompt, settings);
    samples_->append({{"step", state_.step},
                      {"prompt", text_.tokenizer->decode(prompt)},
                      {"text", text_.tokenizer->decode(generation.tokens)}});
  }

  // What matters most comes first: a narrow terminal cuts the rest.
  void show(const Json& line, double seconds, const Eta& eta) {
    std::string text = fmt::format("step {}/{}", state_.step, config_.steps);
    if (state_.step < config_.steps) {
      text += fmt::format(" | {} left", format_duration(eta.left(state_.step)));
    }
    text += fmt::format(" | loss {:.4f} | val {} | {} tok/s | {:.0f} ms | lr {:.2e} | norm {:.2f}",
                        line.at("loss").get<double>(),
                        state_.best_step > 0 ? fmt::format("{:.4f}", state_.validation_loss) : "-",
                        format_count(line.at("tokens_per_second").get<double>()), seconds * 1000,
                        line.at("lr").get<double>(), line.at("grad_norm").get<double>());
    if (reading_ && reading_->depth_weights) {
      text += fmt::format(" | depth entropy {:.2f}, embedding {:.0f} %",
                          reading_->depth_weights->relative_entropy,
                          100 * reading_->depth_weights->embedding_share);
    }
    progress_.update(std::move(text));
  }

  TrainSummary summary(bool was_finished) const {
    TrainSummary summary;
    summary.was_finished = was_finished;
    summary.name = job_.recipe.name;
    summary.folder = paths_.folder;
    summary.steps = state_.step;
    summary.tokens = state_.tokens;
    summary.seconds = state_.seconds;
    summary.best_loss = state_.best_loss;
    summary.best_step = state_.best_step;
    summary.final_loss = state_.validation_loss;
    summary.unigram_entropy =
        unigram_entropy(text_.split.validation.tokens, text_.tokenizer->vocab_size());
    summary.tokens_per_second =
        state_.seconds > 0 ? static_cast<double>(state_.tokens) / state_.seconds : 0;
    summary.peak_bytes = peak_resident_bytes();
    return summary;
  }

  const TrainJob& job_;
  const TrainConfig config_;
  const RunPaths paths_;
  ProgressLine& progress_;
  std::unique_ptr<FolderLock> lock_;
  const RunText text_;
  const TrainBatches train_batches_;
  const EvaluationBatches validation_;
  std::unique_ptr<Transformer> model_;
  std::optional<Optimizer> optimizer_;
  std::optional<TrainingStep> step_;
  std::optional<LineLog> metrics_, probes_, samples_;
  TrainingState state_;
  std::optional<ProbeReading> reading_;
};

}  // namespace

TrainSummary train(const TrainJob& job) {
  ProgressLine progress;
  return Run(job, progress).train();
}

}  // namespace attnres
