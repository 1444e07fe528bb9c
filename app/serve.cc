// The serve subcommand.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/commands.h"
#include "app/options.h"
#include "app/processes.h"
#include "attnres/infer/text_engine.h"
#include "attnres/serve/api.h"
#include "attnres/serve/http_server.h"
#include "attnres/serve/model_loop.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/interrupt.h"
#include "attnres/support/json.h"

namespace attnres {
namespace {

constexpr double kMostSeconds = 1e9;  // clocks count no further than 292 years
constexpr const char* kKeyVariable = "ATTNRES_API_KEY";

struct ServeOptions {
  ModelOption model;
  MachineOptions machine;
  PrecisionOption precision;
  GenerationConfigOption generation_config;
  std::string host = "127.0.0.1";
  int port = 8080;
  EngineSettings engine = {.sequences = 8};
  std::string key_file;
  bool no_key = false;
  HttpLimits http;
  ApiSettings api;
  double drain = 30;  // seconds
  std::string log = "text";
};

// As browsers send it: a scheme, a host and perhaps a port, and no more.
CLI::Validator page_origin() {
  const auto check = [](const std::string& text) -> std::string {
    const size_t scheme = text.find("://");
    const bool is_one = scheme != std::string::npos && scheme > 0 && scheme + 3 < text.size() &&
                        text.find_first_of("/?#@ *", scheme + 3) == std::string::npos;
    if (is_one || text == "null") return "";  // null: of a page that is a file
    return fmt::format(
        "expected a scheme and a host, as browsers send them, such as https://example.org or "
        "http://localhost:3000, got {}",
        text);
  };
  return {check, /*description=*/""};
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::string read_key(const ServeOptions& options) {
  std::string key;
  if (!options.key_file.empty()) {
    key = read_file(options.key_file);
    while (!key.empty() && (key.back() == '\n' || key.back() == '\r')) key.pop_back();
    require(!key.empty(), "--api-key-file: {} is empty", options.key_file);
  } else if (const char* variable = std::getenv(kKeyVariable); variable != nullptr) {
    key = variable;
  }
  require_usage(
      !key.empty() || options.no_key || is_loopback(options.host),
      "--host {}: others could use this server. Give an API key, in --api-key-file or {}, "
      "or --no-api-key if everybody may",
      options.host, kKeyVariable);
  return key;
}

std::string now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

// As JSON of ASCII: whoever asks chose the text, and a terminal obeys control characters, of which
// some are beyond ASCII.
std::string in_log(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

std::string text_line(const AnsweredRequest& request) {
  std::string line = fmt::format("{} {} {} {} {} {:.3f} s", now(), request.client, request.method,
                                 in_log(request.path), request.status, request.seconds);
  if (!request.reason.empty()) line += fmt::format(", {}", request.reason);
  if (request.prompt_tokens > 0) {
    line += fmt::format(", {} of a prompt ({} cached), {} new, the first after {:.3f} s",
                        counted(request.prompt_tokens, "token"), request.cached_tokens,
                        request.new_tokens, request.first_token_seconds);
  }
  if (!request.id.empty()) line += ", " + request.id;
  if (!request.body.empty()) line += " " + in_log(request.body);
  return line;
}

std::string json_line(const AnsweredRequest& request) {
  Json line = {{"time", now()},
               {"id", request.id},
               {"client", request.client},
               {"method", request.method},
               {"path", request.path},
               {"status", request.status},
               {"reason", request.reason},
               {"prompt_tokens", request.prompt_tokens},
               {"cached_tokens", request.cached_tokens},
               {"new_tokens", request.new_tokens},
               {"seconds", request.seconds},
               {"first_token_seconds", request.first_token_seconds}};
  if (!request.body.empty()) line["body"] = request.body;
  return in_log(line);
}

// One line a request, on standard error.
Api::Log make_log(const std::string& kind) {
  if (kind == "none") return {};
  return [json = kind == "json"](const AnsweredRequest& request) {
    static std::mutex mutex;
    const std::string line = (json ? json_line(request) : text_line(request)) + "\n";
    const std::lock_guard lock(mutex);
    std::fputs(line.c_str(), stderr);
  };
}

void say(const std::string& message) {
  std::fputs(fmt::format("attnres: {}\n", message).c_str(), stderr);  // a reader may be gone
}

void introduce(const TextEngine& engine, const ServeOptions& options, int port) {
  const bool named = options.host.find(':') != std::string::npos;
  const std::string host = named ? "[" + options.host + "]" : options.host;
  const ModelDescription& model = engine.model();
  say(fmt::format("{}: {} parameters, {} over depth, context {}, {}", model.name, model.parameters,
                  model.mechanism, engine.context(), counted(options.engine.sequences, "slot")));
  if (model.tokenizer.empty()) {
    say("its tokenizer is not read here: prompts have to be token ids");
  } else if (model.chat_template.empty()) {
    say(fmt::format("its chat template cannot be read, so there is no chat: {}",
                    model.chat_template_error));
  } else if (model.chat_template == "plain") {
    say("it has no chat template: conversations are given as a transcript of User and Assistant");
  }
  if (!model.sampling_said.empty()) {
    say(fmt::format("where a request does not say, as its generation_config.json has it: {}",
                    model.sampling_said));
  }
  if (!is_loopback(options.host)) {
    say(fmt::format("listening beyond this machine{}",
                    options.api.api_key.empty() ? ", and everybody may use it" : ""));
  }
  say(fmt::format("listening on http://{}:{}", host, port));
}

void serve_here(ServeOptions options, const MakeInferenceModel& make) {
  options.api.api_key = read_key(options);
  options.engine.step_tokens = std::max(options.engine.step_tokens, options.engine.sequences);
  const OpenedInference opened = open_model(options.model, options.precision, make);
  TextEngine engine(options.model.path, opened.directory, *opened.model, options.engine,
                    options.generation_config.is_read());
  ModelLoop loop(engine, options.engine.sequences, options.api.limits.queue);
  Api api(loop, options.api, make_log(options.log));
  HttpServer server(options.http,
                    {.admit = [&](const HttpRequest& head) { return api.refusal(head); },
                     .answer = [&](HttpRequest request) { return api(std::move(request)); },
                     .refuse =
                         [&](const HttpRequest& request, int status, const std::string& code,
                             const std::string& message) {
                           return api.answer_unread(request, status, code, message);
                         }});
  const int port = server.bind(options.host, options.port);
  const InterruptGuard interrupt;
  std::signal(SIGPIPE, SIG_IGN);  // the log's reader may go: that is no reason to end
  introduce(engine, options, port);
  std::future<void> served = std::async(std::launch::async, [&] { server.run(); });
  using std::chrono::milliseconds;
  while (!interrupted() && served.wait_for(milliseconds(100)) != std::future_status::ready) {
  }
  say(fmt::format("ending: requests that run have {} s", options.drain));
  server.stop();
  const auto drain = std::chrono::duration<double>(options.drain);
  if (served.wait_for(drain) != std::future_status::ready) loop.end("the server ends");
  served.get();
}

void run_serve(const CLI::App& command, const ServeOptions& options) {
  run_in_group(command, options.machine, part_of_model(options.model, options.precision),
               [&](const MakeInferenceModel& make) { serve_here(options, make); });
}

void add_limits(CLI::App& command, ServeOptions& options) {
  const auto count = [&](const char* name, int64_t& value, uint64_t least, const char* what) {
    add_whole(command, fmt::format("{} N", name), value, {least}, what)
        ->group("Limits")
        ->capture_default_str();
  };
  const auto seconds = [&](const char* name, double& value, const char* what) {
    add_option(command, fmt::format("{} SECONDS", name), value, what)
        ->check(number(1e-3, kMostSeconds))
        ->group("Limits")
        ->capture_default_str();
  };
  ApiLimits& limits = options.api.limits;
  HttpLimits& http = options.http;
  count("--max-queue", limits.queue, 0, "the most sequences that wait for a slot");
  count("--max-prompt-tokens", limits.prompt_tokens, 0,
        "the most tokens of a prompt; 0 for what the context holds");
  count("--max-new-tokens", limits.new_tokens, 0,
        "the most tokens generated for a sequence; 0 for what the context holds");
  count("--max-sequences", limits.sequences, 1, "the most sequences of a request, prompts times n");
  count("--max-depth-tokens", limits.depth_tokens, 1,
        "the most tokens of a text whose depth weights are asked for");
  count("--max-connections", http.connections, 1,
        "the most connections; another takes the place of one that waits, where any does");
  count("--max-body", http.body_bytes, 1, "the most bytes of a request's body, as it is sent");
  count("--max-bodies", http.bodies_bytes, 1,
        "the most bytes of all requests' bodies at once, beyond 64 KiB of each");
  count("--max-headers", http.header_bytes, 1, "the most bytes of a request's headers");
  seconds("--request-timeout", limits.request_seconds,
          "how long a request may take, waiting included");
  seconds("--read-timeout", http.read_seconds, "how long a request may take to arrive");
  seconds("--write-timeout", http.write_seconds,
          "how long a client may take to receive what is sent");
  seconds("--idle-timeout", http.idle_seconds,
          "how long a connection may wait between two requests");
}

}  // namespace

void add_serve_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "serve",
      "Serve a model over HTTP, to OpenAI's clients and to browsers. Answers completions, chat, "
      "embeddings, and the depth weights of every token, and has a page at /. Ends with Ctrl-C or "
      "SIGTERM, after the requests that run.");
  const auto options = std::make_shared<ServeOptions>();
  options->model.add_to(command);
  options->precision.add_weights_to(command);
  options->generation_config.add_to(command);
  add_option(command, "--host ADDRESS", options->host, "the address to listen on")
      ->capture_default_str();
  add_whole(command, "--port PORT", options->port, {0, 65535},
            "the port to listen on; 0 for any that is free")
      ->capture_default_str();
  add_whole(command, "--slots N", options->engine.sequences, {1, 4096},
            "how many sequences are computed at once")
      ->capture_default_str();
  add_whole(command, "--context N", options->engine.context, {2},
            "the most tokens of a sequence (default: the model's context)");
  add_whole(command, "--step-tokens N", options->engine.step_tokens, {1},
            "the most tokens computed at once; a long prompt holds up others for no longer")
      ->capture_default_str();
  add_option(command, "--api-key-file FILE", options->key_file,
             fmt::format("a file with the key that clients have to give (default: what the "
                         "environment variable {} holds)",
                         kKeyVariable));
  command.add_flag("--no-api-key", options->no_key,
                   "let everybody use it, beyond this machine too");
  add_option(command, "--origin ORIGIN", options->api.origins,
             "an origin whose pages may ask, such as https://example.org; may be given several "
             "times")
      ->check(page_origin())
      ->allow_extra_args(false);
  add_option(command, "--drain SECONDS", options->drain,
             "how long requests that run may go on when the server ends")
      ->check(number(0, kMostSeconds))
      ->capture_default_str();
  add_option(command, "--log KIND", options->log,
             "write a line for each request on standard error: text, json or none")
      ->check(one_word_of({"text", "json", "none"}))
      ->capture_default_str();
  command.add_flag("--log-prompts", options->api.log_prompts, "log what was asked, too");
  options->machine.add_to(command);
  group_options(command, "Access and log",
                {"--api-key-file", "--no-api-key", "--origin", "--log", "--log-prompts"});
  add_limits(command, *options);
  command.footer(
      "Several processes share a model's layers where mpirun or srun starts them:\n"
      "docs/parallel.md. docs/serving.md has the endpoints.\n\n"
      "Examples:\n"
      "  attnres serve --model runs/tiny\n"
      "  attnres serve --model tiny.gguf --port 8000 --slots 16\n"
      "  attnres serve --model runs/tiny --host 0.0.0.0 --api-key-file key.txt");
  command.callback([&command, options] { run_serve(command, *options); });
}

}  // namespace attnres
