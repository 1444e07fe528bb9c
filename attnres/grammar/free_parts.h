// The parts of an answer that are free of its form, as its tokens come: a thought, calls of tools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attnres/chat/control_tokens.h"
#include "attnres/chat/reply_reader.h"
#include "attnres/grammar/answer_grammar.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// What an answer has beside what it says, for that to be of a form.
std::vector<FreePart> free_parts_of(const ReplyPlan& plan);

// Of an answer that begins as one of these calls, after its thought.
std::vector<FreePart> free_parts_of_calls(const ReplyPlan& plan,
                                          const std::vector<std::string>& beginnings);

// A part's marks, as a tokenizer has them.
struct FreePartMarks {
  FreePartMarks(const FreePart& part, const Tokenizer& tokenizer);

  std::vector<int32_t> begin;
  MarkedText end;
  bool may_end;
};

// Where one answer is among them.
class FreeParts {
 public:
  // Both must outlive it.
  FreeParts(const std::vector<FreePartMarks>& parts, const Tokenizer& tokenizer);

  bool within() const { return within_ != nullptr; }
  // Whether the answer may end within the part that it is in.
  bool may_end() const { return within() && within_->may_end; }

  // The tokens that begin a part, or go on with the mark that does. None once the form has begun.
  std::vector<int32_t> next() const;
  // Of a token where none has begun: whether it is one of these.
  bool begin(int32_t token);
  // Of a token within one: what comes after the part, where it ends.
  std::optional<std::string> go_on(int32_t token);

 private:
  bool begins(const FreePartMarks& part) const;
  void enter(const FreePartMarks& part);

  const std::vector<FreePartMarks>& parts_;
  const Tokenizer& tokenizer_;
  size_t first_ = 0;            // that may still come
  std::vector<int32_t> begun_;  // so far, of a mark
  bool form_has_begun_ = false;
  const FreePartMarks* within_ = nullptr;
  MarkedText before_;  // the end of what came within it
};

}  // namespace attnres
