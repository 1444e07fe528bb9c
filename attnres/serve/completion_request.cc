#include "attnres/serve/completion_request.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <random>
#include <set>
#include <utility>

#include "attnres/serve/absent_fields.h"
#include "attnres/serve/answer_format.h"
#include "attnres/serve/api_error.h"
#include "attnres/serve/conversation_request.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostLogprobs = 20;
constexpr int64_t kCompletionTokens = 16;  // OpenAI's default
// Each sequence of a request has them all.
constexpr size_t kMostStops = 16, kLongestStop = 1024, kMostBiases = 4096;

std::vector<int32_t> ids_of(const std::string& field, const std::string& text,
                            const Backend& backend, bool add_special_tokens) {
  try {
    return add_special_tokens ? backend.prompt_ids(text) : backend.encode(text);
  } catch (const std::exception& e) {
    pass_on_shortage(e);
    refuse_as("invalid_value", field, e.what());
  }
}

std::string too_many(int64_t most, size_t got) {
  return fmt::format("expected {} at most, got {}", most, got);
}

std::map<int32_t, double> read_logit_bias(const JsonFields& fields) {
  const Json& given = fields.find("logit_bias");
  std::map<int32_t, double> biases;
  if (given.is_null()) return biases;
  if (!given.is_object()) refuse("logit_bias", "an object of token ids and numbers", given);
  if (given.size() > kMostBiases) {
    refuse_as("invalid_value", "logit_bias", too_many(kMostBiases, given.size()));
  }
  for (const auto& [name, bias] : given.items()) {
    int32_t id = 0;
    const char* end = name.data() + name.size();
    const auto [stop, code] = std::from_chars(name.data(), end, id);
    if (code != std::errc() || stop != end || !bias.is_number()) {
      refuse("logit_bias", "an object of token ids and numbers", given);
    }
    biases[id] = bias.get<double>();
  }
  return biases;
}

// 0 leaves the likeliest token alone, as any share that is less than its probability does.
double read_top_p(const JsonFields& fields, double otherwise) {
  const double top_p = fields.number("top_p", otherwise);
  return top_p == 0 ? std::numeric_limits<double>::min() : top_p;
}

uint64_t drawn_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

// All but how many tokens and log-probabilities; what is not said the model says.
GenerationSettings read_generation(const JsonFields& fields, const Backend& backend) {
  GenerationSettings settings;
  SamplingSettings& sampling = settings.sampling;
  sampling = backend.model().sampling;
  sampling.temperature = fields.number("temperature", sampling.temperature);
  sampling.top_p = read_top_p(fields, sampling.top_p);
  sampling.min_p = fields.number("min_p", sampling.min_p);
  sampling.top_k = fields.whole("top_k", sampling.top_k, -1, kNoLimit);
  sampling.top_k = std::max<int64_t>(sampling.top_k, 0);  // vLLM's -1 is all too
  sampling.presence_penalty = fields.number("presence_penalty", 0);
  sampling.frequency_penalty = fields.number("frequency_penalty", 0);
  sampling.repetition_penalty = fields.number("repetition_penalty", sampling.repetition_penalty);
  sampling.seed = fields.bits("seed", 0);  // drawn in add_sequences where it is not given
  sampling.logit_bias = read_logit_bias(fields);
  settings.depth_weights = fields.flag("depth_weights", false) && !backend.model().sites.empty();
  return settings;
}

void read_streaming(const JsonFields& fields, CompletionRequest* request) {
  request->stream = fields.flag("stream", false);
  const Json& options = fields.find("stream_options");
  if (options.is_null()) return;
  if (!options.is_object()) refuse("stream_options", "an object", options);
  const Json usage = options.value("include_usage", Json(false));
  if (!usage.is_boolean() && !usage.is_null()) {
    refuse("stream_options.include_usage", "true or false", usage);
  }
  request->stream_usage = usage.is_boolean() && usage.get<bool>();
}

std::vector<std::string> read_stops(const JsonFields& fields) {
  std::vector<std::string> stops = fields.texts("stop");
  std::erase(stops, "");  // lm-eval and others send empty ones, which mean nothing
  if (stops.size() > kMostStops) {
    refuse_as("invalid_value", "stop", too_many(kMostStops, stops.size()));
  }
  for (const std::string& stop : stops) {
    if (stop.size() > kLongestStop) {
      refuse("stop", fmt::format("texts of {} bytes at most", kLongestStop), stop);
    }
  }
  return stops;
}

// What goes beyond OpenAI's fields, as vLLM has it.
void read_ends(const JsonFields& fields, TextRequest* one) {
  const Json& given = fields.find("stop_token_ids");
  const auto ids = given.is_null() ? std::vector<int32_t>() : as_ids(given);
  if (!ids) refuse("stop_token_ids", "a list of token ids", given);
  if (ids->size() > kMostStops) {
    refuse_as("invalid_value", "stop_token_ids", too_many(kMostStops, ids->size()));
  }
  one->generation.min_tokens = fields.whole("min_tokens", 0, 0, kNoLimit);
  one->past_ends = fields.flag("ignore_eos", false);
  if (one->past_ends) {
    one->generation.ends.clear();
    one->stops.clear();
  }
  one->generation.ends.insert(one->generation.ends.end(), ids->begin(), ids->end());
}

void read_shown(const JsonFields& fields, CompletionRequest* request) {
  request->token_ids = fields.flag("return_token_ids", false);
  request->prompt_logprobs = fields.whole("prompt_logprobs", -1, 0, kMostLogprobs);
  if (request->prompt_logprobs >= 0 && request->stream) {
    refuse_unsupported("prompt_logprobs", "they are not streamed; leave out stream");
  }
}

// n of each prompt, with seeds that follow each other; without one, each its own.
void add_sequences(const JsonFields& fields, std::vector<TextRequest> prompts,
                   const ApiLimits& limits, const Backend& backend, CompletionRequest* request) {
  const int64_t n = fields.whole("n", 1, 1, limits.sequences);
  if (fields.whole("best_of", n, 1, kNoLimit) != n) {
    refuse_unsupported("best_of", "this server has it as n only");
  }
  request->prompts = static_cast<int64_t>(prompts.size());
  if (request->prompts * n > limits.sequences) {
    refuse_as("too_many_sequences", "n",
              fmt::format("{} prompts times n = {} are more than the {} sequences that a request "
                          "may have",
                          request->prompts, n, limits.sequences));
  }
  const std::string field = request->chat ? "messages" : "prompt";
  request->depth_weights = prompts[0].generation.depth_weights;
  const bool drawn = fields.find("seed").is_null();
  for (TextRequest& prompt : prompts) {
    uint64_t& seed = prompt.generation.sampling.seed;
    if (drawn) seed = drawn_seed();
    const auto length = static_cast<int64_t>(prompt.ids.size());
    if (limits.prompt_tokens > 0 && length > limits.prompt_tokens) {
      refuse_as("prompt_too_long", field,
                fmt::format("{} tokens are more than this server takes, {}", length,
                            limits.prompt_tokens));
    }
    int64_t& tokens = prompt.generation.max_tokens;
    if (limits.new_tokens > 0) tokens = std::min(tokens, limits.new_tokens);
    if (request->depth_weights) check_depth_tokens(field, length, limits);
    check_sequence(field, prompt, backend);  // before there are n of it
    for (int64_t i = 0; i < n; ++i) {
      request->sequences.push_back(prompt);
      seed = drawn ? drawn_seed() : seed + 1;
    }
  }
}

int64_t most_tokens(const JsonFields& fields, const std::string& name, int64_t otherwise,
                    const ApiLimits& limits) {
  return fields.whole(name, otherwise, 0, limits.new_tokens > 0 ? limits.new_tokens : kNoLimit);
}

// The engine says "top-p: expected ...", by the names of the program's options, or what is wrong of
// the prompt.
[[noreturn]] void refuse_as_engine(const std::string& prompt, const std::string& message) {
  const size_t colon = std::min(message.find(':'), message.size());
  std::string field = message.substr(0, colon);
  std::replace(field.begin(), field.end(), '-', '_');
  static const std::set<std::string> kFields = {
      "temperature", "top_p",      "top_k",      "min_p", "frequency_penalty", "presence_penalty",
      "logit_bias",  "max_tokens", "min_tokens", "stop",  "repetition_penalty"};
  if (kFields.contains(field)) {
    throw ApiError(400, "invalid_value", field + message.substr(colon), field);
  }
  refuse_as("invalid_value", prompt, message);
}

}  // namespace

void check_model_name(const JsonFields& fields, const Backend& backend) {
  const std::string name = fields.text("model", backend.model().name);
  if (name != backend.model().name && !name.empty()) refuse_model(name, backend);
}

void refuse_model(const std::string& name, const Backend& backend) {
  throw ApiError(
      404, "model_not_found",
      fmt::format("model: this server has {}, not {}", backend.model().name, shown(Json(name))),
      "model");
}

std::vector<std::vector<int32_t>> read_prompts(const std::string& field, const Json& value,
                                               int64_t most, const Backend& backend,
                                               bool add_special_tokens) {
  constexpr const char* kExpected = "a text, token ids, or a list of either";
  const auto ids_of_text = [&](const Json& text) {
    return ids_of(field, text.get<std::string>(), backend, add_special_tokens);
  };
  if (value.is_string()) return {ids_of_text(value)};
  if (!value.is_array() || value.empty()) refuse(field, kExpected, value);
  if (value[0].is_number()) {
    const auto ids = as_ids(value);
    if (!ids) refuse(field, kExpected, value);
    return {*ids};
  }
  if (std::ssize(value) > most) {
    refuse_as("too_many_sequences", field, too_many(most, value.size()));
  }
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& prompt : value) {
    if (prompt.is_string()) {
      prompts.push_back(ids_of_text(prompt));
    } else if (const auto ids = as_ids(prompt); ids && !ids->empty()) {
      prompts.push_back(*ids);
    } else {
      refuse(field, kExpected, value);
    }
  }
  return prompts;
}

void check_depth_tokens(const std::string& field, int64_t tokens, const ApiLimits& limits) {
  if (tokens <= limits.depth_tokens) return;
  refuse_as("prompt_too_long", field,
            fmt::format("depth weights are given of {} tokens at most, this has {}",
                        limits.depth_tokens, tokens));
}

void check_sequence(const std::string& field, const TextRequest& sequence, const Backend& backend) {
  // One that is scored only may fill the context.
  const int64_t most = backend.context() - (sequence.generation.max_tokens > 0 ? 1 : 0);
  if (std::ssize(sequence.ids) > most) {
    refuse_as("context_length_exceeded", field,
              fmt::format("{} tokens leave no room for more: this model's context is {} tokens; "
                          "shorten it",
                          sequence.ids.size(), backend.context()));
  }
  try {
    backend.check(sequence);
  } catch (const std::exception& e) {
    pass_on_shortage(e);
    refuse_as_engine(field, e.what());
  }
}

CompletionRequest read_completion(const std::string& body, const Backend& backend,
                                  const ApiLimits& limits) {
  const JsonFields fields(body);
  check_model_name(fields, backend);
  refuse_absent_of_completions(fields);
  CompletionRequest request;
  request.echo = fields.flag("echo", false);
  request.logprobs = fields.whole("logprobs", -1, 0, kMostLogprobs);
  read_streaming(fields, &request);
  read_shown(fields, &request);
  TextRequest one{.generation = read_generation(fields, backend)};
  read_ends(fields, &one);
  read_answer_format(fields, backend, &one);
  one.stops = read_stops(fields);
  one.generation.max_tokens = most_tokens(fields, "max_tokens", kCompletionTokens, limits);
  one.generation.top_logprobs = request.logprobs;
  one.generation.prompt_logprobs = request.prompt_logprobs;
  if (request.echo && request.logprobs >= 0) {
    if (request.prompt_logprobs >= 0) {
      refuse_unsupported("prompt_logprobs", "with echo, logprobs has them; leave out one");
    }
    one.generation.prompt_logprobs = request.logprobs;
  }
  std::vector<TextRequest> prompts;
  for (std::vector<int32_t>& ids : read_prompts("prompt", fields.find("prompt"), limits.sequences,
                                                backend, fields.flag("add_special_tokens", true))) {
    one.ids = std::move(ids);
    prompts.push_back(one);
  }
  add_sequences(fields, std::move(prompts), limits, backend, &request);
  return request;
}

CompletionRequest read_chat(const std::string& body, const Backend& backend,
                            const ApiLimits& limits) {
  const JsonFields fields(body);
  check_model_name(fields, backend);
  refuse_absent_of_chat(fields);
  CompletionRequest request;
  request.chat = true;
  if (fields.flag("logprobs", false)) {
    request.logprobs = fields.whole("top_logprobs", 0, 0, kMostLogprobs);
  }
  read_streaming(fields, &request);
  TextRequest one = read_conversation(fields, backend);
  const GenerationSettings of_chat = std::move(one.generation);
  one.generation = read_generation(fields, backend);
  one.generation.ends = of_chat.ends;
  read_ends(fields, &one);
  read_answer_format(fields, backend, &one);
  if (of_chat.constraint) one.generation.constraint = of_chat.constraint;  // it is to call a tool
  read_shown(fields, &request);
  one.generation.prompt_logprobs = request.prompt_logprobs;
  const std::string name =
      fields.find("max_completion_tokens").is_null() ? "max_tokens" : "max_completion_tokens";
  one.generation.max_tokens = most_tokens(fields, name, backend.context(), limits);
  one.generation.top_logprobs = request.logprobs;
  const std::vector<std::string> stops = read_stops(fields);
  one.stops.insert(one.stops.end(), stops.begin(), stops.end());
  add_sequences(fields, {std::move(one)}, limits, backend, &request);
  return request;
}

}  // namespace attnres
