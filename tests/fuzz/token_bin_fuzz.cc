// Files of tokens that nanoGPT and llm.c write.
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/data/token_bin.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::token_bin_fuzz {
namespace {

using namespace testing;

void run(std::string_view input) {
  const TrainingTokens tokens = open_token_bin(put_file("tokens.bin", input));
  attempt([&] { tokens.read(0, tokens.size(), 50257); });
  tokens.ends(0, tokens.size(), 0);
  tokens.has_target(0, tokens.size());
}

std::vector<std::string> seeds() {
  std::vector<std::string> seeds = {"a nanoGPT file has no header"};
  for (const int32_t magic : {20240520, 20240801}) {
    const int32_t header[] = {magic, 1, 2};
    std::string file(256 * sizeof(int32_t), '\0');
    std::memcpy(file.data(), header, sizeof header);
    seeds.push_back(file + std::string(magic == 20240520 ? 4 : 8, '\1'));
  }
  return seeds;
}

const ListedFuzzTarget kListed({"token_bin", run, seeds});

}  // namespace
}  // namespace attnres::token_bin_fuzz
