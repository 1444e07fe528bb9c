#include "attnres/text/corpus.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/random.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr double kValidationShare = 0.05;

// The folder's files that are not hidden, in the order of their relative paths.
std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code code;
  fs::recursive_directory_iterator it(folder, code);
  for (; !code && it != fs::recursive_directory_iterator(); it.increment(code)) {
    const bool hidden = it->path().filename().string().starts_with('.');
    std::error_code ignored;
    if (hidden && it->is_directory(ignored)) it.disable_recursion_pending();
    if (!hidden && it->is_regular_file(ignored)) files.push_back(it->path());
  }
  require(!code, "{}: cannot read this folder: {}", folder.string(), code.message());
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    return a.generic_string() < b.generic_string();
  });
  return files;
}

// The folder of `parent` whose name is the largest version, such as 12 or 13.2.0.
std::optional<fs::path> newest_version(const fs::path& parent) {
  std::optional<fs::path> newest;
  int64_t newest_major = -1;
  std::error_code code;
  for (fs::directory_iterator it(parent, code); !code && it != fs::directory_iterator();
       it.increment(code)) {
    const std::string name = it->path().filename().string();
    if (name.find_first_not_of("0123456789.") != std::string::npos || !isdigit(name[0])) continue;
    const int64_t major = std::stoll(name);
    if (major > newest_major || (major == newest_major && it->path() > *newest)) {
      newest_major = major;
      newest = it->path();
    }
  }
  return newest;
}

DocumentSplit split_one(const Document& document) {
  const std::string_view text = document.text;
  size_t cut = text.size() - std::max<size_t>(1, std::llround(text.size() * kValidationShare));
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
  require(cut > 0, "{}: {} bytes are too few to hold some out for validation; give more text",
          document.path, text.size());
  return {{{document.path, text.substr(0, cut)}}, {{document.path, text.substr(cut), cut}}};
}

}  // namespace

Corpus read_corpus(const std::vector<fs::path>& paths) {
  Corpus corpus;
  int64_t binary = 0;
  const auto add = [&](const fs::path& file, bool skip_binary) {
    std::string text = read_file(file);
    if (skip_binary && text.find('\0') != std::string::npos) {
      ++binary;
    } else if (!text.empty()) {
      corpus.documents.push_back({file.string(), std::move(text)});
    }
  };
  for (const fs::path& path : paths) {
    std::error_code code;
    require(fs::exists(path, code), "{}: no such file or folder to take text from", path.string());
    if (fs::is_directory(path)) {
      for (const fs::path& file : files_below(path)) add(file, true);
    } else {
      add(path, false);
    }
  }
  // Each text's own hash, so that moving a boundary between two documents changes the result.
  std::string hashes;
  for (const Document& document : corpus.documents) {
    corpus.bytes += static_cast<int64_t>(document.text.size());
    hashes += fmt::format("{:016x}", hash_bytes(document.text));
  }
  corpus.hash = hash_bytes(hashes);
  const size_t count = corpus.documents.size();
  corpus.description = fmt::format("{} {}, {}", count, count == 1 ? "file" : "files",
                                   format_bytes(static_cast<double>(corpus.bytes)));
  if (binary > 0) {
    corpus.description +=
        fmt::format(" ({} binary {} skipped)", binary, binary == 1 ? "file" : "files");
  }
  require(count > 0, "no text to train on: {} given, {} binary files skipped; name files with text",
          paths.empty() ? "no path" : paths.front().string(), binary);
  return corpus;
}

std::vector<fs::path> default_corpus_paths(const fs::path& prefix) {
  const std::optional<fs::path> cxx = newest_version(prefix / "include/c++");
  require(cxx.has_value(),
          "{}: no C++ headers to train on by default; name your own text, or install g++",
          (prefix / "include/c++").string());
  std::vector<fs::path> paths = {*cxx};
  std::error_code code;
  for (fs::directory_iterator it(prefix / "lib/gcc", code); !code && it != fs::directory_iterator();
       it.increment(code)) {
    const fs::path c = it->path() / cxx->filename() / "include";
    if (fs::is_directory(c)) paths.push_back(c);
  }
  std::sort(paths.begin() + 1, paths.end());
  return paths;
}

DocumentSplit split_documents(const Corpus& corpus) {
  const std::vector<Document>& documents = corpus.documents;
  require(!documents.empty(), "no text to train on");
  if (documents.size() == 1) return split_one(documents[0]);

  std::vector<double> draws;  // below the threshold: validation
  for (const Document& document : documents) {
    draws.push_back(RandomStream(hash_bytes(document.text), "validation split").uniform(0));
  }
  const auto [lowest, highest] = std::minmax_element(draws.begin(), draws.end());
  double threshold = kValidationShare;
  if (*lowest >= threshold) threshold = std::nextafter(*lowest, 1.0);
  if (*highest < threshold) threshold = *highest;
  if (*lowest == *highest) {  // all texts are equal: nothing to tell them apart by
    draws.back() = -1;
    threshold = 0;
  }
  DocumentSplit split;
  for (size_t i = 0; i < documents.size(); ++i) {
    (draws[i] < threshold ? split.validation : split.train)
        .push_back({documents[i].path, documents[i].text});
  }
  return split;
}

TokenStream tokenize(const std::vector<Passage>& passages, const Tokenizer& tokenizer) {
  TokenStream stream;
  for (const Passage& passage : passages) {
    if (tokenizer.needs_utf8()) require_utf8(passage.text, passage.path, passage.offset);
    const std::vector<int32_t> ids = tokenizer.encode(passage.text);
    stream.tokens.insert(stream.tokens.end(), ids.begin(), ids.end());
    stream.tokens.push_back(tokenizer.end_of_document());
    stream.bytes += static_cast<int64_t>(passage.text.size());
  }
  return stream;
}

Split tokenize(const DocumentSplit& documents, const Tokenizer& tokenizer) {
  return {tokenize(documents.train, tokenizer), tokenize(documents.validation, tokenizer)};
}

double bits_per_byte(double nats_per_token, const TokenStream& stream) {
  require(stream.bytes > 0, "bits per byte: the stream holds no text");
  return nats_per_token / std::numbers::ln2 * static_cast<double>(stream.tokens.size()) /
         static_cast<double>(stream.bytes);
}

}  // namespace attnres
