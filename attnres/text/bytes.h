// The byte tokenizer: 256 tokens, the id is the byte's value. Takes any file, loses nothing.
#pragma once

#include "attnres/support/json.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

struct TokenizerJson;

// Byte 0 doubles as the end of a document.
//
// Saved as a byte-level BPE tokenizer without merges (tokenizer.json), whose vocabulary is GPT-2's
// printable characters for the 256 bytes.
class ByteTokenizer : public Tokenizer {
 public:
  std::string kind() const override { return "bytes"; }
  int64_t vocab_size() const override { return 256; }
  int32_t end_of_document() const override { return 0; }
  bool needs_utf8() const override { return false; }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string token_text(int32_t id) const override;
  void save(const std::filesystem::path& folder) const override;

 protected:
  std::string definition() const override { return "256 bytes"; }
};

// The printable character, in UTF-8, by which GPT-2 writes each byte: itself for the printable
// characters of Latin-1, U+0100 and following, in order, for the others.
std::vector<std::string> gpt2_byte_characters();

// Whether a tokenizer.json and the tokenizer_config.json beside it say what the byte tokenizer
// does: its vocabulary, no merges, text taken as it is with nothing around it, and byte 0 alone as
// what ends a document.
bool is_byte_tokenizer(const TokenizerJson& tokenizer, const Json& config);

}  // namespace attnres
