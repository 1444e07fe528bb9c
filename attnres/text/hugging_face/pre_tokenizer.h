// How a tokenizer.json splits text into the pieces that are tokenized by themselves
// ("pre_tokenizer").
#pragma once

#include <memory>
#include <string_view>

#include "attnres/text/hugging_face/function_ref.h"
#include "attnres/text/hugging_face/json_part.h"

namespace attnres {

struct Piece {
  std::string_view text;
  bool at_start = false;  // of the whole text
};

// Serves any number of threads.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Gives the piece's own pieces, in order; each lives during the call only.
  virtual void split(const Piece& piece, FunctionRef<const Piece&> next) const = 0;
};

struct PreTokenization {
  std::unique_ptr<PreTokenizer> splitter;  // null: pieces are left whole
  // Its last step is ByteLevel: tokens are made of bytes, each written as GPT-2's character for it.
  // Pieces are given as they are, and only tokens are written so.
  bool bytes = false;
};

// ByteLevel, Split, Digits, Whitespace, WhitespaceSplit, Punctuation, Metaspace and Sequence;
// pieces are left whole by a part that is null. Throws UnreadTokenizer on others, naming them.
PreTokenization read_pre_tokenizer(const JsonPart& part);

// The expression by which ByteLevel splits.
extern const char* const kGpt2Pattern;

}  // namespace attnres
