#include "attnres/data/tokenize_files.h"

#include <ATen/Parallel.h>

#include <exception>
#include <future>

#include "attnres/data/document_encoder.h"
#include "attnres/data/document_portions.h"
#include "attnres/data/in_parallel.h"
#include "attnres/data/tokenize_output.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMostMessages = 10;  // of broken documents

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
    DocumentPortions portions(job_.files, job_.piece_bytes, output_.place());
    const int64_t bytes = job_.portion_bytes * at::get_num_threads();
    const auto read = [&] { return portions.next(bytes); };
    std::future<DocumentPortion> coming = std::async(std::launch::async, read);
    while (true) {
      const DocumentPortion portion = coming.get();
      for (const std::string& message : portion.messages) tell(message);
      output_.counts().binary += portion.binary_after;
      if (portion.documents.empty() && portion.error == nullptr) return true;
      if (portion.error == nullptr) coming = std::async(std::launch::async, read);
      if (!portion.documents.empty()) take(portion);
      if (portion.error != nullptr) std::rethrow_exception(portion.error);
      if (job_.should_stop && job_.should_stop()) return false;
    }
  }

  void take(const DocumentPortion& portion) {
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
  TokenizeOutput output_;
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
