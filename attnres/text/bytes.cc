#include "attnres/text/bytes.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attnres/support/file.h"
#include "attnres/text/hugging_face/post_processor.h"
#include "attnres/text/hugging_face/tokenizer_json.h"

namespace attnres {
namespace fs = std::filesystem;

std::vector<int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids(text.size());
  for (size_t i = 0; i < text.size(); ++i) ids[i] = static_cast<unsigned char>(text[i]);
  return ids;
}

std::string ByteTokenizer::token_text(int32_t id) const {
  check_id(id);
  return std::string(1, static_cast<char>(id));
}

std::vector<std::string> gpt2_byte_characters() {
  std::vector<std::string> characters(256);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
    const int code = printable ? byte : next++;
    std::string& character = characters[byte];
    if (code < 0x80) {
      character.push_back(static_cast<char>(code));
    } else {
      character.push_back(static_cast<char>(0xc0 | code >> 6));
      character.push_back(static_cast<char>(0x80 | (code & 0x3f)));
    }
  }
  return characters;
}

void ByteTokenizer::save(const fs::path& folder) const {
  const std::vector<std::string> characters = gpt2_byte_characters();
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[characters[byte]] = byte;
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", false},
                           {"use_regex", false}};
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", false},
                      {"byte_fallback", false},
                      {"vocab", vocabulary},
                      {"merges", Json::array()}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", Json::array()},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor", nullptr},
                          {"decoder", byte_level},
                          {"model", model}};
  // The end of a document is written as byte 0's character. Text that holds this very character is
  // not the special token: it is split into its bytes like any other.
  const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"eos_token", characters[end_of_document()]},
                       {"split_special_tokens", true},
                       {"clean_up_tokenization_spaces", false}};
  make_folder(folder);
  write_file(folder / "tokenizer.json", tokenizer.dump(2) + "\n");
  write_file(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

bool is_byte_tokenizer(const TokenizerJson& tokenizer, const Json& config) {
  if (tokenizer.vocabulary.size() != 256 || !tokenizer.merges.empty()) return false;
  const std::vector<std::string> characters = gpt2_byte_characters();
  const bool has_bytes =
      std::all_of(tokenizer.vocabulary.begin(), tokenizer.vocabulary.end(), [&](const auto& token) {
        return token.second < 256 && token.first == characters[token.second];
      });
  const auto is_byte_level = [](const Json& part) {
    return part.is_object() && part.value("type", Json()) == "ByteLevel";
  };
  const bool is_plain = tokenizer.normalizer.is_null() && is_byte_level(tokenizer.pre_tokenizer) &&
                        tokenizer.pre_tokenizer.value("add_prefix_space", Json()) == false &&
                        is_byte_level(tokenizer.decoder);
  // Programs that save it again list its end of a document.
  const std::string& end = characters[ByteTokenizer().end_of_document()];
  const bool adds_none =
      std::all_of(tokenizer.added_tokens.begin(), tokenizer.added_tokens.end(),
                  [&](const AddedToken& token) { return token.special && token.content == end; });
  const bool is_framed =
      !read_post_processor({tokenizer.post_processor, "post_processor"}, 256).empty() ||
      named_flag(config, "add_bos_token", false) || named_flag(config, "add_eos_token", false);
  if (is_framed) return false;
  const std::string named = named_token(config, "eos_token");
  return has_bytes && is_plain && adds_none && (named.empty() || named == end);
}

}  // namespace attnres
