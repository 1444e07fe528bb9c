// Folders of tokens.
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/chat/chat_template.h"
#include "attnres/data/token_folder.h"
#include "attnres/data/tokenize_files.h"
#include "attnres/data/training_tokens.h"
#include "attnres/data/verify_tokens.h"
#include "attnres/text/bytes.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::token_folder_fuzz {
namespace {

using namespace testing;

const std::vector<std::string> kFiles = {"tokens.json", "tokens-00000.bin", "tokens-00000.ends",
                                         "tokens-00001.bin", "tokens-00001.ends"};

void run(std::string_view input) {
  put_files(input, kFiles);
  const TokenIndex index = read_token_index(fuzz_folder());
  index.hash();
  attempt([] { verify_token_folder(fuzz_folder()); });
  const TrainingTokens tokens = open_token_folder(fuzz_folder(), index);
  attempt([&] { tokens.read(0, tokens.size(), index.vocab_size); });
  attempt([&] { tokens.ends(0, tokens.size(), 0); });
  tokens.has_target(0, tokens.size());
  tokens.first(tokens.size() / 2);
}

std::string seed_of(const ChatTemplate* chat, const std::string& line) {
  const auto text = fuzz_folder() / "text.jsonl", out = fuzz_folder() / "tokens";
  std::ofstream(text) << line;
  std::filesystem::remove_all(out);
  tokenize_files({.files = find_document_files({text}),
                  .out = out,
                  .field = chat == nullptr ? "text" : "messages",
                  .chat = chat,
                  .tokens_a_file = 8},
                 ByteTokenizer());
  return joined_files(out, kFiles);
}

std::vector<std::string> seeds() {
  const ChatTemplate plain;
  return {seed_of(nullptr, "{\"text\": \"abcdef\"}\n{\"text\": \"ghijkl\"}\n"),
          seed_of(&plain, R"({"messages": [{"role": "user", "content": "a"},)"
                          R"( {"role": "assistant", "content": "b"}]})")};
}

const ListedFuzzTarget kListed({"token_folder", run, seeds});

}  // namespace
}  // namespace attnres::token_folder_fuzz
