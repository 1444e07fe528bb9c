// Run folders made up for tests: smooth losses and plausible probes, each a function of the
// settings below and nothing else.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/support/json.h"

namespace attnres::testing {

struct FakeRun {
  std::string name = "base";
  std::string mechanism = "residual";
  int layers = 4;  // Transformer layers
  int block_size = 2;
  int steps = 200;  // logged every 5, validated and probed every 20
  double gain = 0;  // taken off the loss at the end
  double speed = 10000;
  std::string data_hash = "5d41402abc4b2a76";

  bool has_depth_weights() const { return mechanism != "residual"; }

  // Sources of a site.
  int sources(int site) const {
    if (mechanism != "block_attn_res") return site + 1;
    if (site == 2 * layers) return 1 + (2 * layers + block_size - 1) / block_size;
    return site / block_size + 1 + (site % block_size != 0);
  }

  double loss(int step) const {
    const double progress = double(step) / 200;
    return 1.8 + 3.7 * std::exp(-9 * progress) + 0.5 * std::exp(-2 * progress) - gain * progress;
  }

  // Mean depth weights: most on the newest source, some on the embedding.
  std::vector<double> weights(int site) const {
    const int n = sources(site);
    std::vector<double> out(static_cast<size_t>(n));
    double sum = 0;
    for (int i = 0; i < n; ++i) {
      out[size_t(i)] = std::exp(-0.8 * (n - 1 - i)) + (i == 0 ? 0.4 : 0) + 0.05 * ((site + i) % 3);
      sum += out[size_t(i)];
    }
    for (double& weight : out) weight /= sum;
    return out;
  }

  Json record() const {
    return {{"recipe",
             {{"name", name},
              {"model",
               {{"layers", layers},
                {"width", 64},
                {"depth_mixing", {{"type", mechanism}, {"block_size", block_size}}}}},
              {"train", {{"steps", steps + 1}, {"lr", 0.003}}},
              {"tokenizer", {{"type", "bytes"}}}}},
            {"build", {{"version", "0.1.0"}, {"compiler", "GNU 12.2.0"}, {"torch", "2.11.0"}}},
            {"data",
             {{"description", "a small text"},
              {"hash", data_hash},
              {"bytes", 1115394},
              {"train_tokens", 1003854},
              {"validation_tokens", 111540}}},
            {"parameters", 401472 + layers * 64},
            {"machine", {{"processor", "two cores"}, {"threads", 2}}}};
  }

  std::string metrics() const {
    std::string out;
    for (int step = 0; step <= steps; step += 5) {
      const double tokens = 4096.0 * (step + 1);
      const double wobble = 0.04 * std::sin(1.7 * step);
      Json line = {{"step", step},
                   {"tokens", tokens},
                   {"seconds", tokens / speed},
                   {"loss", loss(step) + wobble - 0.03},
                   {"lr", 0.003},
                   {"grad_norm", 0.8},
                   {"tokens_per_second", speed * (1 + 0.01 * std::sin(step))}};
      if (step % 20 == 0) line["val_loss"] = loss(step);
      out += line.dump() + "\n";
    }
    return out;
  }

  std::string probes() const {
    std::string out;
    const auto add = [&](int step, int site, const char* probe, const Json& value) {
      out += Json{{"step", step}, {"site", site}, {"name", probe}, {"value", value}}.dump() + "\n";
    };
    for (int step = 0; step <= steps; step += 20) {
      for (int site = 0; site <= 2 * layers; ++site) {
        const bool is_block = mechanism == "block_attn_res";
        const int depth = is_block ? site % block_size + 1 : site + 1;
        if (has_depth_weights()) {
          const std::vector<double> w = weights(site);
          double entropy = 0;
          for (double weight : w) entropy -= weight * std::log(weight);
          const double uniform = std::log(double(w.size()));
          add(step, site, "depth_weights", w);
          add(step, site, "depth_entropy",
              uniform + (entropy - uniform) * (1 - std::exp(-step / 60.0)));
        }
        if (site == 2 * layers) continue;
        add(step, site, "state_rms", 0.4 + 0.3 * depth);
        add(step, site, "output_rms", 0.3 + 0.02 * depth);
        add(step, site, "gradient_rms", 2e-5 * (is_block ? 1 + 0.1 * depth : 1 + 6.0 / (site + 1)));
      }
    }
    return out;
  }

  std::string samples() const {
    std::string out;
    for (int step : {steps / 2, steps}) {
      for (const char* prompt : {"The king", "Once upon"}) {
        out += Json{{"step", step},
                    {"prompt", prompt},
                    {"text", std::string(prompt) + " spoke to " + name + " at step " +
                                 std::to_string(step) + "."}}
                   .dump() +
               "\n";
      }
    }
    return out;
  }

  // Writes the whole folder.
  std::filesystem::path write(const std::filesystem::path& folder) const;
};

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::filesystem::path FakeRun::write(const std::filesystem::path& folder) const {
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  write_text(folder / "run.json", record().dump(2));
  write_text(folder / "metrics.jsonl", metrics());
  write_text(folder / "probes.jsonl", probes());
  write_text(folder / "samples.jsonl", samples());
  return folder;
}

}  // namespace attnres::testing
