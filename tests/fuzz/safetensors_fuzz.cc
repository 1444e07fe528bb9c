// Safetensors files: the header, and every tensor.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnres/formats/safetensors.h"
#include "attnres/support/file.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::safetensors_fuzz {
namespace {

using namespace testing;

void run(std::string_view input) {
  const SafetensorsFile file(put_file("model.safetensors", input));
  attempt([&] { file.verify_checksum(Numbers::finite); });
  attempt([&] { file.info("no such name"); });
  for (const std::string& name : file.names()) {
    const at::Tensor read = file.read(name);
    file.mapped(name);
    attempt([&] { file.read_into(name, at::empty(read.sizes(), at::kFloat)); });
  }
}

std::vector<std::string> seeds() {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const at::ScalarType dtype :
       {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
        at::kChar, at::kByte, at::kBool, at::kFloat8_e4m3fn}) {
    tensors.emplace_back(stored_dtype_name(dtype), at::arange(6).view({2, 3}).to(dtype));
  }
  tensors.emplace_back("empty", at::zeros({2, 0, 3}));
  tensors.emplace_back("one", at::zeros({}));
  const auto path = fuzz_folder() / "seed.safetensors";
  write_safetensors(path, tensors, {{"format", "pt"}});
  return {read_file(path), repository_file("tests/fixtures/llama3_tiny/expected.safetensors")};
}

const ListedFuzzTarget kListed({"safetensors", run, seeds});

}  // namespace
}  // namespace attnres::safetensors_fuzz
