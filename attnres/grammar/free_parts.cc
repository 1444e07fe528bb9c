#include "attnres/grammar/free_parts.h"

#include <algorithm>

#include "attnres/chat/chat_template.h"

namespace attnres {
namespace {

// The thought that an answer has begun, or may begin with.
std::vector<FreePart> thought_of(const ReplyPlan& plan) {
  const ReplyFormat& format = plan.format;
  if (format.thought.empty() || plan.has_thought) return {};
  const bool has_begun = plan.within == ReplyPlan::Within::thought;
  return {{.begin = has_begun ? "" : format.thought, .end = format.thought_end}};
}

}  // namespace

std::vector<FreePart> free_parts_of(const ReplyPlan& plan) {
  using Within = ReplyPlan::Within;
  const ReplyFormat& format = plan.format;
  const bool has_calls = format.calls.has_value();
  if (plan.within != Within::answer && !format.answer.empty()) {
    // Thoughts and calls stand before the mark of what is said.
    return {{.end = format.answer, .may_end = has_calls}};
  }
  std::vector<FreePart> parts;
  if (format.answer.empty()) parts = thought_of(plan);
  if (has_calls) {
    const CallForm& calls = *format.calls;
    parts.push_back({.begin = calls.section.empty() ? calls.begin : calls.section});
  }
  return parts;
}

std::vector<FreePart> free_parts_of_calls(const ReplyPlan& plan,
                                          const std::vector<std::string>& beginnings) {
  std::vector<FreePart> parts;
  if (plan.format.answer.empty() || plan.within != ReplyPlan::Within::answer) {
    parts = thought_of(plan);
  }
  for (const std::string& beginning : beginnings) parts.push_back({.begin = beginning});
  return parts;
}

FreePartMarks::FreePartMarks(const FreePart& part, const Tokenizer& tokenizer)
    : begin(encode_chat(tokenizer, {{.text = part.begin}})),
      end(marked_text(tokenizer, part.end)),
      may_end(part.may_end || part.end.empty()) {}

FreeParts::FreeParts(const std::vector<FreePartMarks>& parts, const Tokenizer& tokenizer)
    : parts_(parts), tokenizer_(tokenizer) {
  if (!parts_.empty() && parts_[0].begin.empty()) enter(parts_[0]);
}

void FreeParts::enter(const FreePartMarks& part) {
  within_ = &part;
  first_ = static_cast<size_t>(&part - parts_.data()) + 1;
  begun_.clear();
  before_ = {};
}

bool FreeParts::begins(const FreePartMarks& part) const {
  return part.begin.size() > begun_.size() &&
         std::equal(begun_.begin(), begun_.end(), part.begin.begin());
}

std::vector<int32_t> FreeParts::next() const {
  std::vector<int32_t> tokens;
  if (form_has_begun_ || within()) return tokens;
  for (size_t i = first_; i < parts_.size(); ++i) {
    if (begins(parts_[i])) tokens.push_back(parts_[i].begin[begun_.size()]);
  }
  return tokens;
}

bool FreeParts::begin(int32_t token) {
  const std::vector<int32_t> possible = next();
  form_has_begun_ = std::find(possible.begin(), possible.end(), token) == possible.end();
  if (form_has_begun_) return false;
  begun_.push_back(token);
  for (size_t i = first_; i < parts_.size(); ++i) {
    if (parts_[i].begin != begun_) continue;
    enter(parts_[i]);
    break;
  }
  return true;
}

std::optional<std::string> FreeParts::go_on(int32_t token) {
  const MarkedText& end = within_->end;
  if (end.text.empty()) return std::nullopt;
  const std::string name = tokenizer_.control_token_name(token);
  before_.add(name.empty() ? tokenizer_.token_text(token) : name, !name.empty());
  const size_t found = before_.find(end);
  if (found == before_.text.npos) {
    before_.erase_first(before_.text.size() - std::min(before_.text.size(), end.text.size() - 1));
    return std::nullopt;
  }
  within_ = nullptr;
  return before_.text.substr(found + end.text.size());
}

}  // namespace attnres
