#include "attnres/model/model_cost.h"

#include <algorithm>
#include <vector>

#include "attnres/depth/mixing_cost.h"

namespace attnres {
namespace {

// What a site's mixer was seen to keep.
double measure_mixer(const ModelConfig& config) {
  ParameterRegistry parameters(at::kFloat, /*seed=*/0);
  return measure_kept(*config.depth_mixing.make_mixer(config.mixer_shape(), parameters),
                      config.mixer_shape());
}

}  // namespace

ModelCost::ModelCost(const ModelConfig& config, int64_t vocab_size)
    : vocab_(static_cast<double>(vocab_size)),
      width_(static_cast<double>(config.width)),
      plan_(config, vocab_size, /*seed=*/std::nullopt, at::kFloat, at::kMeta) {}

double ModelCost::linear_maps() const {
  double numbers = 0;
  for (const Parameter& p : parameters().all()) {
    if (p.kind != ParameterKind::matrix) continue;
    const bool is_stack = p.tensor.dim() > 2;
    numbers += static_cast<double>(p.tensor.numel()) *
               (is_stack ? plan_.sublayer(p.site).cost(1).active_experts : 1);
  }
  return numbers;
}

double ModelCost::head() const {
  return vocab_ * width_;
}

double ModelCost::between_tokens(int64_t context) const {
  double multiply_adds = 0;
  for (int site = 0; site < plan_.sublayers(); ++site) {
    multiply_adds += plan_.sublayer(site).cost(context).multiply_adds;
  }
  return multiply_adds;
}

double ModelCost::kept(bool recompute) const {
  const double most_sources = most_sources_read();
  const double at_output = site() + 2 * width_;  // and the loss's gradient, twice
  // Gradients on their way down: of the feed-forward, and of every source that a site reads, one
  // that is summed up and one that is just computed.
  const double in_flight = 3 * (widest() + width_) + 2 * most_sources * width_;
  if (!recompute) return span(0, plan_.sublayers()) + at_output + in_flight;

  std::vector<int> ends = plan_.mixer().cuts();
  ends.push_back(plan_.sublayers());
  double crossing = 0, largest = 0;
  int begin = 0;
  for (const int end : ends) {
    crossing += std::max(1.0, sources(end) - sources(begin)) * width_;
    largest = std::max(largest, span(begin, end));
    begin = end;
  }
  return crossing + largest + at_output + in_flight;
}

double ModelCost::kept_in_evaluation() const {
  return (most_sources_read() + 4) * width_ + 3 * widest();
}

double ModelCost::kept_at_sites() const {
  return span(0, plan_.sublayers()) + site();
}

double ModelCost::sources(int site) const {
  double numbers = 0;
  for (const PlannedTensor& tensor : plan_.mixer().plan(site).sealed) {
    numbers += static_cast<double>(tensor.numbers());
  }
  return numbers / width_;
}

double ModelCost::most_sources_read() const {
  double most = 0;
  for (int site = 0; site <= plan_.sublayers(); ++site) most = std::max(most, sources(site));
  return most;
}

// Numbers of the widest hidden layer that a token passes through.
double ModelCost::widest() const {
  double most = 0;
  for (int site = 0; site < plan_.sublayers(); ++site) {
    most = std::max(most, plan_.sublayer(site).cost(1).widest);
  }
  return most;
}

// The mixer's, and the sublayer's output.
double ModelCost::site() const {
  if (!mixer_keeps_) mixer_keeps_ = measure_mixer(plan_.config());
  return (*mixer_keeps_ + 1) * width_;
}

double ModelCost::span(int begin, int end) const {
  double total = 0;
  for (int l = begin; l < end; ++l) total += site() + plan_.sublayer(l).cost(1).kept;
  return total;
}

}  // namespace attnres
