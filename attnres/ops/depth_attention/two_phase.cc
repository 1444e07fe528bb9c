#include "attnres/ops/depth_attention/two_phase.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "attnres/ops/depth_attention/fused.h"
#include "attnres/ops/depth_attention/phases.h"
#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/recorded_operation.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Where a source's gradient goes, if it is wanted: into its slot.
GradientTarget slot_target(const std::shared_ptr<GradientSlot>& slot, const Tensor& source,
                           bool wanted) {
  if (!wanted || !slot) return {};
  const bool accumulate = slot->begin(source);
  return {slot->gradient, accumulate};
}

struct SavedSource {
  SavedVariable value;
  Tensor inverse_rms;
  std::shared_ptr<GradientSlot> slot;
};

// Of the gradients that arrive, the first S are those of o. The others, along the edges of ell, are
// what phase 2 tells of its scores instead of ell's gradients (JointSoftmax). The sources' go into
// their slots; the queries' and gains' are returned.
class PhaseOneNode : public torch::autograd::Node {
 public:
  std::string name() const override { return "DepthAttentionPhaseOneBackward"; }

  variable_list apply(variable_list&& gradients) override {
    require_first_derivative("depth_attention");
    require(!sources.empty(), "depth attention: phase 1's backward already ran");
    variable_list result(num_outputs());
    const size_t S = queries.size(), N = sources.size();
    if (std::none_of(gradients.begin(), gradients.end(),
                     [](const Tensor& gradient) { return gradient.defined(); })) {
      return result;
    }
    variable_list values, inverse_rms;
    std::vector<GradientTarget> targets;
    for (size_t n = 0; n < N; ++n) {
      values.push_back(sources[n].value.unpack());
      inverse_rms.push_back(sources[n].inverse_rms);
      targets.push_back(slot_target(sources[n].slot, values[n], task_should_compute_output(n)));
    }
    const Tensor others = empty_per_token(values[0], static_cast<int64_t>(S));
    for (size_t s = 0; s < S; ++s) {
      if (!gradients[s].defined()) gradients[s] = at::zeros_like(values[0]);
      const Tensor row = others.select(0, static_cast<int64_t>(s));
      gradients[S + s].defined() ? row.copy_(gradients[S + s]) : row.zero_();
    }
    const Tensor grad_queries = phase_one_backward(values, inverse_rms, folded_queries, scores,
                                                   weights, at::TensorList(gradients).slice(0, S),
                                                   {.other_grad_scores = others}, targets);
    for (size_t s = 0; s < S; ++s) {
      const Tensor folded = grad_queries.select(0, static_cast<int64_t>(s));
      const Tensor query = queries[s].unpack(), key_gain = key_gains[s].unpack();
      result[N + 2 * s] = at::mul(folded, key_gain).to(query.scalar_type());
      result[N + 2 * s + 1] = at::mul(folded, query).to(key_gain.scalar_type());
    }
    return result;
  }

  void release_variables() override {
    sources.clear();
    scores.reset();
    weights.reset();
  }

  std::vector<SavedSource> sources;
  std::vector<SavedVariable> queries, key_gains;
  Tensor folded_queries, scores, weights;
};

// A site's phase 2. The gradients that arrive are those of x and of the partial sum.
class PhaseTwoNode : public torch::autograd::Node {
 public:
  std::string name() const override { return "DepthAttentionPhaseTwoBackward"; }

  variable_list apply(variable_list&& gradients) override {
    require_first_derivative("depth_attention");
    require(kept.has_value(), "depth attention: a site's backward already ran");
    variable_list result(num_outputs());
    Tensor grad_x = gradients[0];
    const Tensor grad_sum = gradients.size() > 1 ? gradients[1] : Tensor();
    if (!grad_x.defined() && !grad_sum.defined()) return result;

    const Tensor kept_rows = kept->unpack(kept_is_output ? shared_from_this() : nullptr);
    const Tensor gain = norm_gain.unpack();
    if (!grad_x.defined()) grad_x = at::zeros_like(kept_rows);
    PhaseTwoInputs inputs{.query_D = folded_query,
                          .norm_gain_D = gain.to(rho.scalar_type()).contiguous(),
                          .norm_eps = norm_eps};
    const PhaseTwoResult saved{.x = kept_is_output ? kept_rows : Tensor(),
                               .normalized = kept_is_output ? Tensor() : kept_rows,
                               .scores = scores,
                               .weights = weights,
                               .earlier_weight = earlier_weight,
                               .rho = rho};
    variable_list inverse_rms;
    std::vector<GradientTarget> targets;
    const size_t first_edge = has_earlier ? 2 : 0;
    for (size_t k = 0; k < recent.size(); ++k) {
      inputs.recent.push_back(recent[k].value.unpack(shared_from_this()));
      inverse_rms.push_back(recent[k].inverse_rms);
      targets.push_back(slot_target(recent[k].slot, inputs.recent[k],
                                    task_should_compute_output(first_edge + k)));
    }
    if (has_partial) targets.back() = {empty_like_rows(kept_rows)};
    const PhaseTwoGradients grads =
        phase_two_backward(inputs, inverse_rms, has_earlier, saved, grad_x, grad_sum, targets);

    const Tensor query_value = query.unpack(), key_gain_value = key_gain.unpack();
    size_t i = 0;
    if (has_earlier) {
      result[i++] = grads.earlier;
      result[i++] = grads.scores;
    }
    i += recent.size() - (has_partial ? 1 : 0);  // in their slots
    for (int parts = has_partial ? num_partial_parts : 0; parts > 0; --parts) {
      result[i++] = targets.back().gradient;
    }
    result[i++] = at::mul(grads.query_D, key_gain_value).to(query_value.scalar_type());
    result[i++] = at::mul(grads.query_D, query_value).to(key_gain_value.scalar_type());
    result[i++] = grads.norm_gain_D.to(gain.scalar_type());
    return result;
  }

  void release_variables() override {
    recent.clear();
    kept.reset();
  }

  bool has_earlier = false, has_partial = false;
  int num_partial_parts = 0;  // 2 where the partial sum was formed here
  double norm_eps = 0;
  std::vector<SavedSource> recent;  // the partial sum last, without a slot
  SavedVariable query, key_gain, norm_gain;
  std::optional<SavedVariable> kept;  // x, or h rho where a gain is zero
  bool kept_is_output = true;
  Tensor folded_query, scores, weights, earlier_weight, rho;
};

// rows[i] of contiguous rows that are not differentiated, without the dispatcher's cost: a decoded
// token passes here at every site.
Tensor row(const Tensor& rows, int64_t i) {
  Tensor one = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(rows.storage()),
                                                        rows.key_set(), rows.dtype());
  c10::TensorImpl* impl = one.unsafeGetTensorImpl();
  impl->set_storage_offset(rows.storage_offset() + i * rows.stride(0));
  impl->set_sizes_contiguous(rows.sizes().slice(1));
  return one;
}

// As kernels read it; without the dispatcher where it is that already.
Tensor rows_in(const Tensor& tensor, at::ScalarType compute) {
  return tensor.scalar_type() == compute ? tensor.contiguous() : tensor.to(compute).contiguous();
}

template <class T>
void multiply(const Tensor& a, const Tensor& b, T* product) {
  const T *x = a.const_data_ptr<T>(), *y = b.const_data_ptr<T>();
  for (int64_t i = 0; i < a.numel(); ++i) product[i] = x[i] * y[i];
}

// [S, D]: fold_query of every query.
Tensor fold_queries(const std::vector<DepthQuery>& queries, at::ScalarType compute) {
  const int64_t S = std::ssize(queries), D = queries[0].pseudo_query.numel();
  const Tensor folded_SD = at::empty({S, D}, at::TensorOptions().dtype(compute));
  for (int64_t s = 0; s < S; ++s) {
    const Tensor query = rows_in(queries[s].pseudo_query, compute);
    const Tensor key_gain = rows_in(queries[s].key_gain, compute);
    if (compute == at::kDouble) {
      multiply(query, key_gain, folded_SD.mutable_data_ptr<double>() + s * D);
    } else {
      multiply(query, key_gain, folded_SD.mutable_data_ptr<float>() + s * D);
    }
  }
  return folded_SD;
}

// Whether h rho can be had back from x = gain * h rho.
bool invertible(const Tensor& gain) {
  constexpr double kSmallest = 1e-20;
  return gain.abs().gt(kSmallest).all().item<bool>();
}

}  // namespace

DepthSource::DepthSource(const Tensor& value) : value_(with_slot(value)), slot_(slot_of(value_)) {}

std::vector<EarlierSources> depth_attention_phase_one(std::vector<DepthSource>& sources,
                                                      size_t num_sources,
                                                      const std::vector<DepthQuery>& queries,
                                                      double eps) {
  require(num_sources > 0 && num_sources <= sources.size() && !queries.empty(),
          "depth attention: phase 1 needs at least one source and one query");
  const Tensor& first = sources[0].value();
  const auto N = static_cast<int64_t>(num_sources), S = static_cast<int64_t>(queries.size());
  variable_list inputs;
  for (int64_t n = 0; n < N; ++n) inputs.push_back(sources[n].value());
  for (const DepthQuery& query : queries) {
    inputs.push_back(query.pseudo_query);
    inputs.push_back(query.key_gain);
  }
  RecordedOperation recorded("attnres::depth_attention_phase_one", [&] { return inputs; });
  const bool recording = records(inputs);
  Tensor folded_queries;
  {
    const at::NoGradGuard no_grad;
    folded_queries = fold_queries(queries, compute_dtype(first));
  }

  std::vector<InverseRms> inverse_rms;
  for (int64_t n = 0; n < N; ++n) {
    Tensor& values = sources[n].inverse_rms;
    const bool known = values.defined();
    if (!known) values = empty_per_token(first);
    inverse_rms.push_back({values, known});
  }
  const PhaseOneResult result = allocate_phase_one(first, N, S, recording);
  phase_one_forward(at::TensorList(inputs).slice(0, num_sources), inverse_rms, folded_queries, eps,
                    result);
  std::vector<EarlierSources> results;
  for (int64_t s = 0; s < S; ++s) {
    results.push_back(
        {result.outputs[s], row(result.max, s), row(result.sum, s), row(folded_queries, s)});
  }
  recorded.wrote(result.outputs);

  if (!recording) return results;
  const auto node = std::make_shared<PhaseOneNode>();
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (int64_t n = 0; n < N; ++n) {
    node->sources.push_back({SavedVariable(sources[n].value(), /*is_output=*/false),
                             sources[n].inverse_rms, sources[n].slot()});
  }
  for (const DepthQuery& query : queries) {
    node->queries.emplace_back(query.pseudo_query, false);
    node->key_gains.emplace_back(query.key_gain, false);
  }
  node->folded_queries = folded_queries;
  node->scores = result.scores;
  node->weights = result.weights;
  for (EarlierSources& site : results) torch::autograd::set_history(site.output, node);
  for (EarlierSources& site : results) torch::autograd::set_history(site.sum, node);
  return results;
}

SiteInput depth_attention_phase_two(const SiteSources& site, const DepthQuery& query, double eps,
                                    const Tensor& norm_gain, double norm_eps) {
  variable_list recent;
  std::vector<DepthSource*> finished;
  if (site.sources != nullptr) {
    for (size_t n = site.first_recent; n < site.sources->size(); ++n) {
      finished.push_back(&(*site.sources)[n]);
      recent.push_back(finished.back()->value());
    }
  }
  const bool formed = site.partial.defined() && site.pending.defined();
  const bool has_partial = site.partial.defined() || site.pending.defined();
  if (has_partial) recent.push_back(site.pending.defined() ? site.pending : site.partial);
  Tensor like;  // every other tensor has its shape and dtype
  if (site.earlier != nullptr) like = site.earlier->output;
  if (!recent.empty()) like = recent[0];
  require(like.defined(), "depth attention: a site without sources");
  // As PhaseTwoNode returns their gradients.
  const auto list_inputs = [&] {
    variable_list all;
    if (site.earlier != nullptr) all = {site.earlier->output, site.earlier->sum};
    for (const DepthSource* source : finished) all.push_back(source->value());
    if (site.partial.defined()) all.push_back(site.partial);
    if (site.pending.defined()) all.push_back(site.pending);
    all.insert(all.end(), {query.pseudo_query, query.key_gain, norm_gain});
    return all;
  };
  RecordedOperation recorded("attnres::depth_attention_phase_two", list_inputs);
  const variable_list inputs = at::GradMode::is_enabled() ? list_inputs() : variable_list();
  const bool recording = records(inputs);

  PhaseTwoInputs read{.partial = formed ? site.partial : Tensor(),
                      .pending = formed ? site.pending : Tensor(),
                      .eps = eps,
                      .norm_eps = norm_eps};
  {
    const at::NoGradGuard no_grad;
    const at::ScalarType compute = compute_dtype(like);
    read.query_D = site.earlier != nullptr ? site.earlier->folded_query
                                           : fold_queries({query}, compute).view({-1});
    read.norm_gain_D = rows_in(norm_gain, compute);
  }
  if (site.earlier != nullptr) {
    read.earlier = site.earlier->output;
    read.max = site.earlier->max;
    read.sum = site.earlier->sum;
  }
  std::vector<InverseRms> inverse_rms;
  for (DepthSource* source : finished) {
    const bool known = source->inverse_rms.defined();
    if (!known) source->inverse_rms = empty_per_token(like);
    inverse_rms.push_back({source->inverse_rms, known});
  }
  SiteInput result;
  if (has_partial) {
    result.partial = formed ? empty_like_rows(like) : recent.back();
    recent.back() = result.partial;
    inverse_rms.push_back({recording ? empty_per_token(like) : Tensor(), false});
  }
  read.recent = recent;
  PhaseTwoResult kept;
  if (recording) {
    kept = allocate_phase_two(like, std::ssize(recent), site.earlier != nullptr,
                              /*has_norm=*/true, /*for_backward=*/true);
  } else {
    kept.x = empty_like_rows(like);
  }
  if (recording && !invertible(read.norm_gain_D)) kept.normalized = empty_like_rows(like);
  phase_two_forward(read, inverse_rms, kept);
  result.x = kept.x;
  recorded.wrote({result.x, formed ? result.partial : Tensor()});

  if (!recording) return result;
  const auto node = std::make_shared<PhaseTwoNode>();
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  node->has_earlier = site.earlier != nullptr;
  node->has_partial = has_partial;
  node->num_partial_parts = formed ? 2 : 1;
  node->norm_eps = norm_eps;
  node->query = SavedVariable(query.pseudo_query, false);
  node->key_gain = SavedVariable(query.key_gain, false);
  node->norm_gain = SavedVariable(norm_gain, false);
  node->folded_query = read.query_D;
  node->scores = kept.scores;
  node->weights = kept.weights;
  node->earlier_weight = kept.earlier_weight;
  node->rho = kept.rho;
  torch::autograd::set_history(result.x, node);
  if (has_partial) {
    // Where nothing was added it is the same tensor, but its gradient comes through this node,
    // which adds to it.
    if (!formed) result.partial = same_data(result.partial);
    torch::autograd::set_history(result.partial, node);
  }
  for (DepthSource* source : finished) {
    node->recent.push_back(
        {SavedVariable(source->value(), false), source->inverse_rms, source->slot()});
  }
  if (has_partial) {
    node->recent.push_back(
        {SavedVariable(result.partial, true), inverse_rms.back().values, nullptr});
  }
  node->kept_is_output = !kept.normalized.defined();
  node->kept.emplace(node->kept_is_output ? result.x : kept.normalized, node->kept_is_output);
  return result;
}

}  // namespace attnres
