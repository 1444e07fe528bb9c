// A study of runs that take a moment each.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "attnres/study/study_grid.h"
#include "tests/text/test_files.h"
#include "tests/train/tiny_runs.h"

namespace attnres::testing {

// Residual and Block AttnRes with two seeds: "residual-seed1", "block-seed1", ...
inline Json tiny_study() {
  Json base = tiny_recipe({{"type", "residual"}});
  base["train"].update(Json{{"steps", 6}, {"eval_every", 3}, {"sample_tokens", 0}});
  return {
      {"name", "tiny"},
      {"question", "Does it run?"},
      {"base", base},
      {"axes",
       {{"mixing",
         {{"residual", {{"model.depth_mixing", {{"type", "residual"}}}}},
          {"block", {{"model.depth_mixing", {{"type", "block_attn_res"}, {"block_size", 2}}}}}}}}},
      {"seeds", 2},
      {"smoke", {{"train.steps", 2}}}};
}

inline std::filesystem::path write_study(const std::filesystem::path& file, const Json& study) {
  attnres::write_text(file, study.dump());
  return file;
}

}  // namespace attnres::testing
