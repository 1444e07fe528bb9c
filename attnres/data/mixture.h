// In which order rows are taken from several sources of tokens.
#pragma once

#include <cstdint>
#include <vector>

namespace attnres {

// After any n rows from the first a source has had its share, n w_k / (w_1 + .. + w_K), to within K
// rows. Any row's turn can be told without those before it.
class Mixture {
 public:
  // Throws UsageError unless there is a weight, and all are above 0, finite and something beside
  // the largest.
  explicit Mixture(const std::vector<double>& weights);

  struct Turn {
    int source = 0;
    uint64_t row = 0;  // of the source: how many it had before
  };
  // The turn of row i, below 2^62.
  Turn turn(uint64_t i) const;

 private:
  // Each source's share of the rows that no later source takes, in 2^-62.
  std::vector<uint64_t> shares_;
};

}  // namespace attnres
