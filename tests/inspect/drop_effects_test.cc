#include "attnres/inspect/drop_effects.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "attnres/infer/evaluate.h"
#include "attnres/infer/inference_model.h"
#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "tests/model/kinds_of_models.h"
#include "tests/model/small_models.h"

namespace attnres::testing::drop_effects_test {
namespace {

constexpr int64_t kContext = 8;
constexpr double kEqual = 1e-10;

// Two windows and a short one.
std::vector<int32_t> tokens() {
  return as_vector(random_ids(1, 2 * kContext + 5));
}

double loss_of(const Transformer& model) {
  return measure_drop_effects(model, tokens(), kContext).loss;
}

// The model with the last maps of the sublayers from `first` to `last` at zero, of experts each
// expert's: their outputs are.
double loss_without_outputs(const Transformer& model, int first, int last) {
  const std::set<std::string> last_maps = {"o_proj", "down_proj", "w2", "shared_w2"};
  std::vector<std::pair<at::Tensor, at::Tensor>> saved;
  std::set<int> sites;
  for (const Parameter& p : model.parameters().all()) {
    if (p.site < first || p.site > last || !last_maps.contains(p.role)) continue;
    saved.emplace_back(p.tensor, p.tensor.detach().clone());
    p.tensor.detach().zero_();
    sites.insert(p.site);
  }
  EXPECT_EQ(std::ssize(sites), last - first + 1);
  const double loss = loss_of(model);
  for (const auto& [tensor, values] : saved) tensor.detach().copy_(values);
  return loss;
}

class DroppedFrom : public ::testing::TestWithParam<Mixing> {};
INSTANTIATE_TEST_SUITE_P(Mechanisms, DroppedFrom, ::testing::ValuesIn(every_variant()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DroppedFrom, ASublayerGivesWhatALastMapOfZerosDoes) {
  const Transformer model = small_model(GetParam().json);
  const DropEffects effects = measure_drop_effects(model, tokens(), kContext);
  ASSERT_EQ(effects.sublayers.size(), 6u);
  ASSERT_EQ(effects.layers.size(), 3u);
  for (const int site : {0, 3}) {
    EXPECT_NEAR(effects.sublayers[site].change,
                loss_without_outputs(model, site, site) - effects.loss, kEqual)
        << site;
  }
  EXPECT_NEAR(effects.layers[1].change, loss_without_outputs(model, 2, 3) - effects.loss, kEqual);
  // Negative control: another layer matters as much to hardly any model.
  EXPECT_GT(std::abs(effects.layers[1].change - effects.layers[0].change), 1e-6);
}

// Shows whether a dropped source has weight, and that the others' add up to one.
class WeightOf : public RunObserver {
 public:
  explicit WeightOf(std::string source) : source_(std::move(source)) {}

  void on_read(int, const ReadTrace& trace) override {
    if (!trace.weights.defined()) return;
    EXPECT_LT((trace.weights.sum(0) - 1).abs().max().item<double>(), 1e-9);
    if (trace.sources.size() < 2) return;
    for (size_t i = 0; i < trace.sources.size(); ++i) {
      if (trace.sources[i] != source_) continue;
      ++seen;
      most = std::max(most, trace.weights[static_cast<int64_t>(i)].max().item<double>());
    }
  }

  int seen = 0;
  double most = 0;

 private:
  std::string source_;
};

TEST_P(DroppedFrom, ASourceHasNoWeightAndTheOthersAll) {
  const Transformer model = small_model(GetParam().json);
  const at::NoGradGuard no_grad;
  const DropEffects effects = measure_drop_effects(model, tokens(), kContext);
  for (const DropEffects::Source& source : effects.sources) {
    EXPECT_TRUE(std::isfinite(source.change)) << source.name;
    for (const bool dropped : {false, true}) {
      WeightOf weight(source.name);
      DepthState state = model.embed(random_ids(1, 6));
      MixingAnalysis analysis = {.dropped_source = dropped ? source.name : ""};
      state.analysis = &analysis;
      model.run(state, model.sublayers(), {.observer = &weight});
      model.output(state, {.observer = &weight});
      EXPECT_GT(weight.seen, 0) << source.name;
      EXPECT_EQ(weight.most == 0, dropped) << source.name;
    }
  }
}

TEST(DropEffects, HasSourcesWhereThereAreDepthWeights) {
  const auto names = [](const Json& mixing) {
    std::vector<std::string> result;
    for (const auto& source :
         measure_drop_effects(small_model(mixing), tokens(), kContext).sources) {
      result.push_back(source.name);
    }
    return result;
  };
  EXPECT_EQ(names(block_attn_res(4)),
            (std::vector<std::string>{"embedding", "block 1", "partial sum"}));
  EXPECT_EQ(names(attn_res()).size(), 7u);
  EXPECT_TRUE(names(residual()).empty());
  EXPECT_TRUE(names({{"type", "attn_res"}, {"weights", "sigmoid"}}).empty());
}

// RMSNorm in plain operations.
at::Tensor normed(const at::Tensor& x, double eps) {
  return x / (x.square().mean(-1, /*keepdim=*/true) + eps).sqrt();
}

at::Tensor value_of(const Transformer& model, int site, const std::string& role) {
  const Parameter* found = model.parameters().find(site, role);
  EXPECT_NE(found, nullptr) << site << " " << role;
  return found->tensor.detach();
}

// The equations of Block AttnRes on one window, with a source left out of every softmax but one of
// a single source.
double loss_by_hand(const Transformer& model, const Batch& batch, int block_size,
                    const std::string& without) {
  const int L = model.sublayers();
  const double eps = model.config().norm_eps;
  const at::Tensor ids = batch.inputs_BT.flatten();
  std::vector<at::Tensor> blocks = {model.token_embeddings(ids).detach()};
  std::vector<std::string> names = {"embedding"};
  at::Tensor partial, x;
  const SequenceContext whole = {std::make_shared<Spans>(Spans::whole(1, ids.size(0))), 0};
  for (int site = 0; site <= L; ++site) {
    std::vector<at::Tensor> sources = blocks;
    std::vector<std::string> source_names = names;
    if (partial.defined()) {
      sources.push_back(partial);
      source_names.emplace_back("partial sum");
    }
    at::Tensor mixed = sources[0];
    if (sources.size() > 1) {
      const at::Tensor query = value_of(model, site, "pseudo_query"),
                       gain = value_of(model, site, "key_norm");
      at::Tensor sum, total;
      for (size_t i = 0; i < sources.size(); ++i) {
        if (source_names[i] == without) continue;
        const at::Tensor score =
            (query * gain * normed(sources[i], eps)).sum(-1, /*keepdim=*/true).exp();
        sum = sum.defined() ? sum + score * sources[i] : score * sources[i];
        total = total.defined() ? total + score : score;
      }
      mixed = sum / total;
    }
    x = normed(mixed, eps) * value_of(model, site, "input_norm");
    if (site == L) break;
    const at::Tensor y = model.sublayer(site).forward({.x = x}, whole).y;
    partial = partial.defined() ? partial + y : y;
    if ((site + 1) % block_size != 0) continue;
    blocks.push_back(partial);
    names.push_back((block_size == 1 ? "sublayer " : "block ") + std::to_string(names.size()));
    partial.reset();
  }
  const at::Tensor log_p = x.mm(value_of(model, L, "head").t()).log_softmax(-1);
  return -log_p.gather(1, batch.targets_BT.flatten().unsqueeze(1)).mean().item<double>();
}

TEST(DropEffects, OfASourceAreThoseOfTheEquationsWithoutIt) {
  const at::NoGradGuard no_grad;
  const std::vector<int32_t> window = as_vector(random_ids(1, kContext));
  const Batch batch = EvaluationBatches({window}, kContext, 1)[0];
  for (const int block_size : {1, 2, 4}) {
    const Transformer model =
        small_model(block_size == 1 ? attn_res() : block_attn_res(block_size));
    const DropEffects effects = measure_drop_effects(model, window, kContext);
    EXPECT_NEAR(effects.loss, loss_by_hand(model, batch, block_size, ""), kEqual);
    ASSERT_GE(effects.sources.size(), 3u);
    for (size_t i = 0; i < effects.sources.size(); ++i) {
      const auto by_hand = [&](const std::string& name) {
        return loss_by_hand(model, batch, block_size, name) - effects.loss;
      };
      const DropEffects::Source& source = effects.sources[i];
      EXPECT_NEAR(source.change, by_hand(source.name), kEqual) << source.name;
      // Negative control.
      const std::string& other = effects.sources[i == 0 ? 1 : 0].name;
      EXPECT_GT(std::abs(source.change - by_hand(other)), 1e-5) << source.name;
    }
  }
}

TEST(DropEffects, StartFromTheLossThatEvaluationGives) {
  const Transformer model = small_model(block_attn_res(), {.vocab_size = 256});
  const Evaluation expected =
      evaluate(LocalModel(model), ByteTokenizer(), {tokens()}, {.context = kContext});
  EXPECT_NEAR(loss_of(model), expected.loss, kEqual);
}

TEST(DropEffects, OfKimisLayersAreThoseOfLastMapsOfZeros) {
  const at::NoGradGuard no_grad;
  const std::vector<int32_t> window = as_vector(random_ids(1, kContext));
  const Batch batch = EvaluationBatches({window}, kContext, 1)[0];
  for (const bool k3 : {false, true}) {
    const Transformer model = kimi_model(k3, block_attn_res(4));
    const DropEffects effects = measure_drop_effects(model, tokens(), kContext);
    ASSERT_EQ(std::ssize(effects.sublayers), model.sublayers());
    for (int site = 0; site < model.sublayers(); ++site) {
      EXPECT_NEAR(effects.sublayers[site].change,
                  loss_without_outputs(model, site, site) - effects.loss, kEqual)
          << site;
    }
    const DropEffects of_window = measure_drop_effects(model, window, kContext);
    ASSERT_EQ(of_window.sources.size(), 4u);
    for (const DropEffects::Source& source : of_window.sources) {
      EXPECT_NEAR(source.change, loss_by_hand(model, batch, 4, source.name) - of_window.loss,
                  kEqual)
          << source.name;
    }
  }
}

TEST(DropEffects, TellHowFarTheyAre) {
  std::vector<int64_t> done;
  int64_t last_total = 0;
  measure_drop_effects(small_model(block_attn_res()), tokens(), kContext,
                       [&](int64_t now, int64_t total) {
                         done.push_back(now);
                         last_total = total;
                       });
  ASSERT_EQ(last_total, 1 + 3 + 6 + 3);
  ASSERT_EQ(std::ssize(done), last_total + 1);
  for (int64_t i = 0; i <= last_total; ++i) EXPECT_EQ(done[i], i);
}

TEST(DropEffects, RefusesAModelWithoutALoss) {
  const Transformer model = small_model(residual());
  model.parameters().all().front().tensor.detach().fill_(NAN);
  EXPECT_THROW(measure_drop_effects(model, tokens(), kContext), Error);
}

TEST(EffectiveDepth, CountsLayersByWhatTheyAreWorth) {
  EXPECT_NEAR(effective_depth({0.5, 0.5, 0.5, 0.5}), 4, 1e-12);
  EXPECT_NEAR(effective_depth({0, 2, 0}), 1, 1e-12);
  EXPECT_EQ(effective_depth({-1, 0}), 0);
  EXPECT_EQ(effective_depth({}), 0);
  // Shares of 3/4 and 1/4; a layer whose loss would be missed by none has none.
  EXPECT_NEAR(effective_depth({3, 1, -7}), std::pow(4.0 / 3, 0.75) * std::pow(4.0, 0.25), 1e-12);
  EXPECT_THROW(effective_depth({1, std::numeric_limits<double>::quiet_NaN()}), Error);
}

}  // namespace
}  // namespace attnres::testing::drop_effects_test
