// Model directories: a configuration, weights of any spelling and packing, and what says how a text
// ends; adapters of one.
#include <string>
#include <string_view>
#include <vector>

#include "attnres/model/transformer.h"
#include "attnres/pretrained/adapter.h"
#include "attnres/pretrained/model_directory.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::model_folder_fuzz {
namespace {

using namespace testing;

const std::vector<std::string> kFiles = {"config.json", "model.safetensors",
                                         "generation_config.json", "adapter_config.json",
                                         "adapter_model.safetensors"};

void run(std::string_view input) {
  const auto parts = parts_of(input, kFiles.size());
  for (size_t i = 0; i < 3; ++i) put_file(kFiles[i], parts[i]);
  const auto adapter = fuzz_folder() / "adapter";
  std::filesystem::create_directory(adapter);
  for (size_t i = 3; i < kFiles.size(); ++i) put_file("adapter/" + kFiles[i], parts[i]);
  const ModelDirectory model = is_adapter_folder(adapter) ? ModelDirectory(fuzz_folder(), adapter)
                                                          : ModelDirectory(fuzz_folder());
  model.notes();
  attempt([&] { model.stored_formats(); });
  model.load();
}

std::string with_adapter(const std::string& model, const std::string& adapter) {
  return joined_inputs({repository_file(model + "/config.json"),
                        repository_file(model + "/model.safetensors"), "",
                        repository_file(adapter + "/adapter_config.json"),
                        repository_file(adapter + "/adapter_model.safetensors")});
}

std::vector<std::string> seeds() {
  std::vector<std::string> seeds = {
      with_adapter("tests/fixtures/llama3_tiny", "tests/fixtures/llama3_adapter_tiny"),
      with_adapter("tests/fixtures/deepseek_v3_tiny", "tests/fixtures/deepseek_v3_adapter_tiny")};
  for (const std::string& path : repository_files("tests/fixtures", "/model.safetensors")) {
    const std::string folder = path.substr(0, path.rfind('/'));
    seeds.push_back(joined_inputs({repository_file(folder + "/config.json"), repository_file(path),
                                   R"({"eos_token_id": [1, 2]})"}));
  }
  return seeds;
}

const ListedFuzzTarget kListed({"model_folder", run, seeds});

}  // namespace
}  // namespace attnres::model_folder_fuzz
