#include "attnres/data/corpus.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "attnres/data/in_parallel.h"
#include "attnres/data/not_text.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"
#include "attnres/support/hex.h"
#include "attnres/support/random.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr double kShareOfFiles = 0.05;  // split_by_file's

// What lies in a folder, as far as it can be read.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code code;
  for (fs::directory_iterator it(folder, code); !code && it != fs::directory_iterator();
       it.increment(code)) {
    entries.push_back(it->path());
  }
  return entries;
}

// The folder of `parent` whose name is the largest version, such as 12 or 13.2.0.
std::optional<fs::path> newest_version(const fs::path& parent) {
  std::optional<fs::path> newest;
  int64_t newest_major = -1;
  for (const fs::path& folder : entries_of(parent)) {
    const std::string name = folder.filename().string();
    if (name.find_first_not_of("0123456789.") != std::string::npos || !isdigit(name[0])) continue;
    const int64_t major = std::stoll(name);
    if (major > newest_major || (major == newest_major && folder > *newest)) {
      newest_major = major;
      newest = folder;
    }
  }
  return newest;
}

void measure(Corpus& corpus) {
  corpus.bytes = 0;
  // Each text's own hash, so that moving a boundary between two documents changes the result.
  std::string hashes;
  for (const Document& document : corpus.documents) {
    corpus.bytes += static_cast<int64_t>(document.text.size());
    hashes += hex(hash_bytes(document.text));
  }
  corpus.hash = hash_bytes(hashes);
}

// Texts found by their hashes; they must outlive the set.
class TextSet {
 public:
  void insert(uint64_t hash, std::string_view text) { texts_.emplace(hash, text); }
  bool contains(uint64_t hash, std::string_view text) const {
    const auto [first, last] = texts_.equal_range(hash);
    return std::any_of(first, last, [&](const auto& entry) { return entry.second == text; });
  }

 private:
  std::unordered_multimap<uint64_t, std::string_view> texts_;
};

bool has_safetensors(const fs::path& folder) {
  const std::vector<fs::path> entries = entries_of(folder);
  return std::any_of(entries.begin(), entries.end(),
                     [](const fs::path& entry) { return entry.extension() == ".safetensors"; });
}

// What training wrote, and not text to train on; null of any other folder.
const char* what_training_wrote(const fs::path& folder) {
  const auto has = [&](const char* name) { return path_exists(folder / name); };
  if (has("run.json") && has("metrics.jsonl")) return "a run";
  if (has("study.json") && (has("runs") || has("recipes"))) return "a study";
  return has("config.json") && has_safetensors(folder) ? "a model" : nullptr;
}

void require_plain_text(const fs::path& path) {
  require(!path_exists(path / "tokens.json"),
          "{}: holds tokens, and here text is read; name the text that they are of", path.string());
  const char* wrote = what_training_wrote(path);
  require(wrote == nullptr, "{}: holds {}, and here text is read; name the text itself",
          path.string(), wrote == nullptr ? "" : wrote);
  constexpr std::array kWeights = {".safetensors", ".gguf"};
  require(std::find(kWeights.begin(), kWeights.end(), path.extension()) == kWeights.end(),
          "{}: is a model's weights, and here text is read; name the text itself", path.string());
  constexpr std::array kNotPlain = {".jsonl", ".ndjson", ".gz", ".zst"};
  require(std::find(kNotPlain.begin(), kNotPlain.end(), path.extension()) == kNotPlain.end(),
          "{}: is JSON lines or compressed, and here plain text is read; attnres tokenize --data "
          "FILE --out DIR makes tokens of it, which train --data DIR takes",
          path.string());
}

[[noreturn]] void refuse(const fs::path& file, const NotText& found) {
  fail("{}: {}, and here plain text is read; {}", file.string(), found.what, found.instead);
}

// In [0, 1), and the same wherever the document lies.
double draw_of(const Document& document) {
  return RandomStream(hash_bytes(document.text), "validation split").uniform(0);
}

// Where the UTF-8 character at `position` begins.
size_t start_of_character(std::string_view text, size_t position) {
  while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xc0) == 0x80) --position;
  return position;
}

// All but the end of the document, and its end, which has `end_bytes` or some more; either may be
// empty and is then left out.
void cut(const Document& document, size_t end_bytes, DocumentSplit& split) {
  const std::string_view text = document.text;
  const size_t at =
      end_bytes == 0 ? text.size() : start_of_character(text, text.size() - end_bytes);
  if (at > 0) split.train.push_back({document.path, text.substr(0, at)});
  if (at < text.size()) split.validation.push_back({document.path, text.substr(at), at});
}

}  // namespace

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code code;
  fs::path entered = folder;  // the folder that was opened last
  fs::recursive_directory_iterator it(folder, code);
  for (; !code && it != fs::recursive_directory_iterator(); it.increment(code)) {
    const bool hidden = it->path().filename().string().starts_with('.');
    std::error_code ignored;
    if (hidden) it.disable_recursion_pending();
    if (it.recursion_pending() && it->is_directory(ignored)) entered = it->path();
    if (!hidden && it->is_regular_file(ignored)) files.push_back(it->path());
  }
  require(!code, "{}: cannot read this folder: {}", entered.string(), code.message());
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    return a.generic_string() < b.generic_string();
  });
  return files;
}

void require_text_file(const fs::path& file) {
  require_plain_text(file);
  if (!fs::is_regular_file(file)) return;  // what is read of a pipe is gone
  std::array<char, kBytesThatShowTheKind> begin = {};
  std::ifstream in(file, std::ios::binary);
  in.read(begin.data(), begin.size());
  const std::string_view read(begin.data(), static_cast<size_t>(in.gcount()));
  if (const auto found = find_not_text(read)) refuse(file, *found);
}

Corpus read_corpus(const std::vector<fs::path>& paths) {
  Corpus corpus;
  const auto add = [&](const fs::path& file, bool is_named) {
    if (is_named) require_text_file(file);  // before all of it is read
    std::string text = read_file(file);
    if (const auto found = find_not_text(text)) {
      if (is_named) refuse(file, *found);
      ++corpus.binary;
    } else if (!text.empty()) {
      corpus.documents.push_back({file.string(), std::move(text)});
    }
  };
  for (const fs::path& path : paths) {
    require(path_exists(path), "{}: no such file or folder to take text from", path.string());
    if (fs::is_directory(path)) {
      require_plain_text(path);
      for (const fs::path& file : files_below(path)) {
        if (file.filename() == "tokens.json") require_plain_text(file.parent_path());
        add(file, false);
      }
    } else {
      add(path, true);
    }
  }
  measure(corpus);
  std::vector<std::string> given;
  for (const fs::path& path : paths) given.push_back(path.string());
  require(
      !corpus.documents.empty(), "no text in {}{}; name files with text", fmt::join(given, ", "),
      corpus.binary > 0 ? fmt::format(" ({} skipped)", counted(corpus.binary, "binary file")) : "");
  return corpus;
}

std::string Corpus::description() const {
  std::vector<std::string> skipped;
  if (binary > 0) skipped.push_back(counted(binary, "binary file"));
  if (duplicates > 0) skipped.push_back(counted(duplicates, "duplicate"));
  if (held_out > 0) skipped.push_back(counted(held_out, "file") + " of the validation text");
  std::string text = fmt::format("{}, {}", counted(std::ssize(documents), "file"),
                                 format_bytes(static_cast<double>(bytes)));
  if (!skipped.empty()) text += fmt::format(" ({} skipped)", fmt::join(skipped, ", "));
  return text;
}

Corpus without_duplicates(Corpus corpus, const Corpus& held_out) {
  TextSet seen, forbidden;
  for (const Document& document : held_out.documents) {
    forbidden.insert(hash_bytes(document.text), document.text);
  }
  std::vector<Document> documents;
  documents.reserve(corpus.documents.size());  // the texts stay where `seen` knows them
  for (Document& document : corpus.documents) {
    const uint64_t hash = hash_bytes(document.text);
    if (forbidden.contains(hash, document.text)) {
      ++corpus.held_out;
    } else if (seen.contains(hash, document.text)) {
      ++corpus.duplicates;
    } else {
      documents.push_back(std::move(document));
      seen.insert(hash, documents.back().text);
    }
  }
  corpus.documents = std::move(documents);
  measure(corpus);
  require(!corpus.documents.empty(),
          "no text to train on: all of it ({}) is validation text as well; name other text",
          counted(corpus.held_out, "file"));
  return corpus;
}

std::vector<fs::path> default_corpus_paths(const fs::path& prefix) {
  const std::optional<fs::path> cxx = newest_version(prefix / "include/c++");
  require(cxx.has_value(),
          "{}: no C++ headers to train on by default; name your own text, or install g++",
          (prefix / "include/c++").string());
  std::vector<fs::path> paths = {*cxx};
  for (const fs::path& target : entries_of(prefix / "lib/gcc")) {
    const fs::path c = target / cxx->filename() / "include";
    if (fs::is_directory(c)) paths.push_back(c);
  }
  std::sort(paths.begin() + 1, paths.end());
  return paths;
}

std::vector<Passage> passages_of(const Corpus& corpus) {
  std::vector<Passage> passages;
  for (const Document& document : corpus.documents) {
    passages.push_back({document.path, document.text});
  }
  return passages;
}

DocumentSplit split_by_size(const Corpus& corpus, double fraction, int64_t least_bytes) {
  const std::vector<Document>& documents = corpus.documents;
  int64_t total = 0;
  std::vector<double> draws;
  for (const Document& document : documents) {
    total += static_cast<int64_t>(document.text.size());
    draws.push_back(draw_of(document));
  }
  require(total >= 2 * least_bytes,
          "text: {} bytes are too few to hold some out for validation, since both parts need at "
          "least {} to fill a context; give more text, a shorter train.context, or validation text "
          "of its own (--validation)",
          total, least_bytes);
  std::vector<size_t> order(documents.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return draws[a] < draws[b]; });

  const int64_t wanted =
      std::max<int64_t>(std::llround(static_cast<double>(total) * fraction), least_bytes);
  std::vector<size_t> held(documents.size());  // bytes of each document's end
  int64_t held_bytes = 0;
  const auto hold = [&](size_t i, int64_t bytes) {
    held[i] = static_cast<size_t>(bytes);
    held_bytes += bytes;
  };
  for (const size_t i : order) {
    if (draws[i] < fraction) hold(i, std::ssize(documents[i].text));
  }
  const bool is_about_wanted = 2 * held_bytes >= wanted && 2 * held_bytes <= 3 * wanted;
  if (!is_about_wanted || held_bytes < least_bytes || total - held_bytes < least_bytes) {
    std::fill(held.begin(), held.end(), 0);
    held_bytes = 0;
    for (const size_t i : order) {
      hold(i, std::min<int64_t>(std::ssize(documents[i].text), wanted - held_bytes));
    }
  }
  DocumentSplit split;
  for (size_t i = 0; i < documents.size(); ++i) cut(documents[i], held[i], split);
  return split;
}

DocumentSplit split_by_file(const Corpus& corpus) {
  const std::vector<Document>& documents = corpus.documents;
  require(!documents.empty(), "no text to train on");
  DocumentSplit split;
  if (documents.size() == 1) {
    const size_t bytes = documents[0].text.size();
    cut(documents[0], std::max<size_t>(1, std::llround(bytes * kShareOfFiles)), split);
    require(!split.train.empty(),
            "{}: {} bytes are too few to hold some out for validation; give more text",
            documents[0].path, bytes);
    return split;
  }
  std::vector<double> draws;  // below the threshold: validation
  for (const Document& document : documents) draws.push_back(draw_of(document));
  const auto [lowest, highest] = std::minmax_element(draws.begin(), draws.end());
  double threshold = kShareOfFiles;
  if (*lowest >= threshold) threshold = std::nextafter(*lowest, 1.0);
  if (*highest < threshold) threshold = *highest;
  if (*lowest == *highest) {  // all texts are equal: nothing to tell them apart by
    draws.back() = -1;
    threshold = 0;
  }
  for (size_t i = 0; i < documents.size(); ++i) {
    cut(documents[i], draws[i] < threshold ? documents[i].text.size() : 0, split);
  }
  return split;
}

TokenStream tokenize(const std::vector<Passage>& passages, const Tokenizer& tokenizer) {
  std::vector<std::vector<int32_t>> ids(passages.size());
  in_parallel(passages.size(), [&](size_t i) {
    const Passage& passage = passages[i];
    if (tokenizer.needs_utf8()) require_utf8(passage.text, passage.path, passage.offset);
    ids[i] = tokenizer.encode(passage.text);
  });
  TokenStream stream;
  for (size_t i = 0; i < passages.size(); ++i) {
    stream.tokens.insert(stream.tokens.end(), ids[i].begin(), ids[i].end());
    stream.tokens.push_back(tokenizer.end_of_document());
    stream.ends.push_back(std::ssize(stream.tokens));
    stream.bytes += static_cast<int64_t>(passages[i].text.size());
    ids[i] = {};
  }
  return stream;
}

Split tokenize(const DocumentSplit& documents, const Tokenizer& tokenizer) {
  return {tokenize(documents.train, tokenizer), tokenize(documents.validation, tokenizer)};
}

}  // namespace attnres
