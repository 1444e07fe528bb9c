#include "attnres/infer/inference_group.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "attnres/infer/engine.h"
#include "attnres/infer/inference_model.h"
#include "attnres/infer/score.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/parallel/together.h"
#include "attnres/support/error.h"
#include "attnres/support/machine.h"
#include "tests/model/named_configs.h"
#include "tests/parallel/tensor_model.h"
#include "tests/text/test_files.h"

namespace attnres::testing::inference_group_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNear = 1e-12;  // of float64, whose sums are in another order

std::vector<int32_t> some_ids(int64_t count, uint64_t seed) {
  return as_vector(random_ids(1, count, seed));
}

// All numbers that a request was given, in their order.
struct Answer {
  std::vector<int32_t> tokens = {};
  std::vector<double> logprobs = {};  // of the prompt's tokens and the chosen ones
  std::vector<double> others = {};    // depth weights and mean hidden states, in float32
  int64_t shared = 0;
  std::string error = {};
};
using Answers = std::map<int64_t, Answer>;

void take(const RequestUpdate& update, Answer& answer) {
  if (update.token) answer.tokens.push_back(*update.token);
  for (const TokenLogprobs& of_token : update.prompt_logprobs) {
    answer.logprobs.push_back(of_token.chosen);
  }
  if (update.logprobs) answer.logprobs.push_back(update.logprobs->chosen);
  for (const auto& sites : update.depth.weights) {
    for (const auto& sources : sites) {
      answer.others.insert(answer.others.end(), sources.begin(), sources.end());
    }
  }
  answer.others.insert(answer.others.end(), update.mean_hidden.begin(), update.mean_hidden.end());
  answer.shared = update.shared_tokens;
  answer.error = update.error;
}

GenerationRequest request_of(std::vector<int32_t> prompt, int64_t max_tokens) {
  return {std::move(prompt),
          {.sampling = {.temperature = 0}, .max_tokens = max_tokens, .top_logprobs = 0}};
}

std::vector<int32_t> joined(std::vector<int32_t> ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

// Prompts in pieces that come while others are being continued, of which one is cancelled; then
// some that begin as these did, on the whole and in part; and sequences that are scored.
Answers answers_of(const InferenceModel& model) {
  Answers answers;
  Engine engine(model, {.context = 64, .sequences = 3, .step_tokens = 7});
  const auto step = [&] {
    for (const RequestUpdate& update : engine.step()) take(update, answers[update.request]);
  };
  const auto finish = [&] {
    for (int steps = 0; !engine.idle() && steps < 300; ++steps) step();
  };
  const std::vector<int32_t> first = some_ids(25, 1);
  std::vector<GenerationRequest> requests = {request_of(first, 6), request_of(some_ids(3, 2), 12),
                                             request_of(some_ids(1, 3), 3),
                                             request_of(some_ids(30, 4), 5)};
  for (GenerationRequest& request : requests) request.settings.prompt_logprobs = 0;
  requests[1].settings.mean_hidden = requests[1].settings.depth_weights = true;
  for (const GenerationRequest& request : requests) {
    engine.submit(request);
    step();
  }
  engine.cancel(1);
  finish();
  engine.submit(request_of(joined(joined(first, answers[0].tokens), {7, 8, 9}), 4));
  engine.submit(request_of(joined(some_ids(30, 4), {9, 8, 7}), 4));
  finish();
  engine.submit(request_of(joined({first.begin(), first.begin() + 20}, {7, 8, 9}), 4));
  engine.submit(request_of(some_ids(40, 5), 4));
  finish();
  // Of a prompt whose pieces end where states are kept, without its last token.
  for (int times = 0; times < 2; ++times) {
    engine.submit(request_of(some_ids(22, 7), 3));
    finish();
  }
  answers[-1].logprobs = score_sequence(model, some_ids(21, 6), 64);
  return answers;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// The largest error of log-probabilities; infinite where anything else differs.
double largest_error(const Answers& actual, const Answers& expected) {
  double largest = actual.size() == expected.size() ? 0 : std::numeric_limits<double>::infinity();
  for (const auto& [request, answer] : expected) {
    const auto found = actual.find(request);
    if (found == actual.end()) return std::numeric_limits<double>::infinity();
    const Answer& other = found->second;
    const bool alike = other.tokens == answer.tokens && other.shared == answer.shared &&
                       other.error == answer.error &&
                       largest_difference(other.others, answer.others) < 1e-6;
    if (!alike) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, largest_difference(other.logprobs, answer.logprobs));
  }
  return largest;
}

// What a follower does with what it is told, for negative controls.
using Hears = std::function<void(GroupOrders&)>;

// What rank 0 does, which leads a group that has the model.
using Leads = std::function<void(const InferenceModel&, Communicator&)>;
void in_a_group(const Transformer& whole, int size, const Leads& lead, const Hears& hears = {}) {
  run_on_threads(size, [&](Communicator& ranks) {
    at::set_num_threads(1);
    const at::NoGradGuard not_recording;
    const LoadTransformer load = [&](const TensorGroup* group) {
      return std::make_unique<Transformer>(part_of_model(whole, *group));
    };
    if (ranks.rank() == 0) {
      GroupLeader leader(ranks);
      const auto model = leader.load(load);
      lead(*model, ranks);
      leader.end();
    } else {
      GroupFollower follower(ranks, load);
      for (bool goes_on = true; goes_on;) {
        GroupOrders orders = follower.hear();
        if (hears) hears(orders);
        goes_on = follower.obey(orders);
      }
    }
    ranks.require_nothing_left();
  });
}

Answers answers_of_group(const Transformer& whole, int size, const Hears& hears = {}) {
  Answers answers;
  in_a_group(
      whole, size, [&](const InferenceModel& model, Communicator&) { answers = answers_of(model); },
      hears);
  return answers;
}

// With heads for four processes.
std::vector<NamedConfig> kinds() {
  std::vector<NamedConfig> all;
  const auto add = [&](const std::string& name, const Json& mixing) {
    all.push_back({name, small_config(mixing)});
    all.back().config.kv_heads = 4;
  };
  add("residual", residual());
  add("block", block_attn_res(3));
  add("full", attn_res());
  add("mhc", {{"type", "mhc"}});
  all.push_back({"kimi", kimi_config(/*k3=*/false, block_attn_res(3))});
  all.back().config.heads = all.back().config.settings<DeltaAttentionSettings>().heads = 4;
  return all;
}

class InAGroup : public ::testing::TestWithParam<NamedConfig> {
 protected:
  const at::NoGradGuard not_recording_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, InAGroup, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(InAGroup, RequestsGetTheNumbersOfOneProcess) {
  at::set_num_threads(1);
  const Transformer model = model_of(GetParam().config);
  const Answers expected = answers_of(LocalModel(model));
  EXPECT_EQ(expected.size(), 11u);
  EXPECT_GT(expected.at(4).shared, 20);
  EXPECT_GE(expected.at(5).shared, 29);
  EXPECT_EQ(expected.at(9).shared, 21);
  for (const auto& [request, answer] : expected) EXPECT_EQ(answer.error, "") << request;
  for (const int size : {2, 4}) {
    EXPECT_LT(largest_error(answers_of_group(model, size), expected), kNear) << size;
  }
}

// A follower that misses the last thing of a kind that was done to the sequences; of snapshots, of
// which few are gone back to, all.
TEST(InferenceGroup, FaultsAreNoticed) {
  const at::NoGradGuard not_recording;
  at::set_num_threads(1);
  using enum PoolChange::Kind;
  for (const auto kind : {add, fork, truncate, snapshot}) {
    // Only recurrent states have snapshots.
    const Transformer model = model_of(kind == snapshot ? kimi_config(false, residual())
                                                        : small_config(block_attn_res(3)));
    const Answers expected = answers_of(LocalModel(model));
    const auto error_of = [&](const std::function<bool(const PoolChange&)>& misses) {
      const auto hears = [&](GroupOrders& orders) {
        std::erase_if(orders, [&](const GroupOrder& order) {
          const auto* change = std::get_if<ChangePoolOrder>(&order);
          return change != nullptr && misses(change->change);
        });
      };
      return largest_error(answers_of_group(model, 2, hears), expected);
    };
    int all = 0, heard = 0;
    EXPECT_LT(error_of([&](const PoolChange& change) {
                all += change.kind == kind ? 1 : 0;
                return false;
              }),
              kNear);
    ASSERT_GT(all, 0);
    bool is_noticed = false;
    try {
      is_noticed = error_of([&](const PoolChange& change) {
                     return change.kind == kind && (kind == snapshot || ++heard == all);
                   }) > 1e-6;
    } catch (const Error& error) {
      is_noticed = true;
    }
    EXPECT_TRUE(is_noticed) << static_cast<int64_t>(kind);
  }
}

// The same of those that are made within a pass.
TEST(InferenceGroup, SnapshotsOfAPassAreNoticedToBeMissing) {
  const at::NoGradGuard not_recording;
  at::set_num_threads(1);
  int all = 0;
  const auto hears = [&](GroupOrders& orders) {
    auto* decode = std::get_if<DecodeOrder>(&orders.back());
    if (decode == nullptr) return;
    for (Continuation& more : decode->continuations) {
      all += static_cast<int>(more.snapshots.size());
      more.snapshots.clear();
    }
  };
  const std::string error = message_of<Error>(
      [&] { answers_of_group(model_of(kimi_config(false, residual())), 2, hears); });
  EXPECT_GT(all, 0);
  EXPECT_THAT(error, HasSubstr("the sequences of rank 1 are not those of rank 0"));
}

// For each piece of a prompt and each sublayer a process sends each other the rows that these have
// of its part of the sum, and its own rows; and at the end, once, its rows of the output.
TEST(InferenceGroup, SendsWhatItHasTo) {
  const ModelConfig config = small_config(block_attn_res(3));
  in_a_group(model_of(config), 2, [&](const InferenceModel& model, Communicator& ranks) {
    Engine engine(model, {.context = 64, .sequences = 1, .step_tokens = 16});
    engine.submit(request_of(some_ids(32, 1), 1));
    while (!engine.idle()) engine.step();
    const int64_t rows = config.width * int64_t{sizeof(double)} * 32 / 2;
    EXPECT_EQ(ranks.bytes_sent(Traffic::tensor_group), (2 * config.sublayers() + 1) * rows);
  });
}

TEST(InferenceGroup, HasRoomForWhatTheLeastOfItsRanksHas) {
  in_a_group(model_of(small_config(residual())), 2,
             [&](const InferenceModel& model, Communicator&) {
               const TokenRoom room = model.count_tokens({.tokens = 1000});
               EXPECT_EQ(room.tokens, 1000);
               EXPECT_LT(model.count_tokens({.tokens = int64_t{1} << 50}).tokens, int64_t{1} << 50);
               EXPECT_THROW(Engine(model, {.context = int64_t{1} << 50}), Error);
             });
}

std::string refusal(const LoadTransformer& of_first, const LoadTransformer& of_others) {
  try {
    run_on_threads(2, [&](Communicator& ranks) {
      if (ranks.rank() == 0) {
        GroupLeader leader(ranks);
        leader.load(of_first);
      } else {
        GroupFollower(ranks, of_others).follow();
      }
    });
  } catch (const CommonFailure& failure) {
    return failure.what();
  }
  return "";
}

TEST(InferenceGroup, RefusesOtherModels) {
  const auto loads = [](const ModelConfig& config, uint64_t seed) -> LoadTransformer {
    return [=](const TensorGroup* group) {
      return std::make_unique<Transformer>(config, kSmallVocabulary, seed, at::kFloat, at::kCPU,
                                           SiteSet(), group);
    };
  };
  const ModelConfig config = small_config(residual());
  EXPECT_THAT(refusal(loads(config, 1), loads(small_config(residual(), 4), 1)),
              AllOf(HasSubstr("rank 1: model.layers: 3 -> 4"), HasSubstr("the same model")));
  EXPECT_THAT(refusal(loads(config, 1), loads(config, 2)), HasSubstr("rank 1: numbers: "));
  EXPECT_THAT(refusal(loads(config, 1),
                      [](const TensorGroup*) -> std::unique_ptr<Transformer> {
                        fail("a file is damaged");
                      }),
              HasSubstr("rank 1: a file is damaged"));
  ModelConfig odd = config;
  odd.kv_heads = 1;
  EXPECT_THAT(refusal(loads(odd, 1), loads(odd, 1)), HasSubstr("model.kv_heads: 1"));
}

// A rank that fails by itself ends the group: the leader says why.
TEST(InferenceGroup, EndsWithARankThatFails) {
  try {
    answers_of_group(model_of(small_config(residual())), 2, [](GroupOrders& orders) {
      if (std::holds_alternative<DecodeOrder>(orders.back())) fail("memory ran out");
    });
    FAIL() << "a rank was missing";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("memory ran out"));
  }
}

}  // namespace
}  // namespace attnres::testing::inference_group_test
