#include "attnres/depth/residual.h"

#include <ATen/ops/add.h>

#include <nlohmann/json.hpp>

#include "attnres/ops/rms_norm/rms_norm.h"
#include "attnres/support/config.h"

namespace attnres {
namespace {

class Residual : public DepthMixer {
 public:
  Residual(const MixerShape& shape, ParameterRegistry& parameters) : shape_(shape) {
    for (int site = 0; site <= shape.sublayers; ++site) {
      input_norms_.push_back(parameters.add(site, "input_norm", ParameterKind::norm_gain,
                                            {shape.width}, Init::ones()));
    }
  }

  DepthState start(const at::Tensor& embedding_BTD) const override {
    DepthState state;
    state.open = {embedding_BTD};
    return state;
  }

  SublayerInput read(DepthState& state, ReadTrace* trace) const override {
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
    if (trace != nullptr) trace->mixed = state.open[0].detach();
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

  std::vector<int> cuts() const override {
    std::vector<int> sites;
    for (int site = 2; site < shape_.sublayers; site += 2) sites.push_back(site);
    return sites;
  }

  std::vector<std::string> source_names(int) const override { return {}; }
  at::Tensor running_state(const DepthState& state) const override {
    return state.pending.defined() ? at::add(state.open[0], state.pending) : state.open[0];
  }

 private:
  MixerShape shape_;
  std::vector<at::Tensor> input_norms_;
};

struct NoSettings {
  template <class V>
  void visit(V&) {}
};

}  // namespace

Mechanism residual_mechanism() {
  return {.name = "residual",
          .formula = "h_{l+1} = h_l + f_l(norm(h_l))",
          .source = "PreNorm, arXiv 2002.04745",
          .resolve =
              [](const Json& settings, const MixerShape&) {
                NoSettings none;
                read_config(settings, "model.depth_mixing", none);
                return Json::object();
              },
          .make = [](const Json&, const MixerShape& shape,
                     ParameterRegistry& parameters) -> std::unique_ptr<DepthMixer> {
            return std::make_unique<Residual>(shape, parameters);
          }};
}

}  // namespace attnres
