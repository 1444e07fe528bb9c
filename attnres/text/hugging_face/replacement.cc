#include "attnres/text/hugging_face/replacement.h"

#include "attnres/support/error.h"
#include "attnres/text/utf8.h"

namespace attnres {

Replacement::Replacement(const JsonPart& part) : content_(part.at("content").text()) {
  const JsonPart pattern = part.at("pattern");
  if (!pattern.at("Regex").is_null()) {
    regex_.emplace(pattern.at("Regex").text());
  } else {
    literal_ = pattern.at("String").text();
    if (literal_.empty()) pattern.refuse("a text that is not empty");
  }
}

void check_growth(size_t bytes_before, size_t bytes_after) {
  constexpr size_t kMostTimes = 64, kMostMore = size_t{1} << 16;
  require(bytes_after <= kMostTimes * bytes_before + kMostMore,
          "the tokenizer makes more than {} bytes of {} by what it replaces; it is damaged, or "
          "takes memory on purpose",
          kMostTimes * bytes_before + kMostMore, bytes_before);
}

void Replacement::apply(std::string& text) const {
  std::string replaced;
  if (regex_) {
    if (first_invalid_utf8(text) != text.size()) return;  // a part of a character
    regex_->find_all(text, [&](const TextRange& range) {
      replaced += range.match ? std::string_view(content_)
                              : std::string_view(text).substr(range.begin, range.end - range.begin);
      check_growth(text.size(), replaced.size());
    });
  } else {
    size_t at = text.find(literal_);
    if (at == std::string::npos) return;
    replaced.reserve(text.size() + text.size() / 4);
    size_t copied = 0;
    for (; at != std::string::npos; at = text.find(literal_, copied)) {
      replaced.append(text, copied, at - copied);
      replaced += content_;
      check_growth(text.size(), replaced.size());
      copied = at + literal_.size();
    }
    replaced.append(text, copied);
  }
  text = std::move(replaced);
}

}  // namespace attnres
