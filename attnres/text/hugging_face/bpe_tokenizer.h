// Tokenizers with byte-pair encoding in Hugging Face's files: those of GPT-2, Llama, Qwen, SmolLM,
// DeepSeek, Gemma and others.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "attnres/text/hugging_face/added_tokens.h"
#include "attnres/text/hugging_face/bpe.h"
#include "attnres/text/hugging_face/decoder.h"
#include "attnres/text/hugging_face/normalizer.h"
#include "attnres/text/hugging_face/pre_tokenizer.h"
#include "attnres/text/hugging_face/tokenizer_json.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// A file of a folder, whole.
struct TokenizerFile {
  std::string name, text;
};

class BpeTokenizer : public Tokenizer {
 public:
  static constexpr const char* kEndKey = "eos_token in tokenizer_config.json";

  // `parts` that `file` says, which is saved again; `what` names it in errors. `config` is what
  // tokenizer_config.json says, of which "eos_token" names the token that ends a document. Around a
  // text stands what the post-processor puts there, and what "add_bos_token" and "add_eos_token"
  // ask for. Throws UnreadTokenizer naming what is asked for and not read here, or if no token ends
  // a document.
  BpeTokenizer(TokenizerJson parts, TokenizerFile file, Json config, const std::string& what,
               const std::string& end_key = kEndKey);
  // Takes parts that no tokenizer.json says: they are saved as one. `end_key` is what the token
  // that ends a document is named by where they come from, for errors.
  BpeTokenizer(const TokenizerJson& parts, Json config, const std::string& what,
               const std::string& end_key = kEndKey);

  std::string kind() const override { return "bpe"; }
  int64_t vocab_size() const override { return static_cast<int64_t>(token_texts_.size()); }
  int32_t end_of_document() const override { return end_of_document_; }
  bool needs_utf8() const override { return true; }
  // Special tokens in the text are text; so that a text can mean what it says, but
  // transformers take them for control tokens.
  std::vector<int32_t> encode(std::string_view text) const override {
    return encode(text, SpecialTokens::as_text);
  }
  std::vector<int32_t> encode(std::string_view text, SpecialTokens special) const;
  std::string decode(const std::vector<int32_t>& ids) const override;
  std::string token_text(int32_t id) const override;
  std::optional<int32_t> control_token(std::string_view name) const override;
  std::string control_token_name(int32_t id) const override;
  void save(const std::filesystem::path& folder) const override;

  const TokenizerJson& parts() const { return parts_; }

 protected:
  std::string definition() const override { return file_.text; }

 private:
  int32_t find_end(const std::string& what, const std::string& key) const;
  std::optional<int32_t> find_token(const std::string& text) const;
  void set_frame(const std::string& what);

  TokenizerJson parts_;
  TokenizerFile file_;
  Json config_;
  std::vector<std::string> token_texts_;  // as the file writes them, by id
  std::unordered_map<std::string, int32_t> control_tokens_;
  std::vector<bool> is_special_;  // by id
  int32_t end_of_document_ = -1;

  Normalizer normalizer_;
  PreTokenization pre_tokenization_;
  std::optional<Decoder> decoder_;
  std::unique_ptr<BpeModel> model_;
  std::unique_ptr<AddedTokenFinder> raw_finder_, normalized_finder_;
};

}  // namespace attnres
