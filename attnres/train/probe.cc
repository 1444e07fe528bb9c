#include "attnres/train/probe.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mean.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace attnres {
namespace {

double rms(const at::Tensor& x) {
  return std::sqrt(x.detach().to(at::kDouble).square().mean().item<double>());
}

// Magnitudes and depth weights of a forward pass, and each output's gradient once it ran backward.
class Magnitudes : public RunObserver {
 public:
  explicit Magnitudes(const Transformer& model) : depth_weights(model) {}

  void on_read(int site, const ReadTrace& trace) override { depth_weights.on_read(site, trace); }

  void on_output(int, const at::Tensor& y, const at::Tensor& running_state) override {
    y.retain_grad();
    outputs.push_back(y);
    state_rms.push_back(rms(running_state));
  }

  DepthWeightAverage depth_weights;
  std::vector<at::Tensor> outputs;
  std::vector<double> state_rms;
};

}  // namespace

ProbeReading probe(const Transformer& model, const Batch& batch) {
  Magnitudes seen(model);
  const at::AutoGradMode recording(true);
  ExpertLoads expert_loads;
  model.loss(batch.inputs_BT, batch.targets_BT, {.observer = &seen, .expert_loads = &expert_loads})
      .backward();
  for (const Parameter& p : model.parameters().all()) p.tensor.mutable_grad().reset();

  ProbeReading reading;
  const auto add = [&](int site, const char* name, Json value) {
    reading.lines.push_back({{"site", site}, {"name", name}, {"value", std::move(value)}});
  };
  const std::vector<SiteDepthWeights> sites = seen.depth_weights.sites();
  for (const SiteDepthWeights& site : sites) {
    add(site.site, "depth_weights", site.weights);
    add(site.site, "depth_entropy", site.entropy);
  }
  for (size_t site = 0; site < seen.outputs.size(); ++site) {
    const int index = static_cast<int>(site);
    add(index, "state_rms", seen.state_rms[site]);
    add(index, "output_rms", rms(seen.outputs[site]));
    add(index, "gradient_rms", rms(seen.outputs[site].grad()));
  }
  for (const auto& [site, load_E] : expert_loads) {
    const at::Tensor share_E =
        load_E.to(at::kDouble).div(static_cast<double>(batch.inputs_BT.numel()));
    const double* values = share_E.const_data_ptr<double>();
    add(site, "expert_load", std::vector<double>(values, values + share_E.numel()));
  }
  reading.depth_weights = summarize(sites);
  return reading;
}

}  // namespace attnres
