#include "attnres/text/hugging_face/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/text/hugging_face/byte_characters.h"
#include "attnres/text/hugging_face/post_processor.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

std::unique_ptr<BpeModel> make_byte_model(const TokenizerJson& parts, const std::string& what) {
  // Tokens of other characters come from no text.
  BpeModel::Vocabulary vocabulary;
  for (const auto& [text, id] : parts.vocabulary) {
    const auto token = bytes_of_characters(text);
    if (token) vocabulary.emplace_back(*token, id);
  }
  BpeModel::Merges merges;
  for (const auto& [left, right] : parts.merges) {
    auto left_bytes = bytes_of_characters(left), right_bytes = bytes_of_characters(right);
    if (!left_bytes || !right_bytes) continue;
    merges.emplace_back(std::move(*left_bytes), std::move(*right_bytes));
  }
  BpeSettings settings = parts.settings;
  settings.bytes = true;
  if (settings.unk_token) settings.unk_token = bytes_of_characters(*settings.unk_token);
  return std::make_unique<BpeModel>(vocabulary, merges, settings, what);
}

}  // namespace

BpeTokenizer::BpeTokenizer(const TokenizerJson& parts, Json config, const std::string& what,
                           const std::string& end_key)
    : BpeTokenizer(parts, {"tokenizer.json", write_tokenizer_json(parts)}, std::move(config), what,
                   end_key) {}

BpeTokenizer::BpeTokenizer(TokenizerJson parts, TokenizerFile file, Json config,
                           const std::string& what, const std::string& end_key)
    : parts_(std::move(parts)), file_(std::move(file)), config_(std::move(config)) {
  const auto named = [&](const char* part) { return fmt::format("{}: {}", what, part); };
  normalizer_ = read_normalizer({parts_.normalizer, named("normalizer")});
  pre_tokenization_ = read_pre_tokenizer({parts_.pre_tokenizer, named("pre_tokenizer")});
  decoder_.emplace(JsonPart(parts_.decoder, named("decoder")));
  model_ = pre_tokenization_.bytes ? make_byte_model(parts_, what)
                                   : std::make_unique<BpeModel>(parts_.vocabulary, parts_.merges,
                                                                parts_.settings, what);

  // Numbers may be left out, but memory is taken for them.
  constexpr size_t kMostTokens = size_t{1} << 24, kMostLeftOut = size_t{1} << 16;
  const size_t tokens = parts_.vocabulary.size() + parts_.added_tokens.size();
  const size_t most = std::min(kMostTokens, 4 * tokens + kMostLeftOut);
  const auto add_token = [&](const std::string& text, int32_t id) {
    if (static_cast<size_t>(id) >= most) {
      fail(
          "{}: token '{}' has the number {}, but there are {} tokens; it is damaged: numbers below "
          "{} are read",
          what, one_line(text), id, tokens, most);
    }
    if (id >= vocab_size()) token_texts_.resize(id + 1);
    token_texts_[id] = text;
  };
  std::unordered_map<std::string, int32_t> ids;
  for (const auto& [text, id] : parts_.vocabulary) {
    add_token(text, id);
    ids[text] = id;
  }
  std::vector<AddedToken> raw, normalized;
  std::vector<std::string> raw_contents, normalized_contents;
  for (AddedToken& token : parts_.added_tokens) {
    if (token.content.empty()) continue;
    const auto in_vocabulary = ids.find(token.content);
    if (in_vocabulary != ids.end()) token.id = in_vocabulary->second;
    std::string written = token.content;
    if (token.normalized && normalizer_) normalizer_(written);
    add_token(written, token.id);
    if (token.special) {
      control_tokens_[token.content] = token.id;
      is_special_.resize(std::max<size_t>(is_special_.size(), token.id + 1));
      is_special_[token.id] = true;
    }
    (token.normalized ? normalized : raw).push_back(token);
    (token.normalized ? normalized_contents : raw_contents).push_back(written);
  }
  is_special_.resize(token_texts_.size());
  if (!raw.empty()) raw_finder_ = std::make_unique<AddedTokenFinder>(raw, raw_contents);
  if (!normalized.empty()) {
    normalized_finder_ = std::make_unique<AddedTokenFinder>(normalized, normalized_contents);
  }
  end_of_document_ = find_end(what, end_key);
  set_frame(what);
  if (!config_.contains("eos_token")) {
    Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"eos_token", token_texts_[end_of_document_]},
                   {"split_special_tokens", true},
                   {"clean_up_tokenization_spaces", false}};
    if (config_.is_object()) config.update(config_);
    config_ = std::move(config);
  }
}

std::optional<int32_t> BpeTokenizer::find_token(const std::string& text) const {
  if (const auto token = control_token(text)) return token;
  const auto found = std::find(token_texts_.begin(), token_texts_.end(), text);
  if (found == token_texts_.end()) return std::nullopt;
  return static_cast<int32_t>(found - token_texts_.begin());
}

void BpeTokenizer::set_frame(const std::string& what) {
  frame_ = read_post_processor({parts_.post_processor, what + ": post_processor"}, vocab_size());
  const std::string begin = named_token(config_, "bos_token");
  if (!begin.empty()) {
    begin_of_text_ = find_token(begin);
  } else if (frame_.before.size() == 1) {
    begin_of_text_ = frame_.before[0];
  }
  if (begin_of_text_) begin_of_text_name_ = token_texts_[*begin_of_text_];
  if (frame_.before.empty() && !begin.empty() && named_flag(config_, "add_bos_token", false)) {
    if (!begin_of_text_) {
      throw UnreadTokenizer(
          fmt::format("{}: which token begins a text: '{}' (bos_token in tokenizer_config.json) is "
                      "not in the vocabulary",
                      what, one_line(begin)));
    }
    frame_.before = {*begin_of_text_};
    frame_.before_text = begin;
  }
  if (frame_.after.empty() && named_flag(config_, "add_eos_token", false)) {
    frame_.after = {end_of_document_};
  }
}

int32_t BpeTokenizer::find_end(const std::string& what, const std::string& key) const {
  const std::string name = named_token(config_, "eos_token");
  constexpr std::array kUsualNames = {"<|endoftext|>", "<|end_of_text|>",       "</s>",
                                      "<eos>",         "<｜end▁of▁sentence｜>", "[EOS]"};
  std::vector<std::string> names(kUsualNames.begin(), kUsualNames.end());
  if (!name.empty()) names = {name};
  for (const std::string& candidate : names) {
    if (const auto token = find_token(candidate)) return *token;
  }
  throw UnreadTokenizer(fmt::format(
      "{}: which token ends a document: {}; name one as {}", what,
      name.empty() ? "none is named" : fmt::format("'{}' is not in the vocabulary", one_line(name)),
      key));
}

std::vector<int32_t> BpeTokenizer::encode(std::string_view text, SpecialTokens special) const {
  require_utf8(text, "text");
  std::vector<int32_t> ids;
  auto memory = model_->take_memory();
  const auto encode_piece = [&](const Piece& piece) { model_->encode(piece.text, *memory, ids); };
  const auto encode_pieces = [&](const Piece& piece) {
    if (pre_tokenization_.splitter == nullptr) return encode_piece(piece);
    pre_tokenization_.splitter->split(piece, encode_piece);
  };
  const auto encode_normalized = [&](const Piece& piece) {
    if (normalized_finder_ == nullptr) return encode_pieces(piece);
    normalized_finder_->find(piece.text, special, [&](const AddedTokenFinder::Part& part) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
      } else {
        encode_pieces({part.text, piece.at_start && part.text.data() == piece.text.data()});
      }
    });
  };
  const auto encode_raw = [&](const Piece& piece) {
    if (!normalizer_) return encode_normalized(piece);
    std::string normalized(piece.text);
    normalizer_(normalized);
    if (!normalized.empty()) encode_normalized({normalized, piece.at_start});
  };
  if (raw_finder_ == nullptr) {
    if (!text.empty()) encode_raw({text, true});
  } else {
    raw_finder_->find(text, special, [&](const AddedTokenFinder::Part& part) {
      if (part.token != nullptr) {
        ids.push_back(part.token->id);
      } else {
        encode_raw({part.text, part.text.data() == text.data()});
      }
    });
  }
  model_->give_back(std::move(memory));
  return ids;
}

std::string BpeTokenizer::decode(const std::vector<int32_t>& ids) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    check_id(id);
    if (!is_special_[id]) tokens.push_back(token_texts_[id]);
  }
  return decoder_->decode(std::move(tokens));
}

std::string BpeTokenizer::token_text(int32_t id) const {
  check_id(id);
  return is_special_[id] ? "" : decoder_->decode_within(token_texts_[id]);
}

std::optional<int32_t> BpeTokenizer::control_token(std::string_view name) const {
  const auto token = control_tokens_.find(std::string(name));
  if (token == control_tokens_.end()) return std::nullopt;
  return token->second;
}

std::string BpeTokenizer::control_token_name(int32_t id) const {
  check_id(id);
  return is_special_[id] ? token_texts_[id] : "";
}

void BpeTokenizer::save(const fs::path& folder) const {
  make_folder(folder);
  write_file(folder / file_.name, file_.text);
  write_file(folder / "tokenizer_config.json", config_.dump(2) + "\n");
}

}  // namespace attnres
