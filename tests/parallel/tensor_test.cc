#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <string>

#include "attnres/layers/experts.h"
#include "attnres/model/layer_kind.h"
#include "attnres/parallel/gradient_sums.h"
#include "attnres/parallel/pipeline.h"
#include "attnres/support/error.h"
#include "tests/model/named_configs.h"
#include "tests/parallel/tensor_model.h"
#include "tests/tolerances.h"

namespace attnres::testing::tensor_test {
namespace {

constexpr double kNear = 1e-12;  // of float64, whose sums are in another order

// Without norms ReZero's logits grow large: gradients of 3e4 are up to 3e-12 off. The gradient of a
// learned scale is one number, a sum over all tokens whose terms cancel: up to 2e-12.
double near_of(const NamedConfig& kind) {
  const bool cancels = kind.name.ends_with("learned_scale");
  return kind.name == "rezero" || cancels ? 4 * kNear : kNear;
}

// Every mechanism and variant, and every kind of layer.
std::vector<NamedConfig> kinds() {
  std::vector<NamedConfig> all;
  for (const Mixing& mixing : every_variant()) {
    all.push_back({mixing.name, small_config(mixing.json)});
  }
  for (const bool k3 : {false, true}) {
    all.push_back({k3 ? "kimi_k3" : "kimi_linear", kimi_config(k3, block_attn_res(3))});
  }
  all.push_back({"relative", relative_config(block_attn_res(2))});
  all.push_back({"gpt_oss", gpt_oss_config(block_attn_res(2))});
  all.push_back(tied_config());
  return all;
}

struct Result {
  LossNumbers numbers;
  std::map<std::pair<int, std::string>, at::Tensor> gradients;  // whole, by site and role
  double squared_norm = 0;
  int64_t bytes = 0;  // within groups
};

Result in_one_process(const Transformer& model, const std::vector<Batch>& batches) {
  Result result;
  for (const Batch& batch : batches) {
    const LossSum loss = model.loss_sum(batch);
    loss.sum.backward();
    result.numbers.loss += loss.sum.item<double>();
    result.numbers.targets += loss.count;
  }
  for (const Parameter& p : model.parameters().all()) {
    if (!is_differentiated(p.kind)) continue;
    result.gradients[{p.site, p.role}] = p.tensor.grad();
    result.squared_norm += p.tensor.grad().square().sum().item<double>();
    p.tensor.mutable_grad().reset();
  }
  return result;
}

// What a group does wrong, for negative controls.
class FaultyGroup : public TensorGroup {
 public:
  using Sum = std::function<at::Tensor(const TensorGroup&, const at::Tensor&)>;

  FaultyGroup(const TensorGroup& honest, Sum sum)
      : TensorGroup(honest.part()), honest_(honest), sum_(std::move(sum)) {}
  at::Tensor all_gather(const at::Tensor& part, int64_t rows) const override {
    return honest_.all_gather(part, rows);
  }
  at::Tensor reduce_scatter(const at::Tensor& whole) const override { return sum_(honest_, whole); }

 private:
  const TensorGroup& honest_;
  Sum sum_;
};

at::Tensor honest_sum(const TensorGroup& group, const at::Tensor& whole) {
  return group.reduce_scatter(whole);
}

struct Options {
  PipelineSize pipeline = {};
  bool recompute = false;
  bool sums_gradients = true;
  FaultyGroup::Sum sum = honest_sum;
};

Result in_groups(const Transformer& whole, int size, const std::vector<Batch>& batches,
                 const Options& options = {}) {
  const PipelinePlan plan =
      plan_pipeline(whole.mixer(), whole.sublayers(), options.pipeline, TransferPolicy::owned);
  Result result;
  std::mutex one_at_a_time;
  run_on_threads(size * options.pipeline.ranks, [&](Communicator& world) {
    at::set_num_threads(1);
    const int stage_rank = world.rank() / size;
    const auto ranks = world.split(stage_rank), stages = world.split(world.rank() % size),
               alone = world.split(world.rank());
    const TensorRanks honest(*ranks);
    const FaultyGroup group(honest, options.sum);
    const Transformer model = part_of_model(whole, group, plan.sites_of(stage_rank));
    Pipeline pipeline(model, plan, *stages);
    GradientSums sums({.model = model,
                       .whole = whole,
                       .sites = plan.sites_by_rank(),
                       .pipeline = *stages,
                       .replicas = *alone,
                       .tensor = options.sums_gradients ? ranks.get() : nullptr});
    const LossNumbers numbers =
        pipeline.forward_backward(batches, {.recompute = options.recompute});
    sums.add_up();
    const int64_t bytes = ranks->bytes_sent(Traffic::tensor_group);
    std::vector<at::Tensor> gradients;
    for (const Parameter& p : model.parameters().all()) {
      gradients.push_back(is_differentiated(p.kind) ? whole_of_parameter(honest, p, p.tensor.grad())
                                                    : p.tensor);
    }
    ranks->require_nothing_left();

    const std::lock_guard lock(one_at_a_time);
    result.numbers.loss += numbers.loss;
    result.numbers.targets += numbers.targets;
    result.bytes += bytes;
    for (size_t i = 0; i < gradients.size(); ++i) {
      const Parameter& p = model.parameters().all()[i];
      if (!is_differentiated(p.kind)) continue;
      if (sums.counts(p)) result.squared_norm += p.tensor.grad().square().sum().item<double>();
      const auto [place, is_new] =
          result.gradients.emplace(std::pair(p.site, p.role), gradients[i]);
      if (!options.sums_gradients) continue;
      EXPECT_TRUE(is_new || place->second.equal(gradients[i])) << p.role << " of site " << p.site;
    }
  });
  return result;
}

double largest_error(const Result& actual, const Result& expected) {
  EXPECT_EQ(actual.numbers.targets, expected.numbers.targets);
  EXPECT_EQ(actual.gradients.size(), expected.gradients.size());
  double largest = std::max(std::abs(actual.numbers.loss / expected.numbers.loss - 1),
                            std::abs(actual.squared_norm / expected.squared_norm - 1));
  for (const auto& [name, gradient] : expected.gradients) {
    largest = std::max(largest, relative_error(actual.gradients.at(name), gradient));
  }
  return largest;
}

// The distance of all gradients together, relative to their norm: some alone are small differences.
double distance(const Result& actual, const Result& expected) {
  double squared = 0;
  for (const auto& [name, gradient] : expected.gradients) {
    squared += (actual.gradients.at(name) - gradient).square().sum().item<double>();
  }
  return std::max(std::abs(actual.numbers.loss / expected.numbers.loss - 1),
                  std::sqrt(squared / expected.squared_norm));
}

class EveryKindInATensorGroup : public ::testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Kinds, EveryKindInATensorGroup, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EveryKindInATensorGroup, GivesTheLossesAndGradientsOfOneProcess) {
  at::set_num_threads(1);
  const std::vector<Batch> batches = odd_batches(2);
  const Transformer model = model_of(GetParam().config);
  const Result expected = in_one_process(model, batches);
  const double near = near_of(GetParam());
  EXPECT_LT(largest_error(in_groups(model, 2, batches), expected), near);
  EXPECT_LT(largest_error(in_groups(model, 2, batches, {.recompute = true}), expected), near);
  EXPECT_LT(largest_error(in_groups(model, 2, batches, {.pipeline = {2, 2}}), expected), near);
}

// In float32 sums in another order differ: by what those of one process differ from float64.
TEST_P(EveryKindInATensorGroup, IsAsPreciseInFloat32) {
  at::set_num_threads(1);
  const std::vector<Batch> batches = odd_batches(2);
  const Transformer model = model_of(GetParam().config, at::kFloat);
  const Transformer precise = model_of(GetParam().config);
  for (const Parameter& p : precise.parameters().all()) {
    p.tensor.detach().copy_(model.parameters().find(p.site, p.role)->tensor.detach());
  }
  const Result expected = in_one_process(precise, batches);
  EXPECT_LT(distance(in_groups(model, 2, batches), expected),
            1e-6 + 4 * distance(in_one_process(model, batches), expected));
}

TEST(TensorGroup, MayHaveFourProcesses) {
  at::set_num_threads(1);
  for (const Json& mixing : {residual(), block_attn_res(2), Json{{"type", "lime"}},
                             Json{{"type", "value_residual"}}, Json{{"type", "mrla"}}}) {
    ModelConfig config = small_config(mixing);
    config.kv_heads = 4;
    const Transformer model = model_of(config);
    const std::vector<Batch> batches = odd_batches(2);
    EXPECT_LT(largest_error(in_groups(model, 4, batches), in_one_process(model, batches)), kNear)
        << mixing;
  }
}

// Fewer tokens than processes: some have none.
TEST(TensorGroup, MayHaveProcessesWithoutTokens) {
  at::set_num_threads(1);
  const std::vector<Batch> batches = {{random_ids(1, 1, 1), random_ids(1, 1, 2)}};
  for (const NamedConfig& kind : kinds()) {
    const Transformer model = model_of(kind.config);
    // A token alone sees itself: gradients of queries and keys are nothing but rounding.
    EXPECT_LT(distance(in_groups(model, 2, batches), in_one_process(model, batches)), near_of(kind))
        << kind.name;
  }
}

// Negative controls: the comparison sees each fault.
TEST(TensorGroup, FaultsAreNoticed) {
  at::set_num_threads(1);
  const std::vector<Batch> batches = odd_batches(2);
  const Transformer model = model_of(small_config(block_attn_res(2)));
  const Result expected = in_one_process(model, batches);
  EXPECT_LT(largest_error(in_groups(model, 2, batches), expected), kNear);
  // Gradients of what is not cut are not added up.
  EXPECT_GT(largest_error(in_groups(model, 2, batches, {.sums_gradients = false}), expected), 1e-6);
  // A process counts its part of a sum twice; forgets that of another; has another's tokens.
  const std::vector<FaultyGroup::Sum> faults = {
      [](const TensorGroup& group, const at::Tensor& whole) {
        return group.reduce_scatter(group.part().rank == 1 ? whole * 2 : whole);
      },
      [](const TensorGroup& group, const at::Tensor& whole) {
        return group.reduce_scatter(whole) - part_of_rows(group.part(), whole);
      },
      [](const TensorGroup& group, const at::Tensor& whole) {
        return group.reduce_scatter(whole.flip(0));
      }};
  for (const auto& fault : faults) {
    EXPECT_GT(largest_error(in_groups(model, 2, batches, {.sum = fault}), expected), 1e-6);
  }
}

// Two gathers and two sums of a sublayer, forward and backward.
TEST(TensorGroup, SendsWhatItHasTo) {
  at::set_num_threads(1);
  const std::vector<Batch> batches = odd_batches(3);
  int64_t tokens = 0;
  for (const Batch& batch : batches) tokens += batch.inputs_BT.numel();
  ModelConfig config = small_config(block_attn_res(2));
  config.kv_heads = 4;
  const Transformer model = model_of(config);
  for (const int size : {2, 4}) {
    EXPECT_EQ(in_groups(model, size, batches).bytes, 4 * (size - 1) * tokens * config.width *
                                                         config.sublayers() *
                                                         static_cast<int64_t>(sizeof(double)));
  }
}

int64_t numbers_of(const DepthState& state) {
  int64_t numbers = 0;
  for (const at::Tensor& tensor : state.sealed) numbers += tensor.numel();
  for (const at::Tensor& tensor : state.open) numbers += tensor.numel();
  return numbers;
}

// Section 4.2 of the report: N (T / n) d numbers of finished blocks on each process.
TEST(TensorGroup, SharesOutTheDepthState) {
  at::set_num_threads(1);
  const at::NoGradGuard not_recording;
  const at::Tensor ids = random_ids(2, 9);
  for (const Json& mixing :
       {block_attn_res(1), Json{{"type", "mhc"}}, Json{{"type", "mhc"}, {"single_pass", true}},
        Json{{"type", "delta_attn_res"}, {"block_size", 4}}, Json{{"type", "lime"}},
        Json{{"type", "value_residual"}}}) {
    const Transformer whole = model_of(small_config(mixing));
    DepthState state = whole.embed(ids);
    whole.run(state, whole.sublayers());
    whole.mixer().settle(state);
    std::mutex one_at_a_time;
    std::vector<int64_t> numbers(2);
    run_on_threads(2, [&](Communicator& ranks) {
      at::set_num_threads(1);
      const at::NoGradGuard not_recording_here;
      const TensorRanks group(ranks);
      const Transformer model = part_of_model(whole, group);
      DepthState part = model.embed(ids);
      model.run(part, model.sublayers());
      model.mixer().settle(part);
      const std::lock_guard lock(one_at_a_time);
      numbers[ranks.rank()] = numbers_of(part);
    });
    EXPECT_EQ(numbers[0], numbers[1]) << mixing;
    EXPECT_EQ(numbers[0] + numbers[1], numbers_of(state)) << mixing;
  }
}

TEST(TensorGroup, StartsAsPartsOfTheWhole) {
  for (const NamedConfig& kind : kinds()) {
    const Transformer whole(kind.config, kSmallVocabulary, /*seed=*/7, at::kDouble);
    run_on_threads(2, [&](Communicator& ranks) {
      const TensorRanks group(ranks);
      const Transformer part(kind.config, kSmallVocabulary, /*seed=*/7, at::kDouble, at::kCPU, {},
                             &group);
      int64_t cut = 0;
      for (const Parameter& p : part.parameters().all()) {
        const at::Tensor& expected = whole.parameters().find(p.site, p.role)->tensor;
        EXPECT_TRUE(p.tensor.equal(part_of_parameter(group.part(), p, expected)))
            << p.role << " of site " << p.site << ", " << kind.name;
        EXPECT_TRUE(whole_of_parameter(group, p, p.tensor.detach()).equal(expected));
        if (cut_dimension(p) >= 0) cut += p.tensor.numel();
      }
      EXPECT_EQ(2 * part.parameters().count() - whole.parameters().count(),
                part.parameters().count() - cut);
    });
  }
}

TEST(TensorGroup, RefusesUnequalParts) {
  const auto message = [](const ModelConfig& config, int64_t parts) -> std::string {
    try {
      require_equal_parts(config, parts);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  using ::testing::HasSubstr;
  EXPECT_EQ(message(small_config(residual()), 2), "");
  EXPECT_THAT(message(small_config(residual()), 4), HasSubstr("model.kv_heads: 2"));
  EXPECT_THAT(message(small_config(residual()), 3), HasSubstr("model.heads: 4"));
  EXPECT_THAT(message(kimi_config(false, residual()), 4),
              HasSubstr("model.delta_attention.heads: 2"));
  ModelConfig config = kimi_config(false, residual());
  config.settings<ExpertsSettings>().width = 13;
  EXPECT_THAT(message(config, 2), HasSubstr("model.experts.width: 13"));
}

// A call of several sequences, in pieces and token by token, among which some have none.
TEST(TensorGroup, DecodesAsOneProcess) {
  at::set_num_threads(1);
  const at::NoGradGuard not_recording;
  const std::vector<std::vector<int64_t>> calls = {{5, 3}, {1, 1}, {4, 0}, {1, 2}, {0, 1}};
  const at::Tensor ids = random_ids(2, 11);
  for (const NamedConfig& kind : kinds()) {
    const Transformer whole = model_of(kind.config);
    const auto decode = [&](const Transformer& model) {
      const auto pool = model.make_pool({.sequences = 2, .tokens = 22, .page_tokens = 4});
      const std::vector<int64_t> sequences = {pool->add(), pool->add()};
      std::vector<int64_t> done = {0, 0};
      std::vector<at::Tensor> hidden;
      for (const std::vector<int64_t>& call : calls) {
        std::vector<Continuation> more;
        std::vector<at::Tensor> pieces;
        for (size_t i = 0; i < call.size(); ++i) {
          if (call[i] == 0) continue;
          more.push_back({sequences[i], call[i]});
          pieces.push_back(ids[static_cast<int64_t>(i)].narrow(0, done[i], call[i]));
          done[i] += call[i];
        }
        const Spans spans = pool->append(more);
        hidden.push_back(model.hidden(at::cat(pieces), spans));
      }
      return std::pair(at::cat(hidden), pool->bytes());
    };
    const auto [expected, bytes] = decode(whole);
    run_on_threads(2, [&, expected = expected, bytes = bytes](Communicator& ranks) {
      at::set_num_threads(1);
      const at::NoGradGuard not_recording_here;
      const TensorRanks group(ranks);
      const auto [actual, own_bytes] = decode(part_of_model(whole, group));
      EXPECT_LT(relative_error(actual, expected), kNear) << kind.name;
      EXPECT_LE(own_bytes, bytes);
      EXPECT_GE(2 * own_bytes, bytes);
    });
  }
}

}  // namespace
}  // namespace attnres::testing::tensor_test
