// Results of another implementation beside the test vectors.
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnres/conformance/diagnosis.h"
#include "attnres/conformance/test_vectors.h"
#include "attnres/formats/safetensors.h"
#include "attnres/support/file.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::test_vectors_fuzz {
namespace {

using namespace testing;

void run(std::string_view input) {
  diagnose(put_file("results.safetensors", input));
}

// Some results of the entry's, or all of them wrong.
std::string seed_of(const TestVectorEntry& entry, size_t most, double factor) {
  const TestVectors vectors = make_test_vectors(entry);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, tensor] : vectors.results) {
    if (tensors.size() < most) tensors.emplace_back(entry.name + "/" + name, tensor.mul(factor));
  }
  const auto path = fuzz_folder() / "seed.safetensors";
  write_safetensors(path, tensors);
  return read_file(path);
}

std::vector<std::string> seeds() {
  std::vector<std::string> seeds;
  for (const TestVectorEntry& entry : test_vector_entries()) {
    if (entry.name != "residual" && entry.name != "block_attn_res") continue;
    seeds.push_back(seed_of(entry, 2, 1));
    seeds.push_back(seed_of(entry, 1, 1.5));
  }
  return seeds;
}

const ListedFuzzTarget kListed({"test_vectors", run, seeds});

}  // namespace
}  // namespace attnres::test_vectors_fuzz
