// Where each site looks: depth weights averaged over many tokens (Fig. 8 of the report).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attnres/model/transformer.h"

namespace attnres {

// "attention 1", "feed-forward 1", "attention 2", ..., "output".
std::string site_name(int site, int sublayers);

struct SiteDepthWeights {
  int site = 0;
  std::string name;
  std::vector<std::string> sources;
  std::vector<double> weights;  // mean over the tokens seen; they sum to 1
  double entropy = 0;           // of a token's weights, -sum a ln a in nats, mean over the tokens

  // Sum of the mean weights of the sources that have this name.
  double mass(const std::string& source) const;
  size_t dominant() const;  // the source with the largest mean weight
};

struct DepthWeightSummary {
  double relative_entropy = 0;      // entropy over its largest value, ln N: 1 is uniform
  double embedding_share = 0;       // weight of the token embedding
  std::optional<double> own_block;  // weight of the partial sum; only of sites that read one
};

// Means over the sites that have a choice, which is two sources or more; empty when none has.
std::optional<DepthWeightSummary> summarize(const std::vector<SiteDepthWeights>& sites);

// Watches forward passes and keeps, for every site that has depth weights, their mean. Sums are
// float64.
class DepthWeightAverage : public RunObserver {
 public:
  explicit DepthWeightAverage(const Transformer& model);

  void on_read(int site, const ReadTrace& trace) override;

  // The means so far, by site; empty for mechanisms without depth weights, and before any token.
  std::vector<SiteDepthWeights> sites() const;

 private:
  struct Sums {
    std::vector<std::string> sources;
    std::vector<double> weights;
    double entropy = 0;
    int64_t tokens = 0;
  };
  int sublayers_;
  std::vector<Sums> sums_;  // by site
};

}  // namespace attnres
