#include "attnres/parallel/gradient_sums.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "attnres/parallel/update_owners.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr const char* kWhat = "the sum of gradients";

// Which of these somebody has a gradient of.
std::vector<bool> found_anywhere(const std::vector<bool>& has_gradient,
                                 Communicator& communicator) {
  std::vector<int64_t> counts(has_gradient.begin(), has_gradient.end());
  sum_numbers(communicator, counts, kWhat);
  return {counts.begin(), counts.end()};
}

void add_up_shared(const std::vector<at::Tensor>& parameters, Communicator& holders) {
  std::vector<bool> has_gradient;
  for (const at::Tensor& p : parameters) has_gradient.push_back(p.grad().defined());
  const std::vector<bool> is_found = found_anywhere(has_gradient, holders);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!is_found[i]) continue;
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameters[i]).detach();
    gradient = gradient.contiguous();
    holders.all_reduce_sum(gradient, Traffic::parameter_gradient, kWhat);
  }
}

// Those kinds that no mixer reads at another site than its own.
bool is_of_sublayers(ParameterKind kind) {
  return kind != ParameterKind::norm_gain && kind != ParameterKind::pseudo_query &&
         kind != ParameterKind::mixing;
}

int first_of_stage(int site, const SiteSet& sites) {
  const auto& stages = sites.ranges();
  return std::find_if(stages.begin(), stages.end(),
                      [&](const SiteRange& stage) { return stage.has(site); })
      ->first;
}

// Calls `copy` with each gradient and its part of the flat tensor.
template <class Copy>
void each_part(const std::vector<at::Tensor>& parameters, const at::Tensor& flat,
               const Copy& copy) {
  int64_t first = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t numbers = parameters[i].numel();
    copy(i, flat.narrow(0, first, numbers).view(parameters[i].sizes()));
    first += numbers;
  }
}

}  // namespace

// Tells when a parameter has got a gradient.
class GradientSums::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientSums& sums, size_t summed) : sums_(sums), summed_(summed) {}
  void operator()(const torch::autograd::Variable&) override { sums_.on_gradient(summed_); }

 private:
  GradientSums& sums_;
  size_t summed_;
};

GradientSums::GradientSums(const GradientHolders& holders, int64_t bucket_bytes)
    : model_(holders.model),
      replicas_(holders.replicas),
      tensor_(holders.tensor),
      updates_shared_(holders.owners.empty() || replicas_.rank() == kOwnerOfShared) {
  find_shared(holders);
  if (tensor_ != nullptr) find_not_cut(holders);
  if (replicas_.size() == 1) return;
  find_summed(holders);
  make_buckets(bucket_bytes);
  for (size_t i = 0; i < summed_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(summed_[i].parameter->tensor,
                                                   std::make_unique<Hook>(*this, i));
  }
}

GradientSums::~GradientSums() {
  for (const Summed& summed : summed_) {
    torch::autograd::impl::set_post_acc_grad_hooks(summed.parameter->tensor, nullptr);
  }
}

void GradientSums::find_shared(const GradientHolders& holders) {
  std::map<std::vector<size_t>, std::vector<const Parameter*>> shared_by;
  for (const Parameter& p : holders.whole.parameters().all()) {
    if (!is_differentiated(p.kind)) continue;
    const std::vector<size_t> ranks = stages_with(p, holders.sites);
    if (ranks.size() > 1) shared_by[ranks].push_back(&p);
  }
  const size_t own = holders.pipeline.rank();
  for (const auto& [ranks, parameters] : shared_by) {
    const bool holds = std::find(ranks.begin(), ranks.end(), own) != ranks.end();
    Shared shared = {.holders = holders.pipeline.split(holds ? 0 : -1)};
    if (!holds) continue;
    for (const Parameter* p : parameters) {
      const Parameter* here = model_.parameters().find(p->site, p->role);
      shared.parameters.push_back(here->tensor);
      if (ranks.front() != own) counted_elsewhere_.insert(here);
    }
    shared_.push_back(std::move(shared));
  }
}

void GradientSums::find_summed(const GradientHolders& holders) {
  const SiteSet& sites = holders.sites.at(holders.pipeline.rank());
  const auto& all = holders.whole.parameters().all();
  for (size_t n = 0; n < all.size(); ++n) {
    const Parameter& of_whole = all[n];
    const Parameter* p = model_.parameters().find(of_whole.site, of_whole.role);
    if (p == nullptr || !is_differentiated(p->kind)) continue;
    std::vector<int> own;
    std::copy_if(p->used_at.begin(), p->used_at.end(), std::back_inserter(own),
                 [&](int site) { return sites.has(site); });
    const bool comes_at_once = own.size() == 1 && is_of_sublayers(p->kind);
    const auto owner = holders.owners.empty() ? std::nullopt : std::optional(holders.owners.at(n));
    summed_.push_back({.parameter = p,
                       .owner = owner,
                       .site = comes_at_once ? own.front() : first_of_stage(own.front(), sites),
                       .comes_at_once = comes_at_once});
    if (!is_here(owner)) counted_elsewhere_.insert(p);
  }
  std::stable_sort(summed_.begin(), summed_.end(),
                   [](const Summed& a, const Summed& b) { return a.site > b.site; });
}

void GradientSums::find_not_cut(const GradientHolders& holders) {
  const auto& all = holders.whole.parameters().all();
  for (size_t n = 0; n < all.size(); ++n) {
    const Parameter& of_whole = all[n];
    const Parameter* p = model_.parameters().find(of_whole.site, of_whole.role);
    if (p == nullptr || !is_differentiated(p->kind) || cut_dimension(*p) >= 0) continue;
    if (holders.owners.empty() || holders.owners.at(n) == replicas_.rank()) {
      not_cut_.push_back(p->tensor);
    }
  }
}

void GradientSums::make_buckets(int64_t bucket_bytes) {
  std::map<std::optional<int>, Bucket> filling;  // by owner
  const auto close = [&](Bucket& bucket) { buckets_.push_back(std::exchange(bucket, Bucket())); };
  for (size_t i = 0; i < summed_.size(); ++i) {
    const at::Tensor& tensor = summed_[i].parameter->tensor;
    Bucket& bucket = filling[summed_[i].owner];
    const auto bytes = static_cast<int64_t>(tensor.element_size()) * bucket.numbers;
    if (bytes > 0 && bytes + static_cast<int64_t>(tensor.nbytes()) > bucket_bytes) close(bucket);
    bucket.owner = summed_[i].owner;
    bucket.members.push_back(i);
    bucket.numbers += tensor.numel();
  }
  for (auto& [owner, bucket] : filling) close(bucket);
  // As the backward fills them.
  std::sort(buckets_.begin(), buckets_.end(),
            [](const Bucket& a, const Bucket& b) { return a.members.back() < b.members.back(); });
  for (size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].awaited = buckets_[b].members.size();
    for (const size_t i : buckets_[b].members) summed_[i].bucket = b;
  }
}

std::vector<at::Tensor> GradientSums::tensors_of(const Bucket& bucket) const {
  std::vector<at::Tensor> tensors;
  for (const size_t i : bucket.members) tensors.push_back(summed_[i].parameter->tensor);
  return tensors;
}

void GradientSums::begin_last_backward(const SiteRange& sites) {
  in_last_backward_ = sites;
}

void GradientSums::end_last_backward(const SiteRange& sites) {
  in_last_backward_.reset();
  for (Summed& summed : summed_) {
    if (sites.has(summed.site) && !summed.is_final) make_final(summed);
  }
  move_on();
}

void GradientSums::on_gradient(size_t i) {
  Summed& summed = summed_[i];
  require(!summed.is_final, "gradient sums: {} of site {} got a gradient after its sum had begun",
          summed.parameter->role, summed.parameter->site);
  if (!in_last_backward_) return;
  if (summed.comes_at_once && in_last_backward_->has(summed.site)) make_final(summed);
  move_on();
}

void GradientSums::make_final(Summed& summed) {
  summed.is_final = true;
  --buckets_[summed.bucket].awaited;
}

void GradientSums::begin_what_is_final() {
  while (begun_ < buckets_.size() && buckets_[begun_].awaited == 0 &&
         begun_ - ended_ < kBucketsUnderWay) {
    begin(buckets_[begun_++]);
  }
}

// Also lets what is under way go on, which a communicator does within its calls alone.
void GradientSums::move_on() {
  begin_what_is_final();
  while (ended_ < begun_ && buckets_[ended_].sum->is_done()) end(buckets_[ended_++]);
  begin_what_is_final();
}

void GradientSums::begin(Bucket& bucket) {
  const std::vector<at::Tensor> parameters = tensors_of(bucket);
  bucket.flat = at::empty({bucket.numbers}, parameters.front().options().requires_grad(false));
  each_part(parameters, bucket.flat, [&](size_t i, const at::Tensor& part) {
    const at::Tensor& gradient = parameters[i].grad();
    summed_[bucket.members[i]].had_gradient = gradient.defined();
    gradient.defined() ? part.copy_(gradient) : part.zero_();
  });
  bucket.mark = Timeline::begin(timeline_, "sum", fmt::format("of gradients, bucket {}", begun_));
  bucket.sum =
      bucket.owner
          ? replicas_.begin_reduce_sum(bucket.flat, *bucket.owner, Traffic::parameter_gradient)
          : replicas_.begin_all_reduce_sum(bucket.flat, Traffic::parameter_gradient);
}

void GradientSums::end(Bucket& bucket) {
  Timeline::end(timeline_, bucket.mark);
  const std::vector<at::Tensor> parameters = tensors_of(bucket);
  each_part(parameters, bucket.flat, [&](size_t i, const at::Tensor& part) {
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (!is_here(bucket.owner)) {
      gradient.reset();
    } else if (gradient.defined()) {
      gradient.copy_(part);
    } else {
      gradient = part.clone();
    }
  });
  bucket.flat.reset();
  bucket.sum.reset();
}

void GradientSums::add_up() {
  if (replicas_.size() > 1) add_up_over_replicas();
  if (tensor_ != nullptr) add_up_shared(not_cut_, *tensor_);
  if (!updates_shared_) return;
  for (const Shared& shared : shared_) add_up_shared(shared.parameters, *shared.holders);
}

void GradientSums::add_up_over_replicas() {
  for (Summed& summed : summed_) {
    if (!summed.is_final) make_final(summed);
  }
  while (ended_ < buckets_.size()) {
    begin_what_is_final();
    buckets_[ended_].sum->wait(kWhat);
    end(buckets_[ended_++]);
  }
  std::vector<bool> has_gradient;
  for (const Summed& summed : summed_) has_gradient.push_back(summed.had_gradient);
  const std::vector<bool> is_found = found_anywhere(has_gradient, replicas_);
  for (size_t i = 0; i < summed_.size(); ++i) {
    if (!is_found[i]) summed_[i].parameter->tensor.mutable_grad().reset();
    summed_[i].is_final = false;
  }
  for (Bucket& bucket : buckets_) bucket.awaited = bucket.members.size();
  begun_ = ended_ = 0;
}

void GradientSums::share_parameters() {
  const at::NoGradGuard not_recording;
  for (size_t begun = 0, ended = 0; ended < buckets_.size(); ++ended) {
    for (; begun < buckets_.size() && begun - ended < kBucketsUnderWay; ++begun) {
      Bucket& bucket = buckets_[begun];
      if (!bucket.owner) continue;
      const std::vector<at::Tensor> parameters = tensors_of(bucket);
      bucket.flat = at::empty({bucket.numbers}, parameters.front().options().requires_grad(false));
      if (is_here(bucket.owner)) {
        each_part(parameters, bucket.flat,
                  [&](size_t i, const at::Tensor& part) { part.copy_(parameters[i]); });
      }
      bucket.sum = replicas_.begin_broadcast(bucket.flat, *bucket.owner, Traffic::parameter);
    }
    Bucket& bucket = buckets_[ended];
    if (!bucket.owner) continue;
    bucket.sum->wait("the parameters that another replica updates");
    if (!is_here(bucket.owner)) {
      const std::vector<at::Tensor> parameters = tensors_of(bucket);
      each_part(parameters, bucket.flat,
                [&](size_t i, const at::Tensor& part) { parameters[i].copy_(part); });
    }
    bucket.flat.reset();
    bucket.sum.reset();
  }
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
  return !counted_elsewhere_.contains(&parameter);
}

}  // namespace attnres
