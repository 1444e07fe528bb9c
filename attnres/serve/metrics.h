// What a server counts, for Prometheus.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "attnres/serve/backend.h"

namespace attnres {

class Histogram {
 public:
  void add(double seconds);
  std::string text(const std::string& name, const std::string& help) const;

 private:
  static constexpr std::array kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                         0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0};
  std::array<int64_t, kBounds.size() + 1> counts_ = {};
  double sum_ = 0;
};

// From any thread.
class Metrics {
 public:
  void count_request(const std::string& path, int status);
  void add_first_token(double seconds);  // from the request's arrival
  void add_token(double seconds);        // from the one before

  // The text format of Prometheus, version 0.0.4.
  std::string text(const LoopStatus& loop) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;  // by path and status
  Histogram first_token_, token_;
};

}  // namespace attnres
