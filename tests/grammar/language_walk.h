// Compares what a constraint allows with a language of which all short texts are known.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnres/grammar/token_constraint.h"
#include "attnres/text/tokenizer.h"

namespace attnres::testing {

// All texts of so many of these characters that are in a language.
inline std::set<std::string> texts_of(const std::vector<std::string>& characters, size_t most,
                                      const std::function<bool(const std::string&)>& is_in) {
  std::set<std::string> found;
  std::vector<std::string> texts = {""};
  size_t begin = 0;  // of those that are longest
  for (size_t length = 0; length <= most; ++length) {
    const size_t end = texts.size();
    for (size_t i = begin; i < end; ++i) {
      if (is_in(texts[i])) found.insert(texts[i]);
      if (length == most) continue;
      for (const std::string& c : characters) texts.push_back(texts[i] + c);
    }
    begin = end;
  }
  return found;
}

inline bool begins_one(const std::set<std::string>& language, const std::string& text) {
  const auto next = language.lower_bound(text);
  return next != language.end() && next->starts_with(text);
}

// Whether answers may be a text: all its bytes, one after another, and then the end.
inline bool takes(const TokenConstraint& constraint, std::string_view text) {
  const auto state = constraint.start();
  for (const char c : text) {
    const int32_t byte = static_cast<unsigned char>(c);
    if (!state->allowed()[byte]) return false;
    state->accept(byte);
  }
  return state->allowed().end;
}

// Follows every sequence of allowed tokens up to a length, and counts where tokens and ends are not
// what the language has. Texts of the language are twice as long at least.
class LanguageWalk {
 public:
  LanguageWalk(const Tokenizer& tokenizer, const TokenConstraint& constraint,
               std::set<std::string> language, size_t most)
      : tokenizer_(tokenizer),
        constraint_(constraint),
        language_(std::move(language)),
        most_(most) {
    follow({}, "");
  }

  int64_t wrong = 0, seen = 0;

 private:
  void follow(const std::vector<int32_t>& tokens, const std::string& text) {
    const auto state = constraint_.start();
    for (const int32_t token : tokens) state->accept(token);
    const AllowedTokens allowed = state->allowed();
    ++seen;
    if (allowed.end != language_.contains(text)) ++wrong;
    bool none = true;
    for (int32_t token = 0; token < tokenizer_.vocab_size(); ++token) {
      const std::string added = tokenizer_.token_text(token);
      if (text.size() + added.size() > most_) continue;
      if (allowed[token] != (!added.empty() && begins_one(language_, text + added))) ++wrong;
      none = none && !allowed[token];
      if (!allowed[token]) continue;
      std::vector<int32_t> longer = tokens;
      longer.push_back(token);
      follow(longer, text + added);
    }
    if (allowed.none && !none) ++wrong;
  }

  const Tokenizer& tokenizer_;
  const TokenConstraint& constraint_;
  const std::set<std::string> language_;
  const size_t most_;
};

}  // namespace attnres::testing
