#include "attnres/infer/engine.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <span>
#include <utility>

#include "attnres/infer/score.h"
#include "attnres/infer/step_depth_weights.h"
#include "attnres/infer/step_plan.h"
#include "attnres/layers/sequence_pool.h"
#include "attnres/model/transformer.h"
#include "attnres/support/compute_device.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/memory.h"
#include "attnres/support/random.h"

namespace attnres {
namespace {

constexpr int64_t kRowsScoredAtOnce = 32;
constexpr int64_t kMostSequences = 1 << 16;  // each has a place, whether or not it is used

// Room for those that run, and as many that have ended.
SequencePoolSize size_of(const EngineSettings& settings) {
  return {.sequences = settings.share_prefixes ? 2 * settings.sequences : settings.sequences,
          .tokens = settings.tokens};
}

// Whose memory a model is in; empty: the host's.
std::string memory_of(const Transformer& model) {
  return device_memory(model.parameters().device()).name;
}

EngineSettings checked(const InferenceModel& model, EngineSettings settings) {
  require_usage(settings.context >= 2, "context: expected 2 tokens or more, got {}",
                settings.context);
  require_usage(settings.sequences >= 1 && settings.sequences <= kMostSequences,
                "sequences: expected 1 to {}, got {}", kMostSequences, settings.sequences);
  require_usage(settings.step_tokens >= settings.sequences,
                "step_tokens: expected a token for each of {} sequences at least, got {}",
                settings.sequences, settings.step_tokens);
  require_usage(settings.tokens == 0 || settings.tokens >= settings.context,
                "tokens: expected room for one sequence of {} tokens at least, got {}",
                settings.context, settings.tokens);
  if (settings.deterministic) settings.share_prefixes = false;
  SequencePoolSize size = size_of(settings);
  if (size.tokens == 0) size.tokens = settings.sequences * settings.context;
  const TokenRoom room = model.count_tokens(size);
  const int64_t needed = settings.tokens > 0 ? settings.tokens : settings.context;
  size.tokens = needed;
  const std::string where = memory_of(model.transformer());
  require(room.tokens >= needed,
          "what is kept of {} tokens takes {} of memory, and {} are free{}; there is room for a "
          "context of {}",
          needed, format_bytes(static_cast<double>(pool_bytes(model.transformer().kept(), size))),
          format_bytes(static_cast<double>(room.free_bytes)), where.empty() ? "" : " on " + where,
          room.tokens);
  settings.tokens = room.tokens;
  return settings;
}

// How many tokens can be chosen.
int64_t vocabulary_of(const Transformer& model, const GenerationSettings& settings) {
  const int64_t all = model.vocab_size();
  return settings.vocabulary > 0 ? std::min(settings.vocabulary, all) : all;
}

std::vector<float> mean_of(const at::Tensor& sum_D, int64_t count) {
  const at::Tensor mean_D = (sum_D / count).to(at::kCPU, at::kFloat);
  const auto* data = mean_D.const_data_ptr<float>();
  return {data, data + mean_D.numel()};
}

bool is_finite(const at::Tensor& numbers) {
  const at::Tensor plain = numbers.to(at::kCPU, at::kFloat).contiguous();
  const auto* data = plain.const_data_ptr<float>();
  float nothing = 0;  // not a number where one is none, or infinite
  for (int64_t i = 0; i < plain.numel(); ++i) nothing += data[i] * 0;
  return nothing == 0;
}

bool is_finite(const TokensDepthWeights& depth, int64_t tokens) {
  return std::all_of(depth.weights.end() - tokens, depth.weights.end(), [](const auto& of_token) {
    return std::all_of(of_token.begin(), of_token.end(), [](const std::vector<float>& of_site) {
      return std::all_of(of_site.begin(), of_site.end(), [](float w) { return std::isfinite(w); });
    });
  });
}

}  // namespace

Engine::Engine(const InferenceModel& model, const EngineSettings& settings)
    : model_(model),
      settings_(checked(model, settings)),
      decoder_(model, size_of(settings_)),
      held_(decoder_) {}

void Engine::check_request(const GenerationRequest& request) const {
  const GenerationSettings& settings = request.settings;
  check(settings.sampling);
  require_usage(settings.max_tokens >= 0, "max_tokens: expected 0 or more, got {}",
                settings.max_tokens);
  require_usage(settings.min_tokens >= 0 && settings.min_tokens <= settings.max_tokens,
                "min_tokens: expected 0 to max_tokens, which is {}, got {}", settings.max_tokens,
                settings.min_tokens);
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  require(prompt_tokens > 0, "generate: the prompt has no tokens");
  // One that is scored only may fill it.
  const int64_t room = settings_.context - prompt_tokens;
  require(room > 0 || (room == 0 && settings.max_tokens == 0),
          "generate: the prompt has {} tokens, which leaves no room for more: this model's context "
          "is {} tokens; shorten the prompt",
          prompt_tokens, settings_.context);
  check_ids(model_.transformer(), request.prompt);
  check_logit_bias(settings.sampling, vocabulary_of(model_.transformer(), settings));
}

int64_t Engine::submit(GenerationRequest request) {
  check_request(request);
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  const int64_t room = settings_.context - prompt_tokens;
  Request taken{.settings = std::move(request.settings), .ids = std::move(request.prompt)};
  taken.settings.vocabulary = vocabulary_of(model_.transformer(), taken.settings);
  if (taken.settings.constraint) taken.constraint = taken.settings.constraint->start();
  taken.number = next_request_++;
  taken.prompt_tokens = prompt_tokens;
  taken.limit = prompt_tokens + std::min(taken.settings.max_tokens, room);
  queued_.push_back(std::move(taken));
  return queued_.back().number;
}

bool Engine::cancel(int64_t request) {
  const auto queued = std::find_if(queued_.begin(), queued_.end(),
                                   [&](const Request& r) { return r.number == request; });
  if (queued != queued_.end()) {
    queued_.erase(queued);
    return true;
  }
  if (!running_.contains(request)) return false;
  end(request, /*keep=*/true);
  return true;
}

// Not where the prompt's numbers are asked for: then it has to be computed.
bool Engine::shares(const Request& request) const {
  const GenerationSettings& settings = request.settings;
  return settings_.share_prefixes && settings.prompt_logprobs < 0 && !settings.depth_weights &&
         !settings.mean_hidden;
}

bool Engine::takes_snapshots() const {
  return settings_.share_prefixes && decoder_.pool().takes_snapshots();
}

// The prefix that is computed, without the prompt's last token, whose successor is to be chosen.
KnownPrefix Engine::known_prefix(const Request& request) {
  if (!shares(request)) return {};
  const std::span prompt(request.ids.data(), request.ids.size() - 1);
  KnownPrefix best = held_.find(prompt);
  for (const auto& [number, other] : running_) {
    const auto computed = static_cast<size_t>(decoder_.pool().length(other.sequence));
    const int64_t common = common_prefix(std::span(other.ids.data(), computed), prompt);
    const int64_t tokens = decoder_.pool().length_truncated(other.sequence, common);
    best.common = std::max(best.common, common);
    if (tokens > best.tokens) best = {other.sequence, tokens, best.common};
  }
  if (best.tokens < kWorthSharing) best = {.common = best.common};
  return best;
}

// Whether a prompt that is being read will soon share more of it.
bool Engine::awaits_prefix(const Request& request) {
  if (!shares(request)) return false;
  const std::span prompt(request.ids.data(), request.ids.size() - 1);
  const int64_t enough = std::max(kWorthSharing, known_prefix(request).tokens + 1);
  return std::any_of(running_.begin(), running_.end(), [&](const auto& entry) {
    const Request& other = entry.second;
    const int64_t common = common_prefix(other.ids, prompt);
    const int64_t tokens = decoder_.pool().has_states() ? other.snapshots.last(common) : common;
    return tokens >= enough && decoder_.pool().length(other.sequence) < tokens;
  });
}

// Whether all that run can come to their ends.
bool Engine::has_room() const {
  int64_t needed = 0;
  for (const auto& [number, request] : running_) {
    needed += decoder_.pool().free_tokens_to_reach(request.sequence, request.limit);
  }
  return needed <= decoder_.pool().free_tokens();
}

bool Engine::begin(Request& request) {
  const KnownPrefix prefix = known_prefix(request);
  const auto sequences = static_cast<int64_t>(running_.size()) + held_.count();
  if (sequences == size_of(settings_).sequences) held_.free_oldest(prefix.sequence);
  if (prefix.tokens > 0) {
    request.sequence = decoder_.fork(prefix.sequence);
    request.shared = decoder_.truncate(request.sequence, prefix.tokens);
  } else {
    request.sequence = decoder_.add();
    request.shared = 0;
  }
  if (takes_snapshots()) {
    if (request.shared > 0) decoder_.snapshot(request.sequence);
    request.snapshots = SnapshotLengths(request.prompt_tokens, prefix.common);
  }
  const auto [place, added] = running_.emplace(request.number, std::move(request));
  while (!has_room()) {
    if (held_.free_oldest()) continue;
    decoder_.free(place->second.sequence);
    request = std::move(place->second);
    running_.erase(place);
    return false;
  }
  Request& begun = place->second;
  begun.counts.add_prompt(begun.ids);
  totals_.shared_tokens += begun.shared;
  return true;
}

void Engine::admit() {
  for (auto next = queued_.begin();
       next != queued_.end() && std::ssize(running_) < settings_.sequences;) {
    if (awaits_prefix(*next)) {
      ++next;
    } else if (begin(*next)) {
      next = queued_.erase(next);
    } else {
      return;
    }
  }
}

std::vector<Engine::Part> Engine::plan() {
  std::vector<StepDemand> demands;
  std::vector<Part> parts;
  size_t after_last = 0;
  for (auto& [number, request] : running_) {
    const int64_t computed = decoder_.pool().length(request.sequence);
    demands.push_back({std::ssize(request.ids) - computed, computed < request.prompt_tokens});
    parts.push_back({.request = &request});
    if (number <= last_prompt_) after_last = parts.size();
  }
  const std::vector<int64_t> tokens =
      settings_.deterministic ? plan_step_alone(demands, settings_.step_tokens, after_last)
                              : plan_step(demands, settings_.step_tokens);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].tokens = tokens[i];
    if (demands[i].prompt && tokens[i] > 0) last_prompt_ = parts[i].request->number;
  }
  std::erase_if(parts, [](const Part& part) { return part.tokens == 0; });
  return parts;
}

std::vector<RequestUpdate> Engine::step() {
  const at::NoGradGuard not_recording;
  admit();
  std::vector<RequestUpdate> updates;
  const std::vector<Part> parts = plan();
  if (settings_.deterministic) {
    for (const Part& part : parts) compute({part}, &updates);
  } else if (!parts.empty()) {
    compute(parts, &updates);
  }
  return updates;
}

// The last layer's output of these tokens, part after part.
at::Tensor Engine::hidden_of(std::vector<Part>& parts) {
  std::vector<int32_t> ids;
  std::vector<Continuation> more;
  bool wanted = false;  // depth weights
  for (Part& part : parts) {
    part.row = std::ssize(ids);
    const Request& request = *part.request;
    const int64_t computed = decoder_.pool().length(request.sequence);
    const auto first = request.ids.begin() + computed;
    ids.insert(ids.end(), first, first + part.tokens);
    more.push_back({request.sequence, part.tokens,
                    request.snapshots.between(computed, computed + part.tokens)});
    wanted = wanted || request.settings.depth_weights;
  }
  if (!wanted) return decoder_.hidden(ids, more);
  StepDepthWeights weights(model_.transformer().parameters().group(), std::ssize(ids));
  at::Tensor hidden_TD = decoder_.hidden(ids, more, &weights);
  for (const Part& part : parts) {
    Request& request = *part.request;
    if (!request.settings.depth_weights) continue;
    const int64_t first = decoder_.pool().length(request.sequence) - part.tokens;
    weights.add_to(&request.depth, first, part.row, part.tokens);
  }
  return hidden_TD;
}

// Before anything of these tokens is kept or told. Throws Error.
void Engine::require_finite(const Part& part, const at::Tensor& hidden_TD) const {
  const Request& request = *part.request;
  const bool finite = is_finite(hidden_TD.narrow(0, part.row, part.tokens)) &&
                      (!request.settings.depth_weights || is_finite(request.depth, part.tokens));
  const int64_t end = decoder_.pool().length(request.sequence);
  require(finite,
          "the model's numbers at tokens {} to {} are not finite; its weights are damaged, or "
          "training diverged",
          end - part.tokens, end - 1);
}

// What is asked of a prompt beside its continuation.
void Engine::read_prompt(const Part& part, const at::Tensor& hidden_TD) {
  Request& request = *part.request;
  totals_.prompt_tokens += part.tokens;
  const int64_t computed = decoder_.pool().length(request.sequence);
  if (request.snapshots.last(computed) == computed) decoder_.snapshot(request.sequence);
  score_prompt(part, hidden_TD);
  if (!request.settings.mean_hidden) return;
  const at::Tensor sum = hidden_TD.narrow(0, part.row, part.tokens).to(at::kDouble).sum(0);
  request.hidden_sum = request.hidden_sum.defined() ? request.hidden_sum + sum : sum;
}

void Engine::compute(std::vector<Part> parts, std::vector<RequestUpdate>* updates) {
  at::Tensor hidden_TD;
  try {
    hidden_TD = hidden_of(parts);
  } catch (const std::exception& e) {
    const std::string why = is_out_of_memory(e)
                                ? describe_out_of_memory(e, memory_of(model_.transformer()))
                                : std::string(e.what());
    for (const Part& part : parts) updates->push_back(fail(part.request->number, why));
    return;
  }
  std::vector<Part> complete;  // those whose next token can be chosen
  for (const Part& part : parts) {
    Request& request = *part.request;
    const int64_t computed = decoder_.pool().length(request.sequence);
    try {
      require_finite(part, hidden_TD);
      if (computed - part.tokens < request.prompt_tokens) read_prompt(part, hidden_TD);
    } catch (const std::exception& e) {
      updates->push_back(fail(request.number, e.what()));
      continue;
    }
    if (computed == std::ssize(request.ids)) complete.push_back(part);
  }
  choose(complete, hidden_TD, updates);
}

void Engine::choose(const std::vector<Part>& complete, const at::Tensor& hidden_TD,
                    std::vector<RequestUpdate>* updates) {
  std::vector<int64_t> rows;
  std::vector<TokenChoice> choices;
  for (const Part& part : complete) {
    const Request& request = *part.request;
    if (request.is_full()) continue;
    rows.push_back(part.row + part.tokens - 1);
    const RandomStream random(request.settings.sampling.seed, "generate");
    choices.push_back({.settings = &request.settings,
                       .counts = &request.counts,
                       .uniform = random.uniform(request.generated()),
                       .may_end = request.generated() >= request.settings.min_tokens,
                       .constraint = request.constraint.get()});
  }
  std::vector<ChosenToken> chosen;
  if (!rows.empty()) {
    const at::Tensor last_TD =
        hidden_TD.index_select(0, at::tensor(rows, hidden_TD.options().dtype(at::kLong)));
    chosen = sample_tokens(model_.transformer().logits(last_TD), choices);
  }
  auto next = chosen.begin();
  for (const Part& part : complete) {
    Request& request = *part.request;
    RequestUpdate update = update_of(request);
    if (!request.is_full()) go_on(request, std::move(*next++), &update);
    if (request.is_full() && !update.stopped) {
      update.stopped = request.limit < request.prompt_tokens + request.settings.max_tokens
                           ? StopReason::context
                           : StopReason::max_tokens;
    }
    if (update.stopped) end(update.request, *update.stopped != StopReason::failed);
    updates->push_back(std::move(update));
  }
}

void Engine::score_prompt(const Part& part, const at::Tensor& hidden_TD) const {
  Request& request = *part.request;
  if (request.settings.prompt_logprobs < 0) return;
  const int64_t first = decoder_.pool().length(request.sequence) - part.tokens;
  // Each token scores the next one.
  const int64_t scored = std::min(part.tokens, request.prompt_tokens - 1 - first);
  for (int64_t done = 0; done < scored; done += kRowsScoredAtOnce) {
    const int64_t count = std::min(kRowsScoredAtOnce, scored - done);
    const at::Tensor logits =
        model_.transformer().logits(hidden_TD.narrow(0, part.row + done, count));
    const std::span next(request.ids.data() + first + done + 1, count);
    std::ranges::move(token_logprobs(logits, next, request.settings.prompt_logprobs),
                      std::back_inserter(request.prompt_logprobs));
  }
}

// What a request is told of a pass, beside its next token.
RequestUpdate Engine::update_of(Request& request) {
  RequestUpdate update{.request = request.number, .shared_tokens = request.shared};
  update.prompt_logprobs = std::exchange(request.prompt_logprobs, {});
  update.depth = std::exchange(request.depth, {});
  if (request.hidden_sum.defined()) {
    update.mean_hidden = mean_of(request.hidden_sum, request.prompt_tokens);
    request.hidden_sum.reset();
  }
  return update;
}

void Engine::go_on(Request& request, ChosenToken chosen, RequestUpdate* update) {
  if (!chosen.error.empty()) {
    update->stopped = StopReason::failed;
    update->error = std::move(chosen.error);
  } else if (chosen.ends) {
    update->stopped = StopReason::end_of_document;
  } else {
    update->token = chosen.token;
    update->logprobs = std::move(chosen.logprobs);
    request.ids.push_back(chosen.token);
    request.counts.add_generated(chosen.token);
    ++totals_.generated_tokens;
    if (chosen.completes) update->stopped = StopReason::end_of_document;
  }
}

void Engine::end(int64_t request, bool keep) {
  Request& ended = running_.at(request);
  const int64_t computed = decoder_.pool().length(ended.sequence);
  if (keep && settings_.share_prefixes && computed > 0) {
    ended.ids.resize(computed);
    held_.add(ended.sequence, std::move(ended.ids));
  } else {
    decoder_.free(ended.sequence);
  }
  running_.erase(request);
}

RequestUpdate Engine::fail(int64_t request, const std::string& error) {
  end(request, /*keep=*/false);
  return {.request = request, .stopped = StopReason::failed, .error = error};
}

EngineCounts Engine::counts() const {
  EngineCounts counts = totals_;
  counts.queued = std::ssize(queued_);
  counts.running = std::ssize(running_);
  counts.held = held_.count();
  counts.tokens = settings_.tokens;
  counts.free_tokens = decoder_.pool().free_tokens();
  return counts;
}

}  // namespace attnres
