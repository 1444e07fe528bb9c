#include "attnres/data/token_folder.h"

#include <memory>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/hex.h"
#include "attnres/support/mapped_file.h"
#include "attnres/support/random.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFormat = "attnres tokens";
constexpr int64_t kVersion = 1;
constexpr int64_t kMostTokens = int64_t{1} << 48;  // of a file
constexpr int64_t kShortVocabulary = 65536;        // whose ids fit into 2 bytes

uint64_t from_hex(const std::string& text) {
  return std::stoull(text, nullptr, 16);
}

template <class Number>
int64_t sum(const std::vector<TokenFile>& files, Number TokenFile::*number) {
  int64_t total = 0;
  for (const TokenFile& file : files) total += file.*number;
  return total;
}

TokenFile read_file_entry(const Json& json) {
  return {.name = json.at("file"),
          .tokens = json.at("tokens"),
          .documents = json.at("documents"),
          .text_bytes = json.at("text_bytes"),
          .hash = from_hex(json.at("hash"))};
}

TokenIndex read_index(const Json& json) {
  TokenIndex index;
  index.tokenizer = json.at("tokenizer").at("kind");
  index.vocab_size = json.at("tokenizer").at("vocab_size");
  index.tokenizer_hash = from_hex(json.at("tokenizer").at("hash"));
  index.width = json.at("bytes_per_token");
  for (const Json& file : json.at("files")) index.files.push_back(read_file_entry(file));
  index.source = json.at("source");
  index.finished = json.at("finished");
  return index;
}

// Maps a number every `width` bytes; throws unless the file has `count` of them.
std::shared_ptr<const MappedFile> map_numbers(const fs::path& path, int64_t count, int width) {
  require(path_exists(path), "{}: is gone, but {} names it; tokenize the text again", path.string(),
          token_index_path(path.parent_path()).filename().string());
  auto file = std::make_shared<const MappedFile>(path);
  const int64_t bytes = std::ssize(file->whole());
  require(bytes % width == 0 && bytes / width == count,
          "{}: has {} bytes, but by its index {} numbers of {}; it is truncated, or another one: "
          "restore it, or tokenize the text again",
          path.string(), bytes, count, width);
  return file;
}

}  // namespace

int64_t TokenIndex::tokens() const {
  return sum(files, &TokenFile::tokens);
}
int64_t TokenIndex::documents() const {
  return sum(files, &TokenFile::documents);
}
int64_t TokenIndex::text_bytes() const {
  return sum(files, &TokenFile::text_bytes);
}

bool TokenIndex::marks_targets() const {
  return source.is_object() && source.value("chat", Json()) == true;
}

uint64_t TokenIndex::hash() const {
  std::string all = hex(tokenizer_hash);
  for (const TokenFile& file : files) all += hex(file.hash);
  return hash_bytes(all);
}

fs::path token_index_path(const fs::path& folder) {
  return folder / "tokens.json";
}

bool is_token_folder(const fs::path& folder) {
  return path_exists(folder) && fs::is_directory(folder) && path_exists(token_index_path(folder));
}

TokenIndex read_token_index(const fs::path& folder) {
  const fs::path path = token_index_path(folder);
  const Json json = read_json(path);
  require(json.is_object() && json.value("format", Json()) == kFormat,
          "{}: is no index of tokens; name a folder that attnres tokenize --out has written",
          path.string());
  require(json.value("version", Json()) == kVersion,
          "{}: version {}, this program reads {}; tokenize the text again", path.string(),
          shown(json.value("version", Json())), kVersion);
  TokenIndex index;
  try {
    index = read_index(json);
  } catch (const std::exception&) {  // of nlohmann, or of a number
    fail("{}: is damaged; restore it, or tokenize the text again", path.string());
  }
  bool sound = index.width == 4 || (index.width == 2 && !index.marks_targets());
  for (const TokenFile& file : index.files) {
    sound = sound && file.tokens >= 0 && file.tokens < kMostTokens && file.documents >= 0 &&
            file.documents <= file.tokens && fs::path(file.name).filename() == file.name;
  }
  require(sound, "{}: is damaged; restore it, or tokenize the text again", path.string());
  return index;
}

void write_token_index(const fs::path& folder, const TokenIndex& index) {
  Json files = Json::array();
  for (const TokenFile& file : index.files) {
    files.push_back({{"file", file.name},
                     {"tokens", file.tokens},
                     {"documents", file.documents},
                     {"text_bytes", file.text_bytes},
                     {"hash", hex(file.hash)}});
  }
  const Json json = {{"format", kFormat},
                     {"version", kVersion},
                     {"finished", index.finished},
                     {"tokenizer",
                      {{"kind", index.tokenizer},
                       {"vocab_size", index.vocab_size},
                       {"hash", hex(index.tokenizer_hash)}}},
                     {"bytes_per_token", index.width},
                     {"tokens", index.tokens()},
                     {"documents", index.documents()},
                     {"text_bytes", index.text_bytes()},
                     {"files", files},
                     {"source", index.source}};
  write_file(token_index_path(folder), json.dump(2) + "\n");
}

int token_width(int64_t vocab_size, bool marks_targets) {
  return vocab_size <= kShortVocabulary && !marks_targets ? 2 : 4;
}

TrainingTokens open_token_folder(const fs::path& folder, const TokenIndex& index) {
  require(index.finished,
          "{}: the text is not tokenized to its end ({} so far); go on with the attnres tokenize "
          "command that wrote it",
          folder.string(), counted(index.tokens(), "token"));
  std::vector<TokenPiece> pieces;
  for (const TokenFile& file : index.files) {
    const fs::path path = folder / file.name;
    const auto tokens = map_numbers(path, file.tokens, index.width);
    const auto ends = map_numbers(fs::path(path).replace_extension(".ends"), file.documents, 8);
    const auto* first_end = reinterpret_cast<const uint64_t*>(ends->whole().data());
    const auto both = std::make_shared<std::pair<decltype(tokens), decltype(ends)>>(tokens, ends);
    pieces.push_back({.owner = both,
                      .tokens = tokens->whole().data(),
                      .count = file.tokens,
                      .width = index.width,
                      .marks_targets = index.marks_targets(),
                      .knows_ends = true,
                      .ends = {first_end, static_cast<size_t>(file.documents)},
                      .name = path.string()});
  }
  return TrainingTokens(std::move(pieces));
}

void require_tokens_of(const TokenIndex& index, const Tokenizer& tokenizer,
                       const fs::path& folder) {
  require(index.tokenizer_hash == tokenizer.hash(),
          "{}: the tokens are of another tokenizer ({}, {}) than the model's ({}, {}); tokenize "
          "the text with the model's: attnres tokenize --model DIR --data TEXT --out NEW",
          folder.string(), index.tokenizer, counted(index.vocab_size, "token"), tokenizer.kind(),
          counted(tokenizer.vocab_size(), "token"));
}

}  // namespace attnres
