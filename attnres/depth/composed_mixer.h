// What the mechanisms share that are composed of tensor operations. A sublayer's output is taken in
// when it is written, so nothing is ever pending, and a state may be cut before any site.
#pragma once

#include <string>
#include <vector>

#include "attnres/depth/depth_mixer.h"
#include "attnres/depth/mechanism.h"
#include "attnres/depth/mixing_analysis.h"

namespace attnres {

class ComposedMixer : public DepthMixer {
 public:
  explicit ComposedMixer(const MixerShape& shape) : shape_(shape) {}

  DepthState start(const at::Tensor& embedding_TD) const override;  // one open stream
  SublayerInput read(DepthState& state) const override;             // that stream as it is
  void write(DepthState& state, SublayerOutput output) const final;
  void settle(DepthState& state) const override;
  StatePlan plan(int site) const override;  // that stream
  std::vector<int> cuts() const override;   // before every Transformer layer
  at::Tensor running_state(const DepthState& state) const override;  // open[0], or sealed.back()

 protected:
  // Takes in the output of sublayer `state.site`, with what its read left in `state.carried`.
  virtual void absorb(DepthState& state, const at::Tensor& y_TD) const = 0;

  // For those of which a read leaves one tensor there.
  static void carry(DepthState& state, at::Tensor tensor);
  static const at::Tensor& carried(const DepthState& state);

  const MixerShape& shape() const { return shape_; }

 private:
  MixerShape shape_;
};

// With an "input_norm" at every site, of what it mixes.
class NormedMixer : public ComposedMixer {
 public:
  NormedMixer(const MixerShape& shape, ParameterRegistry& parameters);

  SublayerInput read(DepthState& state) const override;  // the stream, normed

 protected:
  void absorb(DepthState& state, const at::Tensor& y_TD) const override;  // adds it to the stream
  // What a site reads that mixed `h_TD`, which is shown to those who look on.
  SublayerInput normed(const DepthState& state, const at::Tensor& h_TD) const;

 private:
  std::vector<at::Tensor> input_norms_;
};

// Keeps sources apart: seals the embedding, and every sublayer's output, which all sites read.
class SourceMixer : public NormedMixer {
 public:
  using NormedMixer::NormedMixer;

  DepthState start(const at::Tensor& embedding_TD) const override;
  StatePlan plan(int site) const override;

 protected:
  void absorb(DepthState& state, const at::Tensor& y_TD) const override;
};

// The name in a plan of the embedding, for i = 0, and of what the i-th sublayer, layer or block
// left: "layer 2".
std::string source_name(const char* kind, int64_t i);

// The plan of those who seal the embedding and every sublayer's output, which every site reads.
StatePlan plan_of_outputs(int site, const MixerShape& shape);
// The plan of mixers that seal the embedding and what every Transformer layer leaves, which is read
// before a layer and at the output; inside a layer a stream is open.
StatePlan plan_of_layers(int site, const MixerShape& shape);
// The sealed tensors of those who seal keys and values [T, heads, K] of every layer's attention
// but the last, which all later attentions read.
std::vector<PlannedTensor> plan_of_keys_and_values(int site, const MixerShape& shape,
                                                   int64_t heads);

// A norm gain [width] that starts at one.
at::Tensor add_norm(ParameterRegistry& parameters, int site, const std::string& role,
                    const MixerShape& shape, std::vector<int> used_at = {});

// One at every site from 0 to `last`.
std::vector<at::Tensor> add_norms(ParameterRegistry& parameters, int last, const std::string& role,
                                  const MixerShape& shape);

// The linear maps of mixers, which decide about weights: where parameters are kept in a wider dtype
// than activations, these are computed in the wider one. x W^T + b for x [..., K], W [N, K] and b
// [N], or none: [..., N] in W's dtype.
at::Tensor wide_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace attnres
