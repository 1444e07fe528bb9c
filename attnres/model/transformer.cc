#include "attnres/model/transformer.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <set>
#include <utility>

#include "attnres/layers/layer_place.h"
#include "attnres/layers/normed_output.h"
#include "attnres/layers/tensor_parallel.h"
#include "attnres/model/layer_kind.h"
#include "attnres/model/parameter_names.h"
#include "attnres/model/recompute.h"
#include "attnres/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "attnres/ops/matmul/matmul.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

SiteSet within(const SiteSet& sites, int output) {
  std::vector<SiteRange> inside;
  for (const SiteRange& range : sites.ranges()) {
    inside.push_back({range.first, std::min(range.last, output + 1)});
    require(0 <= range.first && range.first < inside.back().last,
            "transformer: a stage has one site or more of 0 to {}, which is the output, not those "
            "from {} up to {}",
            output, range.first, range.last);
  }
  return SiteSet(std::move(inside));
}

// Whose tensors they are in a pool.
int pool_layer_of_sublayer(int site) {
  return 2 * site;
}
int pool_layer_of_mixer(int site) {
  return 2 * site + 1;
}

// What a mixer computed with parameters of a wider dtype, as activations are kept.
void keep_as(at::ScalarType dtype, at::Tensor& tensor) {
  if (tensor.defined() && tensor.scalar_type() != dtype) tensor = tensor.to(dtype);
}
void keep_as(at::ScalarType dtype, SublayerInput& input) {
  for (at::Tensor* tensor : {&input.x, &input.query, &input.key, &input.value}) {
    keep_as(dtype, *tensor);
  }
}
void keep_as(at::ScalarType dtype, DepthState& state) {
  for (at::Tensor& tensor : state.sealed) keep_as(dtype, tensor);
  for (at::Tensor& tensor : state.open) keep_as(dtype, tensor);
}

// Without the dispatcher where it is there.
at::Tensor on_device(const at::Tensor& tensor, at::Device device) {
  return tensor.device() == device ? tensor : tensor.to(device);
}

void require_in_vocabulary(const at::Tensor& ids, int64_t vocab_size) {
  if (ids.numel() == 0) return;
  const int64_t least = ids.min().item<int64_t>(), most = ids.max().item<int64_t>();
  require(least >= 0 && most < vocab_size,
          "token id {} is out of range: this model's vocabulary has ids 0 to {}",
          least < 0 ? least : most, vocab_size - 1);
}

// On a device, checked where they come from: the host waits for neither. Look-ups on the CPU check
// by themselves.
at::Tensor ids_on(at::Device device, const at::Tensor& ids_T, int64_t vocab_size) {
  if (!ids_T.is_cpu()) {
    check_on_device(ids_T.ge(0).logical_and(ids_T.lt(vocab_size)),
                    "transformer: a token id is out of range of the vocabulary");
  } else if (!device.is_cpu()) {
    require_in_vocabulary(ids_T, vocab_size);
  }
  return on_device(ids_T, device);
}

// The rows with these numbers, on the weight's device.
at::Tensor rows_of(const ProductWeight& weight, const at::Tensor& ids_T) {
  const int64_t vocab_size = weight.whole().size(0);
  if (!weight.packed().defined()) {
    return at::embedding(weight.whole(), ids_on(weight.whole().device(), ids_T, vocab_size));
  }
  PackedMatrix rows = weight.packed();
  rows.bytes = rows.bytes.index_select(0, ids_on(rows.bytes.device(), ids_T, vocab_size));
  return unpack_weight(rows);
}

// Where no gradient is recorded, and nobody looks on who might want one, operations go past
// autograd, whose part of a call costs as much as a small operation.
class PastAutograd {
 public:
  explicit PastAutograd(const RunContext& context = {}) {
    if (!at::GradMode::is_enabled() && context.observer == nullptr) guard_.emplace();
  }

 private:
  std::optional<at::AutoDispatchBelowADInplaceOrView> guard_;
};

// Whether the map of this name is one of the targets, as PEFT reads them.
bool is_target(const std::string& module, const std::string& target) {
  return target == kAllLinear || module == target || module.ends_with("." + target);
}

LowRank low_rank_of(const ModelConfig& config) {
  const LoraSettings& lora = config.lora;
  if (lora.rank == 0) return {};
  return {.rank = lora.rank,
          .scale = lora.scale(),
          .is_beside = [targets = lora.targets, L = config.sublayers()](int site,
                                                                        const std::string& role) {
            const std::string module = module_name(site, role, L);
            return std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
              return is_target(module, target);
            });
          }};
}

// Throws UsageError where a target is no map of the whole model's.
void require_targets(const ParameterRegistry& parameters, const ModelConfig& config) {
  std::set<std::string> modules;
  for (const Parameter& p : parameters.all()) {
    if (!p.role.ends_with(kLowRankIn)) continue;
    modules.insert(module_name(p.site, map_of_low_rank(p.role), config.sublayers()));
  }
  for (const std::string& target : config.lora.targets) {
    require_usage(std::any_of(modules.begin(), modules.end(),
                              [&](const std::string& module) { return is_target(module, target); }),
                  "model.lora.targets: {} is no map of this model's attention or feed-forward "
                  "(those of routed experts have none beside them); {} takes all",
                  one_line(target), kAllLinear);
  }
}

int64_t count_targets(const at::Tensor& targets) {
  return targets.ne(-100).sum().item<int64_t>();
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, int64_t vocab_size,
                         std::optional<uint64_t> seed, Precision precision, at::Device device,
                         const SiteSet& sites, const TensorGroup* group)
    : config_(config),
      vocab_size_(vocab_size),
      sites_(within(sites, config.sublayers())),
      parameters_(std::move(precision), seed, device, sites_, group, low_rank_of(config)) {
  require_equal_parts(config, parameters_.part().size);
  require_usage(config.lora.rank == 0 || group == nullptr,
                "model.lora: processes of a tensor group do not share its maps; use one process");
  const int L = config.sublayers();
  const Init init = Init::normal(config.init_std);
  embedding_ = ProductWeight(parameters_.add_weight(
      kEmbeddingSite, "token_embedding", ParameterKind::embedding, {vocab_size, config.width}, init,
      Shard::none, config.tie_embeddings ? std::vector{0, L} : std::vector{0}));
  mixer_ = config.depth_mixing.make_mixer(config.mixer_shape(), parameters_);
  sublayers_.resize(L);
  for (int site = 0; site < L; ++site) {
    if (!sites_.has(site)) continue;
    std::unique_ptr<Sublayer>& sublayer = sublayers_[site];
    const LayerPlace place = config.layer_place(site, mixer_->needs(site));
    sublayer = layer_kind(config, site).make(config, place, parameters_);
    if (group != nullptr) {
      sublayer = std::make_unique<TensorParallel>(std::move(sublayer), *group);
    }
    if (!config.output_norm) continue;
    sublayer = std::make_unique<NormedOutput>(std::move(sublayer), place, parameters_);
  }
  head_ = config.tie_embeddings
              ? embedding_
              : ProductWeight(parameters_.add_weight(L, "head", ParameterKind::head,
                                                     {vocab_size, config.width}, init));
  if (config.lora.rank > 0 && sites_.has_all({0, L + 1})) require_targets(parameters_, config);
}

void Transformer::require_sites(int first, int last) const {
  if (first >= last || sites_.has_all({first, last})) return;
  std::string list;
  for (const SiteRange& own : sites_.ranges()) {
    list += fmt::format("{}{} to {}", list.empty() ? "" : " and ", own.first, own.last - 1);
  }
  fail("transformer: this stage has the sites {}, not {} to {}", list, first, last - 1);
}

at::Tensor Transformer::own_tokens(const at::Tensor& all) const {
  return part_of_rows(parameters_.part(), all);
}

at::Tensor Transformer::token_embeddings(const at::Tensor& ids_T) const {
  require_sites(0, 1);
  require(ids_T.dim() == 1 && ids_T.scalar_type() == at::kLong,
          "transformer: expected token ids of type int64 and shape [tokens]");
  const at::Tensor embeddings_TD =
      rows_of(embedding_, ids_T).to(parameters_.precision().activations);
  return config_.embedding_scale == 1 ? embeddings_TD
                                      : at::mul(embeddings_TD, config_.embedding_scale);
}

DepthState Transformer::embed(const at::Tensor& ids_T, Spans spans) const {
  require(ids_T.numel() == spans.tokens(),
          "transformer: the spans of this call have {} tokens, but there are {} ids",
          spans.tokens(), ids_T.numel());
  DepthState state = mixer_->start(token_embeddings(own_tokens(ids_T)));
  state.sequence.spans = std::make_shared<Spans>(std::move(spans));
  return state;
}

DepthState Transformer::embed(const at::Tensor& ids_BT) const {
  require(ids_BT.dim() == 2, "transformer: expected token ids of shape [batch, tokens]");
  if (ids_BT.is_cpu()) require_in_vocabulary(ids_BT, vocab_size());
  return embed(ids_BT.flatten(), Spans::whole(ids_BT.size(0), ids_BT.size(1)));
}

void Transformer::run(DepthState& state, int last, const RunContext& context) const {
  require_sites(state.site, last);
  require_spans(state, context);
  if (context.recompute && at::GradMode::is_enabled()) {
    run_recomputed(*this, state, last, context);
  } else {
    const PastAutograd past_autograd(context);
    run_sublayers(state, last, context);
  }
}

void Transformer::require_spans(const DepthState& state, const RunContext& context) const {
  require(state.sequence.spans != nullptr,
          "transformer: this state does not say which sequences its tokens are of; give it the "
          "spans of its call");
  const SequencePool* pool = state.sequence.spans->pool();
  if (pool == nullptr) return;
  require(
      pool->owner() == mixer_.get(),
      "transformer: the sequences are of another model's pool; use one of this one's make_pool");
  pool->require_newest(*state.sequence.spans);
  require(!context.recompute || !at::GradMode::is_enabled(),
          "transformer: what a pool keeps cannot be recomputed; leave one of the two out");
}

SublayerInput Transformer::read(DepthState& state, const RunContext& context) const {
  state.sequence.layer = pool_layer_of_mixer(state.site);
  MixingAnalysis looking;
  const bool shows = context.observer != nullptr && state.analysis == nullptr;
  if (shows) state.analysis = &looking;
  SublayerInput input = mixer_->read(state);
  if (context.observer != nullptr) context.observer->on_read(state.site, state.analysis->read);
  if (shows) state.analysis = nullptr;
  keep_as(parameters_.precision().activations, input);
  keep_as(parameters_.precision().activations, state);
  return input;
}

void Transformer::run_sublayers(DepthState& state, int last, const RunContext& context) const {
  while (state.site < last) {
    const int site = state.site;
    const SublayerInput input = read(state, context);
    SublayerOutput output =
        sublayers_[site]->forward(input, {state.sequence.spans, pool_layer_of_sublayer(site)});
    if (context.expert_loads != nullptr && output.expert_load.defined()) {
      at::Tensor& load = (*context.expert_loads)[site];
      load = load.defined() ? at::add(load, output.expert_load) : output.expert_load;
    }
    if (context.observer) context.observer->on_write(site, output.y);
    const at::Tensor y = output.y;
    mixer_->write(state, std::move(output));
    keep_as(parameters_.precision().activations, state);
    if (context.observer) {
      const at::NoGradGuard not_recording;
      context.observer->on_output(site, y, mixer_->running_state(state));
    }
  }
}

at::Tensor Transformer::output(DepthState& state, const RunContext& context) const {
  require_sites(sublayers(), sublayers() + 1);
  require_spans(state, context);
  const PastAutograd past_autograd(context);
  return read(state, context).x;
}

at::Tensor Transformer::hidden(const at::Tensor& ids_T, Spans spans,
                               const RunContext& context) const {
  return hidden_of(embed(ids_T, std::move(spans)), context);
}

at::Tensor Transformer::hidden(const at::Tensor& ids_BT, const RunContext& context) const {
  return hidden_of(embed(ids_BT), context).unflatten(0, {ids_BT.size(0), ids_BT.size(1)});
}

at::Tensor Transformer::hidden_of(DepthState state, const RunContext& context) const {
  run(state, sublayers(), context);
  const at::Tensor own_TD = output(state, context);
  const TensorGroup* group = parameters_.group();
  return group == nullptr ? own_TD : gather_tokens(*group, own_TD, state.sequence.spans->tokens());
}

at::Tensor Transformer::logits(const at::Tensor& hidden) const {
  require_sites(sublayers(), sublayers() + 1);
  const PastAutograd past_autograd;
  const at::Tensor x = hidden.to(parameters_.precision().parameters);
  return linear_map(x, head_.for_map_of(x));
}

at::Tensor Transformer::loss(const at::Tensor& ids_BT, const at::Tensor& targets_BT,
                             const RunContext& context) const {
  const int64_t counted = count_targets(targets_BT);
  DepthState state = embed(ids_BT);
  run(state, sublayers(), context);
  return linear_cross_entropy(output(state, context), head_values(),
                              own_tokens(targets_BT.flatten()),
                              counted > 0 ? 1.0 / static_cast<double>(counted) : 0.0);
}

LossSum Transformer::loss_sum(const Batch& batch, const RunContext& context) const {
  DepthState state = embed(batch.inputs_BT.flatten(), batch.spans());
  return loss_sum(state, batch.targets_BT, context);
}

LossSum Transformer::loss_sum(DepthState& state, const at::Tensor& targets_BT,
                              const RunContext& context) const {
  run(state, sublayers(), context);
  return loss_sum_of(output(state, context), targets_BT);
}

LossSum Transformer::loss_sum_of(const at::Tensor& hidden_TD, const at::Tensor& targets_BT) const {
  require_sites(sublayers(), sublayers() + 1);
  const at::Tensor targets_T = own_tokens(targets_BT.flatten());
  return {linear_cross_entropy(hidden_TD, head_values(), targets_T, /*scale=*/1),
          count_targets(targets_T)};
}

at::Tensor Transformer::log_probabilities(const at::Tensor& ids_BT,
                                          const at::Tensor& targets_BT) const {
  const at::NoGradGuard no_grad;
  return token_log_probabilities(hidden(ids_BT).flatten(0, 1), head_values(), targets_BT.flatten())
      .view(targets_BT.sizes());
}

std::vector<std::vector<KeptTensor>> Transformer::kept() const {
  std::vector<std::vector<KeptTensor>> layers(pool_layer_of_mixer(sublayers()) + 1);
  for (int site = 0; site <= sublayers(); ++site) {
    if (!sites_.has(site)) continue;
    if (site < sublayers()) layers[pool_layer_of_sublayer(site)] = sublayers_[site]->kept();
    layers[pool_layer_of_mixer(site)] = mixer_->kept(site);
  }
  return layers;
}

std::unique_ptr<SequencePool> Transformer::make_pool(const SequencePoolSize& size) const {
  return std::make_unique<SequencePool>(kept(), size, parameters_.device(), mixer_.get());
}

}  // namespace attnres
