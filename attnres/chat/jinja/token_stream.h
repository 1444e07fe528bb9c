// Tokens that a parser takes one after another.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnres/chat/jinja/lexer.h"
#include "attnres/support/error.h"

namespace attnres::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // The last is of kind `end`, and stays.
  const Token& look(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token next() {
    Token token = look();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  bool is(Token::Kind kind) const { return look().kind == kind; }
  bool is_name(std::string_view name, size_t ahead = 0) const {
    return look(ahead).kind == Token::Kind::name && look(ahead).value == name;
  }
  bool is_symbol(std::string_view symbol, size_t ahead = 0) const {
    return look(ahead).kind == Token::Kind::symbol && look(ahead).value == symbol;
  }

  // Whether it was there; then it is taken.
  bool skip_name(std::string_view name) { return is_name(name) && (next(), true); }
  bool skip_symbol(std::string_view symbol) { return is_symbol(symbol) && (next(), true); }

  // Throw Error on anything else.
  void expect_symbol(std::string_view symbol) {
    require(skip_symbol(symbol), "expected {}, got {}", symbol, described());
  }
  void expect_name(std::string_view name) {
    require(skip_name(name), "expected {}, got {}", name, described());
  }
  void expect(Token::Kind kind, std::string_view what) {
    require(is(kind), "expected {}, got {}", what, described());
    next();
  }
  std::string any_name() {
    require(is(Token::Kind::name), "expected a name, got {}", described());
    return next().value;
  }

  size_t place() const { return at_; }
  // Whether a name, not one behind a dot, was taken since then.
  bool names_since(size_t place, std::string_view name) const {
    for (; place < at_; ++place) {
      const Token& token = tokens_[place];
      const bool member = place > 0 && tokens_[place - 1].kind == Token::Kind::symbol &&
                          tokens_[place - 1].value == ".";
      if (token.kind == Token::Kind::name && token.value == name && !member) return true;
    }
    return false;
  }

  std::string described() const {
    const Token& token = look();
    if (!token.value.empty() && token.kind != Token::Kind::text) return token.value;
    return token.kind == Token::Kind::end ? "the end of the template" : "the end of the tag";
  }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace attnres::jinja
