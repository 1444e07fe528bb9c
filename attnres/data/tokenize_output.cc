#include "attnres/data/tokenize_output.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/format.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

Json describe_files(const std::vector<DocumentFile>& files) {
  Json list = Json::array();
  for (const DocumentFile& file : files) {
    list.push_back({{"path", file.path}, {"bytes", file.bytes}, {"changed", file.changed}});
  }
  return list;
}

}  // namespace

TokenizeOutput::TokenizeOutput(const TokenizeJob& job, const Tokenizer& tokenizer)
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

void TokenizeOutput::add(const PlacedDocument& document, const EncodedDocument& encoded) {
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

void TokenizeOutput::add_broken(const PlacedDocument& document) {
  ++counts_.broken;
  if (document.raw.begins) read_to_.leaves_out = true;
  if (document.raw.ends && !read_to_.leaves_out) {
    write({.tokens = {static_cast<uint32_t>(end_of_document_)}}, true);
  }
  move_past(document);
}

void TokenizeOutput::close_file() {
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

void TokenizeOutput::finish() {
  close_file();
  if (index_.tokens() == 0) refuse_nothing();
  index_.finished = true;
  save();
  remove_hashes();
}

void TokenizeOutput::refuse_nothing() {
  failed_ = true;  // nothing is written any more
  fs::remove(token_index_path(job_.out));
  fail("no text to tokenize in {}{}; name files with text", counted(std::ssize(job_.files), "file"),
       counts_.binary > 0 ? fmt::format(" ({} skipped)", counted(counts_.binary, "binary file"))
                          : "");
}

TokenizeResult TokenizeOutput::result() const {
  TokenizeResult result = counts_;
  result.tokens = index_.tokens();
  result.documents = index_.documents();
  result.text_bytes = index_.text_bytes();
  return result;
}

void TokenizeOutput::write(const EncodedDocument& encoded, bool ends_document) {
  failed_ = true;
  if (writer_ == nullptr) {
    writer_ = std::make_unique<TokenFileWriter>(job_.out, index_.files.size(), index_.width);
  }
  writer_->add(encoded.tokens, encoded.text_bytes, ends_document);
  if (ends_document) ++documents_;
  failed_ = false;
}

void TokenizeOutput::move_past(const PlacedDocument& document) {
  read_to_.file = document.file;
  read_to_.number = document.raw.number;
  counts_.binary += document.binary_before;
  if (writer_ != nullptr && writer_->tokens() >= job_.tokens_a_file) close_file();
}

Json TokenizeOutput::describe_job() const {
  return {
      {"files", describe_files(job_.files)}, {"field", job_.field}, {"chat", job_.chat != nullptr}};
}

void TokenizeOutput::require_empty() const {
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

void TokenizeOutput::go_on(const Tokenizer& tokenizer) {
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
    require(files.is_array() && place_.file <= files.size() && place_.number >= 0, "no such place");
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

void TokenizeOutput::require_same_files(const Json& before, const Json& now) const {
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

void TokenizeOutput::save() {
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

fs::path TokenizeOutput::hashes_path(const std::string& name) const {
  return (job_.out / name).replace_extension(".hashes");
}

void TokenizeOutput::read_hashes() {
  for (const TokenFile& file : index_.files) {
    const std::string bytes = read_file(hashes_path(file.name));
    for (size_t at = 0; at + sizeof(TextHash) <= bytes.size(); at += sizeof(TextHash)) {
      TextHash hash;
      std::memcpy(&hash, bytes.data() + at, sizeof hash);
      seen_.insert(hash);
    }
  }
}

void TokenizeOutput::remove_hashes() const {
  for (const TokenFile& file : index_.files) fs::remove(hashes_path(file.name));
}

}  // namespace attnres
