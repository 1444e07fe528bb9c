#include "attnres/inspect/drop_effects.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "attnres/infer/evaluate.h"
#include "attnres/model/depth_weights.h"
#include "attnres/model/token_depth_weights.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// Sublayers from `first` to `last` give zeros.
class Silencer : public RunObserver {
 public:
  Silencer(int first, int last) : first_(first), last_(last) {}

  void on_write(int site, at::Tensor& y) override {
    if (site >= first_ && site <= last_) y = at::zeros_like(y);
  }

 private:
  int first_, last_;
};

// The names of the sources that sites with a choice read.
class SourceNames : public RunObserver {
 public:
  void on_read(int, const ReadTrace& trace) override {
    if (trace.weights.defined() && trace.sources.size() > 1) sources.push_back(trace.sources);
  }

  std::vector<std::vector<std::string>> sources;
};

class LossOfText {
 public:
  LossOfText(const Transformer& model, const std::vector<int32_t>& tokens, int64_t context)
      : model_(model),
        batches_({tokens}, context, std::max<int64_t>(kEvaluationTokensABatch / context, 1)) {}

  double operator()(RunObserver* observer, const std::string& dropped_source = {}) const {
    const at::NoGradGuard no_grad;
    double nats = 0;
    int64_t count = 0;
    for (int64_t i = 0; i < batches_.size(); ++i) {
      const Batch batch = batches_[i];
      DepthState state = model_.embed(batch.inputs_BT);
      MixingAnalysis analysis = {.dropped_source = dropped_source};
      if (!dropped_source.empty()) state.analysis = &analysis;
      const LossSum loss = model_.loss_sum(state, batch.targets_BT, {.observer = observer});
      nats += loss.sum.item<double>();
      count += loss.count;
    }
    return nats / static_cast<double>(count);
  }

  Batch first_batch() const { return batches_[0]; }

 private:
  const Transformer& model_;
  EvaluationBatches batches_;
};

std::vector<std::string> droppable_sources(const Transformer& model, const Batch& batch) {
  const at::NoGradGuard no_grad;
  SourceNames names;
  model.hidden(batch.inputs_BT.narrow(0, 0, 1), {.observer = &names});
  return all_sources(names.sources);
}

}  // namespace

DropEffects measure_drop_effects(
    const Transformer& model, const std::vector<int32_t>& tokens, int64_t context,
    const std::function<void(int64_t done, int64_t total)>& on_progress) {
  const LossOfText loss_of(model, tokens, context);
  const std::vector<std::string> sources = droppable_sources(model, loss_of.first_batch());
  const int sublayers = model.sublayers();
  const int64_t passes = 1 + sublayers / 2 + sublayers + std::ssize(sources);
  int64_t done = 0;
  const auto show_progress = [&] {
    if (on_progress) on_progress(done, passes);
  };
  show_progress();
  DropEffects effects;
  effects.loss = loss_of(nullptr);
  require(std::isfinite(effects.loss),
          "the loss on this text is not finite: the model's weights are damaged, or its training "
          "diverged");
  const auto change = [&](RunObserver* observer, const std::string& source = {}) {
    ++done;
    show_progress();
    return loss_of(observer, source) - effects.loss;
  };
  const auto change_without = [&](int first, int last) {
    Silencer silencer(first, last);
    return change(&silencer);
  };
  for (int site = 0; site < sublayers; site += 2) {
    effects.layers.push_back({site / 2 + 1, change_without(site, site + 1)});
  }
  for (int site = 0; site < sublayers; ++site) {
    effects.sublayers.push_back({site, site_name(site, sublayers), change_without(site, site)});
  }
  for (const std::string& source : sources) {
    effects.sources.push_back({source, change(nullptr, source)});
  }
  ++done;
  show_progress();
  return effects;
}

double effective_depth(const std::vector<double>& changes) {
  double sum = 0;
  for (const double change : changes) {
    require(std::isfinite(change),
            "effective depth: a layer's effect is not finite; the model's numbers overflow "
            "without it");
    sum += std::max(change, 0.0);
  }
  if (sum == 0) return 0;
  double entropy = 0;
  for (const double change : changes) {
    if (change <= 0) continue;
    const double share = change / sum;
    entropy -= share * std::log(share);
  }
  return std::exp(entropy);
}

}  // namespace attnres
