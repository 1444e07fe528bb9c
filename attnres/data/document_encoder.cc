#include "attnres/data/document_encoder.h"

#include <xxhash.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "attnres/data/chat_tokens.h"
#include "attnres/support/error.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

TextHash text_hash(const XXH128_hash_t& hash) {
  return {hash.low64, hash.high64};
}

Json field_of(const RawDocument& document, const std::string& field) {
  require(document.whole, "the line is longer than {} bytes", DocumentReader::kLongestLine);
  Json line = parse_json(document.text, "its JSON");
  require(line.is_object() && line.contains(field), "no field \"{}\" in it", field);
  return std::move(line[field]);
}

}  // namespace

std::string text_of(const RawDocument& document, const std::string& field) {
  if (!document.is_line) return document.text;
  const Json value = field_of(document, field);
  require(value.is_string(), "expected a text as its field \"{}\", found {}", field, shown(value));
  return value.get<std::string>();
}

TextHash hash_text(std::string_view text) {
  return text_hash(XXH3_128bits(text.data(), text.size()));
}

TextHash hash_file_text(const std::filesystem::path& path) {
  const std::unique_ptr<ByteStream> bytes = open_byte_stream(path);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       XXH3_freeState);
  require(state != nullptr, "{}: no memory to hash it", path.string());
  XXH3_128bits_reset(state.get());
  std::string buffer(size_t{1} << 20, '\0');
  while (const size_t count = bytes->read(buffer.data(), buffer.size())) {
    XXH3_128bits_update(state.get(), buffer.data(), count);
  }
  return text_hash(XXH3_128bits_digest(state.get()));
}

void DocumentEncoder::encode_text(std::string_view text, EncodedDocument& encoded) const {
  if (tokenizer_.needs_utf8()) require_utf8(text, "its text");
  encoded.text_bytes = std::ssize(text);
  encoded.hash = hash_text(text);
  const std::vector<int32_t> ids = tokenizer_.encode(text);
  encoded.tokens.assign(ids.begin(), ids.end());
}

void DocumentEncoder::encode_chat(const RawDocument& document, EncodedDocument& encoded) const {
  const Json messages = field_of(document, field_);
  const std::string text = messages.dump();
  encoded.text_bytes = std::ssize(text);
  encoded.hash = hash_text(text);
  encoded.tokens = chat_tokens(read_conversation(messages), *chat_, tokenizer_);
}

EncodedDocument DocumentEncoder::encode(const RawDocument& document) const {
  EncodedDocument encoded;
  try {
    if (chat_ != nullptr) {
      encode_chat(document, encoded);
      return encoded;
    }
    encode_text(text_of(document, field_), encoded);
    if (document.ends) {
      encoded.tokens.push_back(static_cast<uint32_t>(tokenizer_.end_of_document()));
    }
  } catch (const Error& error) {
    encoded = {.problem = error.what()};
  }
  return encoded;
}

}  // namespace attnres
