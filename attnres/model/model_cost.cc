#include "attnres/model/model_cost.h"

#include <algorithm>
#include <numeric>

#include "attnres/depth/mixing_cost.h"
#include "attnres/parameters/mixer_parameters.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// What this measures of the mixer alone.
double measure_mixer(const ModelConfig& config,
                     double (*measure)(const DepthMixer&, const MixerShape&)) {
  ParameterRegistry parameters(at::kFloat, /*seed=*/0);
  const MixerShape shape = config.mixer_shape();
  return measure(*config.depth_mixing.make_mixer(shape, parameters), shape);
}

// One that nothing is computed with.
class ShapesOfGroup : public TensorGroup {
 public:
  explicit ShapesOfGroup(int size) : TensorGroup({0, size}) {}
  at::Tensor all_gather(const at::Tensor&, int64_t) const override { refuse(); }
  at::Tensor reduce_scatter(const at::Tensor&) const override { refuse(); }

 private:
  [[noreturn]] static void refuse() { fail("model cost: a plan's tensor group has no processes"); }
};

}  // namespace

double stored_bytes(const Parameter& p, const WeightFormats& formats) {
  const WeightFormat format = formats.of(p.site, p.role);
  const auto numbers = static_cast<double>(p.tensor.numel());
  if (p.tensor.dim() < 2) return 4 * numbers;
  const int64_t columns = p.tensor.size(-1);
  const WeightFormat used = fits(format, columns) ? format : WeightFormat::f16;
  return numbers / static_cast<double>(columns) *
         static_cast<double>(packed_row_bytes(used, columns));
}

ModelCost::ModelCost(const ModelConfig& config, int64_t vocab_size, int tensor, at::Device device)
    : all_experts_(!device.is_cpu()),
      vocab_(static_cast<double>(vocab_size)),
      width_(static_cast<double>(config.width)),
      share_(1.0 / tensor),
      group_(tensor == 1 ? nullptr : std::make_unique<ShapesOfGroup>(tensor)),
      plan_(config, vocab_size, /*seed=*/std::nullopt, at::kFloat, at::kMeta, {}, group_.get()),
      linear_maps_(sublayers() + 1) {
  for (int site = 0; site <= sublayers(); ++site) {
    double numbers = 0;
    for (const PlannedTensor& tensor : mixer().plan(site).sealed) {
      numbers += static_cast<double>(tensor.numbers());
    }
    sources_.push_back(numbers * share_ / width_);
  }
  for (const Parameter& p : parameters().all()) {
    if (p.kind != ParameterKind::matrix) continue;
    const bool is_stack = p.tensor.dim() > 2 && !all_experts_;
    const double numbers = static_cast<double>(p.tensor.numel()) *
                           (is_stack ? plan_.sublayer(p.site).cost(1).active_experts : 1) *
                           (is_of_mixer(parameters(), p) ? share_ : 1);
    for (const int site : p.used_at) linear_maps_.at(site) += numbers;
  }
}

double ModelCost::linear_maps(const SiteRange& sites) const {
  const auto [first, last] = within(sites);
  return std::accumulate(linear_maps_.begin() + first, linear_maps_.begin() + last, 0.0);
}

double ModelCost::head() const {
  return vocab_ * width_ * share_;
}

double ModelCost::between_tokens(int64_t context, const SiteRange& sites) const {
  const auto [first, last] = within(sites);
  double multiply_adds = 0;
  for (int site = first; site < std::min(last, sublayers()); ++site) {
    multiply_adds += plan_.sublayer(site).cost(context).multiply_adds;
  }
  return multiply_adds;
}

double ModelCost::kept(bool recompute) const {
  return kept_until_backward({}, recompute) + kept_in_backward({}, recompute);
}

double ModelCost::kept_for_maps() const {
  double total = 0;
  for (int l = 0; l < sublayers(); ++l) {
    total += width_ * share_ + plan_.sublayer(l).cost(1).for_maps;
  }
  return total;
}

double ModelCost::kept_until_backward(const SiteRange& sites, bool recompute) const {
  // The gradient twice.
  const double at_output = has_output(sites) ? site() + 2 * width_ * share_ : 0;
  if (!recompute) return span(sites) + at_output;
  double crossing = 0;
  for (const auto& [first, last] : recomputed_spans(sites)) {
    crossing += std::max(share_, sources_[last] - sources_[first]) * width_;
  }
  return crossing + at_output;
}

double ModelCost::kept_in_backward(const SiteRange& sites, bool recompute) const {
  // Gradients on their way down: of the feed-forward, and of every source that a site reads, one
  // that is summed up and one that is just computed.
  const double in_flight = 3 * (widest(sites) + width_) + 2 * most_sources_read(sites) * width_;
  double largest = 0;
  if (recompute) {
    for (const SiteRange& range : recomputed_spans(sites)) largest = std::max(largest, span(range));
  }
  return largest + in_flight;
}

double ModelCost::kept_in_evaluation() const {
  return (most_sources_read({}) + 4) * width_ + 3 * widest({});
}

double ModelCost::kept_by_sublayers(const SiteRange& sites) const {
  return sublayers_keep(sites) + num_sublayers(sites) * width_ * share_;
}

double ModelCost::moved_by_mixer(const SiteRange& sites) const {
  if (!mixer_moves_) mixer_moves_ = measure_mixer(plan_.config(), measure_moved);
  return *mixer_moves_ * width_ * share_ * num_sublayers(sites);
}

double ModelCost::most_sources_read(const SiteRange& sites) const {
  const auto [first, last] = within(sites);
  return *std::max_element(sources_.begin() + first, sources_.begin() + last);
}

// Numbers of the widest hidden layer that a token passes through.
double ModelCost::widest(const SiteRange& sites) const {
  const auto [first, last] = within(sites);
  double most = 0;
  for (int site = first; site < std::min(last, sublayers()); ++site) {
    most = std::max(most, plan_.sublayer(site).cost(1).widest);
  }
  return most;
}

double ModelCost::site() const {
  if (!mixer_keeps_) mixer_keeps_ = measure_mixer(plan_.config(), measure_kept);
  return *mixer_keeps_ * width_ * share_;
}

// A sublayer's inputs of all tokens, where a process has but some of them.
double ModelCost::gathered(int site) const {
  if (group_ == nullptr) return 0;
  return mixer().needs(site).inputs() * width_;
}

double ModelCost::sublayers_keep(const SiteRange& sites) const {
  const auto [first, last] = within(sites);
  double total = 0;
  for (int l = first; l < std::min(last, sublayers()); ++l) {
    const SublayerCost cost = plan_.sublayer(l).cost(1);
    total += gathered(l) +
             (all_experts_ && cost.kept_by_all_experts > 0 ? cost.kept_by_all_experts : cost.kept);
  }
  return total;
}

double ModelCost::span(const SiteRange& sites) const {
  return sublayers_keep(sites) + num_sublayers(sites) * site();
}

// As run_recomputed has them; the output is read outside of them.
std::vector<SiteRange> ModelCost::recomputed_spans(const SiteRange& sites) const {
  const auto [first, last] = within(sites);
  std::vector<int> ends = mixer().cuts();
  ends.push_back(std::min(last, sublayers()));
  std::vector<SiteRange> spans;
  int begin = first;
  for (const int end : ends) {
    if (begin >= end || end > last) continue;
    spans.push_back({begin, end});
    begin = end;
  }
  return spans;
}

int ModelCost::num_sublayers(const SiteRange& sites) const {
  const auto [first, last] = within(sites);
  return std::max(0, std::min(last, sublayers()) - first);
}

// Those of them that the model has.
SiteRange ModelCost::within(const SiteRange& sites) const {
  return {std::max(sites.first, 0), std::min(sites.last, sublayers() + 1)};
}

}  // namespace attnres
