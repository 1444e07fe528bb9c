#include "attnres/text/sentencepiece.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/json.h"
#include "attnres/text/sentencepiece_model.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

// How pieces write a space. As a character of the text it would come back as a space, so encode
// writes it as its bytes.
constexpr std::string_view kSpaceMark = "\u2581";

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

int byte_id(const sentencepiece::SentencePieceProcessor& processor, char byte) {
  const int id = processor.PieceToId(fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte)));
  return processor.IsByte(id) ? id : -1;
}

// The text that one token stands for. `piece` of a byte token is "<0x41>".
std::string text_of(const sentencepiece::SentencePieceProcessor& processor, int id) {
  const std::string& piece = processor.IdToPiece(id);
  if (processor.IsControl(id)) return "";
  if (processor.IsUnknown(id)) return " \u2047 ";
  if (processor.IsByte(id)) {
    return std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
  }
  return replace_all(piece, kSpaceMark, " ");
}

// The training text in the portions that the trainer takes: lines, cut further at tabs and at the
// characters that the trainer keeps for itself (it would skip the whole line), and at 4 KB, well
// below the word length at which it aborts the process.
class Portions : public sentencepiece::SentenceIterator {
 public:
  explicit Portions(const std::vector<Passage>& passages) : passages_(passages) { Next(); }

  bool done() const override { return done_; }
  const std::string& value() const override { return value_; }
  sentencepiece::util::Status status() const override { return {}; }

  void Next() override {
    value_.clear();
    while (value_.empty()) {
      if (rest_.empty()) {
        if (next_passage_ == passages_.size()) {
          done_ = true;
          return;
        }
        rest_ = passages_[next_passage_++].text;
        continue;
      }
      take();
    }
  }

 private:
  // Moves characters from rest_ to value_ up to a separator, which is dropped.
  void take() {
    size_t at = 0;
    while (at < rest_.size() && at < kLongest) {
      const size_t bytes = utf8_step(rest_.substr(at)).bytes;
      const std::string_view character = rest_.substr(at, bytes);
      if (character == "\n" || character == "\t" || character == kUnknownMark ||
          character == kSpaceMark) {
        value_ = rest_.substr(0, at);
        rest_.remove_prefix(at + bytes);
        return;
      }
      at += bytes;
    }
    value_ = rest_.substr(0, at);
    rest_.remove_prefix(at);
  }

  static constexpr size_t kLongest = 4096;
  static constexpr std::string_view kUnknownMark = "\u2585";

  const std::vector<Passage>& passages_;
  size_t next_passage_ = 0;
  std::string_view rest_;
  std::string value_;
  bool done_ = false;
};

[[noreturn]] void fail_training(int64_t vocab_size, const std::string& reason) {
  std::smatch match;
  if (std::regex_search(reason, match, std::regex("value <= ([0-9]+)"))) {
    fail(
        "tokenizer.vocab_size {}: too large for this text, which gives at most {} tokens; set it "
        "to that, or train on more text",
        vocab_size, match[1].str());
  }
  if (std::regex_search(reason, match, std::regex("required_chars\\. [0-9]+ vs ([0-9]+)"))) {
    fail(
        "tokenizer.vocab_size {}: too small for this text, whose characters and the 256 bytes "
        "alone are {} tokens; set it to more than that",
        vocab_size, match[1].str());
  }
  fail("SentencePiece training with {} tokens failed: {}", vocab_size, reason);
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(std::string model, const std::string& what,
                                               const SentencePieceFrame& frame)
    : model_(std::move(model)),
      processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
  try {
    read_sentencepiece_model(model_, what);  // which the library takes as it is
  } catch (const Error& e) {
    throw UnreadTokenizer(e.what());
  }
  const auto status = processor_->LoadFromSerializedProto(model_);
  if (!status.ok() || processor_->GetPieceSize() == 0) {
    throw UnreadTokenizer(
        fmt::format("{}: not a SentencePiece model: {}", what, status.ToString()));
  }
  if (processor_->eos_id() < 0) {
    throw UnreadTokenizer(fmt::format(
        "{}: this SentencePiece model has no end-of-sentence token, which ends documents", what));
  }
  for (int id = 0; id < processor_->GetPieceSize(); ++id) {
    token_texts_.push_back(text_of(*processor_, id));
  }
  const std::vector<int> ids = processor_->EncodeAsIds("a");
  adds_space_ = !ids.empty() && token_texts_[ids[0]].starts_with(' ');
  set_frame(frame, what);
}

void SentencePieceTokenizer::set_frame(const SentencePieceFrame& frame, const std::string& what) {
  const std::string& named = frame.begin_piece;
  int begin = processor_->bos_id();
  if (!named.empty()) {
    const int id = processor_->PieceToId(named);
    const bool is_there = processor_->IdToPiece(id) == named;
    if (frame.begin && !is_there) {
      throw UnreadTokenizer(
          fmt::format("{}: which token begins a text: '{}' (bos_token in tokenizer_config.json) is "
                      "not in the vocabulary",
                      what, one_line(named)));
    }
    begin = is_there ? id : begin;
  }
  if (begin >= 0) {
    begin_of_text_ = begin;
    begin_of_text_name_ = processor_->IdToPiece(begin);
    if (frame.begin) frame_ = {.before = {begin}, .before_text = begin_of_text_name_};
  }
  if (frame.end) frame_.after = {end_of_document()};
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

std::optional<int32_t> SentencePieceTokenizer::control_token(std::string_view name) const {
  const int id = processor_->PieceToId(name);
  if (!processor_->IsControl(id) || processor_->IdToPiece(id) != name) return std::nullopt;
  return id;
}

std::string SentencePieceTokenizer::control_token_name(int32_t id) const {
  check_id(id);
  return processor_->IsControl(id) ? processor_->IdToPiece(id) : "";
}

int64_t SentencePieceTokenizer::vocab_size() const {
  return static_cast<int64_t>(token_texts_.size());
}

int32_t SentencePieceTokenizer::end_of_document() const {
  return processor_->eos_id();
}

std::string SentencePieceTokenizer::end_piece() const {
  return processor_->IdToPiece(processor_->eos_id());
}

std::vector<int32_t> SentencePieceTokenizer::encode(std::string_view text) const {
  require_utf8(text, "text");
  const bool has_bytes = byte_id(*processor_, kSpaceMark[0]) >= 0;
  std::vector<int32_t> ids;
  while (!text.empty()) {
    const size_t mark = has_bytes ? text.find(kSpaceMark) : std::string_view::npos;
    std::vector<int> piece_ids;
    const auto status = processor_->Encode(text.substr(0, mark), &piece_ids);
    require(status.ok(), "SentencePiece: {}", status.ToString());
    ids.insert(ids.end(), piece_ids.begin(), piece_ids.end());
    if (mark == std::string_view::npos) break;
    for (const char byte : kSpaceMark) ids.push_back(byte_id(*processor_, byte));
    text.remove_prefix(mark + kSpaceMark.size());
  }
  return ids;
}

std::string SentencePieceTokenizer::decode(const std::vector<int32_t>& ids) const {
  std::string text = Tokenizer::decode(ids);
  if (adds_space_ && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::string SentencePieceTokenizer::token_text(int32_t id) const {
  check_id(id);
  return token_texts_[id];
}

void SentencePieceTokenizer::save(const fs::path& folder) const {
  Json config = {{"tokenizer_class", "LlamaTokenizer"},
                 {"eos_token", end_piece()},
                 {"unk_token", processor_->IdToPiece(processor_->unk_id())},
                 {"add_bos_token", !frame_.before.empty()},
                 {"add_eos_token", !frame_.after.empty()},
                 {"add_prefix_space", adds_space_},
                 {"legacy", false},
                 {"split_special_tokens", true},
                 {"clean_up_tokenization_spaces", false}};
  if (begin_of_text_) config["bos_token"] = begin_of_text_name_;
  make_folder(folder);
  write_file(folder / "tokenizer.model", model_);
  write_file(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

std::string train_sentencepiece(const std::vector<Passage>& text, int64_t vocab_size) {
  for (const Passage& passage : text) require_utf8(passage.text, passage.path, passage.offset);
  Portions portions(text);
  require(!portions.done(), "SentencePiece training: there is no text to learn tokens from");
  std::string model;
  const auto status =
      sentencepiece::SentencePieceTrainer::Train({{"model_type", "bpe"},
                                                  {"vocab_size", fmt::format("{}", vocab_size)},
                                                  {"byte_fallback", "true"},
                                                  {"normalization_rule_name", "identity"},
                                                  {"add_dummy_prefix", "false"},
                                                  {"remove_extra_whitespaces", "false"},
                                                  {"allow_whitespace_only_pieces", "true"},
                                                  {"num_threads", "1"},
                                                  {"minloglevel", "2"}},
                                                 &portions, &model);
  if (!status.ok()) fail_training(vocab_size, status.ToString());
  return model;
}

}  // namespace attnres
