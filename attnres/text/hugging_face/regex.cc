#include "attnres/text/hugging_face/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/core.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <utility>
#include <vector>

#include "attnres/text/tokenizer.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

constexpr std::string_view kSpace = "\\p{White_Space}", kNoSpace = "\\P{White_Space}";
// Oniguruma's table of Latin-1 has the small digits and the fractions among the words' characters.
constexpr std::string_view kWord =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

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
        fmt::format("the regular expression {}: {} is not read here", pattern_, what));
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
    while (end < pattern_.size() && (pattern_[end] == ',' || std::isdigit(pattern_[end]) != 0)) {
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
                        return std::isxdigit(c) != 0;
                      });
    if (!good) refuse(pattern_.substr(at_, 6));
    at_ = begin + digits;
    return fmt::format("\\x{{{}}}", code);
  }

  std::string escape(bool in_class) {
    const char c = peek(1);
    const auto in_brackets = [&](std::string_view members) {
      at_ += 2;
      return in_class ? std::string(members) : fmt::format("[{}]", members);
    };
    switch (c) {
      case 'p':
      case 'P':
        return property();
      case 's':
        at_ += 2;
        return std::string(kSpace);
      case 'S':
        at_ += 2;
        return std::string(kNoSpace);
      case 'd':
        at_ += 2;
        return "\\p{Nd}";
      case 'D':
        at_ += 2;
        return "\\P{Nd}";
      case 'w':
        return in_brackets(kWord);
      case 'W':
        if (in_class) refuse("\\W in [ ]");
        at_ += 2;
        return fmt::format("[^{}]", kWord);
      case 'v':
        at_ += 2;
        return "\\x0b";
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
    const bool alone = pattern_.substr(0, at_).ends_with("&&");
    const size_t begin = at_;
    std::string inside = character_class();
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
  size_t atom_ = 0;             // where in out_ what a quantifier would repeat begins
};

// What matching needs of a thread.
struct MatchMemory {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 << 10, 8 << 20, nullptr);

  MatchMemory() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~MatchMemory() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  MatchMemory(const MatchMemory&) = delete;
  MatchMemory& operator=(const MatchMemory&) = delete;
};

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

std::string pcre2_pattern(std::string_view pattern) {
  return Rewriter(pattern).rewrite();
}

struct TextRegex::Code {
  Code(std::string_view as_written, const std::string& translated) : pattern(as_written) {
    int error = 0;
    size_t at = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &at, nullptr);
    if (code == nullptr) {
      throw UnreadTokenizer(
          fmt::format("the regular expression {}: {}", pattern, pcre2_message(error)));
    }
    compiled_for_machine = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  }
  ~Code() { pcre2_code_free(code); }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  // The first match at or after `from`; false without one.
  bool find(std::string_view text, size_t from, MatchMemory& memory, TextRange& match) const {
    constexpr size_t kSteps = 10'000'000;
    pcre2_set_match_limit(memory.context,
                          static_cast<uint32_t>(std::min<size_t>(
                              kSteps + 100 * text.size(), std::numeric_limits<uint32_t>::max())));
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int found = compiled_for_machine
                          ? pcre2_jit_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                            memory.data, memory.context)
                          : pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                        memory.data, memory.context);
    if (found == PCRE2_ERROR_NOMATCH) return false;
    require(found >= 0,
            "the regular expression {} by which the tokenizer splits text: {} at byte {} of {}; "
            "it looks for a match in too many ways",
            pattern, pcre2_message(found), from, text.size());
    const size_t* range = pcre2_get_ovector_pointer(memory.data);
    match = {range[0], range[1], true};
    return true;
  }

  std::string pattern;
  pcre2_code* code = nullptr;
  bool compiled_for_machine = false;
};

TextRegex::TextRegex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
TextRegex::TextRegex(std::string_view pattern)
    : TextRegex(std::make_unique<Code>(pattern, pcre2_pattern(pattern))) {}
TextRegex::~TextRegex() = default;
TextRegex::TextRegex(TextRegex&&) noexcept = default;
TextRegex& TextRegex::operator=(TextRegex&&) noexcept = default;

TextRegex TextRegex::literal(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c)) != 0) escaped += '\\';
    escaped += c;
  }
  return TextRegex(std::make_unique<Code>(text, escaped));
}

void TextRegex::find_all(std::string_view text, FunctionRef<const TextRange&> found) const {
  thread_local MatchMemory memory;
  size_t given = 0, from = 0;
  bool matched = false;
  TextRange match;
  while (from <= text.size() && code_->find(text, from, memory, match)) {
    // An empty match right behind the last one is none.
    if (match.begin == match.end && matched && match.end == given) {
      if (from >= text.size()) break;
      from += utf8_step(text.substr(from)).bytes;
      continue;
    }
    if (given < match.begin) found(TextRange{given, match.begin, false});
    found(match);
    given = from = match.end;
    matched = true;
  }
  if (given < text.size()) found(TextRange{given, text.size(), false});
}

}  // namespace attnres
