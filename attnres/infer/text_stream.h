// The text of a continuation as its tokens come, up to a stop string.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/infer/stop_strings.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

class TextStream {
 public:
  // The tokenizer must outlive it. Throws as StopStrings.
  TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stops)
      : decoder_(tokenizer), stops_(stops) {}

  // The text that this token adds: whole characters, and nothing that may be part of a stop string.
  std::string add(int32_t id) { return stops_.add(decoder_.add(id)); }
  // What was held back, after the last token.
  std::string finish() {
    std::string text = stops_.add(decoder_.finish());
    return text += stops_.finish();
  }

  // Whether a stop string came: the text ends before it.
  bool stopped() const { return stops_.found(); }

 private:
  StreamDecoder decoder_;
  StopStrings stops_;
};

}  // namespace attnres
