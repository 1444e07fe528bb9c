#include "attnres/model/transformer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <set>

#include "attnres/model/parameter_names.h"
#include "attnres/support/error.h"
#include "tests/model/small_models.h"
#include "tests/operation_counts.h"
#include "tests/tolerances.h"

namespace attnres::testing::transformer_test {
namespace {

class EveryMechanism : public ::testing::TestWithParam<Mixing> {
 protected:
  Transformer make(at::ScalarType dtype = at::kDouble, int64_t layers = 3) const {
    return small_model(GetParam().json, {.layers = layers, .precision = dtype});
  }
  at::Tensor ids() const { return random_ids(2, 7); }
  at::Tensor targets() const { return random_ids(2, 7, 6); }
};

INSTANTIATE_TEST_SUITE_P(Mechanisms, EveryMechanism, ::testing::ValuesIn(every_variant()),
                         [](const auto& info) { return info.param.name; });

std::vector<at::Tensor> gradients(const Transformer& model, const at::Tensor& ids,
                                  const at::Tensor& targets, const RunContext& context = {}) {
  model.loss(ids, targets, context).backward();
  std::vector<at::Tensor> result;
  for (const Parameter& p : model.parameters().all()) {
    result.push_back(p.tensor.grad());
    p.tensor.mutable_grad().reset();
  }
  return result;
}

TEST_P(EveryMechanism, EveryParameterHasTheGradientOfCentralDifferences) {
  const Transformer model = make();
  const auto analytic = gradients(model, ids(), targets());
  size_t index = 0;
  for (const Parameter& p : model.parameters().all()) {
    const at::Tensor& gradient = analytic[index++];
    const std::string name = hugging_face_name(p, model.sublayers());
    ASSERT_TRUE(gradient.defined()) << name;
    EXPECT_GT(gradient.abs().max().item<double>(), 1e-8) << name;
    // A handful of entries of each, spread over the tensor.
    at::Tensor values = p.tensor.detach().view(-1);
    const at::Tensor expected = gradient.reshape(-1);
    for (int64_t k = 0; k < std::min<int64_t>(values.numel(), 3); ++k) {
      const int64_t i = (k * 7919 + 3) % values.numel();
      const double saved = values[i].item<double>(), step = 2e-6;
      const auto loss_at = [&](double value) {
        values[i].fill_(value);
        const at::NoGradGuard no_grad;
        return model.loss(ids(), targets()).item<double>();
      };
      const double numeric = (loss_at(saved + step) - loss_at(saved - step)) / (2 * step);
      values[i].fill_(saved);
      EXPECT_NEAR(expected[i].item<double>(), numeric, 1e-8 + 1e-6 * std::abs(numeric)) << name;
    }
  }
}

// A source read by several spans gets its gradients added in another order, so equality is to
// rounding; the residual stream has one reader, and is equal bit for bit.
TEST_P(EveryMechanism, RecomputationGivesTheSameGradients) {
  const double tolerance = GetParam().name == "residual" ? 0 : testing::tolerance(at::kDouble);
  for (const int64_t layers : {1, 3, 6}) {
    if (layers == 1 && GetParam().json.value("block_size", 1) > 2) continue;
    const Transformer model = make(at::kDouble, layers);
    const auto plain = gradients(model, ids(), targets());
    const auto recomputed = gradients(model, ids(), targets(), {.recompute = true});
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(close(recomputed[i], plain[i], tolerance))
          << layers << " layers, "
          << hugging_face_name(model.parameters().all()[i], model.sublayers());
    }
  }
}

class CountingObserver : public RunObserver {
 public:
  void on_read(int site, const ReadTrace& trace) override {
    ++reads[site];
    EXPECT_FALSE(trace.mixed.requires_grad());
  }
  void on_output(int site, const at::Tensor&, const at::Tensor& running_state) override {
    ++outputs[site];
    EXPECT_EQ(running_state.dim(), 2);
  }
  std::map<int, int> reads, outputs;
};

TEST_P(EveryMechanism, AnObserverSeesEachSiteOnceAndChangesNothing) {
  const Transformer model = make(at::kFloat);
  for (const bool recompute : {false, true}) {
    const auto plain = gradients(model, ids(), targets(), {.recompute = recompute});
    CountingObserver observer;
    const auto watched =
        gradients(model, ids(), targets(), {.recompute = recompute, .observer = &observer});
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(watched[i]));
    ASSERT_EQ(observer.reads.size(), 7u);
    ASSERT_EQ(observer.outputs.size(), 6u);
    for (const auto& [site, count] : observer.reads) EXPECT_EQ(count, 1) << site;
    for (const auto& [site, count] : observer.outputs) EXPECT_EQ(count, 1) << site;
  }
}

// What is computed without gradients goes past autograd, and is an ordinary tensor all the same.
TEST_P(EveryMechanism, IsTheSameWithoutGradients) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    Transformer model = make(dtype);
    const at::Tensor recorded = model.logits(model.hidden(ids()));
    ASSERT_TRUE(recorded.requires_grad());
    const auto unrecorded = [&](const RunContext& context = {}) {
      const at::NoGradGuard no_grad;
      return model.logits(model.hidden(ids(), context));
    };
    at::Tensor plain = unrecorded();
    EXPECT_FALSE(plain.requires_grad());
    EXPECT_TRUE(close(plain, recorded, testing::tolerance(dtype)));
    CountingObserver observer;
    EXPECT_TRUE(close(unrecorded({.observer = &observer}), plain, testing::tolerance(dtype)));
    plain.requires_grad_(true);
    plain.square().sum().backward();
    EXPECT_TRUE(plain.grad().equal(2 * plain.detach()));
    at::Tensor(model.parameters().all().back().tensor).detach().mul_(1.5);
    EXPECT_FALSE(close(unrecorded(), plain, testing::tolerance(dtype)));
  }
}

// Two halves that exchange only what a pipeline would send.
TEST_P(EveryMechanism, CanBeCutBeforeAnySite) {
  const Transformer model = make(at::kFloat);
  const at::NoGradGuard no_grad;
  const at::Tensor whole = model.hidden(ids()).flatten(0, 1);
  for (int cut = 0; cut <= model.sublayers(); ++cut) {
    DepthState first = model.embed(ids());
    model.run(first, cut);
    model.mixer().settle(first);
    DepthState second;
    second.sealed = first.sealed;
    second.open = first.open;
    second.site = cut;
    second.sequence = first.sequence;
    model.run(second, model.sublayers());
    EXPECT_TRUE(model.output(second).equal(whole)) << "cut before site " << cut;
    // Negative control: without the open tensors (or, where there are none, the last sealed one)
    // something is missing.
    if (cut == 0) continue;
    DepthState broken;
    broken.sealed = first.sealed;
    broken.open = first.open;
    broken.site = cut;
    broken.sequence = first.sequence;
    at::Tensor& dropped = broken.open.empty() ? broken.sealed.back() : broken.open.back();
    dropped = at::zeros_like(dropped);
    model.run(broken, model.sublayers());
    EXPECT_FALSE(model.output(broken).equal(whole)) << "cut before site " << cut;
  }
}

TEST_P(EveryMechanism, ATokenSeesNoLaterToken) {
  const Transformer model = make();
  const at::NoGradGuard no_grad;
  const at::Tensor before = ids();
  at::Tensor after = before.clone();
  after.select(1, 4).fill_((before.select(1, 4).max().item<int64_t>() + 1) % kSmallVocabulary);
  const at::Tensor a = model.hidden(before), b = model.hidden(after);
  EXPECT_TRUE(a.narrow(1, 0, 4).equal(b.narrow(1, 0, 4)));
  EXPECT_FALSE(a.select(1, 4).equal(b.select(1, 4)));
  EXPECT_FALSE(a.select(1, 6).equal(b.select(1, 6)));
}

TEST_P(EveryMechanism, ParametersHavePublicNamesOfTheirOwn) {
  const Transformer model = make();
  std::set<std::string> names;
  for (const Parameter& p : model.parameters().all()) {
    names.insert(hugging_face_name(p, model.sublayers()));
  }
  EXPECT_EQ(names.size(), model.parameters().all().size());
}

// Half of the mechanisms start as residual connections; away from the start none is.
TEST_P(EveryMechanism, DiffersFromResidualOnceItsParametersMove) {
  if (GetParam().name == "residual") GTEST_SKIP() << "is residual";
  const Transformer model = make(), plain = small_model(residual());
  const at::NoGradGuard no_grad;
  EXPECT_GT((model.hidden(ids()) - plain.hidden(ids())).abs().max().item<double>(), 1e-3);
}

// Everything that a cut sends is [T, ...], and mixing keeps what it has sealed.
TEST_P(EveryMechanism, SealsForGood) {
  const Transformer model = make();
  const at::NoGradGuard no_grad;
  DepthState state = model.embed(ids());
  std::vector<at::Tensor> sealed, copies;
  for (int site = 0; site <= model.sublayers(); ++site) {
    model.run(state, site);
    model.mixer().settle(state);
    ASSERT_GE(state.sealed.size(), sealed.size());
    for (size_t i = 0; i < sealed.size(); ++i) {
      EXPECT_TRUE(state.sealed[i].is_same(sealed[i])) << "source " << i << " before site " << site;
      EXPECT_TRUE(state.sealed[i].equal(copies[i])) << "source " << i << " before site " << site;
    }
    sealed = state.sealed;
    copies.clear();
    for (const at::Tensor& tensor : sealed) copies.push_back(tensor.clone());
    for (const auto* tensors : {&state.sealed, &state.open}) {
      for (const at::Tensor& tensor : *tensors) {
        EXPECT_EQ(tensor.size(0), 2 * 7);
      }
    }
  }
}

// With zero pseudo-queries a site's input is the mean of its n sources, which is the residual
// stream over n; the input norm removes the n when its eps is divided by n^2.
class ResidualInDisguise : public ::testing::TestWithParam<Mixing> {};

INSTANTIATE_TEST_SUITE_P(Mechanisms, ResidualInDisguise,
                         ::testing::Values(Mixing{"attn_res", attn_res()},
                                           Mixing{"block_2", block_attn_res(2)},
                                           Mixing{"block_5", block_attn_res(5)}),
                         [](const auto& info) { return info.param.name; });

// log p of every next token under the mechanism and under residual, with the same weights.
double difference_from_residual(const Json& depth_mixing, double query_scale) {
  constexpr double kEps = 0.1;  // large, so that eps matters
  const auto build = [&](const Json& mixing) {
    ModelConfig config = small_config(mixing, 4);
    config.norm_eps = kEps;
    Transformer model(config, kSmallVocabulary, /*seed=*/3, at::kDouble);
    for (const Parameter& p : model.parameters().all()) {
      if (p.role != "input_norm") continue;
      const RandomStream random(4, fmt::format("gain.{}", p.site));
      at::Tensor gain = p.tensor.detach();
      for (int64_t c = 0; c < gain.numel(); ++c) gain[c].fill_(1 + 0.3 * random.normal(c));
    }
    return model;
  };
  const Transformer model = build(depth_mixing), plain = build(residual());
  perturb(model, ParameterKind::pseudo_query, query_scale);
  const at::Tensor ids = random_ids(2, 9), next = random_ids(2, 9, 8);
  return (model.log_probabilities(ids, next) - plain.log_probabilities(ids, next))
      .abs()
      .max()
      .item<double>();
}

TEST_P(ResidualInDisguise, EqualsTheResidualModelWithZeroPseudoQueries) {
  Json mixing = GetParam().json;
  mixing["norm_eps"] = "per_source_count";
  EXPECT_LT(difference_from_residual(mixing, 0), 1e-12);
  // Negative controls: with one eps for all sites, or pseudo-queries that are not zero, it differs.
  EXPECT_GT(difference_from_residual(GetParam().json, 0), 1e-3);
  EXPECT_GT(difference_from_residual(mixing, 0.5), 1e-3);
}

TEST(Transformer, RefusesIdsOutsideTheVocabulary) {
  const Transformer model(small_config(residual()), kSmallVocabulary, 1);
  for (const int64_t bad : {int64_t{-1}, kSmallVocabulary}) {
    try {
      model.hidden(at::full({1, 2}, bad, at::kLong));
      ADD_FAILURE() << bad << " was accepted";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("ids 0 to 49"), std::string::npos) << e.what();
    }
  }
}

// No pass looks at the ids of a pool's sequences: who takes them in has. Nothing is read past the
// embedding all the same.
TEST(Transformer, ReadsNoEmbeddingThatIsNotThere) {
  const Transformer model(small_config(residual()), kSmallVocabulary, 1);
  const auto pool = model.make_pool({.tokens = 20});
  const int64_t sequence = pool->add();
  for (const int64_t bad : {int64_t{-1}, kSmallVocabulary}) {
    EXPECT_ANY_THROW(model.hidden(at::full({2}, bad, at::kLong), pool->append({{sequence, 2}})));
  }
}

// However many layers there are: of a piece of a prompt all have one mask.
TEST(Transformer, MakesWhatLayersShareOnceAStep) {
  const at::NoGradGuard not_recording;
  for (const int64_t layers : {1, 4}) {
    const Transformer model = small_model(residual(), {.layers = layers});
    const auto pool = model.make_pool({.tokens = 20});
    const int64_t sequence = pool->add();
    const at::Tensor ids = random_ids(1, 8)[0];
    model.hidden(ids.narrow(0, 0, 5), pool->append({{sequence, 5}}));
    const OperationCounts counts;
    model.hidden(ids.narrow(0, 5, 3), pool->append({{sequence, 3}}));
    EXPECT_EQ(counts.of("aten::tril"), 1) << layers;
    // And the ids are not looked at.
    EXPECT_EQ(counts.of("aten::min") + counts.of("aten::max"), 0);
  }
}

TEST(Transformer, SharesTheEmbeddingWithTheHeadWhenTied) {
  const Transformer tied = small_model(residual(), {.tied = true});
  const Transformer untied = small_model(residual());
  EXPECT_EQ(tied.parameters().count() + kSmallVocabulary * tied.config().width,
            untied.parameters().count());
  EXPECT_EQ(tied.parameters().find(tied.sublayers(), "head"), nullptr);
}

TEST(Transformer, StartsEqualWhereModelsAreEqual) {
  const Transformer a(small_config(residual()), kSmallVocabulary, 1);
  const Transformer b(small_config(block_attn_res(2)), kSmallVocabulary, 1);
  const Transformer c(small_config(residual()), kSmallVocabulary, 2);
  for (const Parameter& p : a.parameters().all()) {
    EXPECT_TRUE(p.tensor.equal(b.parameters().find(p.site, p.role)->tensor)) << p.role;
    if (p.kind == ParameterKind::matrix) {
      EXPECT_FALSE(p.tensor.equal(c.parameters().find(p.site, p.role)->tensor)) << p.role;
    }
  }
}

}  // namespace
}  // namespace attnres::testing::transformer_test
