#include "attnres/parallel/gradient_sums.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <optional>

namespace attnres {
namespace {

// Whether each parameter has a gradient anywhere.
std::vector<bool> which_have_gradients(const std::vector<at::Tensor>& parameters,
                                       Communicator& communicator) {
  const at::Tensor counts = at::zeros({static_cast<int64_t>(parameters.size())}, at::kLong);
  int64_t* count = counts.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < parameters.size(); ++i) count[i] = parameters[i].grad().defined() ? 1 : 0;
  communicator.all_reduce_sum(counts, Traffic::number);
  return std::vector<bool>(count, count + counts.numel());
}

// Their sum over the processes, by way of one flat tensor.
void add_up_bucket(const std::vector<at::Tensor>& gradients, Communicator& communicator) {
  int64_t numbers = 0;
  for (const at::Tensor& gradient : gradients) numbers += gradient.numel();
  const at::Tensor bucket = at::empty({numbers}, gradients.front().options());
  const auto each_part = [&](const auto& copy) {
    int64_t first = 0;
    for (const at::Tensor& gradient : gradients) {
      copy(gradient, bucket.narrow(0, first, gradient.numel()).view(gradient.sizes()));
      first += gradient.numel();
    }
  };
  each_part([](const at::Tensor& gradient, const at::Tensor& part) { part.copy_(gradient); });
  communicator.all_reduce_sum(bucket, Traffic::parameter_gradient);
  each_part([](const at::Tensor& gradient, const at::Tensor& part) { gradient.copy_(part); });
}

}  // namespace

GradientSums::GradientSums(const Transformer& model, const std::vector<SiteSet>& sites,
                           Communicator& pipeline, Communicator& replicas, Communicator* tensor,
                           int64_t bucket_bytes)
    : model_(model), replicas_(replicas), tensor_(tensor), bucket_bytes_(bucket_bytes) {
  const Transformer whole(model.config(), model.vocab_size(), /*seed=*/std::nullopt,
                          model.parameters().precision().parameters, at::kMeta);
  std::map<std::vector<size_t>, std::vector<const Parameter*>> shared_by;
  for (const Parameter& p : whole.parameters().all()) {
    if (!is_differentiated(p.kind)) continue;
    const std::vector<size_t> ranks = stages_with(p, sites);
    if (ranks.size() > 1) shared_by[ranks].push_back(&p);
  }
  const size_t own = pipeline.rank();
  for (const auto& [ranks, parameters] : shared_by) {
    const bool holds = std::find(ranks.begin(), ranks.end(), own) != ranks.end();
    Shared shared = {.holders = pipeline.split(holds ? 0 : -1)};
    if (!holds) continue;
    for (const Parameter* p : parameters) {
      const Parameter* here = model.parameters().find(p->site, p->role);
      shared.parameters.push_back(here->tensor);
      if (ranks.front() != own) counted_elsewhere_.push_back(here);
    }
    shared_.push_back(std::move(shared));
  }
}

void GradientSums::add_up() {
  std::vector<at::Tensor> all, not_cut;
  for (const Parameter& p : model_.parameters().all()) {
    if (!is_differentiated(p.kind)) continue;
    all.push_back(p.tensor);
    if (cut_dimension(p) < 0) not_cut.push_back(p.tensor);
  }
  if (replicas_.size() > 1) add_up(all, replicas_);
  if (tensor_ != nullptr) add_up(not_cut, *tensor_);
  for (const Shared& shared : shared_) add_up(shared.parameters, *shared.holders);
}

void GradientSums::add_up(const std::vector<at::Tensor>& parameters,
                          Communicator& communicator) const {
  const std::vector<bool> has_gradient = which_have_gradients(parameters, communicator);
  std::vector<at::Tensor> bucket;
  int64_t bytes = 0;
  const auto flush = [&] {
    if (!bucket.empty()) add_up_bucket(bucket, communicator);
    bucket.clear();
    bytes = 0;
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!has_gradient[i]) continue;
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameters[i]).detach();
    const auto more = static_cast<int64_t>(gradient.nbytes());
    if (bytes + more > bucket_bytes_) flush();
    bucket.push_back(gradient);
    bytes += more;
  }
  flush();
}

int64_t GradientSums::bytes_sent() const {
  int64_t bytes = replicas_.bytes_sent(Traffic::parameter_gradient);
  if (tensor_ != nullptr) bytes += tensor_->bytes_sent(Traffic::parameter_gradient);
  for (const Shared& shared : shared_) {
    bytes += shared.holders->bytes_sent(Traffic::parameter_gradient);
  }
  return bytes;
}

bool GradientSums::counts(const Parameter& parameter) const {
  if (cut_dimension(parameter) < 0 && model_.parameters().part().rank > 0) return false;
  return std::find(counted_elsewhere_.begin(), counted_elsewhere_.end(), &parameter) ==
         counted_elsewhere_.end();
}

}  // namespace attnres
