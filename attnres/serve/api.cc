#include "attnres/serve/api.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <chrono>
#include <exception>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "attnres/serve/access.h"

namespace attnres {
namespace {

using endpoints::Call;
using endpoints::Endpoint;

// Path of one of the listed models.
const std::string kOneModel = endpoints::kBeforeModel + "{model}";

// By which an endpoint is known.
const std::string& endpoint_path(const std::string& path) {
  const std::string& before = endpoints::kBeforeModel;
  return path.starts_with(before) && path.size() > before.size() ? kOneModel : path;
}

// By path and method.
const std::map<std::string, std::map<std::string, Endpoint>>& all_endpoints() {
  static const std::map<std::string, std::map<std::string, Endpoint>> all = {
      {"/v1/completions", {{"POST", &endpoints::completions}}},
      {"/v1/chat/completions", {{"POST", &endpoints::chat_completions}}},
      {"/v1/embeddings", {{"POST", &endpoints::embeddings}}},
      {"/v1/depth", {{"POST", &endpoints::depth}}},
      {"/v1/models", {{"GET", &endpoints::models}}},
      {kOneModel, {{"GET", &endpoints::model}}},
      {"/tokenize", {{"POST", &endpoints::tokenize}}},
      {"/detokenize", {{"POST", &endpoints::detokenize}}},
      {"/tokenizer_info", {{"GET", &endpoints::tokenizer_info}}},
      {"/", {{"GET", &endpoints::show_page}}},
      {"/openapi.json", {{"GET", &endpoints::describe}}},
      {"/health", {{"GET", &endpoints::health}}},
      {"/metrics", {{"GET", &endpoints::metrics}}},
  };
  return all;
}

}  // namespace

Api::Api(Backend& backend, const ApiSettings& settings, Log log)
    : service_{backend, settings, endpoints::unix_seconds()}, log_(std::move(log)) {}

HttpReply Api::operator()(HttpRequest request) {
  const auto call = std::make_shared<Call>(std::move(request));
  call->deadline += std::chrono::duration_cast<Call::Clock::duration>(
      std::chrono::duration<double>(service_.settings.limits.request_seconds));
  HttpReply reply;
  try {
    const Endpoint endpoint = endpoint_for(call->http);
    reply = endpoint == nullptr ? HttpReply{.status = 204} : endpoint(service_, call);
  } catch (const ApiError& e) {
    reply = error_reply(*call, e);
  } catch (const std::exception& e) {
    reply = error_reply(*call, failure_of(e));
  }
  reply.headers.merge(cors_headers(service_.settings, call->http));
  if (reply.stream) {
    reply.stream = [this, call, stream = std::move(reply.stream)](const Send& send) {
      stream(send);
      finish(*call, call->status);
    };
  } else {
    finish(*call, reply.status);
  }
  return reply;
}

std::optional<HttpReply> Api::refusal(const HttpRequest& head) {
  try {
    (void)endpoint_for(head);
    return std::nullopt;
  } catch (const ApiError& e) {
    return refuse(head, e);
  }
}

HttpReply Api::answer_unread(const HttpRequest& request, int status, const std::string& code,
                             const std::string& message) {
  return refuse(request, {status, code, message});
}

HttpReply Api::refuse(const HttpRequest& request, const ApiError& error) {
  Call call(request);
  HttpReply reply = error_reply(call, error);
  reply.headers.merge(cors_headers(service_.settings, request));
  finish(call, reply.status);
  return reply;
}

HttpReply Api::error_reply(Call& call, const ApiError& error) const {
  call.reason = error.code;
  HttpReply reply = {.status = error.status, .body = error_body(error)};
  if (error.status == 429 || error.status == 503) reply.headers["Retry-After"] = "1";
  if (error.status == 401) reply.headers["WWW-Authenticate"] = "Bearer";
  if (error.status == 405) {
    reply.headers["Allow"] = all_endpoints().at(endpoint_path(call.http.path)).begin()->first;
  }
  return reply;
}

// The endpoint of a request that may ask for it; none for OPTIONS, by which browsers ask first.
Endpoint Api::endpoint_for(const HttpRequest& request) const {
  check_origin(service_.settings, request);
  if (request.method == "OPTIONS") return nullptr;
  const auto found = all_endpoints().find(endpoint_path(request.path));
  if (found == all_endpoints().end()) {
    std::vector<std::string> paths;
    for (const auto& [path, methods] : all_endpoints()) paths.push_back(path);
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
  if (!kOpen.contains(request.path)) check_key(service_.settings, request);
  return endpoint->second;
}

void Api::finish(const Call& call, int status) {
  const std::string path = endpoint_path(call.http.path);
  service_.metrics.count_request(all_endpoints().contains(path) ? path : "other", status);
  const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : text; };
  AnsweredRequest answered{.id = call.id,
                           .client = call.http.client,
                           .method = or_dash(call.http.method),
                           .path = or_dash(call.http.path),
                           .status = status,
                           .reason = call.reason,
                           .seconds = call.seconds()};
  for (const SequenceReply& reply : call.replies) {
    answered.prompt_tokens += reply.prompt_tokens();
    answered.cached_tokens += reply.cached_tokens();
    answered.new_tokens += reply.new_tokens();
  }
  if (call.first_token) {
    answered.first_token_seconds =
        std::chrono::duration<double>(*call.first_token - call.begin).count();
  }
  if (service_.settings.log_prompts) answered.body = call.http.body;
  if (log_) log_(answered);
}

}  // namespace attnres
