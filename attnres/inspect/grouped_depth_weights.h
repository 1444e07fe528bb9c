// Depth weights averaged over groups of tokens: by their positions, by what they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/model/depth_weights.h"

namespace attnres {

// A position from 0 on falls into bucket 0, the first token, or into bucket n: 4^(n-1) to 4^n - 1.
int64_t position_bucket(int64_t position);
// "first", "1-3", "4-15", "16-63", ...
std::string position_bucket_name(int64_t bucket);

struct DepthWeightGroup {
  std::string name;
  int64_t tokens = 0;
  std::vector<SiteDepthWeights> sites;  // means over these tokens
};

// Watches forward passes as DepthWeightAverage does. Before each it has to be told which token is
// in which group.
class GroupedDepthWeights : public RunObserver {
 public:
  GroupedDepthWeights(const Transformer& model, std::vector<std::string> names);

  // The group of each token of the next pass, int64 [T], from 0 up to the number of names.
  void set_groups(const at::Tensor& groups_T);
  void on_read(int site, const ReadTrace& trace) override;

  // Those with tokens, in the order of their names; empty for mechanisms without depth weights.
  std::vector<DepthWeightGroup> groups() const;

 private:
  struct Sums {
    std::vector<std::string> sources;
    at::Tensor weights_NG, entropy_G;
  };
  int sublayers_;
  std::vector<std::string> names_;
  at::Tensor membership_TG_;  // of the pass at work, 0 or 1
  at::Tensor tokens_G_;
  std::vector<Sums> sums_;  // by site
};

}  // namespace attnres
