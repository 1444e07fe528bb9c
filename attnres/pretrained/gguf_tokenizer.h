// A tokenizer as GGUF files hold it.
#pragma once

#include <cstdint>
#include <memory>

#include "attnres/formats/gguf.h"
#include "attnres/formats/gguf_reader.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// The keys tokenizer.ggml.* by which llama.cpp tokenizes alike: byte pairs as GPT-2's, with the
// name of how text is split (gguf_pre_tokenizer.h), the byte tokenizer as these without merges,
// SentencePiece as Llama's. Tokens that the tokenizer lacks of `vocab_size` are
// listed as unused. add_bos_token and add_eos_token say what the tokenizer's frame puts around a
// text; where it knows no token that begins one, bos_token_id is the end's.
//
// One difference remains: llama.cpp reads the character U+2581 of a text, by which SentencePiece
// writes spaces, as a space.
//
// Throws Error on a SentencePiece model that does more than merge pairs of the text as it is, on
// byte pairs of text that is split in no way that has a name, and on a frame of other tokens than
// one before a text and the end of a document after it.
GgufMetadata gguf_tokenizer(const Tokenizer& tokenizer, int64_t vocab_size);

// The keys of a file that has no vocabulary, which llama.cpp takes token ids with.
GgufMetadata gguf_without_tokenizer();

// A file's own keys tokenizer.*, as they are.
GgufMetadata gguf_tokenizer_of(const GgufFile& file);

// Back: SentencePiece, whose pairs llama.cpp merges by their scores, byte pairs and bytes. Unused
// tokens at the end of the list are left out. Without the keys a text begins with bos_token_id
// where llama.cpp says so: of SentencePiece, and of byte pairs split as Llama 3 does. Throws
// UnreadTokenizer on others, naming them, and Error where the keys do not fit together.
std::unique_ptr<Tokenizer> read_gguf_tokenizer(const GgufFile& file);

}  // namespace attnres
