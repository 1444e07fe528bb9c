#include "attnres/train/probe.h"

#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include "attnres/model/magnitudes.h"

namespace attnres {
namespace {

// Depth weights of a forward pass, and magnitudes.
class ProbeObserver : public RunObserver {
 public:
  explicit ProbeObserver(const Transformer& model) : depth_weights(model) {}

  void on_read(int site, const ReadTrace& trace) override { depth_weights.on_read(site, trace); }
  void on_output(int site, const at::Tensor& y, const at::Tensor& running_state) override {
    magnitudes.on_output(site, y, running_state);
  }

  DepthWeightAverage depth_weights;
  MagnitudeObserver magnitudes;
};

}  // namespace

ProbeReading probe(const Transformer& model, const Batch& batch) {
  ProbeObserver seen(model);
  const at::AutoGradMode recording(true);
  ExpertLoads expert_loads;
  model.loss(batch.inputs_BT, batch.targets_BT, {.observer = &seen, .expert_loads = &expert_loads})
      .backward();
  clear_gradients(model);

  ProbeReading reading;
  const auto add = [&](int site, const char* name, Json value) {
    reading.lines.push_back({{"site", site}, {"name", name}, {"value", std::move(value)}});
  };
  const std::vector<SiteDepthWeights> sites = seen.depth_weights.sites();
  for (const SiteDepthWeights& site : sites) {
    add(site.site, "depth_weights", site.weights);
    add(site.site, "depth_entropy", site.entropy);
  }
  const Magnitudes magnitudes = seen.magnitudes.magnitudes();
  for (int site = 0; site < model.sublayers(); ++site) {
    add(site, "state_rms", magnitudes.state[site]);
    add(site, "output_rms", magnitudes.output[site]);
    add(site, "gradient_rms", magnitudes.gradient[site]);
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
