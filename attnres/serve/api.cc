#include "attnres/serve/api.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "attnres/serve/absent_fields.h"
#include "attnres/serve/access.h"
#include "attnres/serve/base64.h"
#include "attnres/serve/completion_reply.h"
#include "attnres/serve/depth_reply.h"
#include "attnres/serve/documents.h"
#include "attnres/serve/json_fields.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRemembered = 64;  // finished requests
constexpr int kClientGone = 499;    // for the log: nobody is there to read it
// Of the list of models, beside the path of one of them.
const std::string kOneModel = "/v1/models/{model}", kBeforeModel = "/v1/models/";

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

HttpReply json_reply(const Json& json) {
  return {.body = one_line_of(json)};
}

std::string random_id(const char* prefix) {
  thread_local std::random_device device;
  std::string id = prefix;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", static_cast<uint32_t>(device()));
  return id;
}

// By which an endpoint is known.
const std::string& endpoint_path(const std::string& path) {
  return path.starts_with(kBeforeModel) && path.size() > kBeforeModel.size() ? kOneModel : path;
}

}  // namespace

struct Api::Call {
  explicit Call(HttpRequest request) : http(std::move(request)) {}
  ~Call() {
    if (exchange) exchange->cancel();
  }

  const HttpRequest http;
  Clock::time_point begin = Clock::now(), deadline = begin;
  std::string id = {};
  int64_t created = unix_seconds();
  std::string reason = {};  // how it ended, for the log
  std::optional<Clock::time_point> first_token = {}, last_token = {};
  // Of completions.
  CompletionRequest request = {};
  std::vector<SequenceReply> replies = {};
  std::shared_ptr<Exchange> exchange = {};
};

Api::Api(const TextEngine& engine, ModelLoop& loop, int64_t slots, const ApiSettings& settings,
         Log log)
    : engine_(engine),
      loop_(loop),
      slots_(slots),
      settings_(settings),
      log_(std::move(log)),
      created_(unix_seconds()) {}

const std::map<std::string, std::map<std::string, Api::Endpoint>>& Api::endpoints() {
  static const std::map<std::string, std::map<std::string, Endpoint>> all = {
      {"/v1/completions", {{"POST", &Api::completions}}},
      {"/v1/chat/completions", {{"POST", &Api::chat_completions}}},
      {"/v1/embeddings", {{"POST", &Api::embeddings}}},
      {"/v1/depth", {{"POST", &Api::depth}}},
      {"/v1/models", {{"GET", &Api::models}}},
      {kOneModel, {{"GET", &Api::model}}},
      {"/tokenize", {{"POST", &Api::tokenize}}},
      {"/detokenize", {{"POST", &Api::detokenize}}},
      {"/tokenizer_info", {{"GET", &Api::tokenizer_info}}},
      {"/", {{"GET", &Api::show_page}}},
      {"/openapi.json", {{"GET", &Api::describe}}},
      {"/health", {{"GET", &Api::health}}},
      {"/metrics", {{"GET", &Api::metrics}}},
  };
  return all;
}

HttpReply Api::operator()(HttpRequest request) {
  const auto call = std::make_shared<Call>(std::move(request));  // until its answer is sent
  call->deadline += std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(settings_.limits.request_seconds));
  HttpReply reply;
  try {
    const Endpoint endpoint = endpoint_for(call->http);
    reply = endpoint == nullptr ? HttpReply{.status = 204} : (this->*endpoint)(call);
  } catch (const ApiError& e) {
    reply = error_reply(*call, e);
  } catch (const std::exception& e) {
    reply = error_reply(*call, {500, "internal_error", e.what()});
  }
  reply.headers.merge(cors_headers(settings_, call->http));
  if (!reply.stream) finish(*call, reply.status);
  return reply;
}

std::optional<HttpReply> Api::refusal(const HttpRequest& head) {
  try {
    (void)endpoint_for(head);
    return std::nullopt;
  } catch (const ApiError& e) {
    Call call(head);
    HttpReply reply = error_reply(call, e);
    reply.headers.merge(cors_headers(settings_, head));
    finish(call, reply.status);
    return reply;
  }
}

HttpReply Api::answer_unread(const HttpRequest& request, int status, const std::string& code,
                             const std::string& message) {
  Call call(request);
  HttpReply reply = error_reply(call, {status, code, message});
  reply.headers.merge(cors_headers(settings_, request));
  finish(call, reply.status);
  return reply;
}

HttpReply Api::error_reply(Call& call, const ApiError& error) const {
  call.reason = error.code;
  HttpReply reply = {.status = error.status, .body = error_body(error)};
  if (error.status == 429 || error.status == 503) reply.headers["Retry-After"] = "1";
  if (error.status == 401) reply.headers["WWW-Authenticate"] = "Bearer";
  if (error.status == 405) {
    reply.headers["Allow"] = endpoints().at(endpoint_path(call.http.path)).begin()->first;
  }
  return reply;
}

// Of a request that may ask for it; none of OPTIONS, by which browsers ask whether they may.
Api::Endpoint Api::endpoint_for(const HttpRequest& request) const {
  check_origin(settings_, request);
  if (request.method == "OPTIONS") return nullptr;
  const auto found = endpoints().find(endpoint_path(request.path));
  if (found == endpoints().end()) {
    std::vector<std::string> paths;
    for (const auto& [path, methods] : endpoints()) paths.push_back(path);
    throw ApiError(
        404, "not_found",
        fmt::format("there is nothing at {}; there is {}", request.path, fmt::join(paths, ", ")));
  }
  const auto endpoint = found->second.find(request.method == "HEAD" ? "GET" : request.method);
  if (endpoint == found->second.end()) {
    throw ApiError(405, "method_not_allowed",
                   fmt::format("{} takes {}, not {}", request.path, found->second.begin()->first,
                               request.method));
  }
  static const std::set<std::string> kOpen = {"/", "/health", "/openapi.json"};
  if (!kOpen.contains(request.path)) check_key(settings_, request);
  return endpoint->second;
}

void Api::finish(const Call& call, int status) {
  const std::string path = endpoint_path(call.http.path);
  metrics_.count_request(endpoints().contains(path) ? path : "other", status);
  const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : text; };
  AnsweredRequest answered{.id = call.id,
                           .client = call.http.client,
                           .method = or_dash(call.http.method),
                           .path = or_dash(call.http.path),
                           .status = status,
                           .reason = call.reason,
                           .seconds = seconds_since(call.begin)};
  for (const SequenceReply& reply : call.replies) {
    answered.prompt_tokens += reply.prompt_tokens();
    answered.cached_tokens += reply.cached_tokens();
    answered.new_tokens += reply.new_tokens();
  }
  if (call.first_token) {
    answered.first_token_seconds =
        std::chrono::duration<double>(*call.first_token - call.begin).count();
  }
  if (settings_.log_prompts) answered.body = call.http.body;
  if (log_) log_(answered);
}

std::shared_ptr<Exchange> Api::start(const Call& call, std::vector<TextRequest> sequences) {
  return loop_.submit(std::move(sequences), call.http.client, call.http.gone);
}

HttpReply Api::completions(const CallPointer& call) {
  return complete(call, read_completion(call->http.body, engine_, settings_.limits));
}

HttpReply Api::chat_completions(const CallPointer& call) {
  return complete(call, read_chat(call->http.body, engine_, settings_.limits));
}

HttpReply Api::complete(const CallPointer& call, CompletionRequest request) {
  call->request = std::move(request);
  call->exchange = start(*call, call->request.sequences);
  call->id = random_id(call->request.chat ? "chatcmpl-" : "cmpl-");
  for (size_t i = 0; i < call->request.sequences.size(); ++i) {
    call->replies.emplace_back(call->request, i, engine_);
  }
  if (!call->request.stream) return whole_reply(*call);
  return {.type = "text/event-stream",
          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
          .stream = [this, call](const Send& send) { stream_reply(*call, send); }};
}

// What comes next of a sequence that has not failed. `while_silent` is called now and then before.
Exchange::Heard Api::hear(const Call& call, const std::function<void()>& while_silent) const {
  const auto silence = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(settings_.limits.comment_seconds));
  std::optional<Exchange::Heard> heard;
  while (true) {
    // Before what waits to be told, too: who reads slowly has no longer than others.
    const auto now = Clock::now();
    if (now >= call.deadline) {
      throw ApiError(
          504, "timeout",
          fmt::format("the request took longer than {} s", settings_.limits.request_seconds));
    }
    const auto until = while_silent ? std::min(call.deadline, now + silence) : call.deadline;
    heard = call.exchange->next(until);
    if (heard) break;
    if (while_silent) while_silent();
  }
  if (heard->update.stopped != StopReason::failed) return *std::move(heard);
  const std::string& error = heard->update.error;
  if (call.http.gone && call.http.gone()) throw ApiError(kClientGone, "gone", error);
  if (heard->shuts_down) throw ApiError(503, "shutting_down", error);
  throw ApiError(500, "failed", error);
}

// Calls on_piece(reply, choice) for what each sequence is given, until all have ended.
template <class F>
void Api::hear_all(Call& call, const F& on_piece, const std::function<void()>& while_silent) {
  size_t left = call.replies.size();
  while (left > 0) {
    const Exchange::Heard heard = hear(call, while_silent);
    if (heard.update.token) {
      const auto now = Clock::now();
      if (!call.first_token) {
        call.first_token = now;
        metrics_.add_first_token(seconds_since(call.begin));
      } else {
        metrics_.add_token(std::chrono::duration<double>(now - *call.last_token).count());
      }
      call.last_token = now;
    }
    SequenceReply& reply = call.replies[heard.sequence];
    const Json choice = reply.add(heard.update);
    if (reply.ended()) --left;
    on_piece(reply, choice);
  }
}

namespace {

Json usage_json(const CompletionRequest& request, const std::vector<SequenceReply>& replies) {
  const size_t n = replies.size() / request.prompts;
  int64_t prompt = 0, cached = 0, generated = 0;
  for (size_t i = 0; i < replies.size(); ++i) {
    if (i % n == 0) {
      prompt += replies[i].prompt_tokens();
      cached += replies[i].cached_tokens();
    }
    generated += replies[i].new_tokens();
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", generated},
          {"total_tokens", prompt + generated},
          {"prompt_tokens_details", {{"cached_tokens", cached}}}};
}

}  // namespace

HttpReply Api::whole_reply(Call& call) {
  hear_all(call, [](const SequenceReply&, const Json&) {});
  Json choices = Json::array();
  for (SequenceReply& reply : call.replies) {
    Json choice = reply.whole();
    if (Json depth = reply.take_depth(); !depth.is_null()) choice["depth"] = std::move(depth);
    choices.push_back(std::move(choice));
  }
  remember(call);
  call.reason = call.replies[0].finish();
  return json_reply({{"id", call.id},
                     {"object", call.request.chat ? "chat.completion" : "text_completion"},
                     {"created", call.created},
                     {"model", engine_.model().name},
                     {"choices", std::move(choices)},
                     {"usage", usage_json(call.request, call.replies)}});
}

void Api::stream_reply(Call& call, const Send& send) {
  const CompletionRequest& request = call.request;
  struct Gone {};
  const auto send_or_end = [&](const std::string& text) {
    if (!send(text)) throw Gone();
  };
  const auto event = [&](const Json& data) { send_or_end("data: " + one_line_of(data) + "\n\n"); };
  const Json head = {{"id", call.id},
                     {"object", request.chat ? "chat.completion.chunk" : "text_completion"},
                     {"created", call.created},
                     {"model", engine_.model().name}};
  const auto chunk = [&](Json choices) {
    Json data = head;
    data["choices"] = std::move(choices);
    if (request.stream_usage) data["usage"] = nullptr;
    return data;
  };
  const auto end = [&](int status, const std::string& reason) {
    call.reason = reason;
    finish(call, status);
  };
  const auto fail = [&](const ApiError& error) {
    send("data: " + error_body(error) + "\n\n");
    end(error.status, error.code);
  };
  const auto on_piece = [&](SequenceReply& reply, const Json& choice) {
    Json data = chunk(Json::array({choice}));
    if (Json depth = reply.take_depth(); !depth.is_null()) data["depth"] = std::move(depth);
    event(data);
  };
  try {
    // Clients and proxies end connections of which nothing comes; comments mean nothing to them.
    hear_all(call, on_piece, [&] { send_or_end(": still at work\n\n"); });
    if (request.stream_usage) {
      Json data = chunk(Json::array());
      data["usage"] = usage_json(request, call.replies);
      event(data);
    }
    remember(call);
    send_or_end("data: [DONE]\n\n");
    return end(200, call.replies[0].finish());
  } catch (const Gone&) {
    return end(kClientGone, "gone");
  } catch (const ApiError& e) {
    fail(e);
  } catch (const std::exception& e) {
    fail({500, "internal_error", e.what()});
  }
}

// For /v1/depth of a finished request.
void Api::remember(const Call& call) {
  const std::lock_guard lock(mutex_);
  finished_.emplace(call.id, call.replies[0].ids());
  finished_order_.push_back(call.id);
  if (finished_order_.size() <= kRemembered) return;
  finished_.erase(finished_order_.front());
  finished_order_.pop_front();
}

Json Api::model_json() const {
  const ModelDescription& model = engine_.model();
  const Json description = {{"parameters", model.parameters},
                            {"layers", model.layers},
                            {"width", model.width},
                            {"context", engine_.context()},
                            {"vocabulary", model.vocabulary},
                            {"mechanism", model.mechanism},
                            {"has_depth_weights", !model.sites.empty()},
                            {"sites", sites_json(model)},
                            {"tokenizer", model.tokenizer},
                            {"chat_template", model.chat_template}};
  return {{"id", model.name},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "attnres"},
          {"attnres", description}};
}

HttpReply Api::models(const CallPointer& /*call*/) {
  return json_reply({{"object", "list"}, {"data", Json::array({model_json()})}});
}

HttpReply Api::model(const CallPointer& call) {
  const std::string name = call->http.path.substr(kBeforeModel.size());
  if (name != engine_.model().name) refuse_model(name, engine_);
  return json_reply(model_json());
}

HttpReply Api::embeddings(const CallPointer& call) {
  std::string format;
  std::vector<TextRequest> sequences;
  Json data = Json::array();
  int64_t tokens = 0;
  {
    const JsonFields fields(call->http.body);
    check_model_name(fields, engine_);
    format = fields.text("encoding_format", "float");
    if (format != "float" && format != "base64") {
      refuse("encoding_format", "float or base64", Json(format));
    }
    const int64_t width = engine_.model().width;
    if (fields.whole("dimensions", width, 1, INT64_MAX) != width) {
      refuse_unsupported("dimensions", fmt::format("this model's embeddings have {}", width));
    }
    for (std::vector<int32_t>& ids :
         read_prompts("input", fields.find("input"), settings_.limits.sequences, engine_)) {
      tokens += std::ssize(ids);
      sequences.push_back(
          {.ids = std::move(ids), .generation = {.max_tokens = 0, .mean_hidden = true}});
      check_sequence("input", sequences.back(), engine_);
    }
  }
  call->exchange = start(*call, sequences);
  std::vector<std::vector<float>> means(sequences.size());
  for (size_t left = sequences.size(); left > 0; --left) {
    Exchange::Heard heard = hear(*call);
    means[heard.sequence] = std::move(heard.update.mean_hidden);
  }
  for (size_t i = 0; i < means.size(); ++i) {
    data.push_back(
        {{"object", "embedding"},
         {"index", i},
         {"embedding", format == "float" ? Json(means[i])
                                         : Json(base64(means[i].data(), means[i].size() * 4))}});
  }
  return json_reply({{"object", "list"},
                     {"data", std::move(data)},
                     {"model", engine_.model().name},
                     {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}});
}

// The text that is asked about, or that of a finished request.
TextRequest Api::sequence_for_depth(const HttpRequest& request) {
  const JsonFields fields(request.body);
  check_model_name(fields, engine_);
  std::string field = "request";
  std::vector<int32_t> ids;
  if (const std::string id = fields.text(field, ""); !id.empty()) {
    const std::lock_guard lock(mutex_);
    const auto found = finished_.find(id);
    if (found == finished_.end()) {
      throw ApiError(404, "request_not_found",
                     fmt::format("request: {} is none of the last {} that were finished",
                                 shown(Json(id)), kRemembered),
                     field);
    }
    ids = found->second;
  } else {
    field = fields.find("ids").is_null() ? "prompt" : "ids";
    auto prompts = read_prompts(field, fields.find(field), settings_.limits.sequences, engine_);
    if (prompts.size() != 1) refuse(field, "one text", fields.find(field));
    ids = std::move(prompts[0]);
  }
  if (std::ssize(ids) > settings_.limits.depth_tokens) {
    throw ApiError(400, "prompt_too_long",
                   fmt::format("{}: depth weights are given of {} tokens at most, this has {}",
                               field, settings_.limits.depth_tokens, ids.size()),
                   field);
  }
  TextRequest sequence = {.ids = std::move(ids),
                          .generation = {.max_tokens = 0, .depth_weights = true}};
  check_sequence(field, sequence, engine_);
  return sequence;
}

HttpReply Api::depth(const CallPointer& call) {
  const ModelDescription& model = engine_.model();
  if (model.sites.empty()) {
    throw ApiError(400, "no_depth_weights",
                   fmt::format("this model mixes over depth by {}, which has no depth weights",
                               model.mechanism));
  }
  const TextRequest sequence = sequence_for_depth(call->http);
  call->exchange = start(*call, {sequence});
  const TextUpdate update = hear(*call).update;
  Json depth = depth_json(update.depth, sequence.ids, engine_);
  return json_reply({{"object", "depth"},
                     {"model", model.name},
                     {"tokens", std::move(depth["tokens"])},
                     {"sites", sites_json(model)},
                     {"weights", std::move(depth["weights"])},
                     {"entropy", entropies_json(update.depth)},
                     {"shares", shares_json(model, update.depth)}});
}

HttpReply Api::tokenize(const CallPointer& call) {
  const JsonFields fields(call->http.body);
  check_model_name(fields, engine_);
  refuse_absent_of_tokenize(fields);
  const auto reply = [&](const std::vector<int32_t>& ids) {
    return json_reply(
        {{"tokens", ids}, {"count", ids.size()}, {"max_model_len", engine_.context()}});
  };
  if (!fields.find("messages").is_null()) return reply(read_conversation(fields, engine_).ids);
  const std::string prompt = fields.text("prompt", "");
  try {
    return reply(engine_.encode(prompt));
  } catch (const std::exception& e) {
    throw ApiError(400, "invalid_value", fmt::format("prompt: {}", e.what()), "prompt");
  }
}

HttpReply Api::detokenize(const CallPointer& call) {
  const JsonFields fields(call->http.body);
  check_model_name(fields, engine_);
  const auto ids = as_ids(fields.find("tokens"));
  if (!ids) refuse("tokens", "a list of token ids", fields.find("tokens"));
  try {
    return json_reply({{"prompt", engine_.decode(*ids)}});
  } catch (const std::exception& e) {
    throw ApiError(400, "invalid_value", fmt::format("tokens: {}", e.what()), "tokens");
  }
}

HttpReply Api::tokenizer_info(const CallPointer& /*call*/) {
  const ModelDescription& model = engine_.model();
  return json_reply({{"tokenizer_class", model.tokenizer},
                     {"vocab_size", model.vocabulary},
                     {"eos_token", model.end_of_document},
                     {"bos_token", nullptr},
                     {"pad_token", nullptr},
                     {"chat_template", nullptr},
                     {"model_max_length", engine_.context()}});
}

HttpReply Api::show_page(const CallPointer& /*call*/) {
  return {.type = "text/html; charset=utf-8",
          .body = std::string(page()),
          .headers = {{"Content-Security-Policy",
                       "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                       "connect-src 'self'; img-src data:"}}};
}

HttpReply Api::describe(const CallPointer& /*call*/) {
  return {.body = std::string(openapi())};
}

HttpReply Api::health(const CallPointer& /*call*/) {
  const LoopStatus status = loop_.status();
  return json_reply({{"status", "ok"},
                     {"running", status.running},
                     {"waiting", status.waiting},
                     {"slots", slots_}});
}

HttpReply Api::metrics(const CallPointer& /*call*/) {
  return {.type = "text/plain; version=0.0.4", .body = metrics_.text(loop_.status(), slots_)};
}

}  // namespace attnres
