#include "attnres/chat/jinja/lexer.h"

#include <unicode/utf8.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "attnres/support/error.h"

namespace attnres::jinja {
namespace {

constexpr std::string_view kSpaces = " \t\n\r\f\v";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c) ||
         static_cast<unsigned char>(c) >= 0x80;
}

// Lines end with \n, and the last line break is none.
std::string with_plain_lines(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 == source.size() || source[i + 1] != '\n') text += '\n';
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

void append_character(std::string& text, uint32_t c) {
  require(c <= 0x10ffff && (c < 0xd800 || c > 0xdfff), "\\u{:04x} is no character", c);
  char bytes[U8_MAX_LENGTH];
  int32_t size = 0;
  U8_APPEND_UNSAFE(bytes, size, c);
  text.append(bytes, static_cast<size_t>(size));
}

// Python's escapes within quotes.
std::string unescaped(std::string_view text) {
  constexpr std::string_view kLetters = "abfnrtv\\'\"";
  constexpr std::string_view kMeant = "\a\b\f\n\r\t\v\\'\"";
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      plain += text[i];
      continue;
    }
    const char c = text[++i];
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (const size_t letter = kLetters.find(c); letter != kLetters.npos) {
      plain += kMeant[letter];
    } else if (digits > 0) {
      const std::string code(text.substr(i + 1, digits));
      require(code.size() == digits && std::all_of(code.begin(), code.end(), ::isxdigit),
              "\\{} needs {} digits", c, digits);
      append_character(plain, static_cast<uint32_t>(std::stoul(code, nullptr, 16)));
      i += digits;
    } else if (c >= '0' && c <= '7') {
      uint32_t code = 0;
      size_t used = 0;
      for (; used < 3 && i + used < text.size() && text[i + used] >= '0' && text[i + used] <= '7';
           ++used) {
        code = 8 * code + static_cast<uint32_t>(text[i + used] - '0');
      }
      append_character(plain, code);
      i += used - 1;
    } else if (c != '\n') {
      require(c != 'N', "names of characters (\\N) are not supported");
      plain += '\\';
      plain += c;
    }
  }
  return plain;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_lines(source)) {}

  std::vector<Token> tokens() {
    try {
      while (at_ < source_.size()) read_text();
    } catch (const Error& e) {
      fail("line {}: {}", line(), e.what());
    }
    add(Token::Kind::end, "");
    return std::move(tokens_);
  }

 private:
  struct Tag {
    char kind;  // of {{, {% and {#
    char sign;  // '-', '+' or none
    size_t inside;
  };

  int line() {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<int64_t>(counted_),
                                         source_.begin() + static_cast<int64_t>(at_), '\n'));
    counted_ = at_;
    return line_;
  }

  void add(Token::Kind kind, std::string value) {
    tokens_.push_back({kind, std::move(value), line()});
  }

  bool follows(std::string_view text) const { return source_.compare(at_, text.size(), text) == 0; }

  Tag tag_at(size_t at) const {
    const char sign = at + 2 < source_.size() ? source_[at + 2] : '\0';
    const bool signs = sign == '-' || sign == '+';
    return {source_[at + 1], signs ? sign : '\0', at + 2 + (signs ? 1 : 0)};
  }

  // Up to the next tag, without the blanks that the tag takes away.
  void read_text() {
    size_t begin = at_;
    size_t open = source_.find('{', begin);
    while (open != source_.npos &&
           (open + 1 >= source_.size() ||
            std::string_view("{%#").find(source_[open + 1]) == std::string_view::npos)) {
      open = source_.find('{', open + 1);
    }
    if (open == source_.npos) {
      add(Token::Kind::text, source_.substr(begin));
      at_ = source_.size();
      return;
    }
    const Tag tag = tag_at(open);
    std::string text = source_.substr(begin, open - begin);
    take_blanks(text, tag);
    if (!text.empty()) add(Token::Kind::text, std::move(text));
    at_ = open;
    if (tag.kind == '#') {
      skip_comment(tag);
    } else if (tag.kind == '{') {
      add(Token::Kind::output_begin, "");
      at_ = tag.inside;
      read_expression("}}", Token::Kind::output_end, /*trims=*/false);
    } else if (!read_raw(tag)) {
      add(Token::Kind::block_begin, "");
      at_ = tag.inside;
      read_expression("%}", Token::Kind::block_end, /*trims=*/true);
    }
    starts_line_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  void take_blanks(std::string& text, const Tag& tag) const {
    if (tag.sign == '-') {
      text.erase(text.find_last_not_of(kSpaces) + 1);
    } else if (tag.sign != '+' && tag.kind != '{') {
      const size_t line_break = text.rfind('\n');
      const size_t begin = line_break == text.npos ? 0 : line_break + 1;
      if ((begin > 0 || starts_line_) && text.find_first_not_of(kSpaces, begin) == text.npos) {
        text.erase(begin);
      }
    }
  }

  // What ends a tag, and the blanks that it takes with it. False where it doesn't end here.
  bool read_end(std::string_view closing, bool trims) {
    const bool minus = follows("-") && source_.compare(at_ + 1, closing.size(), closing) == 0;
    const bool plus =
        trims && follows("+") && source_.compare(at_ + 1, closing.size(), closing) == 0;
    if (!minus && !plus && !follows(closing)) return false;
    at_ += closing.size() + (minus || plus ? 1 : 0);
    if (minus) {
      at_ = std::min(source_.find_first_not_of(kSpaces, at_), source_.size());
    } else if (trims && !plus && follows("\n")) {
      ++at_;
    }
    return true;
  }

  void skip_comment(const Tag& tag) {
    const size_t close = source_.find("#}", tag.inside);
    require(close != source_.npos, "a comment has no end");
    at_ = close > tag.inside && (source_[close - 1] == '-' || source_[close - 1] == '+') ? close - 1
                                                                                         : close;
    read_end("#}", /*trims=*/true);
  }

  // Where a tag of this name ends that begins at `at` after blanks; nothing of another tag.
  std::optional<size_t> named_tag(size_t at, std::string_view name) const {
    at = source_.find_first_not_of(kSpaces, at);
    if (at == source_.npos || source_.compare(at, name.size(), name) != 0) return {};
    at = source_.find_first_not_of(kSpaces, at + name.size());
    if (at == source_.npos) return {};
    const size_t sign = source_[at] == '-' || source_[at] == '+' ? 1 : 0;
    return source_.compare(at + sign, 2, "%}") == 0 ? std::optional(at) : std::nullopt;
  }

  // {% raw %} .. {% endraw %}. False where another tag begins here.
  bool read_raw(const Tag& tag) {
    const auto begins = named_tag(tag.inside, "raw");
    if (!begins) return false;
    at_ = *begins;
    // Only a minus takes what follows.
    read_end("%}", /*trims=*/false);
    if (follows("+%}")) at_ += 3;
    for (size_t open = source_.find("{%", at_); open != source_.npos;
         open = source_.find("{%", open + 2)) {
      const Tag close = tag_at(open);
      const auto ends = named_tag(close.inside, "endraw");
      if (!ends) continue;
      std::string text = source_.substr(at_, open - at_);
      take_blanks(text, close);
      add(Token::Kind::text, std::move(text));
      at_ = *ends;
      read_end("%}", /*trims=*/true);
      return true;
    }
    fail("expected endraw");
  }

  void read_expression(std::string_view closing, Token::Kind end, bool trims) {
    std::string open;  // brackets that wait for their ends
    while (true) {
      at_ = source_.find_first_not_of(kSpaces, at_);
      if (at_ == source_.npos) {
        at_ = source_.size();
        fail("expected {}", closing);
      }
      if (open.empty() && read_end(closing, trims)) break;
      const char c = source_[at_];
      if (c == '"' || c == '\'') {
        read_string();
      } else if (is_digit(c)) {
        read_number();
      } else if (is_name(c)) {
        const size_t begin = at_;
        while (at_ < source_.size() && is_name(source_[at_])) ++at_;
        add(Token::Kind::name, source_.substr(begin, at_ - begin));
      } else {
        read_symbol(open);
      }
    }
    add(end, "");
  }

  void read_string() {
    const char quote = source_[at_];
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    require(end < source_.size(), "a string has no end");
    add(Token::Kind::string, unescaped(std::string_view(source_).substr(at_ + 1, end - at_ - 1)));
    at_ = end + 1;
  }

  size_t digits_end(size_t at) const {
    while (at < source_.size() && (is_digit(source_[at]) || source_[at] == '_')) ++at;
    return at;
  }

  // 0x1F, 0o17, 0b11. False where another number begins here.
  bool read_based() {
    const std::string_view text = std::string_view(source_).substr(at_);
    if (text.size() < 3 || text[0] != '0') return false;
    const int base = text[1] == 'x' || text[1] == 'X'   ? 16
                     : text[1] == 'o' || text[1] == 'O' ? 8
                     : text[1] == 'b' || text[1] == 'B' ? 2
                                                        : 0;
    if (base == 0) return false;
    size_t end = 2;
    while (end < text.size() && is_name(text[end])) ++end;
    std::string digits(text.substr(2, end - 2));
    std::erase(digits, '_');
    int64_t value = 0;
    const char* last = digits.data() + digits.size();
    const auto read = std::from_chars(digits.data(), last, value, base);
    require(read.ec == std::errc() && read.ptr == last, "{} is no number of 63 bits",
            text.substr(0, std::min<size_t>(end, 100)));
    add(Token::Kind::integer, std::to_string(value));
    at_ += end;
    return true;
  }

  void read_number() {
    // a.0.b is an index of an index.
    const bool index = at_ > 0 && source_[at_ - 1] == '.';
    if (!index && read_based()) return;
    const size_t begin = at_;
    size_t end = digits_end(at_);
    const auto digit_at = [&](size_t at) { return at < source_.size() && is_digit(source_[at]); };
    bool whole = true;
    if (!index && end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
      end = digits_end(end + 1);
      whole = false;
    }
    if (!index && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      const size_t sign = source_[end + 1] == '-' || source_[end + 1] == '+' ? 1 : 0;
      if (digit_at(end + 1 + sign)) {
        end = digits_end(end + 1 + sign);
        whole = false;
      }
    }
    std::string text = source_.substr(begin, end - begin);
    std::erase(text, '_');
    add(whole ? Token::Kind::integer : Token::Kind::number, std::move(text));
    at_ = end;
  }

  void read_symbol(std::string& open) {
    constexpr std::string_view kTwo[] = {"==", "!=", ">=", "<=", "//", "**"};
    const auto two = std::find_if(std::begin(kTwo), std::end(kTwo),
                                  [&](std::string_view symbol) { return follows(symbol); });
    const std::string symbol =
        two == std::end(kTwo) ? std::string(1, source_[at_]) : std::string(*two);
    const size_t opens = std::string_view("([{").find(symbol[0]);
    const size_t closes = std::string_view(")]}").find(symbol[0]);
    if (opens != std::string_view::npos) {
      open += ")]}"[opens];
    } else if (closes != std::string_view::npos) {
      require(!open.empty() && open.back() == symbol[0], "unexpected {}", symbol);
      open.pop_back();
    } else {
      require(std::string_view("+-/*%~=!><.:|,;").find(symbol[0]) != std::string_view::npos &&
                  symbol != "!",
              "unexpected {}", symbol);
    }
    add(Token::Kind::symbol, symbol);
    at_ += symbol.size();
  }

  std::string source_;
  size_t at_ = 0;
  size_t counted_ = 0;
  int line_ = 1;
  bool starts_line_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view source) {
  return Lexer(source).tokens();
}

}  // namespace attnres::jinja
