#include "attnres/infer/engine_c_api.h"

#include <fmt/ranges.h>

#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "attnres/infer/text_engine.h"
#include "attnres/support/error.h"

struct attnres_engine {
  attnres::TextEngine engine;
  std::string notes = {};
  std::deque<attnres::TextUpdate> unread = {};
  attnres::TextUpdate read = {};  // what `update` points into
  attnres_update update = {};
};

namespace attnres {
namespace {

std::string& last_error() {
  thread_local std::string error;
  return error;
}

// What f gives, or `failed` with the error kept.
template <class Result, class F>
Result guarded(Result failed, const F& f) {
  try {
    return f();
  } catch (const std::exception& e) {
    last_error() = e.what();
  } catch (...) {
    last_error() = "an unknown error";
  }
  return failed;
}

template <class T>
void set_if_given(T given, T* to) {
  if (given != 0) *to = given;
}

TextEngineSettings settings_of(const attnres_engine_settings& given) {
  TextEngineSettings settings;
  if (given.weights != nullptr) settings.weights = given.weights;
  set_if_given(given.context, &settings.engine.context);
  set_if_given(given.sequences, &settings.engine.sequences);
  set_if_given(given.step_tokens, &settings.engine.step_tokens);
  settings.engine.deterministic = given.deterministic != 0;
  settings.threads = given.threads;
  return settings;
}

// What both have under the same names.
template <class From, class To>
void copy_sampling(const From& from, To* to) {
  to->temperature = from.temperature;
  to->top_k = from.top_k;
  to->top_p = from.top_p;
  to->min_p = from.min_p;
  to->repetition_penalty = from.repetition_penalty;
  to->presence_penalty = from.presence_penalty;
  to->frequency_penalty = from.frequency_penalty;
  to->seed = from.seed;
}

TextRequest request_of(const attnres_request& given) {
  TextRequest request;
  require(given.ids != nullptr || given.text != nullptr, "request: give a text or ids");
  if (given.ids != nullptr) {
    require(given.num_ids > 0, "request: expected one token id or more");
    request.ids.assign(given.ids, given.ids + given.num_ids);
  } else {
    request.text = given.text;
  }
  for (size_t i = 0; i < given.num_stops; ++i) {
    require(given.stops != nullptr && given.stops[i] != nullptr,
            "request: num_stops is {}, but stop {} is NULL", given.num_stops, i);
    request.stops.emplace_back(given.stops[i]);
  }
  request.generation.max_tokens = given.max_tokens;
  request.generation.top_logprobs = 0;
  copy_sampling(given, &request.generation.sampling);
  return request;
}

attnres_stop stop_of(const std::optional<StopReason>& reason) {
  if (!reason) return ATTNRES_GOES_ON;
  switch (*reason) {
    case StopReason::end_of_document:
      return ATTNRES_STOPPED_AT_END_OF_DOCUMENT;
    case StopReason::max_tokens:
      return ATTNRES_STOPPED_AT_MAX_TOKENS;
    case StopReason::context:
      return ATTNRES_STOPPED_AT_CONTEXT;
    case StopReason::stop_string:
      return ATTNRES_STOPPED_AT_STOP_STRING;
    case StopReason::failed:
      return ATTNRES_FAILED;
  }
  return ATTNRES_FAILED;
}

}  // namespace
}  // namespace attnres

extern "C" {

attnres_engine* attnres_engine_open(const char* model, const attnres_engine_settings* settings) {
  return attnres::guarded<attnres_engine*>(nullptr, [&] {
    attnres::require(model != nullptr, "open: give the path of a model");
    std::unique_ptr<attnres_engine> engine(new attnres_engine{
        attnres::TextEngine(model, settings != nullptr ? attnres::settings_of(*settings)
                                                       : attnres::TextEngineSettings{})});
    engine->notes = fmt::format("{}", fmt::join(engine->engine.notes(), "\n"));
    return engine.release();
  });
}

const char* attnres_engine_notes(const attnres_engine* engine) {
  return engine == nullptr || engine->notes.empty() ? nullptr : engine->notes.c_str();
}

attnres_request attnres_request_default(void) {
  const attnres::GenerationSettings settings;
  attnres_request request = {};
  request.max_tokens = settings.max_tokens;
  attnres::copy_sampling(settings.sampling, &request);
  return request;
}

int64_t attnres_engine_submit(attnres_engine* engine, const attnres_request* request) {
  return attnres::guarded<int64_t>(-1, [&] {
    attnres::require(engine != nullptr && request != nullptr,
                     "submit: give an engine and a request");
    return engine->engine.submit(attnres::request_of(*request));
  });
}

int attnres_engine_cancel(attnres_engine* engine, int64_t request) {
  return attnres::guarded<int>(-1, [&] {
    attnres::require(engine != nullptr, "cancel: give an engine");
    return engine->engine.cancel(request) ? 1 : 0;
  });
}

int attnres_engine_step(attnres_engine* engine) {
  return attnres::guarded<int>(-1, [&] {
    attnres::require(engine != nullptr, "step: give an engine");
    for (attnres::TextUpdate& update : engine->engine.step()) {
      engine->unread.push_back(std::move(update));
    }
    return engine->engine.idle() && engine->unread.empty() ? 0 : 1;
  });
}

const attnres_update* attnres_engine_read(attnres_engine* engine) {
  if (engine == nullptr || engine->unread.empty()) return nullptr;
  engine->read = std::move(engine->unread.front());
  engine->unread.pop_front();
  const attnres::TextUpdate& read = engine->read;
  engine->update = {.request = read.request,
                    .text = read.text.c_str(),
                    .token = read.token.value_or(-1),
                    .logprob = read.logprobs ? read.logprobs->chosen : 0,
                    .stop = attnres::stop_of(read.stopped),
                    .error = read.error.c_str()};
  return &engine->update;
}

void attnres_engine_close(attnres_engine* engine) {
  delete engine;
}

const char* attnres_engine_error(void) {
  return attnres::last_error().c_str();
}

}  // extern "C"
