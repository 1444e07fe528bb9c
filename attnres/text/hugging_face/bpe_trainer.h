// Learns byte-pair tokens from text (Sennrich et al., arXiv 1508.07909), as BpeTrainer of
// github.com/huggingface/tokenizers does: the same text gives the same merges there.
#pragma once

#include <cstdint>
#include <vector>

#include "attnres/text/hugging_face/tokenizer_json.h"
#include "attnres/text/passage.h"

namespace attnres {

// The end of a document and 256 bytes; then what is learned.
inline constexpr int64_t kSmallestBpeVocabulary = 257;

// How trained tokenizers split text: the expression of Llama 3, close to GPT-4's. Digits in threes,
// line ends apart from words, contractions in capitals too; llama.cpp has it as "llama-bpe".
extern const char* const kLlama3Pattern;

// Joins, again and again, the pair of tokens that is most frequent in the pieces of the text; of
// equally frequent ones that of the lowest ids. Ids: 0 <|endoftext|>, which is special, then the
// bytes in the order of GPT-2's characters for them, then the learned tokens.
//
// Throws Error on invalid UTF-8 (naming the file and the byte offset), and on a vocabulary larger
// than the text allows, naming the limit.
TokenizerJson train_bpe(const std::vector<Passage>& text, int64_t vocab_size);

}  // namespace attnres
