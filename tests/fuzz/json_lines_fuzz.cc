// Text to train on: JSON lines of texts and of conversations, plain text, all of them compressed or
// not.
#include <string>
#include <string_view>
#include <vector>

#include "attnres/chat/chat_template.h"
#include "attnres/data/document_encoder.h"
#include "attnres/data/document_reader.h"
#include "attnres/text/bytes.h"
#include "tests/data/compressed.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::json_lines_fuzz {
namespace {

using namespace testing;

void read(const std::filesystem::path& path, const DocumentEncoder& encoder) {
  DocumentReader reader(path, /*piece_bytes=*/64);
  RawDocument document;
  while (reader.next(document)) encoder.encode(document);
}

void run(std::string_view input) {
  const ByteTokenizer tokenizer;
  const ChatTemplate plain;
  attempt([&] { read(put_file("text.txt", input), DocumentEncoder(tokenizer, "text")); });
  const auto lines = put_file("text.jsonl", input);
  attempt([&] { hash_file_text(lines); });
  attempt([&] { read(lines, DocumentEncoder(tokenizer, "messages", &plain)); });
  read(lines, DocumentEncoder(tokenizer, "text"));
}

std::vector<std::string> seeds() {
  const std::string lines =
      "{\"text\": \"a \\u00e9\\n\"}\n\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"},"
      " {\"role\": \"assistant\", \"content\": \"b\"}]}\r\n"
      "{\"text\": 1}\nnot JSON";
  return {lines, gzipped(lines), zstd_compressed(lines)};
}

const ListedFuzzTarget kListed({"json_lines", run, seeds});

}  // namespace
}  // namespace attnres::json_lines_fuzz
