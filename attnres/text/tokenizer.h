// Text to token ids and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/support/config_key.h"
#include "attnres/support/error.h"

namespace attnres {

struct Passage;

// A tokenizer of a kind that is not read here.
class UnreadTokenizer : public Error {
 public:
  using Error::Error;
};

// The special tokens around a text that stands by itself, as a prompt does: what transformers adds
// (add_special_tokens).
struct TextFrame {
  std::vector<int32_t> before = {}, after = {};
  std::string before_text = {};  // how a text would write those before it: "<|begin_of_text|>"

  bool empty() const { return before.empty() && after.empty(); }
};

// Immutable, so one tokenizer serves any number of threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // As in TokenizerConfig: "bytes", "sentencepiece", "bpe", "ids".
  virtual std::string kind() const = 0;
  virtual int64_t vocab_size() const = 0;
  // Ends every document of a training stream, and generation.
  virtual int32_t end_of_document() const = 0;

  // What encode leaves out, prompt_ids and encode_framed add.
  const TextFrame& frame() const { return frame_; }
  // The token that is said to begin a text, whether or not it is put before one.
  std::optional<int32_t> begin_of_text() const { return begin_of_text_; }
  // How its files write that: "<s>"; empty without one.
  const std::string& begin_of_text_name() const { return begin_of_text_name_; }

  // Whether text must be valid UTF-8; otherwise any bytes will do.
  virtual bool needs_utf8() const = 0;
  // Adds no begin or end token. Throws Error, naming the byte offset, on text that is not UTF-8 if
  // it needs to be.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // decode(encode(text)) == text, byte for byte, for every tokenizer that attnres trains. The bytes
  // need not be valid UTF-8 when the ids come from a model. Throws Error on an id outside the
  // vocabulary.
  virtual std::string decode(const std::vector<int32_t>& ids) const;
  // The bytes that one token adds to a text that has already begun; none for control tokens.
  virtual std::string token_text(int32_t id) const = 0;
  // The control token of this name, such as <|im_end|>, which no text is tokenized to.
  virtual std::optional<int32_t> control_token(std::string_view /*name*/) const { return {}; }
  // The name of a control token; empty of all others.
  virtual std::string control_token_name(int32_t /*id*/) const { return ""; }

  // Identity: tokenizers with equal hashes give equal ids.
  uint64_t hash() const;

  // Writes the files by which load_tokenizer and Hugging Face programs find the tokenizer.
  virtual void save(const std::filesystem::path& folder) const = 0;

 protected:
  // What says which ids a text has: the text of the file that is saved.
  virtual std::string definition() const = 0;
  // Throws Error unless 0 <= id < vocab_size.
  void check_id(int32_t id) const;

  TextFrame frame_;
  std::optional<int32_t> begin_of_text_;
  std::string begin_of_text_name_;
};

// The tokens of a text to continue, after those that the tokenizer's frame has before a text. Those
// after it are left out: they would end it. Where the frame has none, an empty text is the end of a
// document, since in training another begins there. A text that begins with what the frame puts
// there, written out, has it once.
std::vector<int32_t> prompt_ids(const std::string& text, const Tokenizer& tokenizer);

// The tokens of a whole text with those around it. What the frame puts before it the text has once,
// as above.
std::vector<int32_t> encode_framed(std::string_view text, const Tokenizer& tokenizer);

// Reads the tokenizer whose files lie in a folder: tokenizer.json (byte-pair encoding, or bytes),
// or else tokenizer.model (SentencePiece), or else tiktoken.model (Kimi's). Throws UnreadTokenizer
// when there is none of them, or when these are of another kind.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder);

// The files of a folder by which some program tokenizes, whether or not they are read here: what
// has to be copied with a model.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& folder);

struct TokenizerConfig {
  std::string kind = "bytes";  // Tokenizer::kind
  int64_t vocab_size = 256;

  template <class V>
  void visit(V& v) {
    v("kind", kind, "the tokenizer",
      one_of({{"bytes", "a token each"},
              {"sentencepiece", "trained on the text"},
              {"bpe", "byte-pair encoding, trained on the text"},
              {"ids", "of a model whose tokenizer is not read: token ids alone"}}));
    v("vocab_size", vocab_size,
      "its tokens: 256 of bytes, 260 or more of sentencepiece, 257 of bpe", from_to(1, INT32_MAX));
  }
  // Throws UsageError on an unknown kind (the known ones are listed) or an impossible size.
  void check() const;
};

// The tokenizer that a configuration asks for; SentencePiece and byte-pair encoding are trained on
// `training_text`. Throws UsageError where it asks for ids, which no text becomes.
std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerConfig& config,
                                          const std::vector<Passage>& training_text);

// Text of tokens as they come. What is returned is always whole UTF-8 characters: the bytes of an
// incomplete one are held back, and what can never become a character is given as U+FFFD.
class StreamDecoder {
 public:
  // The tokenizer must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::string add(int32_t id);
  // What was still held back (as U+FFFD), and starts anew.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string held_;
};

}  // namespace attnres
