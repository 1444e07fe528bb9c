// An index and the shards that it lists.
#include <ATen/ops/arange.h>

#include <string>
#include <string_view>
#include <vector>

#include "attnres/formats/tensor_files.h"
#include "attnres/support/file.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::shards_fuzz {
namespace {

using namespace testing;

const std::vector<std::string> kFiles = {"model.safetensors.index.json",
                                         "model-00001-of-00002.safetensors",
                                         "model-00002-of-00002.safetensors", "model.safetensors"};

void run(std::string_view input) {
  const auto parts = parts_of(input, kFiles.size());
  for (size_t i = 0; i < kFiles.size(); ++i) put_file(kFiles[i], parts[i]);
  const TensorFiles files(fuzz_folder());
  files.checksum();
  attempt([&] { files.verify(files.names()); });
  for (const std::string& name : files.names()) files.read(name);
}

std::vector<std::string> seeds() {
  for (const std::string& file : kFiles) put_file(file, "");
  write_tensor_files(fuzz_folder(), kWeights,
                     {{"a", at::arange(4).to(at::kFloat)}, {"b", at::arange(3).to(at::kHalf)}},
                     Numbers::finite, /*shard_bytes=*/16);
  std::vector<std::string> parts;
  for (size_t i = 0; i < 3; ++i) parts.push_back(read_file(fuzz_folder() / kFiles[i]));
  const std::string of_others = joined_inputs(
      {R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})", parts[1], parts[2]});
  const std::string beside = joined_inputs({parts[0], parts[1], parts[2], parts[1]});
  return {joined_inputs(parts), of_others, beside};
}

const ListedFuzzTarget kListed({"shards", run, seeds});

}  // namespace
}  // namespace attnres::shards_fuzz
