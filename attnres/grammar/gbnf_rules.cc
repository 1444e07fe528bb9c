#include "attnres/grammar/gbnf_rules.h"

#include <algorithm>
#include <map>

#include "attnres/grammar/ebnf_text.h"
#include "attnres/support/format.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

constexpr size_t kMostGbnfBytes = size_t{64} << 10, kMostRules = 1'000;
constexpr int kMostItems = 5'000, kDeepestGroup = 100;
constexpr int64_t kMostRepeated = 1'000'000;

bool is_of_rule_name(char c) {
  return c == '_' || c == '-' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9');
}

GbnfItem class_of(const std::vector<CharacterRange>& characters) {
  return {.kind = GbnfItem::Kind::characters, .characters = ebnf_class(characters)};
}

class GbnfReader {
 public:
  explicit GbnfReader(std::string_view text) : text_(text) {}

  // The rules, root first.
  std::vector<GbnfRule> read();

 private:
  // The next character, 0 at the end.
  char next() const { return place_ < text_.size() ? text_[place_] : '\0'; }
  bool next_is(std::string_view word) const { return text_.substr(place_).starts_with(word); }
  bool next_is_repetition() const { return next() != '\0' && next_is_one_of("*+?{"); }
  bool next_is_one_of(std::string_view of) const { return of.find(next()) != of.npos; }
  bool take(char c) {
    if (next() != c || place_ == text_.size()) return false;
    ++place_;
    return true;
  }
  void pass_blanks(bool and_lines);

  size_t rule_of(const std::string& name, size_t place);
  std::string read_name();
  void read_rule();
  std::vector<GbnfSequence> read_alternatives(bool in_group);
  GbnfSequence read_sequence(bool in_group);
  GbnfItem read_item();
  GbnfItem read_reference();
  GbnfItem read_group();
  GbnfItem read_text();
  GbnfItem read_class();
  void read_repetition(GbnfItem& item);
  void read_bounds(GbnfItem& item);
  int64_t read_count();
  char32_t read_character();
  char32_t read_escape();
  void count_item();
  template <class... Args>
  [[noreturn]] void refuse(size_t place, fmt::format_string<Args...> format, Args&&... args) const {
    refuse_gbnf(text_, place, format, std::forward<Args>(args)...);
  }

  const std::string_view text_;
  size_t place_ = 0;
  int depth_ = 0, items_ = 0;
  std::vector<GbnfRule> rules_ = {};
  std::map<std::string, size_t> rule_of_name_ = {};
};

std::vector<GbnfRule> GbnfReader::read() {
  require(text_.size() <= kMostGbnfBytes, "expected {} bytes at most, got {}", kMostGbnfBytes,
          text_.size());
  const size_t invalid = first_invalid_utf8(text_);
  if (invalid < text_.size()) refuse(invalid, "not UTF-8; convert the grammar to it");
  const size_t zero = text_.find('\0');
  if (zero != text_.npos) refuse(zero, "a byte 0; write it as \\x00");
  const size_t root = rule_of("root", 0);
  for (pass_blanks(true); place_ < text_.size(); pass_blanks(true)) read_rule();
  if (!rules_[root].is_defined) {
    refuse(0, "no rule is called root, which makes the whole text; write root ::= ...");
  }
  for (const GbnfRule& rule : rules_) {
    if (!rule.is_defined) {
      refuse(rule.place,
             "the rule \"{0}\" is not defined; write {0} ::= ..., or \"{0}\" "
             "for the text",
             rule.name);
    }
  }
  return std::move(rules_);
}

void GbnfReader::pass_blanks(bool and_lines) {
  while (place_ < text_.size()) {
    if (next() == '#') {
      place_ = std::min(text_.find_first_of("\r\n", place_), text_.size());
    } else if (next_is_one_of(" \t") || (and_lines && next_is_one_of("\r\n"))) {
      ++place_;
    } else {
      return;
    }
  }
}

size_t GbnfReader::rule_of(const std::string& name, size_t place) {
  const auto [entry, is_new] = rule_of_name_.try_emplace(name, rules_.size());
  if (is_new) rules_.push_back({.name = name, .place = place});
  if (rules_.size() > kMostRules) refuse(place, "more than {} rules", kMostRules);
  return entry->second;
}

std::string GbnfReader::read_name() {
  const size_t begin = place_;
  while (place_ < text_.size() && is_of_rule_name(next())) ++place_;
  return std::string(text_.substr(begin, place_ - begin));
}

void GbnfReader::read_rule() {
  const size_t begin = place_;
  const std::string name = read_name();
  if (name.empty()) {
    refuse(begin,
           "expected a rule, name ::= ..., got \"{}\"; rules go on over lines within "
           "( ) and at |",
           one_line(text_.substr(begin, 20)));
  }
  pass_blanks(false);
  if (!next_is("::=")) {
    refuse(begin,
           "expected ::= after \"{}\"; a name has letters, digits, - and _, and rules "
           "go on over lines within ( ) and at |",
           name);
  }
  place_ += 3;
  const size_t index = rule_of(name, begin);
  if (rules_[index].is_defined) {
    refuse(begin, "the rule \"{}\" is defined twice; write its alternatives with | between", name);
  }
  rules_[index].is_defined = true;
  rules_[index].place = begin;
  pass_blanks(true);
  rules_[index].alternatives = read_alternatives(false);
}

std::vector<GbnfSequence> GbnfReader::read_alternatives(bool in_group) {
  std::vector<GbnfSequence> alternatives;
  while (true) {
    alternatives.push_back(read_sequence(in_group));
    const size_t end = place_;
    pass_blanks(true);
    if (!take('|')) {
      place_ = end;
      return alternatives;
    }
    pass_blanks(true);
  }
}

GbnfSequence GbnfReader::read_sequence(bool in_group) {
  GbnfSequence sequence;
  pass_blanks(in_group);
  while (place_ < text_.size() && !next_is_one_of("|\r\n") && !(in_group && next() == ')')) {
    sequence.push_back(read_item());
    pass_blanks(in_group);
    if (next_is_repetition()) {
      read_repetition(sequence.back());
      pass_blanks(in_group);
      if (next_is_repetition()) {
        refuse(place_, "a repetition of a repetition; put what is repeated into ( )");
      }
    }
  }
  if (sequence.empty()) count_item();
  return sequence;
}

GbnfItem GbnfReader::read_item() {
  count_item();
  if (is_of_rule_name(next())) return read_reference();
  switch (next()) {
    case '"':
      return read_text();
    case '[':
      return read_class();
    case '(':
      return read_group();
    case '.':
      ++place_;
      return class_of(characters_beside({}));
    case ')':
      refuse(place_, ") without (");
    case '<':
    case '!':
      refuse(place_, "tokens, as <...>, are not taken; write the text, as \"...\"");
    case '*':
    case '+':
    case '?':
    case '{':
      refuse(place_, "nothing before {} that it repeats", next());
    default:
      refuse(place_, "expected \"...\", [...], a rule's name, ( or ., got \"{}\"",
             one_line(text_.substr(place_, utf8_step(text_.substr(place_)).bytes)));
  }
}

GbnfItem GbnfReader::read_reference() {
  const size_t begin = place_;
  const std::string name = read_name();
  const size_t end = place_;
  pass_blanks(false);
  if (next_is("::=")) {
    refuse(begin,
           "the rule \"{}\" begins within another; close that one's ( ), and write "
           "\"\" where it makes nothing",
           name);
  }
  place_ = end;
  return {.kind = GbnfItem::Kind::rule, .rule = rule_of(name, begin)};
}

GbnfItem GbnfReader::read_group() {
  const size_t begin = place_++;
  if (++depth_ > kDeepestGroup) {
    refuse(begin, "( ) deeper than {}; write rules for the inner ones", kDeepestGroup);
  }
  GbnfItem item{.kind = GbnfItem::Kind::group, .alternatives = read_alternatives(true)};
  pass_blanks(true);
  if (!take(')')) refuse(begin, "( without )");
  --depth_;
  return item;
}

GbnfItem GbnfReader::read_text() {
  const size_t begin = place_++;
  std::u32string characters;
  while (!take('"')) {
    if (place_ == text_.size()) refuse(begin, "a text without its second \"");
    characters += read_character();
  }
  if (characters.empty()) return {};
  return {.kind = GbnfItem::Kind::characters, .characters = ebnf_text(characters)};
}

GbnfItem GbnfReader::read_class() {
  const size_t begin = place_++;
  const bool is_negated = take('^');
  std::vector<CharacterRange> ranges;
  while (!take(']')) {
    if (place_ == text_.size()) refuse(begin, "[ without ]");
    const char32_t first = read_character();
    char32_t last = first;
    if (next() == '-' && !next_is("-]") && ++place_ < text_.size()) last = read_character();
    if (last < first) {
      refuse(begin, "a range backwards, from U+{:04X} to U+{:04X}; write the lower first",
             static_cast<uint32_t>(first), static_cast<uint32_t>(last));
    }
    ranges.push_back({first, last});
  }
  const std::vector<CharacterRange> characters =
      is_negated ? characters_beside(ranges) : characters_of(ranges);
  if (ranges.empty() || characters.empty()) {
    refuse(begin,
           "a class of no characters; write \"\" for nothing, . for any character, "
           "[\\]] for ]");
  }
  return class_of(characters);
}

void GbnfReader::read_repetition(GbnfItem& item) {
  if (next() == '{') {
    read_bounds(item);
  } else {
    item.least = next() == '+' ? 1 : 0;
    item.most = next() == '?' ? 1 : kWithoutEnd;
    ++place_;
  }
  if (item.kind == GbnfItem::Kind::nothing || item.most == 0) item = {};
}

void GbnfReader::read_bounds(GbnfItem& item) {
  const size_t begin = place_++;
  const auto has_digit = [&] {
    pass_blanks(false);
    return next() >= '0' && next() <= '9';
  };
  const bool has_least = has_digit();
  item.least = has_least ? read_count() : 0;
  pass_blanks(false);
  const bool is_range = take(',');
  const bool has_most = is_range && has_digit();
  item.most = has_most ? read_count() : is_range ? kWithoutEnd : item.least;
  pass_blanks(false);
  if (!take('}') || !(has_least || has_most)) {
    refuse(begin, "expected {{n}}, {{n,}}, {{n,m}} or {{,m}} with whole numbers");
  }
  if (has_most && item.most < item.least) {
    refuse(begin, "{{{0},{1}}}: more at least than at most; write {{{1},{0}}}", item.least,
           item.most);
  }
}

int64_t GbnfReader::read_count() {
  int64_t count = 0;
  for (; next() >= '0' && next() <= '9'; ++place_) {
    count = 10 * count + (next() - '0');
    if (count > kMostRepeated) {
      refuse(place_, "repeated more than {} times; write {{n,}} for any number from n on",
             kMostRepeated);
    }
  }
  return count;
}

char32_t GbnfReader::read_character() {
  if (next() == '\\') return read_escape();
  const size_t bytes = utf8_step(text_.substr(place_)).bytes;
  const char32_t character = characters_in(text_.substr(place_, bytes)).front();
  place_ += bytes;
  return character;
}

char32_t GbnfReader::read_escape() {
  constexpr std::string_view kThemselves = "\\\"[]^-";
  const size_t begin = place_++;
  const char kind = next();
  const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
  if (digits == 0) {
    if (take('n')) return '\n';
    if (take('r')) return '\r';
    if (take('t')) return '\t';
    if (kind != '\0' && kThemselves.find(kind) != kThemselves.npos) return text_[place_++];
    refuse(begin,
           "no such escape \"{}\"; there are \\n, \\r, \\t, \\\\, \\\", \\[, \\], \\^, "
           "\\-, \\xHH, \\uHHHH and \\UHHHHHHHH",
           one_line(text_.substr(begin, 2)));
  }
  uint32_t code_point = 0;
  for (size_t i = 1; i <= digits; ++i) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const char c = place_ + i < text_.size() ? text_[place_ + i] : '\0';
    const size_t digit = kDigits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c);
    if (digit == kDigits.npos) {
      refuse(begin, "\\{} takes {} hexadecimal digits", kind, digits);
    }
    code_point = code_point << 4 | static_cast<uint32_t>(digit);
  }
  if (!is_character(code_point)) {
    refuse(begin, "U+{:04X} is no character{}", code_point,
           code_point <= kLastCharacter
               ? ", but half of a surrogate pair; write \\U and the whole one"
               : "; the last is U+10FFFF");
  }
  place_ += 1 + digits;
  return code_point;
}

void GbnfReader::count_item() {
  if (++items_ > kMostItems) {
    refuse(place_, "more than {} texts, classes and names of rules", kMostItems);
  }
}

}  // namespace

size_t line_of(std::string_view text, size_t place) {
  size_t line = 1;
  for (size_t i = 0; i < place; ++i) {
    const bool is_within = text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n';
    if (text[i] == '\n' || (text[i] == '\r' && !is_within)) ++line;
  }
  return line;
}

std::vector<GbnfRule> read_gbnf_rules(std::string_view text) {
  return GbnfReader(text).read();
}

}  // namespace attnres
