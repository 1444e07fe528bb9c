// The models of tests/fixtures that other programs made, and the log-probabilities that these
// computed (tests/interop/make_fixtures.py).
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "attnres/formats/safetensors.h"
#include "attnres/model/transformer.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"
#include "tests/text/test_files.h"

namespace attnres::testing {

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(ATTNRES_SOURCE_DIR) / "tests/fixtures" / name;
}

// The largest difference from the other program's log-probabilities.
inline double error_against_fixture(const Transformer& model, const std::string& name) {
  const SafetensorsFile expected(fixture(name) / "expected.safetensors");
  const at::Tensor ids = expected.read("ids");
  const int64_t T = ids.size(1);
  const at::Tensor ours = model.log_probabilities(ids.narrow(1, 0, T - 1), ids.narrow(1, 1, T - 1));
  return (ours - expected.read("log_probabilities")).abs().max().item<double>();
}

inline std::filesystem::path copy_of(const std::string& name) {
  const std::filesystem::path folder = fresh_folder("copy");
  std::filesystem::copy(
      fixture(name), folder,
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  return folder;
}

inline void edit(const std::filesystem::path& file, const std::function<void(Json&)>& change) {
  Json json = read_json(file);
  change(json);
  write_file(file, json.dump());
}

}  // namespace attnres::testing
