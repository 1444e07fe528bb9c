// Tokenizing documents on all threads, for bench/compare_tokenizers.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "attnres/data/corpus.h"
#include "attnres/support/file.h"
#include "attnres/text/tokenizer.h"
#include "bench/benchmark.h"

namespace attnres::bench {
namespace {

// Answers the requests of bench/compare_tokenizers, which README.md lists.
class Server {
 public:
  Json answer(const Json& request) {
    if (request.contains("open")) return open(request);
    if (request.contains("encode")) return encode();
    if (request.contains("save")) return save(request["save"].get<std::string>());
    throw std::runtime_error("a request has one of open, encode and save");
  }

 private:
  Json open(const Json& request) {
    tokenizer_ = load_tokenizer(request["open"].get<std::string>());
    documents_ = parse_json(read_file(request["texts"].get<std::string>()), "texts")
                     .get<std::vector<std::string>>();
    passages_.clear();
    for (const std::string& document : documents_) passages_.push_back({"document", document});
    return {{"done", true}};
  }

  Json encode() {
    stream_ = {};
    const double ms = milliseconds([&] { stream_ = tokenize(passages_, *tokenizer_); });
    return {{"ms", ms}, {"tokens", stream_.tokens.size()}};
  }

  Json save(const std::filesystem::path& path) {
    write_file(path, {reinterpret_cast<const char*>(stream_.tokens.data()),
                      stream_.tokens.size() * sizeof(int32_t)});
    return {{"done", true}};
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::string> documents_;
  std::vector<Passage> passages_;
  TokenStream stream_;
};

void run(int argc, char** argv) {
  CLI::App app("Time to tokenize documents; answers bench/compare_tokenizers.", "bench_tokenize");
  bool serves = false;
  app.add_flag("--serve", serves, "Answer requests, a line each")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::exit(app.exit(e));
  }
  Server server;
  serve([&](const Json& request) { return server.answer(request); });
}

}  // namespace
}  // namespace attnres::bench

int main(int argc, char** argv) {
  return attnres::bench::run_benchmark("bench_tokenize", [&] { attnres::bench::run(argc, argv); });
}
