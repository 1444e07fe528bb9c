// The text of a continuation as its tokens come, up to a stop string, and, of an answer, its parts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attnres/chat/reply_reader.h"
#include "attnres/infer/stop_strings.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

class TextStream {
 public:
  // The tokenizer must outlive it. `reply`: how an answer is read; null of other texts. The first
  // `min_tokens` have no part in a stop string. Throws as StopStrings.
  TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stops,
             const ReplyPlan* reply = nullptr, int64_t min_tokens = 0)
      : tokenizer_(&tokenizer), decoder_(tokenizer), stops_(stops), unstopped_(min_tokens) {
    if (reply != nullptr) reader_.emplace(*reply, tokenizer);
  }

  // The text that this token adds: whole characters, and nothing that may be part of a stop string.
  std::string add(int32_t id);
  // What was held back, after the last token.
  std::string finish();
  // What they say as parts of an answer, since this was last asked.
  std::vector<ReplyPiece> take_pieces() { return std::exchange(pieces_, {}); }

  // Whether a stop string came: the text ends before it.
  bool stopped() const { return stops_.found(); }

 private:
  std::string finish_text();
  void add_pieces(std::vector<ReplyPiece> pieces);

  const Tokenizer* tokenizer_;
  StreamDecoder decoder_;
  StopStrings stops_;
  int64_t unstopped_;  // tokens to come that stop nothing
  std::optional<ReplyReader> reader_;
  std::vector<ReplyPiece> pieces_;
};

}  // namespace attnres
