// The expressions of a template.
#pragma once

#include "attnres/chat/jinja/syntax.h"
#include "attnres/chat/jinja/token_stream.h"

namespace attnres::jinja {

// By Jinja's precedence. Each throws Error on what is none, and on what nests too deeply.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  // With what follows commas as a tuple; without `conditions`, an `if` behind it isn't its own.
  ExpressionPtr sequence(bool conditions = true);
  ExpressionPtr expression();
  ExpressionPtr call();
  // |name(..)|name(..), whose innermost operand is null; null where there is none. The same without
  // the first bar.
  ExpressionPtr filters(ExpressionPtr first = nullptr);
  ExpressionPtr filters_after_name();
  // (name, name=default ..), taken if it is there.
  std::vector<Parameter> parameters();
  // An assignment's left side, of parts in parentheses too; with namespaces where they may be
  // assigned to.
  Target target(bool namespaces);

  // One level of what stands within something else.
  class Nested {
   public:
    explicit Nested(int& depth);
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    ~Nested() { --depth_; }

   private:
    int& depth_;
  };
  Nested nested() { return Nested(depth_); }

 private:
  using Kind = Expression::Kind;
  using Parse = ExpressionPtr (ExpressionParser::*)();

  ExpressionPtr node(Kind kind, std::string word = "") const;
  ExpressionPtr holding(Kind kind, ExpressionPtr part, std::string word = "") const;
  // One part more. Throws Error where it gets too deep.
  static void add(Expression& to, ExpressionPtr part);
  ExpressionPtr joined(Kind kind, std::string_view word, bool symbol, Parse part);
  ExpressionPtr chained(std::initializer_list<std::string_view> operators, Parse part);
  ExpressionPtr either();
  ExpressionPtr both();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  std::string comparison_word();
  ExpressionPtr sum();
  ExpressionPtr join();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr filtered();
  ExpressionPtr signed_part();
  ExpressionPtr primary();
  ExpressionPtr number(const Token& token) const;
  ExpressionPtr list();
  ExpressionPtr dict();
  ExpressionPtr with_members(ExpressionPtr part);
  ExpressionPtr item(ExpressionPtr part);
  ExpressionPtr named_filter(ExpressionPtr part);
  ExpressionPtr test(ExpressionPtr part);
  ExpressionPtr called(ExpressionPtr part);
  void arguments(Expression& call);

  TokenStream& tokens_;
  int depth_ = 0;
};

}  // namespace attnres::jinja
