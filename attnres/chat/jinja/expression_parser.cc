#include "attnres/chat/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>
#include <iterator>

namespace attnres::jinja {
namespace {

using TokenKind = Token::Kind;

// Most brackets and statements within each other, and members and filters one after another.
constexpr int kDeepestNesting = 100;
// Most of all those in an expression: what is evaluated may be as deep (meter.h).
constexpr int kDeepestExpression = 1000;

bool is_constant(std::string_view name) {
  constexpr std::string_view kConstants[] = {"true", "True", "false", "False", "none", "None"};
  return std::find(std::begin(kConstants), std::end(kConstants), name) != std::end(kConstants);
}

void require_chain(int links) {
  require(links <= kDeepestNesting, "more than {} members or filters one after another",
          kDeepestNesting);
}

}  // namespace

ExpressionParser::Nested::Nested(int& depth) : depth_(depth) {
  require(depth_ < kDeepestNesting, "it is nested more than {} deep", kDeepestNesting);
  ++depth_;
}

ExpressionPtr ExpressionParser::node(Kind kind, std::string word) const {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = tokens_.look().line;
  made->word = std::move(word);
  return made;
}

ExpressionPtr ExpressionParser::holding(Kind kind, ExpressionPtr part, std::string word) const {
  ExpressionPtr made = node(kind, std::move(word));
  add(*made, std::move(part));
  return made;
}

void ExpressionParser::add(Expression& to, ExpressionPtr part) {
  if (part != nullptr) to.depth = std::max(to.depth, part->depth + 1);
  require(to.depth <= kDeepestExpression, "an expression is nested more than {} deep",
          kDeepestExpression);
  to.parts.push_back(std::move(part));
}

ExpressionPtr ExpressionParser::sequence(bool conditions) {
  const auto part = [&] { return conditions ? expression() : either(); };
  ExpressionPtr first = part();
  if (!tokens_.is_symbol(",")) return first;
  ExpressionPtr tuple = holding(Kind::tuple, std::move(first));
  while (tokens_.skip_symbol(",")) {
    if (tokens_.is(TokenKind::block_end) || tokens_.is(TokenKind::output_end) ||
        tokens_.is_symbol(")")) {
      break;
    }
    add(*tuple, part());
  }
  return tuple;
}

ExpressionPtr ExpressionParser::expression() {
  const Nested level(depth_);
  ExpressionPtr value = either();
  for (int links = 0; tokens_.is_name("if"); require_chain(++links)) {
    ExpressionPtr condition = node(Kind::condition);
    tokens_.next();
    add(*condition, either());
    add(*condition, std::move(value));
    add(*condition, tokens_.skip_name("else") ? expression() : nullptr);
    value = std::move(condition);
  }
  return value;
}

ExpressionPtr ExpressionParser::joined(Kind kind, std::string_view word, bool symbol, Parse part) {
  const auto follows = [&] { return symbol ? tokens_.is_symbol(word) : tokens_.is_name(word); };
  ExpressionPtr first = (this->*part)();
  if (!follows()) return first;
  ExpressionPtr all = holding(kind, std::move(first));
  while (follows()) {
    tokens_.next();
    add(*all, (this->*part)());
  }
  return all;
}

ExpressionPtr ExpressionParser::chained(std::initializer_list<std::string_view> operators,
                                        Parse part) {
  const auto follows = [&] {
    return tokens_.is(TokenKind::symbol) &&
           std::find(operators.begin(), operators.end(), tokens_.look().value) != operators.end();
  };
  ExpressionPtr first = (this->*part)();
  if (!follows()) return first;
  ExpressionPtr all = holding(Kind::chain, std::move(first));
  while (follows()) {
    all->words.push_back(tokens_.next().value);
    add(*all, (this->*part)());
  }
  return all;
}

ExpressionPtr ExpressionParser::either() {
  return joined(Kind::either, "or", /*symbol=*/false, &ExpressionParser::both);
}
ExpressionPtr ExpressionParser::both() {
  return joined(Kind::both, "and", /*symbol=*/false, &ExpressionParser::negation);
}
ExpressionPtr ExpressionParser::sum() {
  return chained({"+", "-"}, &ExpressionParser::join);
}
ExpressionPtr ExpressionParser::join() {
  return joined(Kind::join, "~", /*symbol=*/true, &ExpressionParser::product);
}
ExpressionPtr ExpressionParser::product() {
  return chained({"*", "/", "//", "%"}, &ExpressionParser::power);
}
ExpressionPtr ExpressionParser::power() {
  return chained({"**"}, &ExpressionParser::filtered);
}

ExpressionPtr ExpressionParser::negation() {
  if (!tokens_.is_name("not")) return comparison();
  const Nested level(depth_);
  tokens_.next();
  return holding(Kind::negation, negation());
}

// Empty where none follows.
std::string ExpressionParser::comparison_word() {
  if (tokens_.is_name("not") && tokens_.is_name("in", 1)) {
    tokens_.next();
    tokens_.next();
    return "not in";
  }
  constexpr std::string_view kSymbols[] = {"==", "!=", "<", "<=", ">", ">="};
  const bool symbol = tokens_.is(TokenKind::symbol) &&
                      std::find(std::begin(kSymbols), std::end(kSymbols), tokens_.look().value) !=
                          std::end(kSymbols);
  return symbol || tokens_.is_name("in") ? tokens_.next().value : "";
}

ExpressionPtr ExpressionParser::comparison() {
  ExpressionPtr first = sum();
  std::string word = comparison_word();
  if (word.empty()) return first;
  ExpressionPtr all = holding(Kind::comparison, std::move(first));
  for (; !word.empty(); word = comparison_word()) {
    all->words.push_back(std::move(word));
    add(*all, sum());
  }
  return all;
}

ExpressionPtr ExpressionParser::filtered() {
  ExpressionPtr part = signed_part();
  for (int links = 0;; require_chain(++links)) {
    if (tokens_.skip_symbol("|")) {
      part = named_filter(std::move(part));
    } else if (tokens_.is_name("is")) {
      part = test(std::move(part));
    } else if (tokens_.is_symbol("(")) {
      part = called(std::move(part));
    } else {
      return part;
    }
  }
}

ExpressionPtr ExpressionParser::signed_part() {
  const bool minus = tokens_.is_symbol("-");
  if (!minus && !tokens_.is_symbol("+")) return with_members(primary());
  const Nested level(depth_);
  tokens_.next();
  ExpressionPtr part = signed_part();
  part = holding(minus ? Kind::minus : Kind::plus, std::move(part));
  return with_members(std::move(part));
}

ExpressionPtr ExpressionParser::number(const Token& token) const {
  ExpressionPtr made = node(Kind::constant);
  const char* end = token.value.data() + token.value.size();
  if (token.kind == TokenKind::integer) {
    int64_t value = 0;
    require(std::from_chars(token.value.data(), end, value).ec == std::errc(),
            "{} is too large a number", token.value);
    made->constant = Value::integer(value);
  } else {
    double value = 0;
    require(std::from_chars(token.value.data(), end, value).ec == std::errc(),
            "{} is too large a number", token.value);
    made->constant = Value::number(value);
  }
  return made;
}

ExpressionPtr ExpressionParser::primary() {
  if (tokens_.is_symbol("[")) return list();
  if (tokens_.is_symbol("{")) return dict();
  if (tokens_.skip_symbol("(")) {
    if (tokens_.skip_symbol(")")) return node(Kind::tuple);
    ExpressionPtr inner = sequence();
    tokens_.expect_symbol(")");
    return inner;
  }
  const std::string described = tokens_.described();
  const Token token = tokens_.next();
  ExpressionPtr made = node(Kind::constant);
  if (token.kind == TokenKind::integer || token.kind == TokenKind::number) return number(token);
  if (token.kind == TokenKind::string) {
    std::string text = token.value;
    while (tokens_.is(TokenKind::string)) text += tokens_.next().value;
    made->constant = Value::text(text);
    return made;
  }
  require(token.kind == TokenKind::name, "unexpected {}", described);
  if (token.value == "true" || token.value == "True") {
    made->constant = Value::boolean(true);
  } else if (token.value == "false" || token.value == "False") {
    made->constant = Value::boolean(false);
  } else if (token.value == "none" || token.value == "None") {
    made->constant = Value::none();
  } else {
    return node(Kind::name, token.value);
  }
  return made;
}

ExpressionPtr ExpressionParser::list() {
  tokens_.expect_symbol("[");
  ExpressionPtr made = node(Kind::list);
  while (!tokens_.is_symbol("]")) {
    add(*made, expression());
    if (!tokens_.skip_symbol(",")) break;
  }
  tokens_.expect_symbol("]");
  return made;
}

ExpressionPtr ExpressionParser::dict() {
  tokens_.expect_symbol("{");
  ExpressionPtr made = node(Kind::dict);
  while (!tokens_.is_symbol("}")) {
    add(*made, expression());
    tokens_.expect_symbol(":");
    add(*made, expression());
    if (!tokens_.skip_symbol(",")) break;
  }
  tokens_.expect_symbol("}");
  return made;
}

ExpressionPtr ExpressionParser::with_members(ExpressionPtr part) {
  for (int links = 0;; require_chain(++links)) {
    if (tokens_.skip_symbol(".")) {
      const Token token = tokens_.next();
      if (token.kind == TokenKind::integer) {
        part = holding(Kind::item, std::move(part));
        add(*part, number(token));
        continue;
      }
      require(token.kind == TokenKind::name, "expected a name or a number after the dot");
      part = holding(Kind::attribute, std::move(part), token.value);
    } else if (tokens_.is_symbol("[")) {
      part = item(std::move(part));
    } else if (tokens_.is_symbol("(")) {
      part = called(std::move(part));
    } else {
      return part;
    }
  }
}

ExpressionPtr ExpressionParser::item(ExpressionPtr part) {
  ExpressionPtr made = holding(Kind::item, std::move(part));
  tokens_.expect_symbol("[");
  const auto bound = [&]() -> ExpressionPtr {
    return tokens_.is_symbol(":") || tokens_.is_symbol("]") ? nullptr : expression();
  };
  add(*made, tokens_.is_symbol(":") ? nullptr : sequence());
  if (tokens_.is_symbol(":")) {
    made->kind = Kind::slice;
    while (made->parts.size() < 4 && tokens_.skip_symbol(":")) add(*made, bound());
    made->parts.resize(4);
  }
  tokens_.expect_symbol("]");
  return made;
}

ExpressionPtr ExpressionParser::named_filter(ExpressionPtr part) {
  ExpressionPtr made = holding(Kind::filter, std::move(part), tokens_.any_name());
  if (tokens_.is_symbol("(")) arguments(*made);
  return made;
}

ExpressionPtr ExpressionParser::test(ExpressionPtr part) {
  tokens_.expect_name("is");
  const bool negated = tokens_.skip_name("not");
  ExpressionPtr made = holding(Kind::test, std::move(part), tokens_.any_name());
  const auto argument_follows = [&] {
    switch (tokens_.look().kind) {
      case TokenKind::string:
      case TokenKind::integer:
      case TokenKind::number:
        return true;
      case TokenKind::symbol:
        return tokens_.is_symbol("[") || tokens_.is_symbol("{");
      case TokenKind::name:
        return !tokens_.is_name("else") && !tokens_.is_name("or") && !tokens_.is_name("and") &&
               !tokens_.is_name("is") && !tokens_.is_name("if") && !tokens_.is_name("in") &&
               !tokens_.is_name("not");
      default:
        return false;
    }
  };
  require(!tokens_.is_name("is"), "tests cannot follow one another");
  if (tokens_.is_symbol("(")) {
    arguments(*made);
  } else if (argument_follows()) {
    made->words.emplace_back();
    add(*made, with_members(primary()));
  }
  return negated ? holding(Kind::negation, std::move(made)) : std::move(made);
}

ExpressionPtr ExpressionParser::called(ExpressionPtr part) {
  ExpressionPtr made = holding(Kind::call, std::move(part));
  arguments(*made);
  return made;
}

void ExpressionParser::arguments(Expression& call) {
  tokens_.expect_symbol("(");
  while (!tokens_.is_symbol(")")) {
    std::string word;
    if (tokens_.is_symbol("*") || tokens_.is_symbol("**")) {
      word = tokens_.next().value;
    } else if (tokens_.is(TokenKind::name) && tokens_.is_symbol("=", 1)) {
      word = tokens_.next().value;
      tokens_.next();
    }
    call.words.push_back(std::move(word));
    add(call, expression());
    if (!tokens_.skip_symbol(",")) break;
  }
  tokens_.expect_symbol(")");
}

ExpressionPtr ExpressionParser::call() {
  ExpressionPtr made = expression();
  require(made->kind == Kind::call, "expected the call of a macro");
  return made;
}

ExpressionPtr ExpressionParser::filters(ExpressionPtr first) {
  for (int links = 0; tokens_.skip_symbol("|"); require_chain(++links)) {
    first = named_filter(std::move(first));
  }
  return first;
}

ExpressionPtr ExpressionParser::filters_after_name() {
  return filters(named_filter(nullptr));
}

std::vector<Parameter> ExpressionParser::parameters() {
  std::vector<Parameter> all;
  if (!tokens_.skip_symbol("(")) return all;
  while (!tokens_.is_symbol(")")) {
    Parameter parameter{.name = tokens_.any_name(), .otherwise = nullptr};
    if (tokens_.skip_symbol("=")) parameter.otherwise = expression();
    all.push_back(std::move(parameter));
    if (!tokens_.skip_symbol(",")) break;
  }
  tokens_.expect_symbol(")");
  return all;
}

Target ExpressionParser::target(bool namespaces) {
  const Nested level(depth_);
  Target all;
  bool unpacks = false;
  do {
    const bool ends = tokens_.is_name("in") || tokens_.is_symbol("=") || tokens_.is_symbol(")") ||
                      tokens_.is(TokenKind::block_end);
    if (unpacks && ends) break;
    require(!ends, "expected a name, got {}", tokens_.described());
    if (tokens_.skip_symbol("(")) {
      all.parts.push_back(target(namespaces));
      tokens_.expect_symbol(")");
    } else {
      Target one{.name = tokens_.any_name()};
      require(!is_constant(one.name), "{} cannot be assigned to", one.name);
      if (namespaces && tokens_.skip_symbol(".")) one.attribute = tokens_.any_name();
      all.parts.push_back(std::move(one));
    }
  } while (tokens_.skip_symbol(",") && (unpacks = true));
  return unpacks ? std::move(all) : std::move(all.parts[0]);
}

}  // namespace attnres::jinja
