#include "attnres/train/text/token_cache.h"

#include "attnres/data/token_file_writer.h"
#include "attnres/data/token_folder.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/hex.h"
#include "attnres/support/random.h"

namespace attnres {
namespace fs = std::filesystem;

fs::path cached_tokens_path(const fs::path& runs, const std::string& key) {
  return runs / ".tokens" / hex(hash_bytes(key));
}

std::optional<CachedTokens> find_cached_tokens(const fs::path& path) {
  try {
    if (!is_token_folder(path)) return std::nullopt;
    const TokenIndex index = read_token_index(path);
    const TrainingTokens tokens = open_token_folder(path, index);
    require(index.files.size() == 2, "{}: expected two files", path.string());
    const int64_t train = index.files[0].tokens, held = index.files[1].tokens;
    CachedTokens cached = {.tokenizer = load_tokenizer(path),
                           .train = tokens.first(train),
                           .validation = tokens.read(train, held, index.vocab_size),
                           .note = index.source};
    require(
        cached.note.at(kLeastBytesKept).is_number() && cached.note.at(kTokensHashKept).is_number(),
        "{}: says too little", path.string());
    require_tokens_of(index, *cached.tokenizer, path);
    return cached;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void keep_tokens(const fs::path& path, const Split& split, const Tokenizer& tokenizer,
                 const Json& note) {
  make_folder(path.parent_path());
  write_folder(path, [&](const fs::path& folder) {
    TokenIndex index = {.tokenizer = tokenizer.kind(),
                        .vocab_size = tokenizer.vocab_size(),
                        .tokenizer_hash = tokenizer.hash(),
                        .width = token_width(tokenizer.vocab_size(), /*marks_targets=*/false),
                        .source = note,
                        .finished = true};
    for (const TokenStream* stream : {&split.train, &split.validation}) {
      const std::vector<uint32_t> tokens(stream->tokens.begin(), stream->tokens.end());
      TokenFileWriter writer(folder, index.files.size(), index.width);
      writer.add(tokens, stream->bytes, /*ends_document=*/false);
      index.files.push_back(writer.finish());
    }
    tokenizer.save(folder);
    write_token_index(folder, index);
  });
}

}  // namespace attnres
