#include "attnres/text/hugging_face/decoder.h"

#include <cctype>
#include <memory>
#include <numeric>

#include "attnres/text/hugging_face/byte_characters.h"
#include "attnres/text/hugging_face/replacement.h"

namespace attnres {

struct DecodedTokens {
  std::vector<std::string> texts;
  bool within = false;  // a text that began before and goes on
  bool fused = false;   // all are one text
};

namespace {

size_t bytes_of(const DecodedTokens& tokens) {
  return std::accumulate(tokens.texts.begin(), tokens.texts.end(), size_t{0},
                         [](size_t sum, const std::string& text) { return sum + text.size(); });
}

using DecoderStep = std::function<void(DecodedTokens&)>;

void fuse(DecodedTokens& tokens) {
  std::string all;
  for (const std::string& text : tokens.texts) all += text;
  tokens.texts = {std::move(all)};
  tokens.fused = true;
}

// GPT-2's characters as the bytes that they stand for. A token with any other character stays.
void decode_byte_level(DecodedTokens& tokens) {
  for (std::string& text : tokens.texts) text = bytes_of_characters(text).value_or(text);
  fuse(tokens);
}

// <0x41> as the byte.
void decode_byte_fallback(DecodedTokens& tokens) {
  for (std::string& text : tokens.texts) {
    const bool is_byte = text.size() == 6 && text.starts_with("<0x") && text.ends_with('>') &&
                         std::isxdigit(static_cast<uint8_t>(text[3])) != 0 &&
                         std::isxdigit(static_cast<uint8_t>(text[4])) != 0;
    if (is_byte) text = static_cast<char>(std::stoi(text.substr(3, 2), nullptr, 16));
  }
}

DecoderStep replacing(const JsonPart& part) {
  return [replacement = std::make_shared<const Replacement>(part)](DecodedTokens& tokens) {
    for (std::string& text : tokens.texts) replacement->apply(text);
  };
}

// Takes a character away from the begin and the end of each text, so many times at most.
DecoderStep stripping(const JsonPart& part) {
  const std::string content = part.at("content").text();
  const int64_t start = part.at("start").count(), stop = part.at("stop").count();
  if (content.empty()) part.at("content").refuse("one character");
  return [=](DecodedTokens& tokens) {
    if (tokens.within && tokens.fused) return;
    for (std::string& text : tokens.texts) {
      std::string_view kept = text;
      for (int64_t i = 0; i < start && kept.starts_with(content); ++i) {
        kept.remove_prefix(content.size());
      }
      for (int64_t i = 0; i < stop && kept.ends_with(content); ++i) {
        kept.remove_suffix(content.size());
      }
      if (kept.size() < text.size()) text = std::string(kept);
    }
  };
}

// The mark as a space; in the first token it is what was put before the text.
DecoderStep unmarking(const JsonPart& part) {
  const std::string mark = part.at("replacement").text();
  const JsonPart scheme = part.at("prepend_scheme");
  const bool begins =
      part.at("add_prefix_space").flag(true) && (scheme.is_null() || scheme.text() != "never");
  if (mark.empty()) part.at("replacement").refuse("one character");
  return [=](DecodedTokens& tokens) {
    for (size_t i = 0; i < tokens.texts.size(); ++i) {
      std::string& text = tokens.texts[i];
      const bool drops = i == 0 && begins && !tokens.within;
      std::string spaced;
      for (std::string_view rest = text; !rest.empty();) {
        if (rest.starts_with(mark)) {
          if (!drops) spaced += ' ';
          rest.remove_prefix(mark.size());
        } else {
          spaced += rest[0];
          rest.remove_prefix(1);
        }
      }
      text = std::move(spaced);
    }
  };
}

void add_steps(const JsonPart& part, std::vector<DecoderStep>& steps) {
  const std::string type = part.type();
  if (type == "ByteLevel") {
    steps.emplace_back(decode_byte_level);
  } else if (type == "ByteFallback") {
    steps.emplace_back(decode_byte_fallback);
  } else if (type == "Fuse") {
    steps.emplace_back(fuse);
  } else if (type == "Strip") {
    steps.push_back(stripping(part));
  } else if (type == "Replace") {
    steps.push_back(replacing(part));
  } else if (type == "Metaspace") {
    steps.push_back(unmarking(part));
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

void Decoder::run(DecodedTokens& tokens) const {
  const size_t bytes = bytes_of(tokens);
  for (const auto& step : steps_) {
    step(tokens);
    check_growth(bytes, bytes_of(tokens));
  }
}

std::string Decoder::decode(std::vector<std::string> tokens) const {
  DecodedTokens decoded = {std::move(tokens)};
  run(decoded);
  fuse(decoded);
  return std::move(decoded.texts[0]);
}

std::string Decoder::decode_within(std::string token) const {
  DecodedTokens decoded = {{std::move(token)}, /*within=*/true};
  run(decoded);
  return std::move(decoded.texts[0]);
}

}  // namespace attnres
