// Continuing many prompts of a file at once.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "app/generate_options.h"
#include "app/generation_json.h"
#include "app/resumable_lines.h"
#include "attnres/infer/engine.h"
#include "attnres/infer/score.h"
#include "attnres/infer/text_stream.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/interrupt.h"
#include "attnres/support/progress.h"
#include "attnres/support/random.h"

namespace attnres {
namespace {

struct Prompt {
  Json fields;  // of its line
  std::vector<int32_t> ids;
};

Prompt read_prompt(const std::string& line, const OpenedInference& opened,
                   const Tokenizer* tokenizer, const GenerateOptions& options) {
  Json json = parse_json(line, "JSON");
  if (json.is_string()) json = Json{{"prompt", json}};
  require(json.is_object() && json.contains("prompt") != json.contains("ids"),
          "expected a text, or an object with a \"prompt\" or \"ids\"");
  for (const char* taken : {"text", "tokens", "stop", "logprobs", "error"}) {
    require(!json.contains(taken), "the field \"{}\" is the result's; name it otherwise", taken);
  }
  Prompt prompt;
  if (json.contains("ids")) {
    require(json["ids"].is_array() && !json["ids"].empty(),
            "\"ids\": expected a list of token ids");
    for (const Json& id : json["ids"]) {
      const std::optional<int64_t> number = whole_number(id);
      require(number && *number == static_cast<int32_t>(*number),
              "\"ids\": expected token ids, got {}", shown(id));
      prompt.ids.push_back(static_cast<int32_t>(*number));
    }
    check_ids(opened.model->transformer(), prompt.ids);
  } else {
    require(json["prompt"].is_string(), "\"prompt\": expected a text, got {}",
            shown(json["prompt"]));
    require(tokenizer != nullptr,
            "this model comes without a tokenizer that is read here; give \"ids\"");
    prompt.ids = prompt_ids(json["prompt"], *tokenizer);
  }
  const bool is_text = json.contains("prompt");
  prompt.ids = fitted_prompt(std::move(prompt.ids),
                             is_text ? tokenizer->frame().before : std::vector<int32_t>(),
                             opened.context, options);
  prompt.fields = std::move(json);
  return prompt;
}

std::vector<Prompt> read_prompts(const std::string& text, const OpenedInference& opened,
                                 const Tokenizer* tokenizer, const GenerateOptions& options) {
  std::vector<Prompt> prompts;
  std::istringstream lines(text);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      prompts.push_back(read_prompt(line, opened, tokenizer, options));
    } catch (const Error& e) {
      fail("--prompts {}, line {}: {}", options.prompts, number, e.what());
    }
  }
  require(!prompts.empty(), "--prompts {}: has no prompts", options.prompts);
  return prompts;
}

// What the results depend on.
Json identity(const GenerateOptions& options, const SamplingSettings& s,
              const std::string& prompts) {
  Json known = {{"prompts", hash_bytes(prompts)},
                {"model", options.model.path},
                {"precision", options.precision.name},
                {"weights", options.precision.weights},
                {"max_tokens", options.generation.max_tokens},
                {"min_tokens", options.generation.min_tokens},
                {"logprobs", options.generation.top_logprobs},
                {"stop", options.stop_texts},
                {"truncate", options.truncate},
                {"logit_bias", options.biases},
                {"sampling",
                 {s.repetition_penalty, s.frequency_penalty, s.presence_penalty, s.temperature,
                  s.top_k, s.top_p, s.min_p, s.seed}}};
  if (options.answer) known["form"] = {options.answer->kind, options.answer->text};
  return known;
}

class PromptsRun {
 public:
  PromptsRun(const GenerateOptions& options, const OpenedInference& opened,
             const Tokenizer* tokenizer, GenerationSettings settings,
             const std::vector<Prompt>& prompts, ResumableLines& results)
      : options_(options),
        opened_(opened),
        tokenizer_(tokenizer),
        settings_(std::move(settings)),
        prompts_(prompts),
        results_(results),
        engine_(*opened.model, engine_settings()) {}

  // Returns how many prompts failed.
  int64_t run() {
    const InterruptGuard interrupt;
    const auto all = static_cast<int64_t>(prompts_.size());
    const Eta eta(all, results_.count());
    while (submit_more() || !engine_.idle()) {
      for (RequestUpdate& update : engine_.step()) take(update);
      const double tokens = static_cast<double>(engine_.counts().generated_tokens);
      progress_.update(fmt::format("{} of {}  {}  {} left", results_.count(),
                                   counted(all, "prompt"),
                                   format_rate(tokens / (monotonic_seconds() - start_), "tokens"),
                                   format_duration(eta.left(results_.count()))));
      if (interrupted()) {
        throw Interrupted(fmt::format("interrupted; {} of {} done. The same command goes on",
                                      results_.count(), counted(all, "prompt")));
      }
    }
    return failed_;
  }

 private:
  struct Continued {
    int64_t number = 0;  // of the prompt
    Generation generation = {};
    std::string text = {};
    std::unique_ptr<TextStream> stream = {};
  };

  // Prompts and what may come after them need no more room than this.
  EngineSettings engine_settings() const {
    int64_t most = 2;
    for (const Prompt& prompt : prompts_) {
      most = std::max(most, std::ssize(prompt.ids) + options_.generation.max_tokens);
    }
    return {.context = std::min(most, opened_.context),
            .sequences = std::min<int64_t>(options_.sequences, std::ssize(prompts_)),
            .step_tokens = std::max<int64_t>(512, options_.sequences),
            .deterministic = options_.deterministic};
  }

  // Keeps the queue filled. False where there are no more prompts.
  bool submit_more() {
    while (next_ < std::ssize(prompts_) && engine_.counts().queued < options_.sequences) {
      const int64_t number = next_++;
      if (results_.has(number)) continue;
      GenerationSettings settings = settings_;
      // Equal prompts are continued differently.
      settings.sampling.seed += static_cast<uint64_t>(number);
      Continued continued{.number = number};
      if (tokenizer_ != nullptr) {
        continued.stream = std::make_unique<TextStream>(*tokenizer_, options_.stop_texts,
                                                        /*reply=*/nullptr, settings.min_tokens);
      }
      running_[engine_.submit({prompts_[number].ids, settings})] = std::move(continued);
    }
    return next_ < std::ssize(prompts_);
  }

  void take(RequestUpdate& update) {
    Continued& continued = running_.at(update.request);
    Generation& generation = continued.generation;
    if (update.token) {
      generation.tokens.push_back(*update.token);
      if (update.logprobs) generation.logprobs.push_back(std::move(*update.logprobs));
      if (continued.stream) continued.text += continued.stream->add(*update.token);
    }
    const bool stopped = continued.stream && continued.stream->stopped();
    if (!update.stopped && !stopped) return;
    if (!update.stopped) engine_.cancel(update.request);
    finish(continued, update);
    running_.erase(update.request);
  }

  void finish(Continued& continued, const RequestUpdate& update) {
    Generation& generation = continued.generation;
    if (update.stopped) generation.reason = *update.stopped;
    Json json = prompts_[continued.number].fields;
    if (continued.stream) {
      continued.text += continued.stream->finish();
      if (continued.stream->stopped()) generation.reason = StopReason::stop_string;
      json["text"] = continued.text;
    }
    json.update(generation_json(generation, tokenizer_));
    if (generation.reason == StopReason::failed) {
      json["error"] = update.error;
      ++failed_;
    }
    results_.add(continued.number, one_line_of(json));
  }

  const GenerateOptions& options_;
  const OpenedInference& opened_;
  const Tokenizer* tokenizer_;
  const GenerationSettings settings_;
  const std::vector<Prompt>& prompts_;
  ResumableLines& results_;
  Engine engine_;
  std::map<int64_t, Continued> running_;  // by request
  ProgressLine progress_;
  double start_ = monotonic_seconds();
  int64_t next_ = 0, failed_ = 0;
};

}  // namespace

void generate_prompts(const GenerateOptions& options, const MakeInferenceModel& make) {
  const std::string text = options.prompts == "-" ? read_input() : read_file(options.prompts);
  const OpenedInference opened = open_model(options.model, options.precision, make);
  const std::unique_ptr<Tokenizer> tokenizer = opened.tokenizer_if_read();
  const std::vector<Prompt> prompts = read_prompts(text, opened, tokenizer.get(), options);
  const GenerationSettings settings = settings_for(options, opened, tokenizer.get());
  ResumableLines results(options.out, identity(options, settings.sampling, text));
  const int64_t failed =
      PromptsRun(options, opened, tokenizer.get(), settings, prompts, results).run();
  results.finish();
  require(failed == 0, "{} of {} failed; \"error\" in {} says why", failed,
          counted(std::ssize(prompts), "prompt"), options.out);
}

}  // namespace attnres
