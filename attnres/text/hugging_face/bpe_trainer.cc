#include "attnres/text/hugging_face/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <string_view>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "attnres/text/hugging_face/pre_tokenizer.h"
#include "attnres/text/utf8.h"

namespace attnres {

const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

constexpr const char* kEndOfDocument = "<|endoftext|>";

using TokenPair = std::pair<int32_t, int32_t>;

struct HashOfPair {
  size_t operator()(const TokenPair& pair) const {
    const uint64_t key =
        static_cast<uint64_t>(pair.first) << 32 | static_cast<uint32_t>(pair.second);
    return (key ^ key >> 29) * 0x9e3779b97f4a7c15;
  }
};

// A piece of the text, and how often it is there.
struct Word {
  std::vector<int32_t> tokens;
  int64_t count = 0;
};

// Words in which a pair is, or has come to be.
struct Candidate {
  int64_t count = 0;
  TokenPair pair;
  std::vector<uint32_t> words = {};

  // The most frequent is the largest, of these the one with the lowest ids.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : other.pair < pair;
  }
};

std::vector<Word> count_words(const std::vector<Passage>& text, const PreTokenizer& splitter) {
  std::unordered_map<std::string_view, int64_t> counts;
  for (const Passage& passage : text) {
    require_utf8(passage.text, passage.path, passage.offset);
    splitter.split({passage.text, true}, [&](const Piece& piece) { ++counts[piece.text]; });
  }
  std::vector<Word> words;
  words.reserve(counts.size());
  for (const auto& [piece, count] : counts) {
    Word& word = words.emplace_back();
    word.count = count;
    for (const char byte : piece) word.tokens.push_back(static_cast<uint8_t>(byte));
  }
  return words;
}

class Trainer {
 public:
  Trainer(std::vector<Word> words, const BpeModel::Vocabulary& alphabet)
      : words_(std::move(words)) {
    for (const auto& [text, id] : alphabet) add_token(text);
    for (uint32_t i = 0; i < words_.size(); ++i) {
      const std::vector<int32_t>& tokens = words_[i].tokens;
      for (size_t k = 0; k + 1 < tokens.size(); ++k) {
        change({tokens[k], tokens[k + 1]}, words_[i].count, i);
      }
    }
    queue_changed();
  }

  // Up to so many tokens, or until nothing is left to join.
  void learn(int64_t vocab_size) {
    while (static_cast<int64_t>(texts_.size()) < vocab_size && !queue_.empty()) {
      Candidate best = queue_.top();
      queue_.pop();
      const int64_t count = counts_[best.pair];
      if (best.count != count) {  // other merges have taken from it, or added to it
        best.count = count;
        queue_.push(std::move(best));
        continue;
      }
      if (count < 1) return;
      join(best);
    }
  }

  BpeModel::Vocabulary vocabulary() const {
    BpeModel::Vocabulary vocabulary;
    for (size_t id = 0; id < texts_.size(); ++id) {
      vocabulary.emplace_back(texts_[id], static_cast<int32_t>(id));
    }
    return vocabulary;
  }

  // Where a pair was joined twice, which is when two pairs make the same token, the second time
  // counts.
  BpeModel::Merges merges() const {
    std::unordered_map<TokenPair, size_t, HashOfPair> last;
    for (size_t i = 0; i < merges_.size(); ++i) last[merges_[i]] = i;
    BpeModel::Merges merges;
    for (size_t i = 0; i < merges_.size(); ++i) {
      const auto [left, right] = merges_[i];
      if (last[merges_[i]] == i) merges.emplace_back(texts_[left], texts_[right]);
    }
    return merges;
  }

 private:
  int32_t add_token(const std::string& text) {
    const auto [token, fresh] = ids_.emplace(text, static_cast<int32_t>(texts_.size()));
    if (fresh) texts_.push_back(text);
    return token->second;
  }

  void change(const TokenPair& pair, int64_t by, uint32_t word) {
    counts_[pair] += by;
    if (by <= 0) return;
    std::vector<uint32_t>& words = grown_[pair];
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  void queue_changed() {
    for (auto& [pair, words] : grown_) {
      const int64_t count = counts_[pair];
      if (count > 0) queue_.push({count, pair, std::move(words)});
    }
    grown_.clear();
  }

  void join(const Candidate& best) {
    const auto [left, right] = best.pair;
    const int32_t joined = add_token(texts_[left] + texts_[right]);
    merges_.push_back(best.pair);
    for (const uint32_t word : best.words) join_in(word, best.pair, joined);
    queue_changed();
  }

  void join_in(uint32_t index, const TokenPair& pair, int32_t joined) {
    std::vector<int32_t>& tokens = words_[index].tokens;
    const int64_t count = words_[index].count;
    size_t kept = 0;
    for (size_t i = 0; i < tokens.size(); ++i, ++kept) {
      if (tokens[i] != pair.first || i + 1 == tokens.size() || tokens[i + 1] != pair.second) {
        tokens[kept] = tokens[i];
        continue;
      }
      if (kept > 0) {
        change({tokens[kept - 1], pair.first}, -count, index);
        change({tokens[kept - 1], joined}, count, index);
      }
      ++i;
      if (i + 1 < tokens.size()) {
        change({pair.second, tokens[i + 1]}, -count, index);
        change({joined, tokens[i + 1]}, count, index);
      }
      tokens[kept] = joined;
    }
    tokens.resize(kept);
  }

  std::vector<Word> words_;
  std::vector<std::string> texts_;  // of tokens, by id
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<TokenPair> merges_;
  std::unordered_map<TokenPair, int64_t, HashOfPair> counts_;
  // Since the queue was last filled, where pairs have come to be.
  std::unordered_map<TokenPair, std::vector<uint32_t>, HashOfPair> grown_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

TokenizerJson train_bpe(const std::vector<Passage>& text, int64_t vocab_size) {
  TokenizerJson tokenizer = byte_level_tokenizer(kLlama3Pattern);
  tokenizer.settings.ignore_merges = true;  // as Llama 3 has it
  tokenizer.added_tokens = {{.id = 0, .content = kEndOfDocument, .special = true}};

  const PreTokenization pre_tokenization =
      read_pre_tokenizer({tokenizer.pre_tokenizer, "pre_tokenizer"});
  std::vector<Word> words = count_words(text, *pre_tokenization.splitter);
  require(!words.empty(), "tokenizer.kind bpe: there is no text to learn tokens from");

  std::vector<std::pair<std::string, uint8_t>> characters;  // in the order of their codes
  const std::vector<std::string> gpt2 = gpt2_byte_characters();
  for (int byte = 0; byte < 256; ++byte) characters.emplace_back(gpt2[byte], byte);
  std::sort(characters.begin(), characters.end());
  BpeModel::Vocabulary alphabet = {{kEndOfDocument, 0}};
  std::vector<int32_t> id_of_byte(256);
  for (const auto& [character, byte] : characters) {
    id_of_byte[byte] = static_cast<int32_t>(alphabet.size());
    alphabet.emplace_back(character, id_of_byte[byte]);
  }
  for (Word& word : words) {
    for (int32_t& token : word.tokens) token = id_of_byte[token];
  }

  Trainer trainer(std::move(words), alphabet);
  trainer.learn(vocab_size);
  tokenizer.vocabulary = trainer.vocabulary();
  tokenizer.merges = trainer.merges();
  require(static_cast<int64_t>(tokenizer.vocabulary.size()) == vocab_size,
          "tokenizer.vocab_size {}: too large for this text, which gives at most {} tokens; set it "
          "to that, or train on more text",
          vocab_size, tokenizer.vocabulary.size());
  return tokenizer;
}

}  // namespace attnres
