#include "attnres/data/tokenize_files.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "attnres/data/document_encoder.h"
#include "attnres/data/in_parallel.h"
#include "attnres/data/token_file_writer.h"
#include "attnres/data/token_folder.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMostMessages = 10;  // of broken documents

struct HashOfText {
  size_t operator()(const TextHash& hash) const { return hash.low; }
};
using TextHashes = std::unordered_set<TextHash, HashOfText>;

// Where reading goes on: after so many lines or pieces of a file.
struct Place {
  size_t file = 0;
  int64_t number = 0;
  bool leaves_out = false;  // what is left of the document there
};

struct PlacedDocument {
  RawDocument raw;
  size_t file = 0;
  // Of a text in several pieces, with the first: its hash as a whole.
  std::optional<TextHash> whole_hash;
  int64_t binary_before = 0;  // files that were left out since the document before
  std::string problem = {};   // why nothing of it can be read
};

struct Portion {
  std::vector<PlacedDocument> documents;
  std::vector<std::string> messages;
  int64_t binary_after = 0;  // at the end of all files
  std::exception_ptr error;  // what ended reading after these documents
  // Where reading is then: in this file, after so many of its bytes as it lies.
  size_t file = 0;
  int64_t bytes_of_file = 0;
};

// Reads the files one after another, a portion at a time.
class Source {
 public:
  Source(const TokenizeJob& job, Place place) : job_(job), file_(place.file), skip_(place.number) {}

  // Empty at the end.
  Portion next(int64_t bytes) {
    Portion portion;
    try {
      read(bytes, portion);
    } catch (const Error&) {
      portion.error = std::current_exception();
    }
    if (file_ == job_.files.size()) portion.binary_after = std::exchange(binary_, 0);
    portion.file = file_;
    portion.bytes_of_file = reader_ != nullptr ? reader_->consumed() : 0;
    return portion;
  }

 private:
  void read(int64_t bytes, Portion& portion) {
    int64_t read = 0;
    while (read < bytes && file_ < job_.files.size()) {
      const DocumentFile& file = job_.files[file_];
      if (reader_ == nullptr) {
        reader_ = std::make_unique<DocumentReader>(file.path, job_.piece_bytes);
      }
      PlacedDocument document{.raw = {}, .file = file_, .whole_hash = {}};
      try {
        if (!read_document(file, document, portion)) continue;
      } catch (const DamagedFile&) {
        document = rest_of_damaged(file);
        const bool was_told = document.raw.number <= skip_;
        leave_file();
        if (was_told) continue;
      }
      read += std::ssize(document.raw.text) + static_cast<int64_t>(sizeof(PlacedDocument));
      document.binary_before = std::exchange(binary_, 0);
      portion.documents.push_back(std::move(document));
    }
  }
  // False where there is nothing to take: at the end of the file, before where reading goes on, and
  // of a binary file.
  bool read_document(const DocumentFile& file, PlacedDocument& document, Portion& portion) {
    const RawDocument& raw = document.raw;
    if (!reader_->next(document.raw)) {
      if (look_at(file.path) != file) {
        portion.messages.push_back(
            fmt::format("warning: {} has changed while it was read", file.path));
      }
      leave_file();
      return false;
    }
    if (raw.number > skip_) {
      if (!raw.is_line && raw.begins && raw.text.find('\0') != std::string::npos) {
        ++binary_;
        leave_file();
        return false;
      }
      if (raw.begins && !raw.ends) document.whole_hash = hash_file_text(file.path);
    }
    number_ = raw.number;
    return raw.number > skip_;
  }
  // As one document that is broken.
  PlacedDocument rest_of_damaged(const DocumentFile& file) const {
    const bool is_line = has_json_lines(file.path);
    return {
        .raw = {.number = number_ + 1, .is_line = is_line, .begins = is_line || number_ == 0},
        .file = file_,
        .whole_hash = {},
        .problem = "its compressed bytes are damaged here, or end too early; what follows is lost"};
  }
  void leave_file() {
    reader_.reset();
    ++file_;
    skip_ = number_ = 0;
  }

  const TokenizeJob& job_;
  size_t file_;
  int64_t skip_;
  int64_t number_ = 0;  // of the document that was read last
  int64_t binary_ = 0;  // files that were left out since the last document
  std::unique_ptr<DocumentReader> reader_;
};

Json describe_files(const std::vector<DocumentFile>& files) {
  Json list = Json::array();
  for (const DocumentFile& file : files) {
    list.push_back({{"path", file.path}, {"bytes", file.bytes}, {"changed", file.changed}});
  }
  return list;
}

// The folder that is written: what is in it, and where reading goes on.
class Output {
 public:
  Output(const TokenizeJob& job, const Tokenizer& tokenizer)
      : job_(job),
        end_of_document_(tokenizer.end_of_document()),
        index_({.tokenizer = tokenizer.kind(),
                .vocab_size = tokenizer.vocab_size(),
                .tokenizer_hash = tokenizer.hash(),
                .width = token_width(tokenizer.vocab_size(), job.chat != nullptr)}) {
    if (path_exists(token_index_path(job.out))) {
      go_on(tokenizer);
    } else {
      require_empty();
      tokenizer.save(job.out);
      save();
    }
  }

  const TokenIndex& index() const { return index_; }
  const Place& place() const { return place_; }
  TokenizeResult& counts() { return counts_; }

  // Takes what came of a document, or of a piece of one, unless its text came before.
  void add(const PlacedDocument& document, const EncodedDocument& encoded) {
    if (document.raw.begins) {
      const TextHash& hash = document.whole_hash ? *document.whole_hash : encoded.hash;
      read_to_.leaves_out = !seen_.insert(hash).second;
      if (read_to_.leaves_out) {
        ++counts_.duplicates;
      } else {
        new_hashes_.push_back(hash);
      }
    }
    if (!read_to_.leaves_out) write(encoded, document.raw.ends);
    move_past(document);
  }
  // Leaves out a document without text.
  void add_nothing(const PlacedDocument& document) { move_past(document); }
  // Leaves out a document that cannot be read; of a longer one that has begun only the piece.
  void add_broken(const PlacedDocument& document) {
    ++counts_.broken;
    if (document.raw.begins) read_to_.leaves_out = true;
    if (document.raw.ends && !read_to_.leaves_out) {
      write({.tokens = {static_cast<uint32_t>(end_of_document_)}}, true);
    }
    move_past(document);
  }

  // What was written so far stands; where writing has failed, what stood before.
  void close_file() {
    if (failed_) return;
    failed_ = true;
    if (writer_ != nullptr) {
      write_file(hashes_path(writer_->name()), {reinterpret_cast<const char*>(new_hashes_.data()),
                                                new_hashes_.size() * sizeof(TextHash)});
      index_.files.push_back(writer_->finish());
      writer_.reset();
      new_hashes_.clear();
    }
    place_ = read_to_;
    save();
    failed_ = false;
  }
  void finish() {
    close_file();
    require(index_.tokens() > 0, "no text to tokenize: the {} given hold no document",
            counted(std::ssize(job_.files), "file"));
    index_.finished = true;
    save();
    remove_hashes();
  }
  // Which are needed until all documents are known.
  void remove_hashes() const {
    for (const TokenFile& file : index_.files) fs::remove(hashes_path(file.name));
  }

  TokenizeResult result() const {
    TokenizeResult result = counts_;
    result.tokens = index_.tokens();
    result.documents = index_.documents();
    result.text_bytes = index_.text_bytes();
    return result;
  }
  int64_t tokens() const { return index_.tokens() + (writer_ != nullptr ? writer_->tokens() : 0); }
  int64_t documents() const { return documents_; }

 private:
  void write(const EncodedDocument& encoded, bool ends_document) {
    failed_ = true;
    if (writer_ == nullptr) {
      writer_ = std::make_unique<TokenFileWriter>(job_.out, index_.files.size(), index_.width);
    }
    writer_->add(encoded.tokens, encoded.text_bytes, ends_document);
    if (ends_document) ++documents_;
    failed_ = false;
  }
  void move_past(const PlacedDocument& document) {
    read_to_.file = document.file;
    read_to_.number = document.raw.number;
    counts_.binary += document.binary_before;
    if (writer_ != nullptr && writer_->tokens() >= job_.tokens_a_file) close_file();
  }

  Json describe_job() const {
    return {{"files", describe_files(job_.files)},
            {"field", job_.field},
            {"chat", job_.chat != nullptr}};
  }

  // But for what was left by one that was killed before it had an index.
  void require_empty() const {
    const std::vector<fs::path> tokenizer = tokenizer_files(job_.out);
    for (const auto& entry : fs::directory_iterator(job_.out)) {
      const std::string name = entry.path().filename();
      const bool is_left =
          name.starts_with('.') || name.ends_with(".new") ||
          std::find(tokenizer.begin(), tokenizer.end(), entry.path()) != tokenizer.end();
      require(is_left, "{}: holds {} and no tokens.json; choose another --out", job_.out.string(),
              name);
    }
  }

  void go_on(const Tokenizer& tokenizer) {
    TokenIndex there = read_token_index(job_.out);
    require_tokens_of(there, tokenizer, job_.out);
    Json source;
    Json files;
    try {
      source = there.source;
      files = source.at("files");
      const Json& next = source.at("next");
      place_ = read_to_ = {next.at("file"), next.at("number"), next.at("leaves_out")};
      counts_.duplicates = source.at("duplicates");
      counts_.broken = source.at("broken");
      counts_.binary = source.at("binary");
      require(files.is_array() && place_.file <= files.size() && place_.number >= 0,
              "no such place");
    } catch (const std::exception&) {
      fail("{}: is damaged; choose another --out, or delete it to begin again",
           token_index_path(job_.out).string());
    }
    const Json here = describe_job();
    for (const char* key : {"field", "chat"}) {
      const Json before = source.value(key, Json());
      require(before == here.at(key), "{}: was tokenized with {} {}, now {}; choose another --out",
              job_.out.string(), key, shown(before), shown(here.at(key)));
    }
    require_same_files(files, here.at("files"));
    index_ = std::move(there);
    documents_ = index_.documents();
    if (index_.finished) {
      remove_hashes();
    } else {
      read_hashes();
    }
  }

  // Files that were not begun may have been mended meanwhile.
  void require_same_files(const Json& before, const Json& now) const {
    for (size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
      const std::string was = before[i].value("path", ""), is = now[i].value("path", "");
      require(was == is,
              "{}: holds the tokens of other files (there {}, now {}); choose another "
              "--out",
              job_.out.string(), was, is);
      const bool begun = i < place_.file || (i == place_.file && place_.number > 0);
      require(!begun || before[i] == now[i],
              "{}: has changed since {} was begun; choose another --out, or delete it to begin "
              "again",
              is, job_.out.string());
    }
    require(before.size() == now.size(),
            "{}: holds the tokens of {}, now there are {}; choose another --out", job_.out.string(),
            counted(std::ssize(before), "file"), now.size());
  }

  void save() {
    Json source = describe_job();
    source.update(
        {{"next",
          {{"file", place_.file}, {"number", place_.number}, {"leaves_out", place_.leaves_out}}},
         {"duplicates", counts_.duplicates},
         {"broken", counts_.broken},
         {"binary", counts_.binary}});
    index_.source = std::move(source);
    write_token_index(job_.out, index_);
  }

  // Of the documents that begin in a file, until all of them are known.
  fs::path hashes_path(const std::string& name) const {
    return (job_.out / name).replace_extension(".hashes");
  }

  void read_hashes() {
    for (const TokenFile& file : index_.files) {
      const std::string bytes = read_file(hashes_path(file.name));
      for (size_t at = 0; at + sizeof(TextHash) <= bytes.size(); at += sizeof(TextHash)) {
        TextHash hash;
        std::memcpy(&hash, bytes.data() + at, sizeof hash);
        seen_.insert(hash);
      }
    }
  }

  const TokenizeJob& job_;
  int32_t end_of_document_;
  TokenIndex index_;
  Place place_;    // up to which what was written stands
  Place read_to_;  // up to which documents were added
  TokenizeResult counts_;
  int64_t documents_ = 0;
  std::unique_ptr<TokenFileWriter> writer_;
  TextHashes seen_;
  bool failed_ = false;               // to write, in the midst of something
  std::vector<TextHash> new_hashes_;  // of documents that begin in the file that is being written
};

class Run {
 public:
  Run(const TokenizeJob& job, const Tokenizer& tokenizer)
      : job_(job), encoder_(tokenizer, job.field, job.chat), output_(job, tokenizer) {
    for (const DocumentFile& file : job.files) {
      bytes_before_.push_back(bytes_before_.back() + file.bytes);
    }
  }

  TokenizeResult run() {
    if (output_.index().finished) {
      TokenizeResult result = output_.result();
      result.was_finished = true;
      return result;
    }
    try {
      const bool stopped = !read_all();
      if (stopped) {
        output_.close_file();
      } else {
        output_.finish();
      }
      TokenizeResult result = output_.result();
      result.stopped = stopped;
      return result;
    } catch (const Error&) {
      output_.close_file();
      throw;
    }
  }

 private:
  // False where it was stopped.
  bool read_all() {
    Source source(job_, output_.place());
    const int64_t bytes = job_.portion_bytes * at::get_num_threads();
    const auto read = [&] { return source.next(bytes); };
    std::future<Portion> coming = std::async(std::launch::async, read);
    while (true) {
      const Portion portion = coming.get();
      for (const std::string& message : portion.messages) tell(message);
      output_.counts().binary += portion.binary_after;
      if (portion.documents.empty() && portion.error == nullptr) return true;
      if (portion.error == nullptr) coming = std::async(std::launch::async, read);
      if (!portion.documents.empty()) take(portion);
      if (portion.error != nullptr) std::rethrow_exception(portion.error);
      if (job_.should_stop && job_.should_stop()) return false;
    }
  }

  void take(const Portion& portion) {
    const auto& documents = portion.documents;
    std::vector<EncodedDocument> encoded(documents.size());
    in_parallel(documents.size(), [&](size_t i) {
      if (documents[i].problem.empty()) {
        encoded[i] = encoder_.encode(documents[i].raw);
      } else {
        encoded[i].problem = documents[i].problem;
      }
    });
    for (size_t i = 0; i < documents.size(); ++i) {
      if (!encoded[i].problem.empty()) {
        take_broken(documents[i], encoded[i].problem);
      } else if (encoded[i].text_bytes > 0) {
        output_.add(documents[i], encoded[i]);
      } else {
        output_.add_nothing(documents[i]);
      }
    }
    if (job_.on_progress) {
      job_.on_progress({.bytes = bytes_before_[portion.file] + portion.bytes_of_file,
                        .of_bytes = bytes_before_.back(),
                        .tokens = output_.tokens(),
                        .documents = output_.documents()});
    }
  }

  void take_broken(const PlacedDocument& document, const std::string& problem) {
    const std::string place =
        fmt::format("{}, {} {}", job_.files[document.file].path,
                    document.raw.is_line ? "line" : "piece", document.raw.number);
    require(!job_.strict, "{}: {}", place, problem);
    output_.add_broken(document);
    const int64_t count = output_.counts().broken;
    if (count <= kMostMessages) tell(fmt::format("left out: {}: {}", place, problem));
    if (count == kMostMessages) tell("further ones are left out without a word, and counted");
  }

  void tell(const std::string& message) const {
    if (job_.on_message) job_.on_message(message);
  }

  const TokenizeJob& job_;
  DocumentEncoder encoder_;
  Output output_;
  std::vector<int64_t> bytes_before_ = {0};  // each file, and after the last
};

}  // namespace

TokenizeResult tokenize_files(const TokenizeJob& job, const Tokenizer& tokenizer) {
  require_usage(!job.files.empty(), "tokenize: name files with text (--data)");
  // With a slash at its end.
  const std::string out = (fs::absolute(job.out) / "").lexically_normal().string();
  for (const DocumentFile& file : job.files) {
    require_usage(job.chat == nullptr || has_json_lines(file.path),
                  "{}: conversations are read of JSON lines (.jsonl)", file.path);
    require_usage(!file.path.starts_with(out),
                  "{}: lies in the folder that is written; choose an --out that is not part of the "
                  "data",
                  file.path);
  }
  make_folder(job.out);
  const FolderLock lock(job.out);
  return Run(job, tokenizer).run();
}

}  // namespace attnres
