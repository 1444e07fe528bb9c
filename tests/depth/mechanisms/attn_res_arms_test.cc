// The ablation arms of attention residuals (arXiv 2603.15031, Table 4) against plain loops.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/accumulate.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "attnres/ops/depth_scores/depth_scores.h"
#include "attnres/support/error.h"
#include "tests/depth/mixer_bench.h"

namespace attnres::attn_res_arms_test {
namespace {

using namespace testing;

constexpr int64_t kWidth = 12;
constexpr int kSublayers = 7;

Json arm(int64_t block_size, const Json& settings = Json::object()) {
  Json json = {{"type", "block_attn_res"}, {"block_size", block_size}};
  if (!settings.is_null()) json.update(settings);
  return json;
}

// elu(x) + 1
double feature(double x) {
  return x > 0 ? x + 1 : std::exp(x);
}

double inverse_rms(const Vector& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return 1 / std::sqrt(sum / static_cast<double>(x.size()) + kEps);
}

// The embedding, and the sums of the outputs of each block so far, or, of finished blocks with
// `rms`, the sums of their RMS; of those, the newest `window`.
std::vector<Vector> sources_of(const Vector& embedding, const std::vector<Vector>& outputs,
                               size_t block_size, size_t window, bool rms) {
  std::vector<Vector> sums;
  const size_t in_finished = outputs.size() / block_size * block_size;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (i % block_size == 0) sums.emplace_back(kWidth, 0.0);
    const double factor = rms && i < in_finished ? inverse_rms(outputs[i]) : 1;
    for (size_t c = 0; c < kWidth; ++c) sums.back()[c] += factor * outputs[i][c];
  }
  std::vector<Vector> sources = {embedding};
  sources.insert(sources.end(), sums.end() - std::min(window, sums.size()), sums.end());
  return sources;
}

// c_l
double score_scale(const Bench& bench, const Json& settings, int l) {
  const Json scale = settings.value("score_scale", Json(1));
  if (scale == "learned") return std::exp(bench.values(l, "log_score_scale")[0]);
  return scale == "1/sqrt(d)" ? 1 / std::sqrt(kWidth) : scale.get<double>();
}

// What every site reads, by the settings and the mixer's own parameters.
std::vector<Vector> mixed_by_equations(const Bench& bench, const Json& settings,
                                       const Vector& embedding) {
  const std::string query = settings.value("query", "learned");
  const std::string weighing = settings.value("weights", "softmax");
  const bool factorised = weighing == "factorised";
  const bool key_norm = settings.value("key_norm", true);
  const size_t heads = settings.value("heads", 1), group = kWidth / heads;
  const size_t window = settings.value("window", 1000);
  std::vector<Vector> outputs, mixed;
  for (int l = 0; l <= kSublayers; ++l) {
    const auto sources = sources_of(embedding, outputs, settings["block_size"], window,
                                    settings.value("block_summary", "sum") == "rms");
    Vector q(kWidth), h(kWidth, 0.0);
    if (l > 0 && query == "learned") q = bench.values(l, "pseudo_query");
    if (l > 0 && query == "input_dependent") {
      const std::vector<double> projection = bench.values(l, "query_proj");
      for (size_t r = 0; r < kWidth; ++r) {
        for (size_t c = 0; c < kWidth; ++c) q[r] += projection[r * kWidth + c] * mixed[l - 1][c];
      }
    }
    for (size_t head = 0; head < heads; ++head) {
      std::vector<double> weights;
      double total = 0;
      for (size_t i = 0; i < sources.size(); ++i) {
        double score = 0;
        if (l > 0 && query == "none") {
          score = bench.values(l, "mixing_logits")[i];
        } else if (l > 0) {
          for (size_t c = head * group; c < (head + 1) * group; ++c) {
            const double key =
                key_norm ? bench.values(l, "key_norm")[c] * sources[i][c] * inverse_rms(sources[i])
                         : sources[i][c];
            score += factorised ? feature(q[c]) * feature(key) : q[c] * key;
          }
          score *= score_scale(bench, settings, l);
        }
        double weight = std::exp(score);
        if (weighing == "sigmoid") weight = 1 / (1 + std::exp(-score));
        if (factorised && l > 0) weight = score;
        weights.push_back(weight);
        total += weight;
      }
      if (weighing == "sigmoid") total = 1;
      if (l == 0) total = weights[0];
      for (size_t i = 0; i < sources.size(); ++i) {
        for (size_t c = head * group; c < (head + 1) * group; ++c) {
          h[c] += weights[i] / total * sources[i][c];
        }
      }
    }
    mixed.push_back(h);
    if (l == kSublayers) break;
    const std::vector<double> gain = bench.values(l, "input_norm");
    Vector x(kWidth);
    for (size_t c = 0; c < kWidth; ++c) x[c] = gain[c] * h[c] * inverse_rms(h);
    outputs.push_back(sublayer(l, x));
  }
  return mixed;
}

struct Arm {
  const char* name;
  Json settings;
};

class AttnResArm : public ::testing::TestWithParam<std::tuple<Arm, int64_t>> {
 protected:
  const Json json_ = arm(std::get<1>(GetParam()), std::get<0>(GetParam()).settings);
  const Vector embedding_ = random_vector("embedding", 0, kWidth);

  std::vector<Vector> mixed(const Json& json) const {
    Bench bench(json, kWidth, kSublayers);
    bench.perturb(0.5);
    return mixed_by(bench, embedding_, kSublayers);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Table4, AttnResArm,
    ::testing::Combine(
        ::testing::Values(Arm{"learned", {}},
                          Arm{"input_dependent", {{"query", "input_dependent"}}},
                          Arm{"no_query", {{"query", "none"}}},
                          Arm{"sigmoid", {{"weights", "sigmoid"}}},
                          Arm{"sigmoid_no_query", {{"weights", "sigmoid"}, {"query", "none"}}},
                          Arm{"factorised", {{"weights", "factorised"}}},
                          Arm{"factorised_input_dependent",
                              {{"weights", "factorised"},
                               {"query", "input_dependent"},
                               {"key_norm", false},
                               {"heads", 4}}},
                          Arm{"no_key_norm", {{"key_norm", false}}}, Arm{"window", {{"window", 2}}},
                          Arm{"multi_head", {{"heads", 4}}}, Arm{"scale", {{"score_scale", 0.3}}},
                          Arm{"scale_by_width", {{"score_scale", "1/sqrt(d)"}}},
                          Arm{"learned_scale", {{"score_scale", "learned"}}},
                          Arm{"learned_scale_of_dependent_queries",
                              {{"score_scale", "learned"},
                               {"query", "input_dependent"},
                               {"weights", "sigmoid"},
                               {"heads", 4}}},
                          Arm{"rms_summary", {{"block_summary", "rms"}}},
                          Arm{"rms_summary_of_dependent_queries",
                              {{"block_summary", "rms"},
                               {"query", "input_dependent"},
                               {"score_scale", 0.5},
                               {"window", 2}}},
                          Arm{"all_at_once",
                              {{"query", "input_dependent"},
                               {"weights", "sigmoid"},
                               {"key_norm", false},
                               {"window", 2},
                               {"heads", 3}}}),
        ::testing::Values(1, 3)),
    [](const auto& info) {
      return fmt::format("{}_S{}", std::get<0>(info.param).name, std::get<1>(info.param));
    });

TEST_P(AttnResArm, MixesAsItsEquationSays) {
  Bench bench(json_, kWidth, kSublayers);
  bench.perturb(0.5);
  const auto expected = mixed_by_equations(bench, json_, embedding_);
  EXPECT_LT(largest_difference(mixed_by(bench, embedding_, kSublayers), expected), 1e-12);
}

TEST_P(AttnResArm, DiffersFromTheMechanismWithoutIt) {
  const Json& settings = std::get<0>(GetParam()).settings;
  if (settings.empty()) GTEST_SKIP() << "is the mechanism without any";
  EXPECT_GT(largest_difference(mixed(json_), mixed(arm(json_["block_size"]))), 1e-3);
}

std::vector<Vector> mixed_full(const Json& settings) {
  Bench bench(arm(1, settings), kWidth, kSublayers);
  bench.perturb(0.5);
  return mixed_by(bench, random_vector("embedding", 0, kWidth), kSublayers);
}

// A window of L - 1 leaves out one source, of the output site: all sites before read everything,
// one pass a site where Full goes in two phases.
TEST(AttnResArms, AWindowAsLongAsTheNetworkIsFull) {
  const auto full = mixed_full({});
  EXPECT_EQ(largest_difference(mixed_full({{"window", kSublayers}}), full), 0);
  auto shorter = mixed_full({{"window", kSublayers - 1}});
  EXPECT_GT(largest_difference(shorter, full), 1e-3);
  shorter.back() = full.back();
  EXPECT_LT(largest_difference(shorter, full), 1e-12);
}

TEST(AttnResArms, OneHeadIsASingleOne) {
  EXPECT_EQ(largest_difference(mixed_full({{"heads", 1}}), mixed_full({})), 0);
  // Two heads with equal halves of everything see equal scores, and the scores of one head are
  // their sums.
  EXPECT_GT(largest_difference(mixed_full({{"heads", 2}}), mixed_full({})), 1e-3);
}

TEST(AttnResArms, StartAsTheMeanOrHalfTheSum) {
  const auto mixed = [](const Json& settings) {
    Bench bench(arm(1, settings), kWidth, kSublayers);
    return mixed_by(bench, random_vector("embedding", 0, kWidth), kSublayers);
  };
  const auto mean = mixed({});
  for (const Json& settings : {Json{{"query", "input_dependent"}}, Json{{"query", "none"}},
                               Json{{"key_norm", false}}, Json{{"heads", 4}}}) {
    EXPECT_LT(largest_difference(mixed(settings), mean), 1e-12) << settings.dump();
  }
  // Site 1 reads two sources; half of their sum is their mean, of three it isn't.
  const auto half = mixed({{"weights", "sigmoid"}});
  for (size_t c = 0; c < kWidth; ++c) {
    EXPECT_NEAR(half[1][c], mean[1][c], 1e-12);
    EXPECT_NEAR(half[2][c], 1.5 * mean[2][c], 1e-5);
  }
}

// A scale is that of the query, whatever it is: e^s w with scale 1 reads what w with scale e^s
// does.
TEST(AttnResArms, AScaleIsAFactorOfTheQuery) {
  const Vector embedding = random_vector("embedding", 0, kWidth);
  for (const int64_t block_size : {1, 3}) {
    Bench learned(arm(block_size, {{"score_scale", "learned"}}), kWidth, kSublayers);
    Bench given(arm(block_size, {{"score_scale", 0.25}}), kWidth, kSublayers);
    Bench plain(arm(block_size), kWidth, kSublayers);
    for (Bench* bench : {&learned, &given, &plain}) bench->perturb(0.5);
    for (int l = 1; l <= kSublayers; ++l) {
      assign(learned.at(l, "log_score_scale"), vector_tensor({std::log(0.25)}));
      const at::Tensor query = plain.at(l, "pseudo_query");
      assign(query, 0.25 * query.detach());
    }
    const auto expected = mixed_by(plain, embedding, kSublayers);
    EXPECT_LT(largest_difference(mixed_by(learned, embedding, kSublayers), expected), 1e-12);
    EXPECT_EQ(largest_difference(mixed_by(given, embedding, kSublayers), expected), 0);
  }
}

TEST(AttnResArms, ALearnedScaleStartsAtOneWithoutWeightDecay) {
  Bench bench(arm(2, {{"score_scale", "learned"}}), kWidth, kSublayers);
  EXPECT_EQ(bench.parameters.find(0, "log_score_scale"), nullptr);
  for (int l = 1; l <= kSublayers; ++l) {
    const Parameter& scale = *bench.parameters.find(l, "log_score_scale");
    EXPECT_EQ(bench.values(l, "log_score_scale"), std::vector<double>{0});
    EXPECT_FALSE(has_weight_decay(scale.kind));
  }
}

// A block of one is the RMS of its output, larger blocks no RMS of a sum.
TEST(AttnResArms, ARmsSummaryIsASumOfRmsNotTheRmsOfASum) {
  Bench bench(arm(2, {{"block_summary", "rms"}}), kWidth, kSublayers);
  DepthState state = bench.mixer->start(at::zeros({1, kWidth}, at::kDouble));
  const auto write = [&](const Vector& y) {
    bench.mixer->read(state);
    bench.mixer->write(state, {vector_tensor(y).view({1, kWidth})});
  };
  const Vector first = random_vector("first", 0, kWidth),
               second = random_vector("second", 0, kWidth, 5);
  write(first);
  write(second);
  const Vector left = as_vector(bench.mixer->running_state(state));
  bench.mixer->settle(state);
  ASSERT_EQ(state.sealed.size(), 2u);
  EXPECT_TRUE(state.open.empty());
  EXPECT_EQ(as_vector(state.sealed[1]), left);
  EXPECT_EQ(as_vector(bench.mixer->running_state(state)), left);
  Vector sum(kWidth);
  for (size_t c = 0; c < kWidth; ++c) sum[c] = first[c] + second[c];
  double of_sum = 0;
  for (size_t c = 0; c < kWidth; ++c) {
    EXPECT_NEAR(left[c], first[c] * inverse_rms(first) + second[c] * inverse_rms(second), 1e-12);
    of_sum = larger(of_sum, std::abs(left[c] - sum[c] * inverse_rms(sum)));
  }
  EXPECT_GT(of_sum, 0.1);
}

// Where the query is zero its features are ones, and a weight is the share of its key's features.
TEST(AttnResArms, AFactorisedKernelStartsAtTheSharesOfTheKeys) {
  Bench bench(arm(1, {{"weights", "factorised"}}), kWidth, kSublayers);
  const Vector embedding = random_vector("embedding", 0, kWidth);
  const auto mixed = mixed_by(bench, embedding, kSublayers);
  Vector normed = embedding;
  for (double& number : normed) number *= inverse_rms(embedding);
  const Vector output = sublayer(0, normed);
  double shares[2] = {0, 0};
  for (size_t c = 0; c < kWidth; ++c) {
    shares[0] += feature(embedding[c] * inverse_rms(embedding));
    shares[1] += feature(output[c] * inverse_rms(output));
  }
  const double first = shares[0] / (shares[0] + shares[1]);
  EXPECT_GT(std::abs(first - 0.5), 1e-3);
  EXPECT_LT(std::abs(first - 0.5), 0.3);
  for (size_t c = 0; c < kWidth; ++c) {
    EXPECT_NEAR(mixed[1][c], first * embedding[c] + (1 - first) * output[c], 1e-12);
  }
}

// In float32 too, where elu(x) + 1 would be zero of every channel.
TEST(AttnResArms, AFactorisedKernelIsFiniteFarBelowZero) {
  const at::Tensor sources[] = {at::full({1, 4}, -30.0, at::kFloat),
                                at::full({1, 4}, -31.0, at::kFloat)};
  const DepthScoring scoring = {.query = at::full({4}, -20.0, at::kFloat),
                                .key_gain = {},
                                .weighing = DepthWeighing::factorised};
  const at::Tensor weights =
      weigh_scores(depth_scores(sources, scoring), DepthWeighing::factorised).flatten();
  EXPECT_NEAR(weights[0].item<double>(), 1 / (1 + std::exp(-1.0)), 1e-5);
  EXPECT_NEAR(weights[1].item<double>(), 1 / (1 + std::exp(1.0)), 1e-5);
}

// By central differences, of a scalar that weighs every number of the weights differently.
TEST(AttnResArms, GradientsOfAFactorisedKernelAreItsSlopes) {
  const auto values = [](const char* name, at::IntArrayRef sizes) {
    return vector_tensor(random_vector(name, 0, c10::multiply_integers(sizes))).view(sizes);
  };
  std::vector<at::Tensor> inputs = {values("query", {6}), values("gain", {6}), values("a", {2, 6}),
                                    values("b", {2, 6}), values("c", {2, 6})};
  const at::Tensor cotangent = values("cotangent", {3, 2, 2});
  const auto scalar = [&](const std::vector<at::Tensor>& x) {
    const DepthScoring scoring = {.query = x[0],
                                  .key_gain = x[1],
                                  .eps = kEps,
                                  .heads = 2,
                                  .weighing = DepthWeighing::factorised};
    const at::Tensor scores = depth_scores({x[2], x[3], x[4]}, scoring);
    return (weigh_scores(scores, DepthWeighing::factorised) * cotangent).sum();
  };
  for (at::Tensor& input : inputs) input.set_requires_grad(true);
  scalar(inputs).backward();
  constexpr double kStep = 1e-6;
  double largest = 0, largest_gradient = 0;
  for (const at::Tensor& input : inputs) {
    const at::NoGradGuard no_grad;
    const at::Tensor gradient = input.grad().flatten(), flat = input.view(-1);
    for (int64_t i = 0; i < input.numel(); ++i) {
      const double at_i = flat[i].item<double>();
      flat[i].fill_(at_i + kStep);
      const double above = scalar(inputs).item<double>();
      flat[i].fill_(at_i - kStep);
      const double below = scalar(inputs).item<double>();
      flat[i].fill_(at_i);
      const double slope = (above - below) / (2 * kStep);
      largest = std::max(largest, std::abs(gradient[i].item<double>() - slope));
      largest_gradient = std::max(largest_gradient, std::abs(slope));
    }
  }
  EXPECT_GT(largest_gradient, 1e-2);
  EXPECT_LT(largest, 1e-8);
}

// They depend on a site and a role alone, whatever else the mechanism does.
TEST(AttnResArms, QueriesStartAsRandomAsAsked) {
  const auto starts = [](const Json& settings, const char* role = "pseudo_query") {
    const Bench bench(arm(1, settings), 64, kSublayers);
    Vector all;
    for (int l = 1; l <= kSublayers; ++l) {
      const std::vector<double> of_site = bench.values(l, role);
      all.insert(all.end(), of_site.begin(), of_site.end());
    }
    return all;
  };
  const auto deviation = [](const Vector& values) {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum / static_cast<double>(values.size()));
  };
  const Vector half = starts({{"query_init", 0.5}}), one = starts({{"query_init", 1.0}});
  EXPECT_EQ(deviation(starts({})), 0);
  EXPECT_NEAR(deviation(half), 0.5, 0.06);  // 448 numbers: 0.017
  EXPECT_NE(Vector(half.begin(), half.begin() + 64), Vector(half.begin() + 64, half.begin() + 128));
  for (size_t i = 0; i < half.size(); ++i) EXPECT_DOUBLE_EQ(one[i], 2 * half[i]);
  EXPECT_EQ(starts({{"query_init", 0.5}, {"heads", 4}, {"weights", "factorised"}}), half);
  EXPECT_EQ(starts({{"query_init", 0.5}, {"block_size", 3}}), half);
  EXPECT_NEAR(deviation(starts({{"query_init", 0.5}, {"query", "input_dependent"}}, "query_proj")),
              0.5, 0.01);
}

TEST(AttnResArms, RefusesWhatCannotBe) {
  const auto refusal = [](const Json& settings) -> std::string {
    try {
      Bench(arm(2, settings), kWidth, kSublayers);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "accepted";
  };
  const auto expect = [&](const Json& settings, const std::string& part) {
    EXPECT_NE(refusal(settings).find(part), std::string::npos) << refusal(settings);
  };
  expect({{"heads", 5}}, "divisor of the width 12, got 5");
  expect({{"heads", 0}}, "got 0");
  expect({{"window", 0}}, "1 or more");
  expect({{"query", "random"}},
         "learned (w_l), input_dependent (W_l h_{l-1}, W_l [d, d]) or none (a learned logit a "
         "source), got random");
  expect({{"weights", "relu"}},
         "expected softmax, sigmoid (every source by itself) or factorised (f(q) . f(k_i) over its "
         "sum, f = elu + 1), got relu");
  expect({{"query", "none"}, {"weights", "factorised"}}, "nothing that query_init could start");
  expect({{"query", "none"}, {"query_init", 0.1}}, "nothing that query_init could start");
  expect({{"query_init", -0.1}}, "expected 0 to 100");
  expect({{"query", "none"}, {"heads", 2}}, "no keys");
  expect({{"query", "none"}, {"key_norm", false}}, "no keys");
  expect({{"query", "none"}, {"score_scale", "learned"}},
         "learned numbers, which no factor changes");
  expect({{"weights", "factorised"}, {"score_scale", 2}},
         "over their sum, which no factor changes");
  expect({{"score_scale", 0}}, "above 0 and at most 1000, or 1/sqrt(d)");
  expect({{"score_scale", -1}}, "above 0 and at most 1000, or 1/sqrt(d)");
  expect({{"score_scale", "1/sqrt(D)"}}, "did you mean 1/sqrt(d)?");
  expect({{"value_query", true}, {"query", "none"}}, "a second learned pseudo-query, and query is");
  expect({{"value_query", true}, {"query", "input_dependent"}}, "query is input_dependent");
  expect({{"block_summary", "mean"}}, "sum (of its outputs y_i) or rms (the sum of RMS(y_i)");
  expect({{"windw", 3}}, "window");
  EXPECT_EQ(refusal({{"window", 1}, {"heads", 12}}), "accepted");
}

}  // namespace
}  // namespace attnres::attn_res_arms_test
