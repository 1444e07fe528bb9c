#include "attnres/text/hugging_face/normalizer.h"

#include <unicode/normalizer2.h>
#include <unicode/stringoptions.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>

#include <algorithm>

#include "attnres/text/hugging_face/replacement.h"
#include "attnres/text/hugging_face/unicode.h"

namespace attnres {
namespace {

// One of Unicode's normal forms, of the characters that Unicode 9 has, by whose tables
// github.com/huggingface/tokenizers normalises: newer ones stay as and where they are.
class NormalForm : public Normalizer {
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

  void apply(std::string& text) const override {
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

class Prepend : public Normalizer {
 public:
  explicit Prepend(const JsonPart& part) : text_(part.at("prepend").text()) {}
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, text_);
  }

 private:
  std::string text_;
};

class ReplaceText : public Normalizer {
 public:
  explicit ReplaceText(const JsonPart& part) : replacement_(part) {}
  void apply(std::string& text) const override { replacement_.apply(text); }

 private:
  Replacement replacement_;
};

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

class Lowercase : public Normalizer {
 public:
  void apply(std::string& text) const override {
    rewrite(text, [](int32_t code, std::string& written) {
      constexpr int32_t kCapitalIWithDot = 0x130;  // alone in becoming two characters
      append_utf8(u_tolower(code == kCapitalIWithDot ? 'I' : code), written);
      if (code == kCapitalIWithDot) append_utf8(0x307, written);
    });
  }
};

class StripAccents : public Normalizer {
 public:
  void apply(std::string& text) const override {
    rewrite(text, [](int32_t code, std::string& written) {
      if (!is_combining_mark(code)) append_utf8(code, written);
    });
  }
};

class StripSpaces : public Normalizer {
 public:
  explicit StripSpaces(const JsonPart& part)
      : left_(part.at("strip_left").flag()), right_(part.at("strip_right").flag()) {}

  void apply(std::string& text) const override {
    std::string_view kept = text;
    while (left_ && !kept.empty() && is_whitespace(first_character(kept).code)) {
      kept.remove_prefix(first_character(kept).bytes);
    }
    while (right_ && !kept.empty() && is_whitespace(last_character(kept).code)) {
      kept.remove_suffix(last_character(kept).bytes);
    }
    if (kept.size() < text.size()) text = std::string(kept);
  }

 private:
  bool left_, right_;
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(const JsonPart& part) {
    for (const JsonPart& step : part.at("normalizers").list()) {
      if (step.is_null()) step.refuse("a normalizer");
      steps_.push_back(read_normalizer(step));
    }
  }
  void apply(std::string& text) const override {
    for (const auto& step : steps_) step->apply(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

std::unique_ptr<Normalizer> read_normalizer(const JsonPart& part) {
  if (part.is_null()) return nullptr;
  const std::string type = part.type();
  using icu::Normalizer2;
  if (type == "NFC") return std::make_unique<NormalForm>(&Normalizer2::getNFCInstance, 0x300);
  if (type == "NFD") return std::make_unique<NormalForm>(&Normalizer2::getNFDInstance, 0xc0);
  if (type == "NFKC") return std::make_unique<NormalForm>(&Normalizer2::getNFKCInstance, 0xa0);
  if (type == "NFKD") return std::make_unique<NormalForm>(&Normalizer2::getNFKDInstance, 0xa0);
  if (type == "Prepend") return std::make_unique<Prepend>(part);
  if (type == "Replace") return std::make_unique<ReplaceText>(part);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "Strip") return std::make_unique<StripSpaces>(part);
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Sequence") return std::make_unique<NormalizerSequence>(part);
  part.at("type").refuse(
      "NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, StripAccents or Sequence");
}

}  // namespace attnres
