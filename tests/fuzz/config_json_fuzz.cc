// config.json of every layout.
#include <string>
#include <string_view>
#include <vector>

#include "attnres/formats/model_config_json.h"
#include "attnres/support/json.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::config_json_fuzz {
namespace {

using namespace testing;

void run(std::string_view input) {
  const StoredConfig stored = from_config_json(parse_json(input, "config.json"), "config.json");
  stored.document_ids.ends();
  to_config_json(stored, at::kBFloat16).dump();
}

std::vector<std::string> seeds() {
  std::vector<std::string> seeds;
  for (const char* folder : {"tests/fixtures", "models"}) {
    for (const std::string& path : repository_files(folder, "/config.json")) {
      seeds.push_back(repository_file(path));
    }
  }
  return seeds;
}

const ListedFuzzTarget kListed({"config_json", run, seeds});

}  // namespace
}  // namespace attnres::config_json_fuzz
