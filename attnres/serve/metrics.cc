#include "attnres/serve/metrics.h"

#include <fmt/core.h>

#include <algorithm>

namespace attnres {
namespace {

std::string header(const std::string& name, const std::string& help, const char* type) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

template <class T>
std::string one(const std::string& name, const std::string& help, const char* type, T value) {
  return header(name, help, type) + fmt::format("{} {}\n", name, value);
}

}  // namespace

void Histogram::add(double seconds) {
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++counts_[bound - kBounds.begin()];
  sum_ += seconds;
}

std::string Histogram::text(const std::string& name, const std::string& help) const {
  std::string text = header(name, help, "histogram");
  int64_t count = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    count += counts_[i];
    text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, kBounds[i], count);
  }
  count += counts_.back();
  return text + fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name,
                            count, sum_);
}

void Metrics::count_request(const std::string& path, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{path, status}];
}

void Metrics::add_first_token(double seconds) {
  const std::lock_guard lock(mutex_);
  first_token_.add(seconds);
}

void Metrics::add_token(double seconds) {
  const std::lock_guard lock(mutex_);
  token_.add(seconds);
}

std::string Metrics::text(const LoopStatus& loop) const {
  const EngineCounts& engine = loop.engine;
  std::string text = header("attnres_requests_total", "Answered requests.", "counter");
  const std::lock_guard lock(mutex_);
  for (const auto& [labels, count] : requests_) {
    text += fmt::format("attnres_requests_total{{path=\"{}\",status=\"{}\"}} {}\n", labels.first,
                        labels.second, count);
  }
  text +=
      one("attnres_sequences_waiting", "Sequences that wait for a slot.", "gauge", loop.waiting);
  text += one("attnres_sequences_running", "Sequences that have one.", "gauge", loop.running);
  text += one("attnres_slots", "Sequences that run at once at most.", "gauge", loop.slots);
  text += one("attnres_cache_tokens", "Tokens that there is room for.", "gauge", engine.tokens);
  text += one("attnres_cache_free_tokens", "Of these, not in use.", "gauge", engine.free_tokens);
  text += one("attnres_prompt_tokens_total", "Tokens of prompts that were computed.", "counter",
              engine.prompt_tokens);
  text +=
      one("attnres_cached_tokens_total", "Tokens of prompts that another sequence had computed.",
          "counter", engine.shared_tokens);
  text += one("attnres_generated_tokens_total", "Tokens that were generated.", "counter",
              engine.generated_tokens);
  text += first_token_.text("attnres_time_to_first_token_seconds",
                            "From a request's arrival to its first token.");
  text += token_.text("attnres_time_per_token_seconds", "From a token to the next.");
  return text;
}

}  // namespace attnres
