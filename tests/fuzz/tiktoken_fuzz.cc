// tiktoken.model with tokenizer_config.json.
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <vector>

#include "attnres/serve/base64.h"
#include "attnres/text/tokenizer.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/use_tokenizer.h"

namespace attnres::tiktoken_fuzz {
namespace {

using namespace testing;

void run(std::string_view input) {
  const auto parts = parts_of(input, 2);
  put_file("tiktoken.model", parts[0]);
  put_file("tokenizer_config.json", parts[1]);
  use_tokenizer(*load_tokenizer(fuzz_folder()));
}

std::vector<std::string> seeds() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* token : {"th", "the", " the", "at"}) tokens.emplace_back(token);
  std::string lines;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    lines += fmt::format("{} {}\n", base64(tokens[rank].data(), tokens[rank].size()), rank);
  }
  const std::string config =
      R"({"tokenizer_class": "TikTokenTokenizer", "eos_token": "[EOS]", "bos_token": "[BOS]",
          "added_tokens_decoder": {"260": {"content": "[BOS]"}, "261": {"content": "[EOS]"}}})";
  return {joined_inputs({lines, config})};
}

const ListedFuzzTarget kListed({"tiktoken", run, seeds});

}  // namespace
}  // namespace attnres::tiktoken_fuzz
