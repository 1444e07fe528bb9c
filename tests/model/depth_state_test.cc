#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "attnres/depth/depth_mixer.h"
#include "attnres/model/transformer.h"
#include "tests/model/small_models.h"

namespace attnres::testing::depth_state_test {
namespace {

constexpr int64_t kBatch = 2, kTokens = 7;

class EveryState : public ::testing::TestWithParam<Mixing> {
 protected:
  EveryState() : model_(small_model(GetParam().json)), ids_(random_ids(kBatch, kTokens)) {}

  int L() const { return model_.sublayers(); }
  StatePlan plan(int site) const { return model_.mixer().plan(site); }

  DepthState before(int site) const {
    DepthState state = model_.embed(ids_);
    model_.run(state, site);
    model_.mixer().settle(state);
    return state;
  }

  // All that site `site` makes of a state: what it adds to it, or what the head reads.
  std::vector<at::Tensor> result_of_site(DepthState state) const {
    if (state.site == L()) return {model_.output(state)};
    const size_t sealed = state.sealed.size();
    model_.run(state, state.site + 1);
    model_.mixer().settle(state);
    std::vector<at::Tensor> result(state.sealed.begin() + static_cast<int64_t>(sealed),
                                   state.sealed.end());
    result.insert(result.end(), state.open.begin(), state.open.end());
    return result;
  }

  at::NoGradGuard not_recording_;
  Transformer model_;
  at::Tensor ids_;
};

INSTANTIATE_TEST_SUITE_P(Mechanisms, EveryState, ::testing::ValuesIn(every_variant()),
                         [](const auto& info) { return info.param.name; });

std::vector<std::vector<int64_t>> sizes_of(const std::vector<PlannedTensor>& planned) {
  std::vector<std::vector<int64_t>> all;
  for (const PlannedTensor& tensor : planned) {
    EXPECT_FALSE(tensor.name.empty());
    std::vector<int64_t> sizes = {kBatch * kTokens};
    sizes.insert(sizes.end(), tensor.sizes.begin(), tensor.sizes.end());
    all.push_back(sizes);
  }
  return all;
}

std::vector<std::vector<int64_t>> sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<int64_t>> all;
  for (const at::Tensor& tensor : tensors) all.push_back(tensor.sizes().vec());
  return all;
}

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return x.equal(y); });
}

TEST_P(EveryState, SaysWhatCrosses) {
  for (int site = 0; site <= L(); ++site) {
    const DepthState state = before(site);
    EXPECT_EQ(sizes_of(plan(site).sealed), sizes_of(state.sealed)) << "before site " << site;
    EXPECT_EQ(sizes_of(plan(site).open), sizes_of(state.open)) << "before site " << site;
  }
}

TEST_P(EveryState, KeepsTheNamesOfWhatIsSealed) {
  for (int site = 0; site < L(); ++site) {
    const auto earlier = plan(site).sealed, later = plan(site + 1).sealed;
    ASSERT_LE(earlier.size(), later.size());
    for (size_t i = 0; i < earlier.size(); ++i) {
      EXPECT_EQ(earlier[i].name, later[i].name);
      EXPECT_EQ(earlier[i].last_reader, later[i].last_reader) << later[i].name;
    }
  }
}

// A tensor is read where another in its place changes the result.
TEST_P(EveryState, SaysWhichSitesReadWhatIsSealed) {
  std::vector<int> last_readers;
  for (int site = 0; site <= L(); ++site) {
    const DepthState state = before(site);
    const auto expected = result_of_site(before(site));
    last_readers.resize(state.sealed.size(), -1);
    for (size_t i = 0; i < state.sealed.size(); ++i) {
      DepthState other = before(site);
      other.sealed[i] = other.sealed[i].roll(1, -1) + 0.5;
      const bool read = !equal(result_of_site(std::move(other)), expected);
      EXPECT_EQ(plan(site).sealed[i].read, read)
          << plan(site).sealed[i].name << ", by site " << site;
      if (read) last_readers[i] = site;
    }
  }
  const auto sealed = plan(L()).sealed;
  for (size_t i = 0; i < sealed.size(); ++i) {
    EXPECT_EQ(sealed[i].last_reader, last_readers[i]) << sealed[i].name;
  }
}

// A state without what no later site reads goes on as it would have.
TEST_P(EveryState, FreesWhatIsReadNoMore) {
  const at::Tensor expected = model_.hidden(ids_).flatten(0, 1);
  int freed = 0;
  for (int site = 0; site <= L(); ++site) {
    DepthState state = before(site);
    for (size_t i = 0; i < state.sealed.size(); ++i) {
      if (plan(site).sealed[i].last_reader >= site) continue;
      state.sealed[i] = at::Tensor();
      ++freed;
    }
    model_.run(state, L());
    EXPECT_TRUE(model_.output(state).equal(expected)) << "before site " << site;
  }
  EXPECT_TRUE(freed > 0 || GetParam().name != "attn_res_window");
}

// A mixer alone, on one sequence, whose sublayers and heads are random numbers.
class MixerAlone {
 public:
  explicit MixerAlone(const Json& depth_mixing)
      : config_(small_config(depth_mixing)), parameters_(at::kDouble, 1) {
    mixer_ = config_.depth_mixing.make_mixer(config_.mixer_shape(), parameters_);
    for (const Parameter& p : parameters_.all()) add_noise(p, 0.3);
  }

  const DepthMixer& mixer() const { return *mixer_; }
  int sublayers() const { return config_.sublayers(); }

  static at::Tensor random(const std::string& name, const std::vector<int64_t>& sizes) {
    const at::Tensor numbers = at::empty(sizes, at::kDouble);
    const RandomStream stream(/*seed=*/5, name);
    for (int64_t i = 0; i < numbers.numel(); ++i) {
      numbers.mutable_data_ptr<double>()[i] = stream.normal(i);
    }
    return numbers;
  }

  DepthState before(int site) const {
    DepthState state = mixer_->start(random("embedding", {kTokens, config_.width}));
    while (state.site < site) {
      read(state, 0, kTokens);
      write(state);
    }
    mixer_->settle(state);
    return state;
  }

  void write(DepthState& state) const {
    const std::string name = fmt::format("output {}", state.site);
    mixer_->write(state, {random(name, {kTokens, config_.width})});
  }

  // All that the sublayer reads of tokens first .. first + count, which the state holds.
  std::vector<at::Tensor> read(DepthState& state, int64_t first, int64_t count) const {
    const int64_t K = config_.mixer_shape().head_width();
    const int l = state.site;
    const SublayerInput input = mixer_->read(state);
    std::vector<at::Tensor> read = {input.x};
    for (const at::Tensor& x : {input.query, input.key, input.value}) {
      if (x.defined()) read.push_back(x);
    }
    if (!input.adapt_heads) return read;
    const auto heads_of = [&](const char* which, int64_t count_of_heads) {
      return random(fmt::format("{} {}", which, l), {kTokens, count_of_heads, K})
          .narrow(0, first, count);
    };
    AttentionHeads heads = {heads_of("q", config_.heads), heads_of("k", config_.kv_heads),
                            heads_of("v", config_.kv_heads)};
    input.adapt_heads(heads);
    read.insert(read.end(), {heads.q, heads.k, heads.v});
    return read;
  }

 private:
  ModelConfig config_;
  ParameterRegistry parameters_;
  std::unique_ptr<DepthMixer> mixer_;
};

// Who holds tokens from the fifth on reads of them what the whole does, but for a halo.
TEST_P(EveryState, SaysWhatAShardOfTokensLacks) {
  constexpr int64_t kFirst = 4, kCount = kTokens - kFirst;
  const MixerAlone alone(GetParam().json);
  for (int site = 0; site <= alone.sublayers(); ++site) {
    int64_t halo = 0;
    const StatePlan plan = alone.mixer().plan(site);
    for (const auto* tensors : {&plan.sealed, &plan.open}) {
      for (const PlannedTensor& tensor : *tensors) halo = std::max(halo, tensor.halo);
    }
    DepthState whole = alone.before(site), shard = alone.before(site);
    for (auto* tensors : {&shard.sealed, &shard.open}) {
      for (at::Tensor& tensor : *tensors) tensor = tensor.narrow(0, kFirst, kCount);
    }
    const auto expected = alone.read(whole, 0, kTokens), actual = alone.read(shard, kFirst, kCount);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      for (int64_t t = 0; t < kCount; ++t) {
        const double difference =
            (actual[i][t] - expected[i][kFirst + t]).abs().max().item<double>();
        const std::string where = fmt::format("site {}, token {}, input {}", site, t, i);
        EXPECT_EQ(difference > 1e-12, t < halo) << where << " differs by " << difference;
      }
    }
  }
}

// Who holds the second head of what is sealed reads of it what the whole does, unless all heads are
// mixed.
TEST_P(EveryState, SaysWhereHeadsAreMixed) {
  const MixerAlone alone(GetParam().json);
  for (int site = 0; site <= alone.sublayers(); ++site) {
    const auto sealed = alone.mixer().plan(site).sealed;
    for (size_t i = 0; i < sealed.size(); ++i) {
      if (sealed[i].axis != ShardAxis::heads || !sealed[i].read) continue;
      DepthState whole = alone.before(site), other = alone.before(site);
      other.sealed[i] = other.sealed[i].clone();
      other.sealed[i].select(1, 0).add_(1);
      const auto expected = alone.read(whole, 0, kTokens), actual = alone.read(other, 0, kTokens);
      double of_second_head = 0;
      for (size_t k = 1; k < expected.size(); ++k) {
        of_second_head = std::max(
            of_second_head, (actual[k] - expected[k]).select(1, 1).abs().max().item<double>());
      }
      EXPECT_EQ(of_second_head > 1e-3, sealed[i].mixes_heads) << of_second_head;
    }
  }
}

// Between a read and its write too, where the state is not all that there is.
TEST_P(EveryState, IsSettledAtAnyMoment) {
  const MixerAlone alone(GetParam().json);
  const auto reads = [&](bool settle) {
    DepthState state = alone.before(0);
    std::vector<at::Tensor> all;
    while (true) {
      const auto read = alone.read(state, 0, kTokens);
      all.insert(all.end(), read.begin(), read.end());
      if (settle) alone.mixer().settle(state);
      EXPECT_EQ(state.cache != nullptr && settle, false);
      if (state.site == alone.sublayers()) return all;
      alone.write(state);
      EXPECT_EQ(state.carried, nullptr);
      if (settle) alone.mixer().settle(state);
      if (settle) alone.mixer().settle(state);
    }
  };
  EXPECT_TRUE(equal(reads(/*settle=*/true), reads(/*settle=*/false)));
}

}  // namespace
}  // namespace attnres::testing::depth_state_test
