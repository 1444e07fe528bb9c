// Small training runs, and what they leave behind.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "attnres/data/corpus.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"
#include "attnres/train/run_folder/run_folder.h"

namespace attnres::testing {

// So many bytes of text that every machine with a compiler has: C++ headers, one after another.
inline std::string real_text(size_t bytes) {
  static const std::string all = [] {
    const Corpus corpus = read_corpus({default_corpus_paths().front()});
    std::string text;
    for (const Document& document : corpus.documents) text += document.text;
    return text;
  }();
  return all.substr(0, bytes);
}

inline Json tiny_recipe(const Json& depth_mixing) {
  return {{"name", "tiny"},
          {"model", {{"layers", 2}, {"width", 32}, {"heads", 2}, {"depth_mixing", depth_mixing}}},
          {"train",
           {{"steps", 40},
            {"batch_size", 4},
            {"context", 32},
            {"warmup", 4},
            {"eval_every", 7},
            {"eval_tokens", 1024},
            {"checkpoint_every", 20},
            {"sample_tokens", 12}}}};
}
inline Json block_recipe() {
  return tiny_recipe({{"type", "block_attn_res"}, {"block_size", 2}});
}

// Delta and latent attention, experts after a dense layer, Muon.
inline Json kimi_recipe() {
  Json recipe = block_recipe();
  recipe["model"].update(Json{{"layers", 3},
                              {"attention", {"delta", "delta", "latent"}},
                              {"experts", {{"count", 4}, {"chosen", 2}, {"width", 24}}}});
  recipe["train"]["optimizer"] = "muon";
  return recipe;
}

inline std::vector<Json> read_lines(const std::filesystem::path& path) {
  std::istringstream in(read_file(path));
  std::vector<Json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

// Steps logged so far; 0 while there is no such file.
inline int64_t steps_logged(const RunPaths& run) {
  if (!std::filesystem::exists(run.metrics())) return 0;
  const std::string text = read_file(run.metrics());
  return std::count(text.begin(), text.end(), '\n');
}

// The log of steps without what a clock measured.
inline std::vector<Json> metrics_without_times(const RunPaths& run) {
  std::vector<Json> lines = read_lines(run.metrics());
  for (Json& line : lines) {
    line.erase("seconds");
    line.erase("tokens_per_second");
  }
  return lines;
}

// Every file of a folder, by its relative path.
inline std::map<std::string, std::string> contents(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  if (!std::filesystem::exists(folder)) return files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    files[name] = entry.is_directory() ? "a folder" : read_file(entry.path());
  }
  return files;
}

// Whether two runs left the same: logs (but for the times), weights and optimizer, bit by bit.
inline ::testing::AssertionResult same_results(const RunPaths& a, const RunPaths& b) {
  const auto differ = [](const std::string& what) {
    return ::testing::AssertionFailure() << what << " differ";
  };
  if (metrics_without_times(a) != metrics_without_times(b)) return differ("metrics");
  if (read_lines(a.probes()) != read_lines(b.probes())) return differ("probes");
  if (read_lines(a.samples()) != read_lines(b.samples())) return differ("samples");
  for (const char* file :
       {"checkpoints/last/model.safetensors", "checkpoints/best/model.safetensors",
        "checkpoints/last/optimizer.safetensors"}) {
    if (read_file(a.folder / file) != read_file(b.folder / file)) return differ(file);
  }
  return ::testing::AssertionSuccess() << "everything is the same";
}

}  // namespace attnres::testing
