// How large what passes through a model is, by sublayer (Fig. 5 b and c of the report).
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "attnres/model/recompute.h"
#include "attnres/model/transformer.h"

namespace attnres {

// Root mean squares over tokens and channels, by site 0 .. L-1.
struct Magnitudes {
  std::vector<double> output;    // of the sublayer's output
  std::vector<double> state;     // of the running state after it
  std::vector<double> gradient;  // of the loss gradient at the sublayer's output; 0 where all that
                                 // comes before it is frozen
};

struct SiteMagnitudes {
  double output = 0, state = 0, gradient = 0;
};

// Watches one forward pass that records gradients, of all sites or of a stage's, recomputed or not,
// and its backward, which it must outlive. Keeps numbers alone.
class MagnitudeObserver : public RunObserver, public RecomputedOutputs {
 public:
  void on_output(int site, const at::Tensor& y, const at::Tensor& running_state) override;
  void on_output_again(int site, const at::Tensor& y) override;

  // By site. Gradients once the loss has run backward.
  const std::map<int, SiteMagnitudes>& by_site() const { return seen_; }

 private:
  std::map<int, SiteMagnitudes> seen_;
};

// Those of one forward and backward, with the loss the mean over the tokens that count. Leaves the
// parameters' gradients cleared.
Magnitudes measure_magnitudes(const Transformer& model, const at::Tensor& ids_BT,
                              const at::Tensor& targets_BT);

void clear_gradients(const Transformer& model);

}  // namespace attnres
