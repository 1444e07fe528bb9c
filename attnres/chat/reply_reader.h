// What a model answers, as it comes, taken apart: its thought, what it says, its calls of tools.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/chat/control_tokens.h"
#include "attnres/chat/reply_format.h"
#include "attnres/chat/reply_piece.h"
#include "attnres/support/json.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

struct ChatPart;

// By function and parameter, whether its schema says that it is a text.
using TextArguments = std::map<std::string, std::map<std::string, bool>>;
// Of tools as OpenAI's API has them: [{"type": "function", "function": {"name", "parameters"}}].
TextArguments text_arguments(const Json& tools);

// A call as OpenAI's API has it, with what came of its arguments: nothing yet. `id` is where the
// model gives none.
Json tool_call(const ReplyPiece& call, const std::string& id);

// How the answer to one conversation is read.
struct ReplyPlan {
  ReplyFormat format = {};
  TextArguments tools = {};  // of calls that are read; those of others are
  // What the answer begins within, as the prompt left it.
  enum class Within { nothing, thought, answer } within = Within::answer;
  bool has_thought = false;  // the prompt ends with the end of a thought: there comes none
};
// `prompt`: the conversation's. Calls are read only where there are `tools`.
ReplyPlan plan_reply(ReplyFormat format, const std::vector<ChatPart>& prompt, const Json& tools);

// A mark that the tokenizer has control tokens for is one only where it is written with these: in
// the text of others it is text. Blank lines around a thought, and before calls, are left out.
// What is no such thing is handed on as it comes. Takes time in proportion to the answer.
class ReplyReader {
 public:
  ReplyReader(ReplyPlan plan, const Tokenizer& tokenizer);

  std::vector<ReplyPiece> add(std::string_view text) { return add(text, /*control=*/false); }
  // A control token, by its name.
  std::vector<ReplyPiece> add_control(std::string_view name) { return add(name, true); }
  // What was held back: the answer has ended.
  std::vector<ReplyPiece> finish();

 private:
  enum class State {
    outside,  // between what has marks around it
    thought,
    answer,
    calls,     // of a section, between them
    head,      // of a call
    whole,     // a call that is JSON: name and arguments
    object,    // arguments that are
    fenced,    // the same, within marks of its own
    separate,  // between arguments that are written one by one
    key,
    value,
  };
  struct Mark {
    const MarkedText* text;
    State next;
  };

  std::vector<ReplyPiece> add(std::string_view text, bool control);
  const MarkedText* marked(const std::string& text);
  std::vector<Mark> marks();
  bool advance();
  std::string plain_text(size_t end) const;
  void read(const std::string& text);
  void say(ReplyPiece::Kind kind, std::string_view text);
  void change(State next, const std::string& mark);
  bool begin_call(const std::string& head);
  bool read_whole_call(const std::string& text);
  void add_argument(std::string_view value);
  void end_call();
  void add_piece(ReplyPiece::Kind kind, std::string text, std::string id = "");

  ReplyPlan plan_;
  const Tokenizer* tokenizer_;
  std::map<std::string, MarkedText> marked_;  // the format's marks, so far
  State state_;
  MarkedText held_;           // not read yet
  size_t searched_ = 0;       // no mark begins before this
  std::string blank_;         // at the end of what was said: left out before some marks
  bool begun_ = false;        // thought or answer, which is read, has more than blanks
  bool has_thought_ = false;  // that has ended
  std::string raw_;           // of the call that is being read, while it may be none
  std::string head_;          // of the call or the argument
  std::string name_;          // of the function
  int64_t calls_ = 0;
  enum class Arguments { none, some, all } arguments_ = Arguments::none;  // that were given
  std::vector<ReplyPiece> pieces_;
};

}  // namespace attnres
