#include "attnres/serve/api.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <utility>

#include "attnres/serve/api_error.h"
#include "attnres/serve/base64.h"
#include "attnres/serve/completion_reply.h"
#include "attnres/serve/json_fields.h"
#include "attnres/serve/page.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kRemembered = 64;  // finished requests

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

HttpReply json_reply(const Json& json) {
  return {.body = dumped(json)};
}

std::string random_id(const char* prefix) {
  thread_local std::random_device device;
  std::string id = prefix;
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", static_cast<uint32_t>(device()));
  return id;
}

// In a time that does not tell where they differ.
bool equal_keys(const std::string& given, const std::string& key) {
  unsigned char difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < key.size(); ++i) {
    difference |= static_cast<unsigned char>(key[i] ^ (i < given.size() ? given[i] : 0));
  }
  return difference == 0;
}

// Without scheme and port: of "http://[::1]:80" "::1".
std::string host_of(std::string address) {
  if (const size_t scheme = address.find("://"); scheme != std::string::npos) {
    address.erase(0, scheme + 3);
  }
  if (address.starts_with('[')) return address.substr(1, address.find(']') - 1);
  return address.substr(0, address.find(':'));
}

// A name could be made to mean this machine by a page that wants to ask; an address cannot.
bool is_address(const std::string& host) {
  return host == "localhost" || host.find(':') != std::string::npos ||
         host.find_first_not_of("0123456789.") == std::string::npos;
}

Json error_event(int status, const std::string& code, const std::string& message) {
  return Json::parse(error_body(status, code, message));
}

double entropy(const std::vector<float>& weights) {
  double sum = 0;
  for (const float weight : weights) sum -= weight > 0 ? weight * std::log(weight) : 0;
  return sum;
}

Json sites_json(const ModelDescription& model) {
  Json sites = Json::array();
  for (const DepthSite& site : model.sites) {
    sites.push_back({{"site", site.site}, {"name", site.name}, {"sources", site.sources}});
  }
  return sites;
}

// Each source's weight, averaged over tokens and over the sites that have a choice.
Json shares_json(const ModelDescription& model, const TokensDepthWeights& depth) {
  std::vector<std::string> order;
  std::map<std::string, double> sums;
  double total = 0;
  for (size_t s = 0; s < model.sites.size(); ++s) {
    const std::vector<std::string>& sources = model.sites[s].sources;
    if (sources.size() < 2) continue;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (!sums.contains(sources[i])) order.push_back(sources[i]);
      for (const auto& token : depth.weights) {
        sums[sources[i]] += token[s][i];
        total += token[s][i];
      }
    }
  }
  Json shares = Json::array();
  for (const std::string& source : order) {
    shares.push_back({{"source", source}, {"share", total > 0 ? sums[source] / total : 0}});
  }
  return shares;
}

}  // namespace

struct Api::Call {
  const HttpRequest http;
  Clock::time_point begin = Clock::now(), deadline = begin;
  std::string id = {};
  int64_t created = unix_seconds();
  bool logged = false;
  std::optional<Clock::time_point> first_token = {}, last_token = {};
  // Of completions.
  CompletionRequest request = {};
  std::vector<SequenceReply> replies = {};
  std::shared_ptr<Exchange> exchange = {};

  ~Call() {
    if (exchange) exchange->cancel();
  }
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
      {"/tokenize", {{"POST", &Api::tokenize}}},
      {"/detokenize", {{"POST", &Api::detokenize}}},
      {"/tokenizer_info", {{"GET", &Api::tokenizer_info}}},
      {"/", {{"GET", &Api::show_page}}},
      {"/health", {{"GET", &Api::health}}},
      {"/metrics", {{"GET", &Api::metrics}}},
  };
  return all;
}

HttpReply Api::operator()(const HttpRequest& request) {
  const auto call = std::make_shared<Call>(Call{.http = request});
  call->deadline += std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(settings_.limits.request_seconds));
  HttpReply reply;
  std::string code;
  try {
    reply = route(*call);
  } catch (const ApiError& e) {
    code = e.code;
    reply = {.status = e.status, .body = error_body(e.status, e.code, e.what())};
    if (e.status == 429 || e.status == 503) reply.headers["Retry-After"] = "1";
    if (e.status == 401) reply.headers["WWW-Authenticate"] = "Bearer";
  } catch (const std::exception& e) {
    code = "internal_error";
    reply = {.status = 500, .body = error_body(500, code, e.what())};
  }
  reply.headers.merge(cors_headers(request));
  if (!reply.stream && !call->logged) finish(*call, reply.status, code);
  return reply;
}

HttpReply Api::route(Call& call) {
  const HttpRequest& request = call.http;
  check_origin(request);
  if (request.method == "OPTIONS") return {.status = 204};
  const auto found = endpoints().find(request.path);
  if (found == endpoints().end()) {
    throw ApiError(404, "not_found", fmt::format("there is nothing at {}", request.path));
  }
  const auto endpoint = found->second.find(request.method == "HEAD" ? "GET" : request.method);
  if (endpoint == found->second.end()) {
    throw ApiError(405, "method_not_allowed",
                   fmt::format("{} takes {}, not {}", request.path, found->second.begin()->first,
                               request.method));
  }
  if (request.path != "/health" && request.path != "/") check_key(request);
  return (this->*endpoint->second)(call);
}

// Pages of others ask only where they may, also those that give this machine a name of theirs.
void Api::check_origin(const HttpRequest& request) const {
  const std::string origin = request.header("origin"), host = request.header("host");
  for (const std::string& allowed : settings_.origins) {
    if (origin == allowed || (!host.empty() && host_of(allowed) == host_of(host))) return;
  }
  if (settings_.api_key.empty() && !host.empty() && !is_address(host_of(host))) {
    throw ApiError(403, "host_not_allowed",
                   fmt::format("this server has no API key and is asked as {}: name it with "
                               "--origin if that is right",
                               host));
  }
  if (!origin.empty() && host_of(origin) != host_of(host)) {
    throw ApiError(
        403, "origin_not_allowed",
        fmt::format("pages of {} may not ask this server; --origin allows them", origin));
  }
}

std::map<std::string, std::string> Api::cors_headers(const HttpRequest& request) const {
  const std::string origin = request.header("origin");
  for (const std::string& allowed : settings_.origins) {
    if (origin != allowed) continue;
    return {{"Access-Control-Allow-Origin", origin},
            {"Vary", "Origin"},
            {"Access-Control-Allow-Methods", "GET, POST"},
            {"Access-Control-Allow-Headers", "Authorization, Content-Type"}};
  }
  return {};
}

void Api::check_key(const HttpRequest& request) const {
  if (settings_.api_key.empty()) return;
  const std::string given = request.header("authorization"), scheme = "Bearer ";
  if (given.starts_with(scheme) && equal_keys(given.substr(scheme.size()), settings_.api_key)) {
    return;
  }
  throw ApiError(401, "invalid_api_key",
                 "this server needs its API key, as the header Authorization: Bearer KEY");
}

void Api::finish(Call& call, int status, const std::string& reason) {
  call.logged = true;
  const bool known = endpoints().contains(call.http.path);
  metrics_.count_request(known ? call.http.path : "other", status);
  AnsweredRequest answered{.id = call.id,
                           .client = call.http.client,
                           .method = call.http.method,
                           .path = call.http.path,
                           .status = status,
                           .reason = reason,
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
  for (const TextRequest& sequence : sequences) {
    try {
      engine_.check(sequence);
    } catch (const std::exception& e) {
      throw ApiError(400, "invalid_value", e.what());
    }
  }
  return loop_.submit(std::move(sequences), call.http.client, call.http.gone);
}

HttpReply Api::completions(Call& call) {
  return complete(call, read_completion(call.http.body, engine_, settings_.limits));
}

HttpReply Api::chat_completions(Call& call) {
  return complete(call, read_chat(call.http.body, engine_, settings_.limits));
}

HttpReply Api::complete(Call& first, CompletionRequest request) {
  // Lives as long as its answer is sent.
  const auto call = std::make_shared<Call>(Call{.http = first.http});
  call->begin = first.begin;
  call->deadline = first.deadline;
  first.logged = true;
  call->id = random_id(request.chat ? "chatcmpl-" : "cmpl-");
  call->request = std::move(request);
  try {
    call->exchange = start(*call, call->request.sequences);
  } catch (...) {
    first.logged = false;
    throw;
  }
  for (size_t i = 0; i < call->request.sequences.size(); ++i) {
    call->replies.emplace_back(call->request, i, engine_);
  }
  if (!call->request.stream) return whole_reply(call);
  return {.type = "text/event-stream",
          .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
          .stream = [this, call](const Send& send) { stream_reply(call, send); }};
}

// Calls on_piece(index, choice) for what each sequence is given, until all have ended.
template <class F>
void Api::hear_all(Call& call, const F& on_piece) {
  size_t left = call.replies.size();
  while (left > 0) {
    const auto heard = call.exchange->next(call.deadline);
    if (!heard) {
      throw ApiError(
          504, "timeout",
          fmt::format("the request took longer than {} s", settings_.limits.request_seconds));
    }
    if (heard->update.token) {
      const auto now = Clock::now();
      if (!call.first_token) {
        call.first_token = now;
        metrics_.add_first_token(seconds_since(call.begin));
      } else {
        metrics_.add_token(std::chrono::duration<double>(now - *call.last_token).count());
      }
      call.last_token = now;
    }
    SequenceReply& reply = call.replies[heard->sequence];
    const Json choice = reply.add(heard->update);
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

HttpReply Api::whole_reply(const std::shared_ptr<Call>& call) {
  const CompletionRequest& request = call->request;
  try {
    hear_all(*call, [](const SequenceReply&, const Json&) {});
  } catch (const ApiError& e) {
    finish(*call, e.status, e.code);
    return {.status = e.status, .body = error_body(e.status, e.code, e.what())};
  }
  Json choices = Json::array();
  for (SequenceReply& reply : call->replies) {
    Json choice = reply.whole();
    if (Json depth = reply.take_depth(); !depth.is_null()) choice["depth"] = std::move(depth);
    choices.push_back(std::move(choice));
  }
  remember(*call);
  finish(*call, 200, choices[0]["finish_reason"].get<std::string>());
  return json_reply({{"id", call->id},
                     {"object", request.chat ? "chat.completion" : "text_completion"},
                     {"created", call->created},
                     {"model", engine_.model().name},
                     {"choices", std::move(choices)},
                     {"usage", usage_json(request, call->replies)}});
}

void Api::stream_reply(const std::shared_ptr<Call>& call, const Send& send) {
  const CompletionRequest& request = call->request;
  struct Gone {};
  const auto event = [&](const Json& data) {
    if (!send("data: " + dumped(data) + "\n\n")) throw Gone();
  };
  const Json head = {{"id", call->id},
                     {"object", request.chat ? "chat.completion.chunk" : "text_completion"},
                     {"created", call->created},
                     {"model", engine_.model().name}};
  const auto chunk = [&](Json choices) {
    Json data = head;
    data["choices"] = std::move(choices);
    if (request.stream_usage) data["usage"] = nullptr;
    return data;
  };
  try {
    hear_all(*call, [&](SequenceReply& reply, const Json& choice) {
      Json data = chunk(Json::array({choice}));
      if (Json depth = reply.take_depth(); !depth.is_null()) data["depth"] = std::move(depth);
      event(data);
    });
    if (request.stream_usage) {
      Json data = chunk(Json::array());
      data["usage"] = usage_json(request, call->replies);
      event(data);
    }
    remember(*call);
    if (!send("data: [DONE]\n\n")) throw Gone();
    finish(*call, 200, call->replies[0].whole()["finish_reason"].get<std::string>());
  } catch (const Gone&) {
    finish(*call, 499, "gone");
  } catch (const ApiError& e) {
    send("data: " + dumped(error_event(e.status, e.code, e.what())) + "\n\n");
    finish(*call, e.status, e.code);
  } catch (const std::exception& e) {
    send("data: " + dumped(error_event(500, "internal_error", e.what())) + "\n\n");
    finish(*call, 500, "internal_error");
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

HttpReply Api::models(Call& /*call*/) {
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
                            {"chat_template", model.chat_format}};
  return json_reply({{"object", "list"},
                     {"data", Json::array({{{"id", model.name},
                                            {"object", "model"},
                                            {"created", created_},
                                            {"owned_by", "attnres"},
                                            {"attnres", description}}})}});
}

// The one update of a sequence that is read and not continued.
TextUpdate Api::only_update(Exchange& exchange, const Call& call) {
  auto heard = exchange.next(call.deadline);
  if (!heard) throw ApiError(504, "timeout", "the request took too long");
  if (heard->update.stopped == StopReason::failed) {
    throw ApiError(500, "failed", heard->update.error);
  }
  return std::move(heard->update);
}

HttpReply Api::embeddings(Call& call) {
  const JsonFields fields(call.http.body);
  check_model_name(fields, engine_);
  const std::string format = fields.text("encoding_format", "float");
  if (format != "float" && format != "base64") {
    refuse("encoding_format", "float or base64", Json(format));
  }
  const int64_t width = engine_.model().width;
  if (fields.whole("dimensions", width, 1, INT64_MAX) != width) {
    throw ApiError(400, "unsupported",
                   fmt::format("dimensions: this model's embeddings have {}", width));
  }
  Json data = Json::array();
  int64_t tokens = 0;
  const auto inputs = read_prompts("input", fields.find("input"), engine_);
  if (std::ssize(inputs) > settings_.limits.sequences) {
    throw ApiError(400, "too_many_sequences",
                   fmt::format("input: expected {} texts at most, got {}",
                               settings_.limits.sequences, inputs.size()));
  }
  std::vector<TextRequest> sequences;
  for (const std::vector<int32_t>& ids : inputs) {
    tokens += std::ssize(ids);
    sequences.push_back({.ids = ids, .generation = {.max_tokens = 0, .mean_hidden = true}});
  }
  call.exchange = start(call, sequences);
  std::vector<std::vector<float>> means(sequences.size());
  for (size_t left = sequences.size(); left > 0; --left) {
    auto heard = call.exchange->next(call.deadline);
    if (!heard) throw ApiError(504, "timeout", "the request took too long");
    if (heard->update.stopped == StopReason::failed) {
      throw ApiError(500, "failed", heard->update.error);
    }
    means[heard->sequence] = std::move(heard->update.mean_hidden);
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

HttpReply Api::depth(Call& call) {
  const JsonFields fields(call.http.body);
  check_model_name(fields, engine_);
  const ModelDescription& model = engine_.model();
  std::vector<int32_t> ids;
  if (const std::string id = fields.text("request", ""); !id.empty()) {
    const std::lock_guard lock(mutex_);
    const auto found = finished_.find(id);
    if (found == finished_.end()) {
      throw ApiError(
          404, "request_not_found",
          fmt::format("request: {} is none of the last {} that were finished", id, kRemembered));
    }
    ids = found->second;
  } else {
    const char* field = fields.find("ids").is_null() ? "prompt" : "ids";
    auto prompts = read_prompts(field, fields.find(field), engine_);
    if (prompts.size() != 1) refuse(field, "one text", fields.find(field));
    ids = std::move(prompts[0]);
  }
  if (model.sites.empty()) {
    throw ApiError(400, "no_depth_weights",
                   fmt::format("this model mixes over depth by {}, which has no depth weights",
                               model.mechanism));
  }
  if (std::ssize(ids) > settings_.limits.depth_tokens) {
    throw ApiError(400, "prompt_too_long",
                   fmt::format("depth weights are given of {} tokens at most, this has {}",
                               settings_.limits.depth_tokens, ids.size()));
  }
  call.exchange =
      start(call, {{.ids = ids, .generation = {.max_tokens = 0, .depth_weights = true}}});
  const TextUpdate update = only_update(*call.exchange, call);
  Json entropies = Json::array();
  for (const auto& token : update.depth.weights) {
    Json sites = Json::array();
    for (const std::vector<float>& weights : token) sites.push_back(entropy(weights));
    entropies.push_back(std::move(sites));
  }
  Json depth = depth_json(update.depth, ids, engine_);
  return json_reply({{"object", "depth"},
                     {"model", model.name},
                     {"tokens", std::move(depth["tokens"])},
                     {"sites", sites_json(model)},
                     {"weights", std::move(depth["weights"])},
                     {"entropy", std::move(entropies)},
                     {"shares", shares_json(model, update.depth)}});
}

HttpReply Api::tokenize(Call& call) {
  const JsonFields fields(call.http.body);
  check_model_name(fields, engine_);
  const std::string prompt = fields.text("prompt", "");
  try {
    const std::vector<int32_t> ids = engine_.encode(prompt);
    return json_reply(
        {{"tokens", ids}, {"count", ids.size()}, {"max_model_len", engine_.context()}});
  } catch (const std::exception& e) {
    throw ApiError(400, "invalid_value", fmt::format("prompt: {}", e.what()));
  }
}

HttpReply Api::detokenize(Call& call) {
  const JsonFields fields(call.http.body);
  check_model_name(fields, engine_);
  const auto ids = as_ids(fields.find("tokens"));
  if (!ids) refuse("tokens", "a list of token ids", fields.find("tokens"));
  try {
    return json_reply({{"prompt", engine_.decode(*ids)}});
  } catch (const std::exception& e) {
    throw ApiError(400, "invalid_value", fmt::format("tokens: {}", e.what()));
  }
}

HttpReply Api::tokenizer_info(Call& /*call*/) {
  const ModelDescription& model = engine_.model();
  return json_reply({{"tokenizer_class", model.tokenizer},
                     {"vocab_size", model.vocabulary},
                     {"eos_token", model.end_of_document},
                     {"bos_token", nullptr},
                     {"pad_token", nullptr},
                     {"chat_template", nullptr},
                     {"model_max_length", engine_.context()}});
}

HttpReply Api::show_page(Call& /*call*/) {
  return {.type = "text/html; charset=utf-8",
          .body = std::string(page()),
          .headers = {{"Content-Security-Policy",
                       "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                       "connect-src 'self'; img-src data:"}}};
}

HttpReply Api::health(Call& /*call*/) {
  const LoopStatus status = loop_.status();
  return json_reply({{"status", "ok"},
                     {"running", status.running},
                     {"waiting", status.waiting},
                     {"slots", slots_}});
}

HttpReply Api::metrics(Call& /*call*/) {
  return {.type = "text/plain; version=0.0.4", .body = metrics_.text(loop_.status(), slots_)};
}

}  // namespace attnres
