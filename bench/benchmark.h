// What the benchmarks share: order statistics, and answering a driver line by line.
#pragma once

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/support/json.h"
#include "attnres/support/memory.h"
#include "attnres/support/progress.h"

namespace attnres::bench {

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

struct Interval {
  double low = 0, high = 0;
};

// The narrowest interval between order statistics that holds the median of the distribution with
// probability 95 % or more; the whole range where there are fewer than six values.
inline Interval median_interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  // The k-th smallest lies above the median if fewer than k values lie below: binomial(n, 1/2).
  size_t k = 0;
  double probability = std::pow(0.5, n), tail = probability;
  while (k + 1 < (n + 1) / 2) {
    probability *= static_cast<double>(n - k) / static_cast<double>(k + 1);
    tail += probability;
    if (2 * tail > 0.05) break;
    ++k;
  }
  return {values[k], values[n - 1 - k]};
}

template <class F>
double milliseconds(const F& work) {
  const double start = monotonic_seconds();
  work();
  return (monotonic_seconds() - start) * 1e3;
}

// Answers requests, one JSON object a line on standard input, with one a line on standard output,
// until the input ends. What a request throws is answered as {"error": message}.
inline void serve(const std::function<Json(const Json&)>& answer) {
  for (std::string line; std::getline(std::cin, line);) {
    Json reply;
    try {
      reply = answer(parse_json(line, "request"));
    } catch (const std::exception& e) {
      reply = {{"error", e.what()}};
    }
    std::cout << reply.dump() << std::endl;
  }
}

// What main() of a benchmark does with its `run`: memory as the program keeps it, errors in a line.
inline int run_benchmark(const char* name, const std::function<void()>& run) {
  keep_freed_memory();
  try {
    run();
    return 0;
  } catch (const std::exception& e) {
    std::cerr << name << ": error: " << e.what() << "\n";
    return 1;
  }
}

}  // namespace attnres::bench
