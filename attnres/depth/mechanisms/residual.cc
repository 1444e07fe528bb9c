#include "attnres/depth/mechanisms/residual.h"

#include <ATen/ops/add.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/ops/rms_norm/rms_norm.h"

namespace attnres {
namespace {

class Residual : public DepthMixer {
 public:
  Residual(const ResidualSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : shape_(shape), input_norms_(add_norms(parameters, shape.sublayers, "input_norm", shape)) {}

  DepthState start(const at::Tensor& embedding_TD) const override {
    return {.open = {embedding_TD}};
  }

  SublayerInput read(DepthState& state) const override {
    const at::Tensor& gain = input_norms_[state.site];
    SublayerInput input;
    if (state.pending.defined()) {
      auto [sum, x] = add_rms_norm(state.open[0], state.pending, gain, shape_.norm_eps);
      state.open[0] = sum;
      state.pending.reset();
      input.x = x;
    } else {
      input.x = rms_norm(state.open[0], gain, shape_.norm_eps);
    }
    show_mixed(state, state.open[0]);
    return input;
  }

  void write(DepthState& state, SublayerOutput output) const override {
    state.pending = std::move(output.y);
    ++state.site;
  }

  void settle(DepthState& state) const override {
    if (!state.pending.defined()) return;
    state.open[0] = at::add(state.open[0], state.pending);
    state.pending.reset();
  }

  StatePlan plan(int) const override {
    return {.open = {{.name = "stream", .sizes = {shape_.width}}}};
  }

  std::vector<int> cuts() const override {
    std::vector<int> sites;
    for (int site = 2; site < shape_.sublayers; site += 2) sites.push_back(site);
    return sites;
  }

  at::Tensor running_state(const DepthState& state) const override {
    return state.pending.defined() ? at::add(state.open[0], state.pending) : state.open[0];
  }

 private:
  MixerShape shape_;
  std::vector<at::Tensor> input_norms_;
};

}  // namespace

Mechanism residual_mechanism() {
  return define_mechanism<ResidualSettings, Residual>(
      {.name = "residual",
       .formula = "h_{l+1} = h_l + f_l(norm(h_l))",
       .start = "nothing of its own",
       .source = "PreNorm, arXiv 2002.04745",
       .traffic = "3d",
       .details = "h_0 = v_0; x_l = norm(h_l), at the output too.",
       .roles = {input_norm_role()}},
      3);
}

}  // namespace attnres
