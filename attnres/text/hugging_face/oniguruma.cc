#include "attnres/text/hugging_face/oniguruma.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "attnres/support/format.h"
#include "attnres/text/tokenizer.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

// Escapes that are the same in a class and outside of it.
constexpr std::pair<char, std::string_view> kSameEscapes[] = {{'s', "\\p{White_Space}"},
                                                              {'S', "\\P{White_Space}"},
                                                              {'d', "\\p{Nd}"},
                                                              {'D', "\\P{Nd}"},
                                                              {'v', "\\x0b"}};
// Oniguruma's table of Latin-1 has the small digits and the fractions among the words' characters.
constexpr std::string_view kWord =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Rewrites an expression from left to right.
class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : pattern_(pattern) {}

  std::string rewrite() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '(') {
        open_group();
      } else if (c == ')') {
        ++at_;
        if (groups_.empty()) refuse("the ) without a (");
        atom_ = groups_.back();
        groups_.pop_back();
        out_ += ')';
      } else if (c == '[') {
        atom_ = out_.size();
        out_ += character_class();
      } else if (c == '\\') {
        atom_ = out_.size();
        out_ += escape(/*in_class=*/false);
      } else if (c == '{') {
        interval();
      } else if (c == '*' || c == '+' || c == '?' || c == '|' || c == '^' || c == '$') {
        out_ += c;
        ++at_;
      } else {
        atom_ = out_.size();
        take_character(out_);
      }
    }
    if (!groups_.empty()) refuse("the ( without a )");
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw UnreadTokenizer(
        fmt::format("the regular expression {}: {} is not read here", one_line(pattern_), what));
  }

  char peek(size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }

  void take_character(std::string& out) {
    const size_t bytes = utf8_step(pattern_.substr(at_)).bytes;
    out += pattern_.substr(at_, bytes);
    at_ += bytes;
  }

  void open_group() {
    groups_.push_back(out_.size());
    const std::string_view rest = pattern_.substr(at_);
    if (rest.starts_with("(*")) refuse("(*");
    if (!rest.starts_with("(?")) {
      out_ += '(';
      ++at_;
      return;
    }
    // (?m: is what others write as (?s:, and an option up to the end of a group may span
    // alternatives differently.
    constexpr std::array kAlike = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"};
    for (const std::string_view group : kAlike) {
      if (rest.starts_with(group)) {
        out_ += group;
        at_ += group.size();
        return;
      }
    }
    if (rest.starts_with("(?m:")) {
      out_ += "(?s:";
      at_ += 4;
      return;
    }
    if (rest.starts_with("(?i)") && at_ == 0) {
      groups_.pop_back();
      out_ += "(?i)";
      at_ += 4;
      return;
    }
    refuse(rest.substr(0, std::min<size_t>(4, rest.size())));
  }

  // {n,m}, {n}, {n,} and {,m}; a + after it repeats what it makes, and is not possessive.
  void interval() {
    size_t end = at_ + 1;
    while (end < pattern_.size() && (pattern_[end] == ',' || is_digit(pattern_[end]))) {
      ++end;
    }
    const std::string inside(pattern_.substr(at_ + 1, end - at_ - 1));
    if (end >= pattern_.size() || pattern_[end] != '}' || inside.empty() || inside == ",") {
      atom_ = out_.size();
      out_ += "\\{";
      ++at_;
      return;
    }
    at_ = end + 1;
    out_ += fmt::format("{{{}{}}}", inside[0] == ',' ? "0" : "", inside);
    if (peek() == '?' && inside.find(',') == std::string::npos)
      refuse(fmt::format("{{{}}}?", inside));
    if (peek() == '+') {
      ++at_;
      out_.insert(atom_, "(?:");
      out_ += ")+";
    }
  }

  static bool is_category(std::string_view name) {
    return name.size() <= 2 || name == "Any" || name == "Alphabetic" || name == "White_Space" ||
           name == "Uppercase" || name == "Lowercase";
  }

  // \p{Name}, \P{Name}, \p{^Name}.
  std::string property() {
    const bool negated_letter = peek(1) == 'P';
    if (peek(2) != '{') refuse(pattern_.substr(at_, 3));
    const size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) refuse(pattern_.substr(at_));
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    at_ = end + 1;
    const bool negated = name.starts_with('^') != negated_letter;
    if (name.starts_with('^')) name.remove_prefix(1);
    constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kLongNames = {
        {{"Letter", "L"},
         {"Mark", "M"},
         {"Number", "N"},
         {"Punctuation", "P"},
         {"Symbol", "S"},
         {"Separator", "Z"},
         {"Other", "C"}}};
    for (const auto& [long_name, category] : kLongNames) {
      if (name == long_name) name = category;
    }
    return fmt::format("\\{}{{{}{}}}", negated ? 'P' : 'p', is_category(name) ? "" : "sc:", name);
  }

  std::string hexadecimal(size_t begin, size_t digits) {
    const std::string_view code = pattern_.substr(begin, digits);
    const bool good = code.size() == digits && std::all_of(code.begin(), code.end(), [](char c) {
                        return std::isxdigit(static_cast<unsigned char>(c)) != 0;
                      });
    if (!good) refuse(pattern_.substr(at_, 6));
    at_ = begin + digits;
    return fmt::format("\\x{{{}}}", code);
  }

  std::string escape(bool in_class) {
    const char c = peek(1);
    for (const auto& [letter, meant] : kSameEscapes) {
      if (c != letter) continue;
      at_ += 2;
      return std::string(meant);
    }
    const auto in_brackets = [&](std::string_view members) {
      at_ += 2;
      return in_class ? std::string(members) : fmt::format("[{}]", members);
    };
    switch (c) {
      case 'p':
      case 'P':
        return property();
      case 'w':
        return in_brackets(kWord);
      case 'W':
        if (in_class) refuse("\\W in [ ]");
        at_ += 2;
        return fmt::format("[^{}]", kWord);
      case 'u':
        return hexadecimal(at_ + 2, 4);
      case 'x':
        if (peek(2) != '{') return hexadecimal(at_ + 2, 2);
        {
          const size_t end = std::min(pattern_.find('}', at_), pattern_.size());
          std::string code = hexadecimal(at_ + 3, end - at_ - 3);
          ++at_;
          return code;
        }
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        break;
      case 'A':
      case 'z':
        if (in_class) refuse(pattern_.substr(at_, 2));
        break;
      default:
        if (c == '\0' || std::isalnum(static_cast<unsigned char>(c)) != 0) {
          refuse(pattern_.substr(at_, 2));
        }
        at_ += 1;
        std::string character = static_cast<unsigned char>(c) < 0x80 ? "\\" : "";
        take_character(character);
        return character;
    }
    at_ += 2;
    return {'\\', c};
  }

  // A class, with classes in it that are united with it, and && between parts, of which all must
  // hold: (?=[second])[first].
  std::string character_class() {
    ++at_;
    const bool negated = peek() == '^';
    if (negated) ++at_;
    std::vector<std::string> parts(1);
    bool first = true;
    for (;; first = false) {
      if (at_ >= pattern_.size()) refuse("the [ without a ]");
      const char c = peek();
      if (c == ']' && !first) break;
      if (c == '[') {
        if (peek(1) == ':') refuse("[:");
        parts.back() += nested_class();
      } else if (c == '&' && peek(1) == '&') {
        at_ += 2;
        parts.emplace_back();
      } else if (c == '\\') {
        parts.back() += escape(/*in_class=*/true);
      } else {
        if (c == ']') parts.back() += '\\';
        take_character(parts.back());
      }
    }
    ++at_;
    if (parts.size() == 1) return fmt::format("[{}{}]", negated ? "^" : "", parts[0]);
    std::string all;
    for (size_t i = 1; i < parts.size(); ++i) all += fmt::format("(?=[{}])", parts[i]);
    all += fmt::format("[{}]", parts[0]);
    return negated ? fmt::format("(?:(?!{})(?s:.))", all) : fmt::format("(?:{})", all);
  }

  // The members of a class within a class. A negated one may only stand alone between &&, where
  // its ^ negates the whole part.
  std::string nested_class() {
    constexpr int kDeepestClass = 50;  // each is a call
    if (++depth_ > kDeepestClass) refuse("[ ] nested so deep");
    const bool alone = pattern_.substr(0, at_).ends_with("&&");
    const size_t begin = at_;
    std::string inside = character_class();
    --depth_;
    if (inside.starts_with("(?")) refuse(pattern_.substr(begin, at_ - begin));
    inside = inside.substr(1, inside.size() - 2);
    const bool ends = peek() == ']' || pattern_.substr(at_).starts_with("&&");
    if (inside.starts_with('^') && !(alone && ends)) {
      refuse(pattern_.substr(begin, at_ - begin));
    }
    return inside;
  }

  std::string_view pattern_;
  size_t at_ = 0;
  std::string out_;
  std::vector<size_t> groups_;  // where in out_ each group that is open begins
  int depth_ = 0;               // of classes in classes
  size_t atom_ = 0;             // where in out_ what a quantifier would repeat begins
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern) {
  return Rewriter(pattern).rewrite();
}

}  // namespace attnres
