#include "attnres/text/hugging_face/normalizer.h"

#include <unicode/normalizer2.h>
#include <unicode/stringoptions.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>

#include <memory>
#include <utility>
#include <vector>

#include "attnres/text/hugging_face/replacement.h"
#include "attnres/text/hugging_face/unicode.h"

namespace attnres {
namespace {

// One of Unicode's normal forms, of the characters that Unicode 9 has, by whose tables
// github.com/huggingface/tokenizers normalises: newer ones stay as and where they are.
class NormalForm {
 public:
  // `unchanged_below`: characters below this one are never changed, whatever is beside them.
  NormalForm(const icu::Normalizer2* (*form)(UErrorCode&), int32_t unchanged_below)
      : unchanged_below_(unchanged_below) {
    UErrorCode error = U_ZERO_ERROR;
    const icu::Normalizer2* newest = form(error);
    known_ = icu::UnicodeSet(icu::UnicodeString("[:age=9.0:]"), error);
    known_.freeze();
    require(U_SUCCESS(error) != 0, "ICU: a normal form of Unicode: {}", u_errorName(error));
    form_ = std::make_unique<icu::FilteredNormalizer2>(*newest, known_);
  }

  void apply(std::string& text) const {
    size_t at = 0;
    while (at < text.size()) {
      const Character character = first_character(std::string_view(text).substr(at));
      if (character.code >= unchanged_below_) break;
      at += character.bytes;
    }
    if (at == text.size()) return;
    std::string normal;
    icu::StringByteSink<std::string> sink(&normal);
    UErrorCode error = U_ZERO_ERROR;
    form_->normalizeUTF8(0, text, sink, nullptr, error);
    require(U_SUCCESS(error) != 0, "ICU: a normal form of Unicode: {}", u_errorName(error));
    text = std::move(normal);
  }

 private:
  icu::UnicodeSet known_;
  std::unique_ptr<icu::FilteredNormalizer2> form_;
  int32_t unchanged_below_;
};

Normalizer normal_form(const icu::Normalizer2* (*form)(UErrorCode&), int32_t unchanged_below) {
  return [normal = std::make_shared<const NormalForm>(form, unchanged_below)](std::string& text) {
    normal->apply(text);
  };
}

Normalizer prepending(const JsonPart& part) {
  return [prefix = part.at("prepend").text()](std::string& text) {
    if (!text.empty()) text.insert(0, prefix);
  };
}

Normalizer replacing_text(const JsonPart& part) {
  return [replacement = std::make_shared<const Replacement>(part)](std::string& text) {
    replacement->apply(text);
  };
}

// Character by character.
template <class Write>
void rewrite(std::string& text, Write&& write) {
  std::string written;
  written.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    const Character character = first_character(rest);
    write(character.code, written);
    rest.remove_prefix(character.bytes);
  }
  text = std::move(written);
}

void lower(std::string& text) {
  rewrite(text, [](int32_t code, std::string& written) {
    constexpr int32_t kCapitalIWithDot = 0x130;  // alone in becoming two characters
    append_utf8(u_tolower(code == kCapitalIWithDot ? 'I' : code), written);
    if (code == kCapitalIWithDot) append_utf8(0x307, written);
  });
}

void strip_accents(std::string& text) {
  rewrite(text, [](int32_t code, std::string& written) {
    if (!is_combining_mark(code)) append_utf8(code, written);
  });
}

Normalizer stripping_spaces(const JsonPart& part) {
  const bool left = part.at("strip_left").flag(), right = part.at("strip_right").flag();
  return [=](std::string& text) {
    std::string_view kept = text;
    while (left && !kept.empty() && is_whitespace(first_character(kept).code)) {
      kept.remove_prefix(first_character(kept).bytes);
    }
    while (right && !kept.empty() && is_whitespace(last_character(kept).code)) {
      kept.remove_suffix(last_character(kept).bytes);
    }
    if (kept.size() < text.size()) text = std::string(kept);
  };
}

Normalizer one_after_another(const JsonPart& part) {
  std::vector<Normalizer> steps;
  for (const JsonPart& step : part.at("normalizers").list()) {
    if (step.is_null()) step.refuse("a normalizer");
    steps.push_back(read_normalizer(step));
  }
  return [steps = std::move(steps)](std::string& text) {
    const size_t bytes = text.size();
    for (const Normalizer& step : steps) {
      step(text);
      check_growth(bytes, text.size());
    }
  };
}

}  // namespace

Normalizer read_normalizer(const JsonPart& part) {
  if (part.is_null()) return nullptr;
  const std::string type = part.type();
  using icu::Normalizer2;
  if (type == "NFC") return normal_form(&Normalizer2::getNFCInstance, 0x300);
  if (type == "NFD") return normal_form(&Normalizer2::getNFDInstance, 0xc0);
  if (type == "NFKC") return normal_form(&Normalizer2::getNFKCInstance, 0xa0);
  if (type == "NFKD") return normal_form(&Normalizer2::getNFKDInstance, 0xa0);
  if (type == "Prepend") return prepending(part);
  if (type == "Replace") return replacing_text(part);
  if (type == "Lowercase") return lower;
  if (type == "Strip") return stripping_spaces(part);
  if (type == "StripAccents") return strip_accents;
  if (type == "Sequence") return one_after_another(part);
  part.at("type").refuse(
      "NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, StripAccents or Sequence");
}

}  // namespace attnres
