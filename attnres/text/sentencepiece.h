// SentencePiece (Kudo and Richardson, arXiv 1808.06226): subword tokens learned from text.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attnres/text/passage.h"
#include "attnres/text/tokenizer.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace attnres {

// 256 bytes, three control tokens and one character.
inline constexpr int64_t kSmallestSentencePieceVocabulary = 260;

// Which of the model's control tokens stand around a text (TextFrame).
struct SentencePieceFrame {
  bool begin = false, end = false;
  std::string begin_piece = {};  // in place of the model's <s>
};

class SentencePieceTokenizer : public Tokenizer {
 public:
  // `model`: the bytes of a tokenizer.model; `what` names it in errors. Throws UnreadTokenizer when
  // they are not a SentencePiece model, one without an end-of-sentence token, or one without the
  // piece that is to begin a text. A model without any such piece begins none.
  SentencePieceTokenizer(std::string model, const std::string& what,
                         const SentencePieceFrame& frame = {});
  ~SentencePieceTokenizer() override;

  std::string kind() const override { return "sentencepiece"; }
  int64_t vocab_size() const override;
  int32_t end_of_document() const override;  // the model's </s>
  bool needs_utf8() const override { return true; }
  std::vector<int32_t> encode(std::string_view text) const override;
  std::string decode(const std::vector<int32_t>& ids) const override;
  std::string token_text(int32_t id) const override;
  std::optional<int32_t> control_token(std::string_view name) const override;
  std::string control_token_name(int32_t id) const override;
  void save(const std::filesystem::path& folder) const override;

  const std::string& model() const { return model_; }
  std::string end_piece() const;  // of end_of_document, as the model writes it

 protected:
  std::string definition() const override { return model_; }

 private:
  void set_frame(const SentencePieceFrame& frame, const std::string& what);

  std::string model_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  std::vector<std::string> token_texts_;
  bool adds_space_ = false;  // the model puts a space before every text; decode takes it away
};

// Trains a byte-pair model and returns the bytes of its tokenizer.model. The same text gives the
// same bytes. Nothing is normalised; a character without a token is written as its UTF-8 bytes,
// line ends and tabs among them, so decode(encode(text)) == text. Ids: 0 <unk>, 1 <s>, 2 </s>,
// 3 .. 258 the bytes, then the learned tokens.
//
// Throws Error on invalid UTF-8 (naming the file and the byte offset), and on a vocabulary larger
// or smaller than the text allows, naming the limit.
std::string train_sentencepiece(const std::vector<Passage>& text, int64_t vocab_size);

}  // namespace attnres
