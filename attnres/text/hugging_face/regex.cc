#include "attnres/text/hugging_face/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/core.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/text/hugging_face/oniguruma.h"
#include "attnres/text/tokenizer.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

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

struct TextRegex::Code {
  Code(std::string_view as_written, const std::string& translated) : pattern(one_line(as_written)) {
    int error = 0;
    size_t at = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &at, nullptr);
    if (code == nullptr) {
      throw UnreadTokenizer(
          fmt::format("the regular expression {}: {}", one_line(pattern), pcre2_message(error)));
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
            one_line(pattern), pcre2_message(found), from, text.size());
    const size_t* range = pcre2_get_ovector_pointer(memory.data);
    match = {range[0], range[1], true};
    return true;
  }

  std::string pattern;  // for messages
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
