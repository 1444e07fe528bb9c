#include "attnres/grammar/regex_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

constexpr size_t kLongestExpression = 5000;  // in bytes; XGrammar takes quadratic time
constexpr int kDeepestNesting = 100;
constexpr int64_t kMostCounted = 1'000'000;  // of a quantifier

bool is_empty(const RegexNode& node) {
  return node.kind == RegexNode::Kind::sequence && node.parts.empty();
}

RegexNode repeated(RegexNode node, int64_t least, int64_t most) {
  if (most == 0 || is_empty(node)) return {};
  if (least == 1 && most == 1) return node;
  if (least == 0 && most == 1) return joined(RegexNode::Kind::choice, {std::move(node), {}});
  return {.kind = RegexNode::Kind::repetition,
          .parts = {std::move(node)},
          .least = least,
          .most = most};
}

bool is_digit(char32_t c) {
  return c >= '0' && c <= '9';
}

bool is_letter(char32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

std::optional<uint32_t> hex_value(char32_t c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

std::u32string decoded(std::string_view expression) {
  require_utf8(expression, "the expression");
  return characters_in(expression);
}

class RegexReader {
 public:
  explicit RegexReader(std::string_view expression) : text_(decoded(expression)) {
    const size_t nul = text_.find(U'\0');
    demand(nul == text_.npos, nul, "there is a NUL byte; write \\x00");
  }

  RegexNode read() {
    Part part = read_choice(/*may_begin=*/true);
    demand(place_ == text_.size(), place_, "this ) closes nothing; write \\) for the character");
    return std::move(part.node);
  }

 private:
  struct Part {
    RegexNode node = {};
    std::optional<size_t> caret = {}, dollar = {};  // where there is one
  };

  template <class... Args>
  static void demand(bool condition, size_t place, fmt::format_string<Args...> format,
                     Args&&... args) {
    if (condition) return;
    fail("position {}: {}", place + 1, fmt::format(format, std::forward<Args>(args)...));
  }

  // 0 at the end.
  char32_t next(size_t after = 0) const {
    return place_ + after < text_.size() ? text_[place_ + after] : 0;
  }
  bool next_is(std::string_view characters) const {
    return next() != 0 && next() < 0x80 &&
           characters.find(static_cast<char>(next())) != characters.npos;
  }
  bool take(std::string_view characters) {
    for (size_t i = 0; i < characters.size(); ++i) {
      if (next(i) != static_cast<unsigned char>(characters[i])) return false;
    }
    place_ += characters.size();
    return true;
  }

  // `may_begin`: whether nothing comes before it.
  Part read_choice(bool may_begin) {
    Part choice;
    std::vector<RegexNode> alternatives;
    do {
      Part part = read_sequence(may_begin);
      alternatives.push_back(std::move(part.node));
      if (part.caret) choice.caret = part.caret;
      if (part.dollar) choice.dollar = part.dollar;
    } while (take("|"));
    choice.node = joined(RegexNode::Kind::choice, std::move(alternatives));
    return choice;
  }

  Part read_sequence(bool may_begin) {
    Part sequence;
    std::vector<RegexNode> items;
    while (place_ < text_.size() && !next_is("|)")) {
      const size_t place = place_;
      if (take("^")) {
        demand(may_begin, place, "^ is taken at the beginning only; write \\^ for the character");
        sequence.caret = place;
        continue;
      }
      if (take("$")) {
        sequence.dollar = place;
        continue;
      }
      demand(!sequence.dollar, sequence.dollar.value_or(0),
             "$ is taken at the end only; write \\$ for the character");
      Part item = read_item(may_begin);
      if (item.caret) sequence.caret = item.caret;
      sequence.dollar = item.dollar;
      if (!is_empty(item.node)) items.push_back(std::move(item.node));
      may_begin = false;
    }
    sequence.node = joined(RegexNode::Kind::sequence, std::move(items));
    return sequence;
  }

  Part read_item(bool may_begin) {
    Part item = take("(") ? read_group(may_begin) : Part{.node = read_characters()};
    if (!next_is("*+?{")) return item;
    if (const auto anchor = item.caret ? item.caret : item.dollar) {
      demand(false, *anchor, "{} is not taken in what is repeated; write it outside",
             static_cast<char>(text_[*anchor]));
    }
    const auto [least, most] = read_counts();
    take("?");
    demand(!next_is("+"), place_, "possessive quantifiers are not taken; leave out this +");
    demand(!next_is("*?{"), place_, "this repeats a repetition; write ( ) around that");
    item.node = repeated(std::move(item.node), least, most);
    return item;
  }

  std::pair<int64_t, int64_t> read_counts() {
    const size_t place = place_;
    if (take("*")) return {0, RegexNode::kUnbounded};
    if (take("+")) return {1, RegexNode::kUnbounded};
    if (take("?")) return {0, 1};
    ++place_;
    const std::optional<int64_t> least = read_count();
    const bool comma = take(",");
    const std::optional<int64_t> most = comma ? read_count() : least;
    demand((least || most) && take("}"), place,
           "expected {{2}}, {{2,}}, {{,5}} or {{2,5}} at this {{; write \\{{ for the character");
    demand(!least || !most || *least <= *most, place, "{} is more than {}; exchange them",
           least.value_or(0), most.value_or(0));
    return {least.value_or(0), most.value_or(RegexNode::kUnbounded)};
  }

  std::optional<int64_t> read_count() {
    const size_t place = place_;
    int64_t count = 0;
    for (; is_digit(next()); ++place_) {
      count = std::min(count * 10 + (next() - '0'), kMostCounted + 1);
    }
    demand(count <= kMostCounted, place, "expected a count of {} at most", kMostCounted);
    return place_ > place ? std::optional(count) : std::nullopt;
  }

  Part read_group(bool may_begin) {
    const size_t place = place_ - 1;
    demand(++depth_ <= kDeepestNesting, place, "groups are nested deeper than {}", kDeepestNesting);
    if (take("?")) read_group_kind(place);
    Part group = read_choice(may_begin);
    demand(take(")"), place, "this ( is not closed; write \\( for the character");
    --depth_;
    return group;
  }

  void read_group_kind(size_t place) {
    if (take(":")) return;
    for (const char* of_look_around : {"=", "!", "<=", "<!"}) {
      demand(!take(of_look_around), place,
             "looking around is not taken; write out what may stand there");
    }
    demand(!take(">"), place, "atomic groups are not taken; write (?: )");
    demand(!take("P=") && !take("P>") && !take("("), place,
           "references to groups are not taken; write out what may stand there");
    demand(!take("#"), place, "comments are not taken; leave it out");
    demand(take("P<") || take("<"), place,
           "flags of groups are not taken; write (?: ), and [aA] for letters of both cases");
    const size_t name = place_;
    while (is_letter(next()) || next() == '_' || (is_digit(next()) && place_ > name)) ++place_;
    demand(place_ > name && take(">"), name,
           "expected a name of ASCII letters, digits and _ and then >");
  }

  RegexNode read_characters() {
    const size_t place = place_;
    demand(!next_is("*+?{"), place,
           "there is nothing that this {0} repeats; write \\{0} for the character",
           static_cast<char>(next()));
    demand(!next_is("]}"), place, "this {0} closes nothing; write \\{0} for the character",
           static_cast<char>(next()));
    Characters characters;
    if (take(".")) {
      characters = characters_beside({{'\n', '\n'}});
    } else if (take("[")) {
      characters = read_class();
    } else if (take("\\")) {
      characters = read_escape();
    } else {
      characters = {{next(), next()}};
      ++place_;
    }
    return {.kind = RegexNode::Kind::characters, .characters = std::move(characters)};
  }

  Characters read_class() {
    const size_t place = place_ - 1;
    const bool negated = take("^");
    demand(!next_is("]"), place_,
           "classes that begin with ] or are empty are not taken; write \\] for the character");
    std::vector<CharacterRange> characters;
    while (!take("]")) {
      const size_t begin = place_;
      Characters item = read_class_item(place);
      if (next() == '-' && next(1) != ']') {
        ++place_;
        const Characters last = read_class_item(place);
        demand(is_one(item) && is_one(last), begin,
               "expected a character on both sides of -; write \\- for the character");
        demand(item[0].first <= last[0].first, begin, "this range is backwards; exchange its ends");
        item[0].last = last[0].first;
      }
      characters.insert(characters.end(), item.begin(), item.end());
    }
    characters = negated ? characters_beside(characters) : characters_of(characters);
    demand(!characters.empty(), place, "no character is in this class; leave out what it is in");
    return characters;
  }

  Characters read_class_item(size_t begin_of_class) {
    demand(place_ < text_.size(), begin_of_class,
           "this [ is not closed; write \\[ for the character");
    demand(!next_is("["), place_,
           "classes in classes, such as [[:digit:]], are not taken; write \\d, or \\[ for the "
           "character");
    if (take("\\")) return read_escape();
    const char32_t c = next();
    ++place_;
    return {{c, c}};
  }

  // After the backslash.
  Characters read_escape() {
    static const Characters kDigits = {{'0', '9'}}, kSpaces = {{'\t', '\r'}, {' ', ' '}},
                            kWords = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    const size_t place = place_ - 1;
    demand(place_ < text_.size(), place, "nothing follows this \\; write \\\\ for the character");
    const char32_t c = next();
    ++place_;
    constexpr std::u32string_view kLetters = U"tnvfr", kMeant = U"\t\n\v\f\r";
    const auto one = [](char32_t character) { return Characters{{character, character}}; };
    if (c == 'd' || c == 'D') return c == 'd' ? kDigits : characters_beside(kDigits);
    if (c == 's' || c == 'S') return c == 's' ? kSpaces : characters_beside(kSpaces);
    if (c == 'w' || c == 'W') return c == 'w' ? kWords : characters_beside(kWords);
    if (c == 'x') return one(read_hex(2, place));
    if (c == 'u' || c == 'U') return one(read_code_point(c, place));
    if (const size_t i = kLetters.find(c); i != kLetters.npos) return one(kMeant[i]);
    demand(c != '0' || !is_digit(next()), place, "octal numbers are not taken; write \\x00");
    if (c == '0') return one(0);
    demand(!is_digit(c) && c != 'k', place,
           "references to groups are not taken; write out what may stand there");
    demand(c < 0x80, place, "this character has no need of \\; write it alone");
    demand(!is_letter(c), place, "\\{} is not taken; write {}", static_cast<char>(c),
           instead_of(c));
    return one(c);
  }

  static const char* instead_of(char32_t letter) {
    const auto is_of = [&](std::u32string_view letters) {
      return letters.find(letter) != letters.npos;
    };
    if (is_of(U"pP")) return "a class of characters, such as [a-z]";
    if (is_of(U"ace")) return "the character's number, such as \\x07";
    if (is_of(U"AzZ")) return "nothing: the text is matched as a whole";
    if (is_of(U"bB")) return "out what may stand there, or \\x08 for a backspace";
    return "the letter alone";
  }

  char32_t read_code_point(char32_t letter, size_t place) {
    char32_t c = 0;
    if (letter == 'U') {
      c = read_hex(8, place);
    } else if (take("{")) {
      const size_t begin = place_;
      for (; hex_value(next()); ++place_) {
        c = std::min<char32_t>(c * 16 + *hex_value(next()), kLastCharacter + 1);
      }
      demand(place_ > begin && take("}"), place, "expected digits and a }}, as in \\u{{1F600}}");
    } else {
      c = read_hex(4, place);
      if (c >= 0xd800 && c < 0xdc00 && take("\\u")) {
        const char32_t low = read_hex(4, place);
        const bool is_pair = low >= 0xdc00 && low < 0xe000;
        if (is_pair) c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
      }
    }
    demand(c <= kLastCharacter, place, "there is no such character; the last one is \\U0010FFFF");
    demand(c < 0xd800 || c >= 0xe000, place,
           "half of a surrogate pair is no character; write both, or \\u{{1F600}}");
    return c;
  }

  char32_t read_hex(int digits, size_t place) {
    uint64_t value = 0;
    for (int i = 0; i < digits; ++i, ++place_) {
      const auto digit = hex_value(next());
      demand(digit.has_value(), place, "expected {} hexadecimal digits after \\{}", digits,
             static_cast<char>(text_[place + 1]));
      value = value * 16 + *digit;
    }
    return static_cast<char32_t>(std::min<uint64_t>(value, kLastCharacter + 1));
  }

  const std::u32string text_;
  size_t place_ = 0;
  int depth_ = 0;
};

}  // namespace

RegexNode joined(RegexNode::Kind kind, std::vector<RegexNode> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return {.kind = kind, .parts = std::move(parts)};
}

RegexNode read_regex(std::string_view expression) {
  require(expression.size() <= kLongestExpression, "expected {} bytes at most, got {}",
          kLongestExpression, expression.size());
  return RegexReader(expression).read();
}

}  // namespace attnres
