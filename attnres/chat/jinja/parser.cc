#include "attnres/chat/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "attnres/chat/jinja/expression_parser.h"

namespace attnres::jinja {
namespace {

using TokenKind = Token::Kind;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokens_of(source)), expressions_(tokens_) {}

  Statements parse() {
    try {
      Statements all = statements({});
      require(tokens_.is(TokenKind::end), "unexpected {}", tokens_.look(1).value);
      return all;
    } catch (const Error& e) {
      fail("line {}: {}", tokens_.look().line, e.what());
    }
  }

 private:
  using Kind = Statement::Kind;
  using Names = std::initializer_list<std::string_view>;

  Statement made(Kind kind, std::string word = "") const {
    return {.kind = kind, .line = tokens_.look().line, .word = std::move(word)};
  }

  // Whether a block follows that begins with one of the names.
  bool is_block(Names names) const {
    return tokens_.is(TokenKind::block_begin) &&
           std::any_of(names.begin(), names.end(),
                       [&](std::string_view name) { return tokens_.is_name(name, 1); });
  }

  // Up to a block of one of these names, which stays.
  Statements statements(Names ends) {
    const auto level = expressions_.nested();
    Statements all;
    while (!tokens_.is(TokenKind::end) && !is_block(ends)) {
      if (tokens_.is(TokenKind::text)) {
        all.push_back(made(Kind::text, tokens_.next().value));
      } else if (tokens_.is(TokenKind::output_begin)) {
        tokens_.next();
        Statement output = made(Kind::output);
        output.value = expressions_.sequence();
        tokens_.expect(TokenKind::output_end, "}}");
        all.push_back(std::move(output));
      } else {
        if (ends.size() == 0 && tokens_.look(1).value.starts_with("end")) break;
        tokens_.expect(TokenKind::block_begin, "{%");
        all.push_back(block());
      }
    }
    if (ends.size() > 0) require(is_block(ends), "expected {}", *(ends.end() - 1));
    return all;
  }

  void end_tag() { tokens_.expect(TokenKind::block_end, "%}"); }

  // A body and the block that ends it.
  Statements body(std::string_view end) {
    end_tag();
    Statements all = statements({end});
    tokens_.next();
    tokens_.expect_name(end);
    end_tag();
    return all;
  }

  // One that leaves no loop around it.
  void take_macro_body(Statement& macro, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    const size_t begin = tokens_.place();
    macro.body = body(end);
    macro.takes_caller = tokens_.names_since(begin, "caller");
    macro.takes_named = tokens_.names_since(begin, "kwargs");
    macro.takes_more = tokens_.names_since(begin, "varargs");
    loops_ = loops;
  }

  Statement block() {
    const std::string name = tokens_.any_name();
    if (name == "if") return if_block("endif");
    if (name == "for") return for_block();
    if (name == "set") return set_block();
    if (name == "macro") {
      Statement macro = made(Kind::macro, tokens_.any_name());
      require(tokens_.is_symbol("("), "expected ( after macro {}", macro.word);
      macro.parameters = expressions_.parameters();
      take_macro_body(macro, "endmacro");
      return macro;
    }
    if (name == "call") {
      Statement call = made(Kind::call);
      call.parameters = expressions_.parameters();
      call.value = expressions_.call();
      take_macro_body(call, "endcall");
      return call;
    }
    if (name == "filter") return filter_block();
    if (name == "with") return with_block();
    if (name == "generation") {
      Statement group = made(Kind::group);
      group.body = body("endgeneration");
      return group;
    }
    if (name == "break" || name == "continue") {
      Statement jump = made(name == "break" ? Kind::break_ : Kind::continue_);
      require(loops_ > 0, "{} outside of a loop", name);
      end_tag();
      return jump;
    }
    fail("the tag {} is not supported", name);
  }

  // After `if` or `elif`: what follows of the chain is the other branch.
  Statement if_block(std::string_view end) {
    const auto level = expressions_.nested();
    Statement all = made(Kind::if_);
    all.value = expressions_.sequence(/*conditions=*/false);
    end_tag();
    all.body = statements({"elif", "else", end});
    tokens_.next();
    const std::string name = tokens_.any_name();
    if (name == "elif") {
      all.otherwise.push_back(if_block(end));
      return all;
    }
    if (name == "else") {
      all.otherwise = body(end);
    } else {
      end_tag();
    }
    return all;
  }

  Statement for_block() {
    Statement loop = made(Kind::for_);
    require(!tokens_.is_name("loop"), "a loop's own name, loop, cannot be assigned to");
    loop.target = expressions_.target(/*namespaces=*/false);
    tokens_.expect_name("in");
    loop.value = expressions_.sequence(/*conditions=*/false);
    if (tokens_.skip_name("if")) loop.condition = expressions_.expression();
    loop.recursive = tokens_.skip_name("recursive");
    end_tag();
    ++loops_;
    loop.body = statements({"else", "endfor"});
    --loops_;
    tokens_.next();
    if (tokens_.any_name() == "else") {
      loop.otherwise = body("endfor");
    } else {
      end_tag();
    }
    return loop;
  }

  Statement set_block() {
    Statement set = made(Kind::set);
    set.target = expressions_.target(/*namespaces=*/true);
    if (tokens_.skip_symbol("=")) {
      set.value = expressions_.sequence();
      end_tag();
      return set;
    }
    set.kind = Kind::set_body;
    set.filters = expressions_.filters();
    set.body = body("endset");
    return set;
  }

  Statement filter_block() {
    Statement filter = made(Kind::filter);
    filter.filters = expressions_.filters_after_name();
    filter.body = body("endfilter");
    return filter;
  }

  Statement with_block() {
    Statement with = made(Kind::with);
    while (!tokens_.is(TokenKind::block_end)) {
      Target target = expressions_.target(/*namespaces=*/false);
      tokens_.expect_symbol("=");
      with.assignments.emplace_back(std::move(target), expressions_.expression());
      if (!tokens_.skip_symbol(",")) break;
    }
    with.body = body("endwith");
    return with;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;
};

}  // namespace

Statements parse(std::string_view source) {
  return Parser(source).parse();
}

}  // namespace attnres::jinja
