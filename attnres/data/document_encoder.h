// What was read of a file, as tokens.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "attnres/chat/chat_template.h"
#include "attnres/data/document_reader.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// 128 bits of a text, by which its duplicates are found: XXH3. Two of a billion different texts
// have equal ones with a probability of 1e-21.
struct TextHash {
  uint64_t low = 0, high = 0;

  bool operator==(const TextHash&) const = default;
};
TextHash hash_text(std::string_view text);
// The hash of all that a file holds, decompressed.
TextHash hash_file_text(const std::filesystem::path& path);

struct EncodedDocument {
  std::vector<uint32_t> tokens = {};  // with kNoTarget; the end of document after its last piece
  int64_t text_bytes = 0;
  TextHash hash = {};        // of this text
  std::string problem = {};  // why there are no tokens; empty where there are
};

// The text of a piece, or of `field` of a JSON line. Throws Error where there is none.
std::string text_of(const RawDocument& document, const std::string& field);

class DocumentEncoder {
 public:
  // Takes `field` of JSON lines: a text, or with `chat` a conversation. The tokenizer and the
  // template must outlive it.
  DocumentEncoder(const Tokenizer& tokenizer, std::string field, const ChatTemplate* chat = nullptr)
      : tokenizer_(tokenizer), field_(std::move(field)), chat_(chat) {}

  // From any number of threads.
  EncodedDocument encode(const RawDocument& document) const;

 private:
  void encode_text(std::string_view text, EncodedDocument& encoded) const;
  void encode_chat(const RawDocument& document, EncodedDocument& encoded) const;

  const Tokenizer& tokenizer_;
  std::string field_;
  const ChatTemplate* chat_;
};

}  // namespace attnres
