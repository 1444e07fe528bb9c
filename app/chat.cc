// A conversation in the terminal.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "app/generate_options.h"
#include "app/output.h"
#include "attnres/chat/chat_template.h"
#include "attnres/grammar/answer_grammars.h"
#include "attnres/grammar/free_parts.h"
#include "attnres/infer/engine.h"
#include "attnres/infer/text_stream.h"
#include "attnres/support/error.h"
#include "attnres/support/interrupt.h"
#include "attnres/support/json.h"
#include "attnres/support/terminal.h"
#include "attnres/support/trim.h"

namespace attnres {
namespace {

constexpr const char* kCommands =
    "/new begins another conversation, /help says what there is, Ctrl-C ends an answer, Ctrl-D all";

// A slash and letters alone. Other messages may begin with a slash, as paths do.
bool is_command(const std::string& message) {
  return message.size() > 1 && message[0] == '/' &&
         std::all_of(message.begin() + 1, message.end(),
                     [](char c) { return c >= 'a' && c <= 'z'; });
}

// Of "NAME=VALUE"; a value that is no JSON is a text.
Json read_template_arguments(const std::vector<std::string>& given) {
  Json arguments = Json::object();
  for (const std::string& argument : given) {
    const size_t equals = argument.find('=');
    require_usage(equals != std::string::npos && equals > 0,
                  "--template-argument: expected a name and a value, such as "
                  "enable_thinking=false, got {}",
                  argument);
    const std::string name = argument.substr(0, equals), value = argument.substr(equals + 1);
    require_usage(!arguments.contains(name), "--template-argument: {} is there twice", name);
    try {
      arguments[name] = parse_json(value, name);
    } catch (const Error&) {
      arguments[name] = value;
    }
  }
  try {
    check_arguments(arguments, "--template-argument");
  } catch (const Error& e) {
    fail_usage("{}", e.what());
  }
  return arguments;
}

// An assistant's message as it comes.
class PrintedAnswer {
 public:
  void add(const std::vector<ReplyPiece>& pieces) {
    for (const ReplyPiece& piece : pieces) {
      switch (piece.kind) {
        case ReplyPiece::Kind::thought:
          print_aside(piece.text, &thought_);
          break;
        case ReplyPiece::Kind::answer:
          end_aside();
          print_answer(piece.text);
          break;
        case ReplyPiece::Kind::call:
          end_aside();
          print_aside(piece.text + " ");
          calls_.push_back(tool_call(piece, fmt::format("call_{}", piece.call)));
          break;
        case ReplyPiece::Kind::arguments:
          print_aside(piece.text);
          calls_[piece.call]["function"]["arguments"].get_ref<std::string&>() += piece.text;
          break;
      }
    }
  }

  // The message. Arguments that are JSON of an object are one, as templates expect them.
  Json end() {
    end_aside();
    fmt::print("\n");
    Json message = {{"role", "assistant"}, {"content", std::string(trimmed(answer_))}};
    if (!thought_.empty()) message["reasoning_content"] = thought_;
    for (Json& call : calls_) {
      Json& arguments = call["function"]["arguments"];
      try {
        Json read = parse_json(arguments.get_ref<const std::string&>(), "arguments");
        if (read.is_object()) arguments = std::move(read);
      } catch (const Error&) {
        // They stay the text that they are.
      }
      message["tool_calls"].push_back(call);
    }
    return message;
  }

 private:
  void print_answer(std::string text) {
    if (answer_.empty()) text.erase(0, text.find_first_not_of(' '));
    answer_ += text;
    fmt::print("{}", text);
    flush_output();
  }
  void print_aside(const std::string& text, std::string* all = nullptr) {
    const char* begin = shows_color(STDERR_FILENO) ? "\033[2m" : "";
    fmt::print(stderr, "{}{}{}", begin, text, *begin == 0 ? "" : "\033[0m");
    aside_ = true;
    if (all != nullptr) *all += text;
  }
  void end_aside() {
    if (std::exchange(aside_, false)) fmt::print(stderr, "\n");
  }

  std::string thought_, answer_;
  Json calls_ = Json::array();
  bool aside_ = false;  // the last that was printed
};

class TerminalChat {
 public:
  TerminalChat(const GenerateOptions& options, Json arguments, const OpenedInference& opened)
      : options_(options),
        tokenizer_(opened.tokenizer()),
        settings_(settings_for(options, opened, tokenizer_.get())),
        template_(opened.directory.chat_template()),
        engine_(*opened.model, {.context = opened.context, .sequences = 1}),
        grammars_(*tokenizer_) {
    template_.require_read();
    options.constraint(&grammars_);  // says at once what is wrong of it
    conversation_.arguments = std::move(arguments);
    if (!options.tools.empty()) conversation_.tools = read_json(options.tools);
    check(conversation_);
    for (const auto& [name, value] : conversation_.arguments.items()) {
      require_usage(template_.names().contains(name),
                    "--template-argument: this model's chat template does not read {}", name);
    }
    const ChatEnds ends = template_.ends(*tokenizer_);
    settings_.ends.insert(settings_.ends.end(), ends.tokens.begin(), ends.tokens.end());
    stops_ = ends.texts;
    stops_.insert(stops_.end(), options.stop_texts.begin(), options.stop_texts.end());
    begin();
  }

  const ChatTemplate& chat_template() const { return template_; }

  void begin() {
    conversation_.messages = Json::array();
    if (!options_.system.empty()) say("system", options_.system);
  }

  // Prints the answer as it comes. Throws Error on a message that leaves no room for one, that the
  // template refuses, or whose answer fails; the conversation is then what it was before.
  void answer(const std::string& message) {
    Json before = conversation_.messages;
    try {
      add_answer(message);
    } catch (const Error&) {
      conversation_.messages = std::move(before);
      throw;
    }
  }

 private:
  struct Prompt {
    std::vector<ChatPart> parts;
    std::vector<int32_t> ids = {};
  };

  void say(const std::string& role, const std::string& content) {
    conversation_.messages.push_back({{"role", role}, {"content", content}});
  }

  // And what it says to the results of the tools that it calls, which are asked for.
  void add_answer(const std::string& message) {
    say("user", message);
    for (;;) {
      const Json answer = continued(fitting_prompt());
      conversation_.messages.push_back(answer);
      if (!answer.contains("tool_calls")) return;
      for (const Json& call : answer["tool_calls"]) add_result(call);
    }
  }

  // The assistant's message, printed as it comes: its thought, and the tools that it calls, on
  // standard error.
  Json continued(Prompt prompt) {
    const ReplyPlan plan = plan_reply(template_.reply_format(), prompt.parts, conversation_.tools);
    settings_.constraint = options_.constraint(&grammars_, free_parts_of(plan));
    TextStream stream(*tokenizer_, stops_, &plan, settings_.min_tokens);
    PrintedAnswer answer;
    bool is_cut = false;
    const InterruptGuard interrupt;
    const int64_t request = engine_.submit({std::move(prompt.ids), settings_});
    while (!engine_.idle()) {
      for (const RequestUpdate& update : engine_.step()) {
        if (update.token) stream.add(*update.token);
        answer.add(stream.take_pieces());
        if (update.stopped == StopReason::failed) fail("{}", update.error);
        is_cut = is_cut || update.stopped == StopReason::max_tokens;
      }
      if (stream.stopped() || interrupted()) engine_.cancel(request);
    }
    stream.finish();
    answer.add(stream.take_pieces());
    const Json message = answer.end();
    if (is_cut) {
      fmt::print(stderr, "attnres: stopped at --max-tokens {}\n", settings_.max_tokens);
    }
    ++settings_.sampling.seed;  // equal questions may have different answers
    return message;
  }

  // What a tool answers a call with: a line of standard input.
  void add_result(const Json& call) {
    const std::string name = call["function"]["name"];
    if (::isatty(STDIN_FILENO) != 0) fmt::print("{}: ", name);
    flush_output();
    std::string line;
    require(static_cast<bool>(std::getline(std::cin, line)),
            "the model called {}, and the input has ended: it expects a line with the result",
            name);
    conversation_.messages.push_back(
        {{"role", "tool"}, {"tool_call_id", call["id"]}, {"name", name}, {"content", line}});
  }

  // The conversation so far, without its oldest messages where the answer needs the room.
  Prompt fitting_prompt() {
    const int64_t context = engine_.settings().context;
    const int64_t room = std::min(settings_.max_tokens, context / 2);
    Json& messages = conversation_.messages;
    const auto first = [&] { return messages.begin() + (options_.system.empty() ? 0 : 1); };
    bool forgot = false;
    while (true) {
      Prompt prompt{.parts = template_.rendered(conversation_)};
      prompt.ids = chat_prompt_ids(prompt.parts, template_, *tokenizer_);
      const auto tokens = std::ssize(prompt.ids);
      if (tokens <= context - room) {
        if (forgot) fmt::print(stderr, "attnres: forgot the oldest messages\n");
        return prompt;
      }
      const auto next = std::find_if(first() + 1, messages.end(),
                                     [](const Json& m) { return m["role"] == "user"; });
      require(next != messages.end(),
              "the message takes {} tokens, which leaves no room for an answer: this model's "
              "context is {} tokens",
              tokens, context);
      messages.erase(first(), next);
      forgot = true;
    }
  }

  const GenerateOptions& options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  GenerationSettings settings_;
  ChatTemplate template_;
  std::vector<std::string> stops_;
  Engine engine_;
  AnswerGrammars grammars_;
  Conversation conversation_;
};

}  // namespace

void chat(const GenerateOptions& options, const MakeInferenceModel& make) {
  Json arguments = read_template_arguments(options.template_arguments);
  const OpenedInference opened = open_model(options.model, options.precision, make);
  TerminalChat conversation(options, std::move(arguments), opened);
  const bool asks = ::isatty(STDIN_FILENO) != 0;
  if (asks) {
    fmt::print(stderr, "attnres: {}. {}.\n",
               conversation.chat_template().plain()
                   ? "this model has no chat template: it is given a plain transcript of User and "
                     "Assistant"
                   : "the model is given messages by its own chat template",
               kCommands);
  }
  std::string line;
  while (true) {
    if (asks) fmt::print("> ");
    flush_output();
    if (!std::getline(std::cin, line)) break;
    const std::string message(trimmed(line));
    if (message.empty()) continue;
    if (message == "/new") {
      conversation.begin();
      continue;
    }
    if (message == "/help") {
      fmt::print(stderr, "attnres: {}; any other line is a message\n", kCommands);
      continue;
    }
    try {
      require_usage(!is_command(message), "there is no command {}: {}", message, kCommands);
      conversation.answer(message);
    } catch (const Error& e) {
      if (!asks) throw;
      fmt::print(stderr, "attnres: {}\n", e.what());
    }
  }
  if (asks) fmt::print("\n");
}

}  // namespace attnres
