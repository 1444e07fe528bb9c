#include "attnres/parallel/pipeline.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <string>

#include "attnres/parallel/gradient_sums.h"
#include "attnres/support/error.h"
#include "tests/model/named_configs.h"
#include "tests/model/stages.h"
#include "tests/parallel/thread_communicator.h"
#include "tests/tolerances.h"

namespace attnres::testing::pipeline_test {
namespace {

using enum TransferPolicy;

constexpr TransferPolicy kPolicies[] = {naive, report, owned};

using Gradients = std::map<std::pair<int, std::string>, at::Tensor>;  // by site and role

std::vector<NamedConfig> kinds() {
  std::vector<NamedConfig> all;
  for (const char* type : {"residual", "attn_res", "mhc", "dense_former", "lime", "mrla"}) {
    all.push_back({type, small_config({{"type", type}}, 5)});
  }
  for (const int64_t size : {1, 2, 3, 4}) {
    all.push_back({fmt::format("block_{}", size), small_config(block_attn_res(size), 5)});
  }
  for (const int64_t size : {1, 4}) {
    const Json delta = {{"type", "delta_attn_res"}, {"block_size", size}};
    all.push_back({fmt::format("delta_{}", size), small_config(delta, 5)});
  }
  all.push_back({"single_pass", small_config({{"type", "mhc"}, {"single_pass", true}}, 5)});
  all.push_back(
      {"pre_post_norm", small_config({{"type", "muddformer"}, {"pre_post_norm", true}}, 5)});
  all.push_back({"window", small_config({{"type", "attn_res"}, {"window", 2}}, 5)});
  // A map that all sites use.
  all.push_back({"depth_attention", small_config({{"type", "depth_attention"}}, 5)});
  all.push_back({"kimi", kimi_config(/*k3=*/false, block_attn_res(3))});
  all.push_back(tied_config(5));
  return all;
}

// They have different numbers of rows; some targets do not count, and the last one's tokens are
// those of three documents that do not see each other.
std::vector<Batch> micro_batches(int count) {
  std::vector<Batch> batches;
  for (int m = 0; m < count; ++m) {
    const at::Tensor ids = random_ids(1 + m % 2, 6, /*seed=*/10 + m);
    at::Tensor targets = random_ids(1 + m % 2, 6, /*seed=*/20 + m);
    targets[0][m % 6] = -100;
    batches.push_back({ids, targets});
  }
  const int64_t tokens = batches.back().inputs_BT.numel();
  batches.back().sequences = {1, tokens - 3, 2};
  return batches;
}

struct Result {
  LossNumbers numbers;
  Gradients gradients;
  std::array<int64_t, kTrafficKinds> bytes = {};
  std::vector<int64_t> peak_received;  // by rank
};

void take_gradients(const Transformer& model, Gradients& all) {
  for (const Parameter& p : model.parameters().all()) {
    if (!is_differentiated(p.kind)) continue;
    EXPECT_TRUE(p.tensor.grad().defined()) << p.role << " of site " << p.site;
    if (!p.tensor.grad().defined()) continue;
    const auto [place, is_new] = all.emplace(std::pair(p.site, p.role), p.tensor.grad());
    EXPECT_TRUE(is_new || place->second.equal(p.tensor.grad())) << p.role << " of site " << p.site;
  }
}

Result in_one_process(const ModelConfig& config, Precision precision,
                      const std::vector<Batch>& batches) {
  const Transformer model = model_of(config, precision);
  Result result;
  for (const Batch& batch : batches) {
    const LossSum loss = model.loss_sum(batch);
    loss.sum.backward();
    result.numbers.loss += loss.sum.item<double>();
    result.numbers.targets += loss.count;
  }
  take_gradients(model, result.gradients);
  return result;
}

// Changes a message before it leaves: gets the channel, and how many have left on it.
using Tamper = std::function<at::Tensor(Channel, int, const at::Tensor&)>;

class TamperingCommunicator : public Communicator {
 public:
  TamperingCommunicator(Communicator& honest, Tamper tamper)
      : Communicator(honest.rank(), ranks_of(honest)),
        honest_(honest),
        tamper_(std::move(tamper)) {}

  std::unique_ptr<Communicator> split(int group) override { return honest_.split(group); }
  [[noreturn]] void abort(const std::string& message) override { throw_error(message); }

 private:
  static std::vector<int> ranks_of(const Communicator& honest) {
    std::vector<int> ranks(honest.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  std::unique_ptr<PendingMessage> begin_send(const at::Tensor& tensor, int to,
                                             Channel channel) override {
    const at::Tensor changed = tamper_(channel, sent_[channel]++, tensor);
    return honest_.send(changed, to, channel, Traffic::number);
  }
  std::unique_ptr<PendingMessage> begin_receive(const at::Tensor& into, int from,
                                                Channel channel) override {
    return honest_.receive(into, from, channel);
  }
  std::unique_ptr<PendingMessage> begin_sum(const at::Tensor& tensor,
                                            std::optional<int> root) override {
    return root ? honest_.begin_reduce_sum(tensor, *root, Traffic::number)
                : honest_.begin_all_reduce_sum(tensor, Traffic::number);
  }
  std::unique_ptr<PendingMessage> begin_to_all(const at::Tensor& tensor, int root) override {
    return honest_.begin_broadcast(tensor, root, Traffic::number);
  }
  void require_no_message() override { honest_.require_nothing_left(); }

  Communicator& honest_;
  Tamper tamper_;
  std::map<Channel, int> sent_;
};

struct Options {
  Precision precision = at::kDouble;
  std::vector<SiteRange> stages = {};
  bool recompute = false;
  Tamper tamper = [](Channel, int, const at::Tensor& tensor) { return tensor; };
};

Transformer shapes_of(const ModelConfig& config) {
  return {config, kSmallVocabulary, /*seed=*/std::nullopt, at::kFloat, at::kMeta};
}

PipelinePlan plan_of(const ModelConfig& config, const PipelineSize& size, TransferPolicy policy,
                     const std::vector<SiteRange>& stages = {}) {
  const Transformer shapes = shapes_of(config);
  return plan_pipeline(shapes.mixer(), shapes.sublayers(), size, policy, stages);
}

Result in_a_pipeline(const ModelConfig& config, const PipelineSize& size, TransferPolicy policy,
                     const std::vector<Batch>& batches, const Options& options = {}) {
  const PipelinePlan plan = plan_of(config, size, policy, options.stages);
  const Transformer shapes = shapes_of(config);
  Result result;
  result.peak_received.resize(size.ranks);
  std::mutex one_at_a_time;
  run_on_threads(size.ranks, [&](Communicator& world) {
    at::set_num_threads(1);
    TamperingCommunicator communicator(world, options.tamper);
    const Transformer model = model_of(config, options.precision, plan.sites_of(world.rank()));
    Pipeline pipeline(model, plan, communicator);
    const auto alone = world.split(world.rank());
    GradientSums sums({.model = model,
                       .whole = shapes,
                       .sites = plan.sites_by_rank(),
                       .pipeline = communicator,
                       .replicas = *alone});
    const LossNumbers numbers =
        pipeline.forward_backward(batches, {.recompute = options.recompute});
    sums.add_up();
    communicator.require_nothing_left();

    const std::lock_guard lock(one_at_a_time);
    result.numbers.loss += numbers.loss;
    result.numbers.targets += numbers.targets;
    take_gradients(model, result.gradients);
    for (int kind = 0; kind < kTrafficKinds; ++kind) {
      result.bytes[kind] += communicator.bytes_sent(static_cast<Traffic>(kind));
    }
    result.peak_received[world.rank()] = pipeline.peak_received_bytes();
  });
  return result;
}

double largest_error(const Result& actual, const Result& expected) {
  EXPECT_EQ(actual.numbers.targets, expected.numbers.targets);
  EXPECT_EQ(actual.gradients.size(), expected.gradients.size());
  double largest = std::abs(actual.numbers.loss / expected.numbers.loss - 1);
  for (const auto& [name, gradient] : expected.gradients) {
    largest = std::max(largest, relative_error(actual.gradients.at(name), gradient));
  }
  return largest;
}

int64_t bytes(const Result& result, Traffic kind) {
  return result.bytes[static_cast<int>(kind)];
}

// What was sent is what was planned, to the byte, forward and backward.
void expect_planned_bytes(const Result& result, const PipelinePlan& plan,
                          const std::vector<Batch>& batches, int64_t bytes_of_a_number) {
  int64_t tokens = 0, sealed = 0, open = 0;
  for (const Batch& batch : batches) tokens += batch.inputs_BT.numel();
  for (const StageTransfers& stage : plan.stages) {
    sealed += sealed_into(stage).numbers * tokens * bytes_of_a_number;
    open += open_into(stage).numbers * tokens * bytes_of_a_number;
  }
  EXPECT_EQ(bytes(result, Traffic::sealed), sealed);
  EXPECT_EQ(bytes(result, Traffic::sealed_gradient), sealed);
  EXPECT_EQ(bytes(result, Traffic::open), open);
  EXPECT_EQ(bytes(result, Traffic::open_gradient), open);
}

class EveryKindInAPipeline : public ::testing::TestWithParam<NamedConfig> {};

INSTANTIATE_TEST_SUITE_P(Kinds, EveryKindInAPipeline, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EveryKindInAPipeline, GivesTheLossesAndGradientsOfOneProcess) {
  at::set_num_threads(1);
  const ModelConfig& config = GetParam().config;
  const std::vector<Batch> batches = micro_batches(5);
  const Result expected = in_one_process(config, at::kDouble, batches);
  for (const PipelineSize size :
       std::vector<PipelineSize>{{2, 1}, {2, 2}, {4, 1}, {4, 2}, {3, 2}}) {
    for (const TransferPolicy policy : kPolicies) {
      const std::string where =
          fmt::format("{} x {}, {}", size.ranks, size.virtual_stages, name_of(policy));
      const Result result = in_a_pipeline(config, size, policy, batches);
      EXPECT_LT(largest_error(result, expected), 1e-12) << where;
      expect_planned_bytes(result, plan_of(config, size, policy), batches, sizeof(double));
    }
  }
}

TEST_P(EveryKindInAPipeline, DoesSoInFloat32) {
  at::set_num_threads(1);
  const ModelConfig& config = GetParam().config;
  const std::vector<Batch> batches = micro_batches(4);
  const Result expected = in_one_process(config, at::kFloat, batches);
  for (const TransferPolicy policy : kPolicies) {
    const Result result = in_a_pipeline(config, {2, 2}, policy, batches, {.precision = at::kFloat});
    EXPECT_LT(largest_error(result, expected), 1e-5) << name_of(policy);
    expect_planned_bytes(result, plan_of(config, {2, 2}, policy), batches, sizeof(float));
  }
}

// Stages of one sublayer and of many, which end inside blocks and layers; the output by itself.
TEST_P(EveryKindInAPipeline, DoesSoWithAnyStagesAndRecomputed) {
  at::set_num_threads(1);
  const ModelConfig& config = GetParam().config;
  const int last = config.sublayers();
  const std::vector<Batch> batches = micro_batches(3);
  const Result expected = in_one_process(config, at::kDouble, batches);
  const std::vector<std::pair<PipelineSize, std::vector<int>>> placements = {
      {{3, 1}, {0, 1, last, last + 1}}, {{2, 2}, {0, 3, 4, 7, last + 1}}};
  for (const auto& [size, ends] : placements) {
    for (const TransferPolicy policy : kPolicies) {
      const Result result = in_a_pipeline(config, size, policy, batches,
                                          {.stages = ranges_between(ends), .recompute = true});
      EXPECT_LT(largest_error(result, expected), 1e-12) << name_of(policy);
    }
  }
}

// Negative controls, by what leaves the first rank: the comparison sees each of them.
TEST(Pipeline, FaultsOfMessagesAreNoticed) {
  at::set_num_threads(1);
  const ModelConfig config = small_config(block_attn_res(2), 4);
  const std::vector<Batch> batches = {micro_batches(1)[0], micro_batches(3)[2]};
  const Result expected = in_one_process(config, at::kDouble, batches);
  const auto error_with = [&](const Tamper& tamper) {
    return largest_error(in_a_pipeline(config, {2, 2}, owned, batches, {.tamper = tamper}),
                         expected);
  };
  EXPECT_LT(error_with([](Channel, int, const at::Tensor& tensor) { return tensor; }), 1e-12);
  // A gradient of a sealed tensor that counts twice.
  EXPECT_GT(error_with([](Channel channel, int sent, const at::Tensor& tensor) {
              return channel == Channel::backward && sent == 0 ? tensor * 2 : tensor;
            }),
            1e-6);
  // A block of the micro-batch before.
  std::mutex one_at_a_time;
  std::map<int, at::Tensor> first;
  EXPECT_GT(error_with([&](Channel channel, int sent, const at::Tensor& tensor) {
              if (channel != Channel::forward || sent % 2 != 0) return tensor;
              const std::lock_guard lock(one_at_a_time);
              return first.emplace(static_cast<int>(tensor.numel()), tensor).first->second;
            }),
            1e-6);
}

// Naive has a copy of a block for each stage that reads it, the others one for each rank.
TEST(Pipeline, KeepsOneCopyOfABlock) {
  at::set_num_threads(1);
  const ModelConfig config = small_config(block_attn_res(2), 8);
  const std::vector<Batch> batches = micro_batches(8);
  std::map<TransferPolicy, Result> results;
  for (const TransferPolicy policy : kPolicies) {
    results[policy] = in_a_pipeline(config, {4, 2}, policy, batches);
  }
  const PipelineSchedule schedule = interleaved_1f1b({4, 2}, 8);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_LT(results[owned].peak_received[rank], results[naive].peak_received[rank]) << rank;
    // b_0 .. b_7 of at most two sequences of 6 tokens for each micro-batch that is under way.
    EXPECT_LE(results[owned].peak_received[rank],
              most_in_flight(schedule[rank]) * 8 * 2 * 6 * 32 * int64_t{sizeof(double)});
  }
}

TEST(Pipeline, EvaluatesWithoutGradients) {
  at::set_num_threads(1);
  const ModelConfig config = small_config(block_attn_res(3), 5);
  const std::vector<Batch> batches = micro_batches(5);
  const Result expected = in_one_process(config, at::kDouble, batches);
  const PipelinePlan plan = plan_of(config, {3, 2}, owned);
  run_on_threads(3, [&](Communicator& world) {
    at::set_num_threads(1);
    const Transformer model = model_of(config, at::kDouble, plan.sites_of(world.rank()));
    const LossNumbers numbers = Pipeline(model, plan, world).forward(batches);
    EXPECT_EQ(numbers.targets, world.rank() == 2 ? expected.numbers.targets : 0);
    if (world.rank() == 2) {
      EXPECT_NEAR(numbers.loss, expected.numbers.loss, 1e-9);
    }
    for (const Parameter& p : model.parameters().all()) EXPECT_FALSE(p.tensor.grad().defined());
  });
}

TEST(Pipeline, RefusesWhatItCannotDo) {
  const ModelConfig config = small_config(residual(), 3);
  EXPECT_THROW(plan_of(config, {1, 2}, owned), UsageError);
  EXPECT_THROW(plan_of(config, {4, 2}, owned), UsageError);
  const PipelinePlan plan = plan_of(config, {2, 1}, owned);
  EXPECT_THROW(
      run_on_threads(
          1, [&](Communicator& world) { Pipeline(model_of(config, at::kDouble), plan, world); }),
      Error);
}

}  // namespace
}  // namespace attnres::testing::pipeline_test
