#include "attnres/ops/depth_attention/two_phase.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>
#include <utility>

#include "attnres/ops/depth_attention/fused.h"
#include "attnres/ops/depth_attention/kernel_phase_two.h"
#include "attnres/ops/recorded_operation.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

void require_first_derivative() {
  require(!at::GradMode::is_enabled(),
          "depth attention: the two-phase schedule cannot be differentiated twice; use "
          "depth_attention_composed, or take the first gradient without create_graph");
}

// Where the gradient of a source goes: null where it is not wanted, and whether it is to be added
// to what is there. The kernels write the storage's dtype: where that is not the slot's, into a
// tensor of its own, which is then added to the slot.
class SlotTarget {
 public:
  SlotTarget(const std::shared_ptr<GradientSlot>& slot, const Tensor& source, bool wanted) {
    if (!wanted || !slot) return;
    if (source.scalar_type() != compute_dtype(source)) {
      gradient_ = empty_like_rows(source);
      return;
    }
    accumulate_ = slot->gradient.defined();
    if (!accumulate_) slot->gradient = empty_like_rows(source);
    gradient_ = slot->gradient;
  }
  // After the kernel.
  void gather(GradientSlot* slot) {
    if (gradient_.defined() && !gradient_.is_same(slot->gradient)) slot->add(std::move(gradient_));
  }
  template <class Storage>
  Storage* pointer() const {
    return gradient_.defined() ? data<Storage>(gradient_) : nullptr;
  }
  bool accumulate() const { return accumulate_; }

 private:
  Tensor gradient_;
  bool accumulate_ = false;
};

struct SavedSource {
  SavedVariable value;
  Tensor inverse_rms;
  std::shared_ptr<GradientSlot> slot;
};

// Of the gradients that arrive, the first S are those of o, the others those of ell. The sources'
// go into their slots; the queries' and gains' are returned.
class PhaseOneNode : public torch::autograd::Node {
 public:
  std::string name() const override { return "DepthAttentionPhaseOneBackward"; }

  variable_list apply(variable_list&& gradients) override {
    require_first_derivative();
    require(!sources.empty(), "depth attention: phase 1's backward already ran");
    variable_list result(num_outputs());
    const size_t S = queries.size(), N = sources.size();
    if (std::none_of(gradients.begin(), gradients.end(),
                     [](const Tensor& gradient) { return gradient.defined(); })) {
      return result;
    }
    variable_list values;
    for (const SavedSource& source : sources) values.push_back(source.value.unpack());
    const Tensor& first = values[0];
    const int64_t width = first.size(-1), tokens = tokens_of(first);
    const auto options = weights.options();

    const Tensor grad_sum = at::empty({static_cast<int64_t>(S), tokens}, options);
    for (size_t s = 0; s < S; ++s) {
      if (!gradients[s].defined()) gradients[s] = at::zeros_like(first);
      const Tensor row = grad_sum.select(0, static_cast<int64_t>(s));
      gradients[S + s].defined() ? row.copy_(gradients[S + s].view({tokens})) : row.zero_();
    }
    std::vector<SlotTarget> targets;
    for (size_t n = 0; n < N; ++n) {
      targets.emplace_back(sources[n].slot, values[n], task_should_compute_output(n));
    }
    Tensor grad_queries;
    with_storage_type(first.scalar_type(), [&](auto storage) {
      using Storage = decltype(storage);
      using T = kernel::Compute<Storage>;
      const Rows<Storage> rows(values);
      const Rows<Storage> grad_outputs(at::TensorList(gradients).slice(0, S));
      std::vector<const T*> rms;
      std::vector<Storage*> grad_sources;
      Flags accumulate(N, false);
      for (size_t n = 0; n < N; ++n) {
        rms.push_back(data<const T>(sources[n].inverse_rms));
        grad_sources.push_back(targets[n].template pointer<Storage>());
        accumulate[n] = targets[n].accumulate();
      }
      const kernel::DepthAttentionBackward<Storage> op{
          .inputs = {rows.pointers(), data<const T>(folded_queries), static_cast<int64_t>(N),
                     static_cast<int64_t>(S), tokens, width},
          .inverse_rms_N = rms.data(),
          .scores_SNT = data<const T>(scores),
          .weights_SNT = data<const T>(weights),
          .grad_outputs_S = grad_outputs.pointers(),
          .grad_sum_ST = data<const T>(grad_sum),
          .grad_weights_SNT = nullptr,
          .grad_sources_N = grad_sources.data(),
          .accumulate_N = accumulate.data()};
      grad_queries =
          sum_over_tokens(tokens, static_cast<int64_t>(S) * width, weights.scalar_type(),
                          [&](int64_t begin, int64_t end, const Tensor& sums) {
                            kernel::depth_attention_backward(op, begin, end, data<T>(sums));
                          });
    });
    for (size_t n = 0; n < N; ++n) targets[n].gather(sources[n].slot.get());
    for (size_t s = 0; s < S; ++s) {
      const Tensor folded = grad_queries.narrow(0, static_cast<int64_t>(s) * width, width);
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
    require_first_derivative();
    require(kept.has_value(), "depth attention: a site's backward already ran");
    variable_list result(num_outputs());
    Tensor grad_x = gradients[0];
    const Tensor grad_sum = gradients.size() > 1 ? gradients[1] : Tensor();
    if (!grad_x.defined() && !grad_sum.defined()) return result;

    const Tensor kept_rows = kept->unpack(kept_is_output ? shared_from_this() : nullptr);
    const Tensor gain = norm_gain.unpack();
    const Tensor gain_compute = gain.to(rho.scalar_type()).contiguous();
    const Tensor factor =
        kept_is_output ? at::reciprocal(gain_compute) : at::ones_like(gain_compute);
    if (!grad_x.defined()) grad_x = at::zeros_like(kept_rows);
    const int64_t width = kept_rows.size(-1), tokens = tokens_of(kept_rows);
    const auto K = static_cast<int64_t>(recent.size());

    variable_list values;
    std::vector<SlotTarget> targets;
    const size_t first_edge = has_earlier ? 2 : 0;
    for (size_t k = 0; k < recent.size(); ++k) {
      values.push_back(recent[k].value.unpack(shared_from_this()));
      targets.emplace_back(recent[k].slot, values[k], task_should_compute_output(first_edge + k));
    }
    Tensor grad_partial, grad_earlier, grad_ell;
    if (has_partial) grad_partial = empty_like_rows(kept_rows);
    if (has_earlier) {
      grad_earlier = empty_like_rows(kept_rows);
      grad_ell = empty_per_token(kept_rows);
    }
    Tensor sums;
    with_storage_type(kept_rows.scalar_type(), [&](auto storage) {
      using Storage = decltype(storage);
      using T = kernel::Compute<Storage>;
      const Rows<Storage> rows(values);
      Rows<Storage> single(at::TensorList{});
      single.add(kept_rows);
      single.add(grad_x);
      if (grad_sum.defined()) single.add(grad_sum);
      std::vector<const T*> rms;
      std::vector<Storage*> grad_recent;
      Flags accumulate(K, false);
      for (int64_t k = 0; k < K; ++k) {
        rms.push_back(data<const T>(recent[k].inverse_rms));
        grad_recent.push_back(targets[k].template pointer<Storage>());
        accumulate[k] = targets[k].accumulate();
      }
      if (has_partial) grad_recent.back() = data<Storage>(grad_partial);
      const kernel::PhaseTwoBackward<Storage> op{
          .num_recent = K,
          .num_tokens = tokens,
          .width = width,
          .recent_K = rows.pointers(),
          .folded_query_D = data<const T>(folded_query),
          .gain_D = data<const T>(gain_compute),
          .norm_eps = norm_eps,
          .inverse_rms_K = rms.data(),
          .scores_KT = data<const T>(scores),
          .weights_KT = data<const T>(weights),
          .earlier_weight_T = has_earlier ? data<const T>(earlier_weight) : nullptr,
          .rho_T = data<const T>(rho),
          .kept_TD = single.pointers()[0],
          .kept_factor_D = data<const T>(factor),
          .grad_x_TD = single.pointers()[1],
          .grad_sum_TD = grad_sum.defined() ? single.pointers()[2] : nullptr,
          .grad_earlier_TD = has_earlier ? data<Storage>(grad_earlier) : nullptr,
          .grad_sum_T = has_earlier ? data<T>(grad_ell) : nullptr,
          .grad_recent_K = grad_recent.data(),
          .accumulate_K = accumulate.data()};
      sums = sum_over_tokens(
          tokens, 2 * width, rho.scalar_type(), [&](int64_t begin, int64_t end, const Tensor& to) {
            kernel::phase_two_backward(op, begin, end, data<T>(to), data<T>(to) + width);
          });
    });
    for (size_t k = 0; k < recent.size(); ++k) targets[k].gather(recent[k].slot.get());

    const Tensor query_value = query.unpack(), key_gain_value = key_gain.unpack();
    const Tensor folded = sums.narrow(0, 0, width);
    size_t i = 0;
    if (has_earlier) {
      result[i++] = grad_earlier;
      result[i++] = grad_ell;
    }
    i += recent.size() - (has_partial ? 1 : 0);  // in their slots
    for (int parts = has_partial ? num_partial_parts : 0; parts > 0; --parts) {
      result[i++] = grad_partial;
    }
    result[i++] = at::mul(folded, key_gain_value).to(query_value.scalar_type());
    result[i++] = at::mul(folded, query_value).to(key_gain_value.scalar_type());
    result[i++] = sums.narrow(0, width, width).to(gain.scalar_type());
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

// Whether h rho can be had back from x = gain * h rho.
template <class T>
bool invertible(const Tensor& gain) {
  constexpr T kSmallest = T(1e-20);
  const T* values = data<const T>(gain);
  return std::all_of(values, values + gain.numel(),
                     [](T value) { return std::abs(value) > kSmallest; });
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
  const int64_t width = first.size(-1), tokens = tokens_of(first);
  const auto N = static_cast<int64_t>(num_sources), S = static_cast<int64_t>(queries.size());
  const Tensor folded_queries =
      at::empty({S, width}, first.options().dtype(compute_dtype(first)).requires_grad(false));
  variable_list inputs;
  for (int64_t n = 0; n < N; ++n) inputs.push_back(sources[n].value());
  {
    const at::NoGradGuard no_grad;
    for (int64_t s = 0; s < S; ++s) {
      const DepthQuery& query = queries[s];
      folded_queries.select(0, s).copy_(
          fold_query(query.pseudo_query, query.key_gain, folded_queries.scalar_type()));
    }
  }
  for (const DepthQuery& query : queries) {
    inputs.push_back(query.pseudo_query);
    inputs.push_back(query.key_gain);
  }
  RecordedOperation recorded("attnres::depth_attention_phase_one", inputs);

  const Tensor scores = empty_per_token(first, S * N), weights = empty_per_token(first, S * N);
  const Tensor max = empty_per_token(first, S), sum = empty_per_token(first, S);
  std::vector<EarlierSources> results(S);
  for (int64_t s = 0; s < S; ++s) {
    results[s] = {empty_like_rows(first), max.select(0, s), sum.select(0, s)};
  }
  with_storage_type(first.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    Rows<Storage> rows(at::TensorList{});
    std::vector<T*> rms;
    std::vector<Storage*> outputs;
    Flags rms_known(N, true);
    for (int64_t n = 0; n < N; ++n) {
      rows.add(sources[n].value());
      rms_known[n] = sources[n].inverse_rms.defined();
      if (!rms_known[n]) sources[n].inverse_rms = empty_per_token(first);
      rms.push_back(data<T>(sources[n].inverse_rms));
    }
    for (const EarlierSources& result : results) outputs.push_back(data<Storage>(result.output));
    const kernel::DepthAttentionForward<Storage> op{
        .inputs = {rows.pointers(), data<const T>(folded_queries), N, S, tokens, width},
        .eps = eps,
        .complete = false,
        .inverse_rms_N = rms.data(),
        .rms_known_N = rms_known.data(),
        .outputs_S = outputs.data(),
        .max_ST = data<T>(max),
        .sum_ST = data<T>(sum),
        .scores_SNT = data<T>(scores),
        .weights_SNT = data<T>(weights)};
    parallel_over_tokens(tokens, (N + S) * width, [&](int64_t begin, int64_t end) {
      kernel::depth_attention_forward(op, begin, end);
    });
  });
  variable_list outputs;
  for (const EarlierSources& result : results) outputs.push_back(result.output);
  recorded.wrote(outputs);

  if (!records(inputs)) return results;
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
  node->scores = scores;
  node->weights = weights;
  for (EarlierSources& result : results) torch::autograd::set_history(result.output, node);
  for (EarlierSources& result : results) torch::autograd::set_history(result.sum, node);
  return results;
}

SiteInput depth_attention_phase_two(const SiteSources& site, const DepthQuery& query, double eps,
                                    const Tensor& norm_gain, double norm_eps) {
  variable_list inputs;  // as PhaseTwoNode returns their gradients
  variable_list recent;
  std::vector<DepthSource*> finished;
  if (site.earlier != nullptr) inputs = {site.earlier->output, site.earlier->sum};
  if (site.sources != nullptr) {
    for (size_t n = site.first_recent; n < site.sources->size(); ++n) {
      finished.push_back(&(*site.sources)[n]);
      recent.push_back(finished.back()->value());
      inputs.push_back(recent.back());
    }
  }
  const bool formed = site.partial.defined() && site.pending.defined();
  const bool has_partial = site.partial.defined() || site.pending.defined();
  if (has_partial) {
    if (site.partial.defined()) inputs.push_back(site.partial);
    if (site.pending.defined()) inputs.push_back(site.pending);
    recent.push_back(inputs.back());
  }
  Tensor like;  // every other tensor has its shape and dtype
  if (site.earlier != nullptr) like = site.earlier->output;
  if (!recent.empty()) like = recent[0];
  require(like.defined(), "depth attention: a site without sources");
  inputs.insert(inputs.end(), {query.pseudo_query, query.key_gain, norm_gain});
  RecordedOperation recorded("attnres::depth_attention_phase_two", inputs);
  const bool recording = records(inputs);

  const at::ScalarType compute = compute_dtype(like);
  const int64_t width = like.size(-1), tokens = tokens_of(like);
  const auto K = static_cast<int64_t>(recent.size());
  Tensor folded_query, gain;
  {
    const at::NoGradGuard no_grad;
    folded_query = fold_query(query.pseudo_query, query.key_gain, compute);
    gain = norm_gain.to(compute).contiguous();
  }
  SiteInput result;
  result.x = empty_like_rows(like);
  if (formed) result.partial = empty_like_rows(like);
  const Tensor scores = empty_per_token(like, K), weights = empty_per_token(like, K);
  const Tensor rho = empty_per_token(like);
  const Tensor earlier_weight = site.earlier == nullptr ? Tensor() : empty_per_token(like);
  Tensor partial_rms = has_partial ? empty_per_token(like) : Tensor(), normalized;

  with_storage_type(like.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    if (recording && !invertible<T>(gain)) normalized = empty_like_rows(like);
    const Rows<Storage> rows(recent);
    Rows<Storage> single(at::TensorList{});
    if (site.earlier != nullptr) single.add(site.earlier->output);
    if (formed) {
      single.add(site.partial);
      single.add(site.pending);
    }
    const int64_t at = site.earlier != nullptr ? 1 : 0;
    std::vector<T*> rms;
    Flags rms_known(K, false);
    for (int64_t k = 0; k < K; ++k) {
      const bool is_partial = has_partial && k == K - 1;
      Tensor& inverse_rms = is_partial ? partial_rms : finished[k]->inverse_rms;
      rms_known[k] = !is_partial && inverse_rms.defined();
      if (!inverse_rms.defined()) inverse_rms = empty_per_token(like);
      rms.push_back(data<T>(inverse_rms));
    }
    const kernel::PhaseTwoForward<Storage> op{
        .num_recent = K,
        .num_tokens = tokens,
        .width = width,
        .earlier_TD = site.earlier != nullptr ? single.pointers()[0] : nullptr,
        .max_T = site.earlier != nullptr ? data<const T>(site.earlier->max) : nullptr,
        .sum_T = site.earlier != nullptr ? data<const T>(site.earlier->sum) : nullptr,
        .recent_K = rows.pointers(),
        .partial_TD = formed ? single.pointers()[at] : nullptr,
        .pending_TD = formed ? single.pointers()[at + 1] : nullptr,
        .sum_TD = formed ? data<Storage>(result.partial) : nullptr,
        .folded_query_D = data<const T>(folded_query),
        .eps = eps,
        .gain_D = data<const T>(gain),
        .norm_eps = norm_eps,
        .inverse_rms_K = rms.data(),
        .rms_known_K = rms_known.data(),
        .x_TD = data<Storage>(result.x),
        .normalized_TD = normalized.defined() ? data<Storage>(normalized) : nullptr,
        .scores_KT = data<T>(scores),
        .weights_KT = data<T>(weights),
        .earlier_weight_T = site.earlier != nullptr ? data<T>(earlier_weight) : nullptr,
        .rho_T = data<T>(rho)};
    parallel_over_tokens(tokens, (K + 3) * width, [&](int64_t begin, int64_t end) {
      kernel::phase_two_forward(op, begin, end);
    });
  });
  recorded.wrote({result.x, result.partial});

  if (has_partial && !formed) result.partial = recent.back();
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
  node->folded_query = folded_query;
  node->scores = scores;
  node->weights = weights;
  node->earlier_weight = earlier_weight;
  node->rho = rho;
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
    node->recent.push_back({SavedVariable(result.partial, true), partial_rms, nullptr});
  }
  node->kept_is_output = !normalized.defined();
  node->kept.emplace(node->kept_is_output ? result.x : normalized, node->kept_is_output);
  return result;
}

}  // namespace attnres
