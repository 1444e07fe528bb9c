// tokenizer.json with tokenizer_config.json.
#include <string>
#include <string_view>
#include <vector>

#include "attnres/support/file.h"
#include "attnres/text/passage.h"
#include "attnres/text/tokenizer.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/use_tokenizer.h"

namespace attnres::tokenizer_json_fuzz {
namespace {

using namespace testing;

void run(std::string_view input) {
  const auto parts = parts_of(input, 2);
  put_file("tokenizer.json", parts[0]);
  put_file("tokenizer_config.json", parts[1]);
  use_tokenizer(*load_tokenizer(fuzz_folder()));
}

std::vector<std::string> seeds() {
  const std::vector<Passage> text = {{"text", "the cat and the dog and the bird"}};
  make_tokenizer({.kind = "bpe", .vocab_size = 262}, text)->save(fuzz_folder());
  std::vector<std::string> seeds = {
      joined_inputs({read_file(fuzz_folder() / "tokenizer.json"),
                     read_file(fuzz_folder() / "tokenizer_config.json")})};
  for (const std::string& path : repository_files("tests/fixtures/tokenizers", "/tokenizer.json")) {
    const std::string folder = path.substr(0, path.rfind('/'));
    seeds.push_back(
        joined_inputs({repository_file(path), repository_file(folder + "/tokenizer_config.json")}));
  }
  return seeds;
}

const ListedFuzzTarget kListed({"tokenizer_json", run, seeds});

}  // namespace
}  // namespace attnres::tokenizer_json_fuzz
