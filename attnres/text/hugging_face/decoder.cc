#include "attnres/text/hugging_face/decoder.h"

#include <cctype>

#include "attnres/text/hugging_face/byte_characters.h"
#include "attnres/text/hugging_face/replacement.h"

namespace attnres {

struct DecodedTokens {
  std::vector<std::string> texts;
  bool within = false;  // a text that began before and goes on
  bool fused = false;   // all are one text
};

class Decoder::Step {
 public:
  virtual ~Step() = default;
  virtual void apply(DecodedTokens& tokens) const = 0;
};

namespace {

void fuse(DecodedTokens& tokens) {
  std::string all;
  for (const std::string& text : tokens.texts) all += text;
  tokens.texts = {std::move(all)};
  tokens.fused = true;
}

class FuseStep : public Decoder::Step {
 public:
  void apply(DecodedTokens& tokens) const override { fuse(tokens); }
};

// GPT-2's characters as the bytes that they stand for. A token with any other character stays.
class ByteLevelStep : public Decoder::Step {
 public:
  void apply(DecodedTokens& tokens) const override {
    for (std::string& text : tokens.texts) text = bytes_of_characters(text).value_or(text);
    fuse(tokens);
  }
};

// <0x41> as the byte.
class ByteFallbackStep : public Decoder::Step {
 public:
  void apply(DecodedTokens& tokens) const override {
    for (std::string& text : tokens.texts) {
      const bool is_byte = text.size() == 6 && text.starts_with("<0x") && text.ends_with('>') &&
                           std::isxdigit(static_cast<uint8_t>(text[3])) != 0 &&
                           std::isxdigit(static_cast<uint8_t>(text[4])) != 0;
      if (is_byte) text = static_cast<char>(std::stoi(text.substr(3, 2), nullptr, 16));
    }
  }
};

class ReplaceStep : public Decoder::Step {
 public:
  explicit ReplaceStep(const JsonPart& part) : replacement_(part) {}
  void apply(DecodedTokens& tokens) const override {
    for (std::string& text : tokens.texts) replacement_.apply(text);
  }

 private:
  Replacement replacement_;
};

// Takes a character away from the begin and the end of each text, so many times at most.
class StripStep : public Decoder::Step {
 public:
  explicit StripStep(const JsonPart& part)
      : content_(part.at("content").text()),
        start_(part.at("start").count()),
        stop_(part.at("stop").count()) {
    if (content_.empty()) part.at("content").refuse("one character");
  }

  void apply(DecodedTokens& tokens) const override {
    if (tokens.within && tokens.fused) return;
    for (std::string& text : tokens.texts) {
      std::string_view kept = text;
      for (int64_t i = 0; i < start_ && kept.starts_with(content_); ++i) {
        kept.remove_prefix(content_.size());
      }
      for (int64_t i = 0; i < stop_ && kept.ends_with(content_); ++i) {
        kept.remove_suffix(content_.size());
      }
      if (kept.size() < text.size()) text = std::string(kept);
    }
  }

 private:
  std::string content_;
  int64_t start_, stop_;
};

// The mark as a space; in the first token it is what was put before the text.
class MetaspaceStep : public Decoder::Step {
 public:
  explicit MetaspaceStep(const JsonPart& part) : mark_(part.at("replacement").text()) {
    const JsonPart scheme = part.at("prepend_scheme");
    begins_ =
        part.at("add_prefix_space").flag(true) && (scheme.is_null() || scheme.text() != "never");
    if (mark_.empty()) part.at("replacement").refuse("one character");
  }

  void apply(DecodedTokens& tokens) const override {
    for (size_t i = 0; i < tokens.texts.size(); ++i) {
      std::string& text = tokens.texts[i];
      const bool drops = i == 0 && begins_ && !tokens.within;
      std::string spaced;
      for (std::string_view rest = text; !rest.empty();) {
        if (rest.starts_with(mark_)) {
          if (!drops) spaced += ' ';
          rest.remove_prefix(mark_.size());
        } else {
          spaced += rest[0];
          rest.remove_prefix(1);
        }
      }
      text = std::move(spaced);
    }
  }

 private:
  std::string mark_;
  bool begins_;
};

void add_steps(const JsonPart& part, std::vector<std::unique_ptr<Decoder::Step>>& steps) {
  const std::string type = part.type();
  if (type == "ByteLevel") {
    steps.push_back(std::make_unique<ByteLevelStep>());
  } else if (type == "ByteFallback") {
    steps.push_back(std::make_unique<ByteFallbackStep>());
  } else if (type == "Fuse") {
    steps.push_back(std::make_unique<FuseStep>());
  } else if (type == "Strip") {
    steps.push_back(std::make_unique<StripStep>(part));
  } else if (type == "Replace") {
    steps.push_back(std::make_unique<ReplaceStep>(part));
  } else if (type == "Metaspace") {
    steps.push_back(std::make_unique<MetaspaceStep>(part));
  } else if (type == "Sequence") {
    for (const JsonPart& step : part.at("decoders").list()) add_steps(step, steps);
  } else {
    part.at("type").refuse("ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace or Sequence");
  }
}

}  // namespace

Decoder::Decoder(const JsonPart& part) {
  add_steps(part, steps_);
}
Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

std::string Decoder::decode(std::vector<std::string> tokens) const {
  DecodedTokens decoded = {std::move(tokens)};
  for (const auto& step : steps_) step->apply(decoded);
  fuse(decoded);
  return std::move(decoded.texts[0]);
}

std::string Decoder::decode_within(std::string token) const {
  DecodedTokens decoded = {{std::move(token)}, /*within=*/true};
  for (const auto& step : steps_) step->apply(decoded);
  return std::move(decoded.texts[0]);
}

}  // namespace attnres
