#include "attnres/chat/reply_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "attnres/chat/chat_template.h"
#include "attnres/support/error.h"
#include "attnres/support/json.h"
#include "attnres/support/trim.h"

namespace attnres {
namespace {

// Of ` NAME="VALUE"`, as the templates that write such escape it; nothing where it is not there.
std::optional<std::string> attribute(std::string_view head, const std::string& name) {
  const std::string begin = " " + name + "=\"";
  const size_t at = head.find(begin);
  if (at == head.npos) return std::nullopt;
  head.remove_prefix(at + begin.size());
  std::string value(head.substr(0, head.find('"')));
  for (const auto& [escaped, plain] : {std::pair{"&quot;", "\""}, std::pair{"&amp;", "&"}}) {
    for (size_t i = value.find(escaped); i != value.npos; i = value.find(escaped, i + 1)) {
      value.replace(i, std::string_view(escaped).size(), plain);
    }
  }
  return value;
}

// Discarded where it is no JSON that is read, as one that a model nests without an end: it could
// not be written again.
Json parsed(std::string_view text) {
  try {
    return parse_json(text, "an answer");
  } catch (const Error&) {
    return Json::value_t::discarded;
  }
}

// One line break, which templates write around a value that stands in lines of its own.
std::string_view without_line_ends(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// As far as no mark can begin whose end is still to come.
size_t settled(std::string_view text, std::string_view mark) {
  size_t possible = text.size() - std::min(text.size(), mark.size() - 1);
  while (!mark.starts_with(text.substr(possible))) ++possible;
  return possible;
}

}  // namespace

TextArguments text_arguments(const Json& tools) {
  const auto part = [](const Json& of, const char* name) {
    return of.is_object() ? of.value(name, Json()) : Json();
  };
  TextArguments arguments;
  for (const Json& tool : tools) {
    const Json function = part(tool, "function");
    const Json name = part(function, "name");
    const Json properties = part(part(function, "parameters"), "properties");
    if (!name.is_string() || !properties.is_object()) continue;
    for (const auto& [argument, schema] : properties.items()) {
      arguments[name][argument] = part(schema, "type") == "string";
    }
  }
  return arguments;
}

Json tool_call(const ReplyPiece& call, const std::string& id) {
  return {{"id", call.id.empty() ? id : call.id},
          {"type", "function"},
          {"function", {{"name", call.text}, {"arguments", ""}}}};
}

ReplyPlan plan_reply(ReplyFormat format, const std::vector<ChatPart>& prompt, const Json& tools) {
  ReplyPlan plan{.format = std::move(format)};
  if (tools.empty()) {
    plan.format.calls.reset();
  } else {
    plan.tools = text_arguments(tools);
  }
  using Within = ReplyPlan::Within;
  const ReplyFormat& marks = plan.format;
  if (!marks.answer.empty()) plan.within = Within::nothing;
  std::string text;
  for (const ChatPart& part : prompt) text += part.written ? std::string("\n") : part.text;
  size_t last = 0;
  const auto look_for = [&](const std::string& mark, Within within) {
    const size_t at = mark.empty() ? text.npos : text.rfind(mark);
    if (at == text.npos || at < last) return;
    last = at;
    plan.within = within;
  };
  const Within between = marks.answer.empty() ? Within::answer : Within::nothing;
  look_for(marks.thought, Within::thought);
  look_for(marks.thought_end, between);
  look_for(marks.answer, Within::answer);
  look_for(marks.answer_end, between);
  plan.has_thought = !marks.thought_end.empty() && trimmed(text).ends_with(marks.thought_end);
  return plan;
}

ReplyReader::ReplyReader(ReplyPlan plan, const Tokenizer& tokenizer)
    : plan_(std::move(plan)), tokenizer_(&tokenizer) {
  using Within = ReplyPlan::Within;
  state_ = plan_.within == Within::thought  ? State::thought
           : plan_.within == Within::answer ? State::answer
                                            : State::outside;
}

const MarkedText* ReplyReader::marked(const std::string& text) {
  const auto known = marked_.find(text);
  if (known != marked_.end()) return &known->second;
  return &marked_.emplace(text, marked_text(*tokenizer_, text)).first->second;
}

// What may come now, and what it begins.
std::vector<ReplyReader::Mark> ReplyReader::marks() {
  std::vector<Mark> marks;
  const auto add = [&](const std::string& text, State next) {
    if (!text.empty()) marks.push_back({marked(text), next});
  };
  const ReplyFormat& format = plan_.format;
  const State between = format.answer.empty() ? State::answer : State::outside;
  if (state_ == State::thought) {
    add(format.thought_end, between);
    return marks;
  }
  if (state_ == State::outside || state_ == State::answer) {
    add(state_ == State::outside ? format.answer : format.answer_end,
        state_ == State::outside ? State::answer : State::outside);
    if (!begun_) add(format.thought, State::thought);
  }
  if (!format.calls) return marks;
  const CallForm& call = *format.calls;
  const State head = call.head_end.empty() ? State::whole : State::head;
  const State after = call.section.empty() ? between : State::calls;
  switch (state_) {
    case State::outside:
    case State::answer:
      add(call.section, State::calls);
      if (call.section.empty()) add(call.begin, head);
      break;
    case State::calls:
      add(call.begin, head);
      add(call.section_end, between);
      break;
    case State::head:
      add(call.head_end, call.argument ? State::separate : State::object);
      if (call.argument) add(call.argument->begin, State::key);
      add(call.end, after);
      break;
    case State::whole:
    case State::object:
      add(call.end, after);
      break;
    case State::fenced:
      add(call.object_end, State::separate);
      break;
    case State::separate:
      add(call.argument->begin, State::key);
      add(call.object, State::fenced);
      add(call.end, after);
      break;
    case State::key:
      add(call.argument->head_end, State::value);
      break;
    case State::value:
      add(call.argument->end, State::separate);
      break;
    case State::thought:
      break;
  }
  return marks;
}

std::vector<ReplyPiece> ReplyReader::add(std::string_view text, bool control) {
  held_.add(text, control);
  while (advance()) {
  }
  return std::exchange(pieces_, {});
}

// Reads up to the next mark. False where none is there yet.
bool ReplyReader::advance() {
  std::optional<Mark> next;
  size_t at = held_.text.size();
  size_t open = at;  // from here on there may be the beginning of one
  for (const Mark& mark : marks()) {
    const size_t found = held_.find(*mark.text, searched_);
    // Later in an answer it is what the answer speaks of.
    const bool is_late = mark.next == State::thought && found < at &&
                         !trimmed(std::string_view(held_.text).substr(0, found)).empty();
    if (found < at && !is_late) {
      at = found;
      next = mark;
    }
    open = std::min(open, settled(held_.text, mark.text->text));
  }
  const bool reads_as_it_comes = state_ != State::head && state_ != State::whole &&
                                 state_ != State::key && state_ != State::value;
  if (!next && !reads_as_it_comes) {
    searched_ = open;
    return false;
  }
  const size_t end = next ? at : open;
  const std::string text = plain_text(end);
  if (state_ == State::head || state_ == State::whole) raw_ += text;
  read(text);
  const size_t read_bytes = next ? end + next->text->text.size() : end;
  held_.erase_first(read_bytes);
  searched_ = 0;
  if (next) change(next->next, next->text->text);
  return next.has_value();
}

// What is held up to there, without control tokens: they mark nothing.
std::string ReplyReader::plain_text(size_t end) const {
  std::string text;
  for (size_t i = 0; i < end; ++i) {
    if (held_.control[i] == 0) text += held_.text[i];
  }
  return text;
}

void ReplyReader::read(const std::string& text) {
  switch (state_) {
    case State::thought:
      say(ReplyPiece::Kind::thought, text);
      break;
    case State::answer:
      say(ReplyPiece::Kind::answer, text);
      break;
    case State::object:
    case State::fenced:
      if (text.empty()) break;
      arguments_ = Arguments::all;
      add_piece(ReplyPiece::Kind::arguments, text);
      break;
    case State::head:
    case State::whole:
    case State::key:
      head_ = text;
      break;
    case State::value:
      add_argument(text);
      break;
    case State::outside:
    case State::calls:
    case State::separate:
      break;
  }
}

void ReplyReader::say(ReplyPiece::Kind kind, std::string_view text) {
  const size_t end = text.find_last_not_of(kBlanks) + 1;  // 0 where all is blank
  if (end == 0) {
    blank_ += text;
    return;
  }
  std::string said = std::exchange(blank_, std::string(text.substr(end)));
  said += text.substr(0, end);
  if (!begun_ && (kind == ReplyPiece::Kind::thought || has_thought_)) {
    said.erase(0, said.find_first_not_of(kBlanks));
  }
  begun_ = true;
  add_piece(kind, std::move(said));
}

void ReplyReader::change(State next, const std::string& mark) {
  const State before = std::exchange(state_, next);
  const bool was_call = before == State::head || before == State::whole;
  if (before == State::thought || next == State::thought) {
    has_thought_ = has_thought_ || before == State::thought;
    begun_ = false;
    blank_.clear();
  } else if (next == State::calls || next == State::head || next == State::whole) {
    blank_.clear();
  }
  if (next == State::head || next == State::whole) {
    raw_ = mark;
    return;
  }
  if (was_call) {
    raw_ += mark;
    if (before == State::head ? begin_call(head_) : read_whole_call(head_)) {
      raw_.clear();
    } else {
      state_ = State::answer;
      say(ReplyPiece::Kind::answer, std::exchange(raw_, ""));
      return;
    }
  }
  const bool is_over = next == State::calls || next == State::answer || next == State::outside;
  if (is_over && (before == State::head || before == State::object || before == State::separate)) {
    end_call();
  }
}

// False where there is no name.
bool ReplyReader::begin_call(const std::string& head) {
  const CallForm& form = *plan_.format.calls;
  std::string id;
  name_ = form.name_attribute.empty() ? std::string(trimmed(head))
                                      : attribute(head, form.name_attribute).value_or("");
  if (form.head_is_id) {
    id = name_;
    name_ = name_.substr(0, name_.rfind(':'));
    name_ = name_.substr(std::min(name_.find('.') + 1, name_.size()));
  }
  if (name_.empty()) return false;
  ++calls_;
  arguments_ = Arguments::none;
  add_piece(ReplyPiece::Kind::call, name_, id);
  return true;
}

// False where it is no object with a name.
bool ReplyReader::read_whole_call(const std::string& text) {
  const Json call = parsed(text);
  const Json name = call.is_object() ? call.value("name", Json()) : Json();
  if (!name.is_string() || name.get<std::string>().empty()) return false;
  Json arguments = call.value("arguments", Json::object());
  ++calls_;
  add_piece(ReplyPiece::Kind::call, name.get<std::string>());
  add_piece(ReplyPiece::Kind::arguments,
            arguments.is_string() ? arguments.get<std::string>() : arguments.dump());
  return true;
}

void ReplyReader::add_argument(std::string_view value) {
  const ArgumentForm& form = *plan_.format.calls->argument;
  if (const size_t begin = value.find(form.value_begin); begin != value.npos) {
    value.remove_prefix(begin + form.value_begin.size());
  }
  if (form.in_lines) value = without_line_ends(value);
  const std::string key = form.key_attribute.empty()
                              ? std::string(trimmed(head_))
                              : attribute(head_, form.key_attribute).value_or("");
  bool is_text = false;
  if (!form.text_attribute.empty()) {
    is_text = attribute(head_, form.text_attribute) == form.text_says;
  } else if (const auto tool = plan_.tools.find(name_); tool != plan_.tools.end()) {
    const auto parameter = tool->second.find(key);
    is_text = parameter != tool->second.end() && parameter->second;
  }
  Json json = is_text ? Json(value) : parsed(value);
  if (json.is_discarded()) json = value;
  add_piece(ReplyPiece::Kind::arguments,
            (arguments_ == Arguments::none ? "{" : ", ") + Json(key).dump() + ": " + json.dump());
  arguments_ = Arguments::some;
}

void ReplyReader::end_call() {
  if (arguments_ == Arguments::none) add_piece(ReplyPiece::Kind::arguments, "{}");
  if (arguments_ == Arguments::some) add_piece(ReplyPiece::Kind::arguments, "}");
  arguments_ = Arguments::none;
}

void ReplyReader::add_piece(ReplyPiece::Kind kind, std::string text, std::string id) {
  const bool of_call = kind == ReplyPiece::Kind::call || kind == ReplyPiece::Kind::arguments;
  const int64_t call = of_call ? calls_ - 1 : -1;
  if (kind != ReplyPiece::Kind::call && !pieces_.empty() && pieces_.back().kind == kind &&
      pieces_.back().call == call) {
    pieces_.back().text += text;
    return;
  }
  pieces_.push_back({kind, std::move(text), call, std::move(id)});
}

std::vector<ReplyPiece> ReplyReader::finish() {
  std::string rest = plain_text(held_.text.size());
  held_ = {};
  searched_ = 0;
  if (state_ == State::head || state_ == State::whole) {
    rest = std::exchange(raw_, "") + rest;
    state_ = State::answer;
  }
  if (state_ != State::key && state_ != State::value) read(rest);
  if (state_ == State::answer && calls_ == 0 && !blank_.empty()) {
    add_piece(ReplyPiece::Kind::answer, std::exchange(blank_, ""));
  }
  return std::exchange(pieces_, {});
}

}  // namespace attnres
