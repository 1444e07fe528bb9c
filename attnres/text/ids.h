// Token ids without texts: in the place of a tokenizer that is not read here.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "attnres/text/tokenizer.h"

namespace attnres {

// Its kind, as TokenizerConfig has it.
inline constexpr const char* kIds = "ids";

// Encodes no text; decoded ids are themselves, "5 17 3", and a token has no bytes.
class IdsTokenizer : public Tokenizer {
 public:
  using Files = std::vector<std::pair<std::string, std::string>>;  // names and contents

  // `end_of_document`: -1 where it is not known. `files` are carried along: of the tokenizer that
  // is not read.
  IdsTokenizer(int64_t vocab_size, int32_t end_of_document, Files files)
      : vocab_size_(vocab_size), end_of_document_(end_of_document), files_(std::move(files)) {}

  std::string kind() const override { return kIds; }
  int64_t vocab_size() const override { return vocab_size_; }
  int32_t end_of_document() const override { return end_of_document_; }
  bool needs_utf8() const override { return false; }
  // Throws Error.
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<int32_t>& ids) const override;
  std::string token_text(int32_t id) const override;
  void save(const std::filesystem::path& folder) const override;

 protected:
  std::string definition() const override { return "token ids"; }

 private:
  int64_t vocab_size_;
  int32_t end_of_document_;
  Files files_;
};

}  // namespace attnres
