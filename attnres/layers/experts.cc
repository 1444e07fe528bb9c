#include "attnres/layers/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "attnres/layers/tensor_parallel.h"
#include "attnres/ops/composed.h"
#include "attnres/ops/matmul/matmul.h"
#include "attnres/ops/rms_norm/rms_norm.h"
#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"
#include "attnres/support/read_ahead.h"

namespace attnres {
namespace {

constexpr size_t kReadAhead = 16;  // experts

// The weights of the experts at these indices, as maps of tensors of this dtype take them. The
// gradient of all slices together is one tensor of the stack's size; that of a single one is too,
// so that each alone would cost it again.
std::vector<MapWeight> weights_at(const ProductWeight& stack, const std::vector<int64_t>& indices,
                                  at::ScalarType dtype) {
  const at::Tensor& parameters = stack.whole();
  std::vector<MapWeight> weights;
  if (stack.packed().defined()) {
    for (const int64_t i : indices) {
      PackedMatrix part = stack.packed();
      part.bytes = part.bytes.select(0, i);
      weights.emplace_back(parameters, part);
    }
    return weights;
  }
  const at::Tensor values = stack.values(dtype);
  std::vector<at::Tensor> all;
  if (at::GradMode::is_enabled() && parameters.requires_grad()) all = parameters.unbind(0);
  for (const int64_t i : indices) {
    const at::Tensor parameter = all.empty() ? parameters.select(0, i) : all[i];
    weights.emplace_back(parameter, values.is_same(parameters) ? parameter : values.select(0, i));
  }
  return weights;
}

void ask_for(const MapWeight& weight) {
  if (weight.packed.defined()) {
    read_ahead(weight.packed.bytes.const_data_ptr(), weight.packed.bytes.nbytes());
  }
}

// How many of the numbers are 0, 1 .. count - 1. A device would have to tell the host how many
// `bincount` found.
at::Tensor count_each(const at::Tensor& numbers, int64_t count) {
  if (numbers.is_cpu()) return at::bincount(numbers, /*weights=*/{}, /*minlength=*/count);
  return at::zeros({count}, numbers.options()).scatter_add_(0, numbers, at::ones_like(numbers));
}

}  // namespace

void ExpertsSettings::resolve(int64_t ffn_width, const std::string& path) {
  require_usage(chosen_groups <= groups, "{}.chosen_groups: {} cannot be chosen of {} groups", path,
                chosen_groups, groups);
  require_usage(count == 0 || chosen <= count, "{}.chosen: {} cannot be chosen of {} experts", path,
                chosen, count);
  const bool has_groups = groups > 1 && count > 0;
  require_usage(!has_groups || (count % groups == 0 && count / groups >= 2),
                "{}.groups: {} experts are not {} groups of two or more", path, count, groups);
  require_usage(!has_groups || chosen <= chosen_groups * (count / groups),
                "{}.chosen: {} cannot be chosen of {} groups of {} experts", path, chosen,
                chosen_groups, has_groups ? count / groups : count);
  if (width == 0) width = std::max<int64_t>(ffn_width / chosen, 1);
}

Experts::Experts(const ExpertsSettings& settings, const Activation& activation,
                 const LayerPlace& place, ParameterRegistry& parameters)
    : settings_(settings),
      width_(place.width),
      activation_(activation),
      norm_eps_(place.norm_eps),
      group_(parameters.group()) {
  const int site = place.site;
  const Init inner = place.inner_init(), last = place.last_init();
  const int64_t E = settings.count, F = settings.width, D = place.width;
  const int64_t I = settings.latent_width > 0 ? settings.latent_width : D;
  const auto add_stack = [&](const char* role, int64_t out, int64_t in, const Init& init,
                             Shard shard) {
    return ProductWeight(
        parameters.add_weight(site, role, ParameterKind::matrix, {E, out, in}, init, shard));
  };
  gate_ = parameters.add(site, "gate", ParameterKind::matrix, {E, D}, place.plain_init());
  bias_ = parameters.add(site, "e_score_correction_bias", ParameterKind::router_bias, {E},
                         Init::zeros());
  const auto add_bias = [&](const char* role, at::IntArrayRef sizes, Shard shard = Shard::none) {
    return parameters.add(site, role, ParameterKind::bias, sizes, Init::zeros(), shard);
  };
  if (settings.router_bias) gate_bias_ = add_bias("gate_bias", {E});
  if (settings.bias) {
    b1_ = add_bias("w1_bias", {E, F}, Shard::outputs);
    b3_ = add_bias("w3_bias", {E, F}, Shard::outputs);
    const at::Tensor b2 = add_bias("w2_bias", {E, I});
    if (parameters.part().rank == 0) b2_ = b2;
  }
  w1_ = add_stack("w1", F, I, inner, Shard::outputs);
  w2_ = add_stack("w2", I, F, settings.latent_width > 0 ? inner : last, Shard::inputs);
  w3_ = add_stack("w3", F, I, inner, Shard::outputs);
  if (const int64_t shared = settings.shared * F; shared > 0) {
    shared_w1_and_w3_ = LinearGroup(parameters, site, D,
                                    {{"shared_w1", shared, inner, Shard::outputs},
                                     {"shared_w3", shared, inner, Shard::outputs}});
    shared_w2_ = Linear(parameters, site, shared, {"shared_w2", D, last, Shard::inputs});
  }
  if (settings.latent_width > 0) {
    latent_down_ = Linear(parameters, site, D, {"routed_expert_down_proj", I, inner});
    if (settings.latent_norm) {
      latent_norm_ =
          parameters.add(site, "routed_expert_norm", ParameterKind::norm_gain, {I}, Init::ones());
    }
    latent_up_ = Linear(parameters, site, I, {"routed_expert_up_proj", D, last});
  }
  settings_.width /= parameters.part().size;
}

SublayerOutput Experts::forward(const SublayerInput& input, const SequenceContext& context) const {
  const at::Tensor& x_TD = input.x;
  const Routing routing = route(x_TD, context);
  at::Tensor y_TD;
  if (latent_down_.defined()) {
    y_TD = from_latent(sum_of_chosen(latent_down_(x_TD), routing));
  } else {
    y_TD = sum_of_chosen(x_TD, routing);
  }
  if (shared_w2_.defined()) {
    const std::vector<at::Tensor> hidden = shared_w1_and_w3_(x_TD);
    y_TD = y_TD + shared_w2_(activation_(hidden[0], hidden[1]));
  }
  return {y_TD, routing.load_E};
}

// The norm needs whole sums. Each process of a group takes those of some tokens back to the full
// width, and zeros of all others: that is its part of y.
at::Tensor Experts::from_latent(const at::Tensor& part_TI) const {
  if (!settings_.latent_norm) return latent_up_(part_TI);
  const auto up = [&](const at::Tensor& sum_TI) {
    return latent_up_(rms_norm(sum_TI, latent_norm_, norm_eps_));
  };
  if (group_ == nullptr) return up(part_TI);
  const RowRange own = rows_of_part(group_->part(), part_TI.size(0));
  const int64_t after = part_TI.size(0) - own.first - own.count;
  return at::constant_pad_nd(up(sum_own_tokens(*group_, part_TI)), {0, 0, own.first, after});
}

SublayerCost Experts::cost(int64_t /*context*/) const {
  const ExpertsSettings& s = settings_;
  const auto width = static_cast<double>(width_), chosen = static_cast<double>(s.chosen);
  const auto hidden = static_cast<double>((s.chosen + s.shared) * s.width);
  const double read = s.latent_width > 0 ? static_cast<double>(s.latent_width) : width;
  // As of a feed-forward; the scores; and what experts read, in their order, and wrote, and
  // weights.
  const auto count = static_cast<double>(s.count);
  const double all = activation_.kept() * static_cast<double>((s.count + s.shared) * s.width);
  return {.kept = activation_.kept() * hidden + 4 * count + (2 * chosen + 1) * read + width,
          .for_maps = hidden + chosen * read,
          .widest = hidden,
          .active_experts = chosen / count,
          .kept_by_all_experts = all + 4 * count + (2 * count + 1) * read + width};
}

at::Tensor Experts::in_chosen_groups(const at::Tensor& biased_TE) const {
  if (settings_.chosen_groups == settings_.groups) return biased_TE;
  const at::Tensor biased_TGE = biased_TE.unflatten(-1, {settings_.groups, -1});
  const at::Tensor sums_TG = std::get<0>(biased_TGE.topk(2, -1)).sum(-1);
  const at::Tensor chosen_TG = std::get<1>(sums_TG.topk(settings_.chosen_groups, -1));
  const at::Tensor left_out_TG = at::ones_like(sums_TG, at::kBool).scatter(-1, chosen_TG, false);
  return biased_TGE.masked_fill(left_out_TG.unsqueeze(-1), -std::numeric_limits<double>::infinity())
      .flatten(-2);
}

Experts::Routing Experts::route(const at::Tensor& x_TD, const SequenceContext& context) const {
  const at::ScalarType dtype = compute_dtype(x_TD);
  at::Tensor logits_TE = linear_map(x_TD.to(dtype), gate_.to(dtype));
  if (gate_bias_.defined()) logits_TE = logits_TE + gate_bias_.to(dtype);
  const at::Tensor scores_TE =
      settings_.has_softmax_scores() ? at::softmax(logits_TE, -1) : at::sigmoid(logits_TE);
  const at::Tensor chosen_TC =
      std::get<1>(in_chosen_groups(scores_TE.detach() + bias_).topk(settings_.chosen, -1));
  const at::Tensor scores_TC = scores_TE.gather(-1, chosen_TC);
  const at::Tensor weights_TC =
      settings_.renormalize
          ? scores_TC * (settings_.scaling / (scores_TC.sum(-1, /*keepdim=*/true) + 1e-20))
          : scores_TC * settings_.scaling;
  at::Tensor kept_TC = chosen_TC;  // autograd keeps the choices as they are
  if (context.spans != nullptr && !context.spans->fillers().empty()) {
    kept_TC = chosen_TC.clone();
    for (const FillerRows& rows : context.spans->fillers()) {
      kept_TC.narrow(0, rows.first, rows.count).fill_(settings_.count);
    }
  }
  const at::Tensor load = count_each(kept_TC.flatten(), settings_.count + 1);
  return {kept_TC, weights_TC.to(x_TD.scalar_type()), load.narrow(0, 0, settings_.count)};
}

at::Tensor Experts::sum_of_chosen(const at::Tensor& x_TI, const Routing& routing) const {
  if (!x_TI.is_cpu()) {
    note_composed("experts", x_TI);
    return sum_of_all(x_TI, routing);
  }
  std::vector<int64_t> used, loads;
  int64_t all = 0;
  const int64_t* load = routing.load_E.const_data_ptr<int64_t>();
  for (int64_t e = 0; e < settings_.count; ++e) {
    if (load[e] == 0) continue;
    used.push_back(e);
    loads.push_back(load[e]);
    all += load[e];
  }
  if (all == 0) return at::zeros_like(x_TI);
  // The choices of all tokens, expert by expert, and of one expert in the order of the tokens;
  // those of fillers would come last.
  const at::Tensor choices = routing.chosen_TC.flatten().argsort(/*stable=*/true).narrow(0, 0, all);
  const at::Tensor tokens = choices.floor_divide(settings_.chosen);
  const at::ScalarType dtype = x_TI.scalar_type();
  const std::vector<MapWeight> w1 = weights_at(w1_, used, dtype), w2 = weights_at(w2_, used, dtype),
                               w3 = weights_at(w3_, used, dtype);
  std::vector<at::Tensor> rows = x_TI.index_select(0, tokens).split_with_sizes(loads);
  // Experts that memory does not hold come from the disk together, not piece by piece.
  const bool is_read = w1_.packed().defined() && reads_from_disk();
  const auto ask_for_expert = [&](size_t i) {
    if (!is_read || i >= used.size()) return;
    for (const MapWeight& weight : {w1[i], w3[i], w2[i]}) ask_for(weight);
  };
  for (size_t i = 0; i < kReadAhead; ++i) ask_for_expert(i);
  for (size_t i = 0; i < used.size(); ++i) {
    ask_for_expert(i + kReadAhead);
    rows[i] = expert(used[i], rows[i], w1[i], w3[i], w2[i]);
  }
  const at::Tensor weights = routing.weights_TC.flatten().index_select(0, choices).unsqueeze(-1);
  return at::zeros_like(x_TI).index_add(0, tokens, weights * at::cat(rows));
}

at::Tensor Experts::expert(int64_t e, const at::Tensor& x, const MapWeight& w1, const MapWeight& w3,
                           const MapWeight& w2) const {
  const auto biased = [&](const at::Tensor& y, const at::Tensor& bias) {
    return bias.defined() ? y + bias.select(0, e).to(y.scalar_type()) : y;
  };
  const std::vector<at::Tensor> hidden = linear_maps(x, {w1, w3});
  return biased(linear_map(activation_(biased(hidden[0], b1_), biased(hidden[1], b3_)), w2), b2_);
}

at::Tensor Experts::sum_of_all(const at::Tensor& x_TI, const Routing& routing) const {
  const at::Tensor weights_TE =
      at::zeros({x_TI.size(0), settings_.count + 1}, routing.weights_TC.options())
          .scatter(1, routing.chosen_TC, routing.weights_TC);
  const at::Tensor left_out_TE = at::ones(weights_TE.sizes(), weights_TE.options().dtype(at::kBool))
                                     .scatter(1, routing.chosen_TC, false);
  std::vector<int64_t> all(settings_.count);
  std::iota(all.begin(), all.end(), 0);
  const at::ScalarType dtype = x_TI.scalar_type();
  const std::vector<MapWeight> w1 = weights_at(w1_, all, dtype), w2 = weights_at(w2_, all, dtype),
                               w3 = weights_at(w3_, all, dtype);
  at::Tensor sum_TI = at::zeros_like(x_TI);
  for (const int64_t e : all) {
    const at::Tensor left_out_T1 = left_out_TE.narrow(1, e, 1);
    const at::Tensor y_TI = expert(e, x_TI.masked_fill(left_out_T1, 0), w1[e], w3[e], w2[e]);
    sum_TI = sum_TI + weights_TE.narrow(1, e, 1) * y_TI.masked_fill(left_out_T1, 0);
  }
  return sum_TI;
}

void balance(at::Tensor& bias, const at::Tensor& load, double rate) {
  const at::NoGradGuard not_recorded;
  const at::Tensor load_E = load.to(at::kDouble);
  bias.add_(at::sign(load_E.mean() - load_E).to(bias.options()), rate);
}

}  // namespace attnres
