#include "attnres/conformance/diagnosis.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "attnres/conformance/decay_vectors.h"
#include "attnres/conformance/known_mistakes.h"
#include "attnres/formats/safetensors.h"
#include "attnres/support/error.h"
#include "tests/conformance/vector_entries.h"
#include "tests/depth/mechanisms/attn_res_reference.h"
#include "tests/larger.h"
#include "tests/text/test_files.h"

namespace attnres::testing::diagnosis_test {
namespace {

using reference::Vector;
using ::testing::HasSubstr;

TestVectors mistaken_vectors(const TestVectorEntry& entry, Mistake mistake,
                             at::ScalarType dtype = at::kDouble) {
  return make_test_vectors(entry, dtype, mistaken_mixer(mistake));
}

const TestVectorEntry& block_entry() {
  return entry_named("block_attn_res");
}
const TestVectorEntry& delta_entry() {
  return entry_named("delta_attn_res.block_size=3");
}
// Both mechanisms that have known mistakes.
std::vector<TestVectorEntry> block_entries() {
  return {block_entry(), delta_entry()};
}

std::vector<KnownMistake> known_mistakes_of(const TestVectorEntry& entry) {
  return attnres::known_mistakes_of(entry.depth_mixing);
}

TEST(Diagnosis, OwnResultsMatchInEveryDtype) {
#if defined(__SANITIZE_ADDRESS__)
  const std::vector<at::ScalarType> dtypes = {at::kFloat};  // minutes each, of the same code
#else
  const std::vector<at::ScalarType> dtypes = {at::kDouble, at::kFloat, at::kBFloat16};
#endif
  for (const at::ScalarType dtype : dtypes) {
    NamedTensors results;
    for (const TestVectorEntry& entry : test_vector_entries()) {
      for (auto& result : results_of(entry, make_test_vectors(entry, dtype))) {
        results.push_back(std::move(result));
      }
    }
    const std::vector<Diagnosis> diagnoses = diagnose_results(results);
    EXPECT_EQ(diagnoses.size(), test_vector_entries().size());
    for (const Diagnosis& diagnosis : diagnoses) {
      EXPECT_TRUE(diagnosis.matches()) << diagnosis.entry;
      EXPECT_EQ(diagnosis.found, diagnosis.results);
      EXPECT_TRUE(diagnosis.has_gradients);
      EXPECT_LT(diagnosis.worst.part(), 0.75) << diagnosis.entry << " " << diagnosis.worst.name;
    }
  }
}

TEST(Diagnosis, FindsEveryMistake) {
  for (const TestVectorEntry& entry : block_entries()) {
    EXPECT_GE(known_mistakes_of(entry).size(), 9U);
    for (const KnownMistake& known : known_mistakes_of(entry)) {
      const TestVectors mistaken = mistaken_vectors(entry, known.mistake, at::kFloat);
      const Diagnosis diagnosis = diagnose_results(results_of(entry, mistaken)).at(0);
      EXPECT_FALSE(diagnosis.matches());
      ASSERT_EQ(diagnosis.mistakes.size(), 1U) << known.name;
      EXPECT_EQ(diagnosis.mistakes[0].mistake.name, known.name);
    }
  }
}

TEST(Diagnosis, FindsTheMistakesOfSettings) {
  const size_t of_plain = known_mistakes().size();
  int found = 0;
  for (const char* name : {"attn_res.score_scale=0.25", "block_attn_res.score_scale=learned",
                           "attn_res.value_query=true", "block_attn_res.value_query=true",
                           "block_attn_res.block_summary=rms"}) {
    const TestVectorEntry& entry = entry_named(name);
    ASSERT_TRUE(has_known_mistakes(entry.depth_mixing, entry.shape)) << name;
    std::vector<KnownMistake> own = attnres::known_mistakes_of(entry.depth_mixing);
    own.erase(own.begin(), own.begin() + static_cast<int64_t>(of_plain));
    own.push_back(*std::find_if(
        known_mistakes().begin(), known_mistakes().end(),
        [](const KnownMistake& known) { return known.mistake == Mistake::values_normalized; }));
    for (const KnownMistake& known : own) {
      const TestVectors mistaken = mistaken_vectors(entry, known.mistake, at::kFloat);
      const Diagnosis diagnosis = diagnose_results(results_of(entry, mistaken)).at(0);
      EXPECT_FALSE(diagnosis.matches());
      ASSERT_EQ(diagnosis.mistakes.size(), 1U) << name << " " << known.name;
      EXPECT_EQ(diagnosis.mistakes[0].mistake.name, known.name) << name;
      ++found;
    }
  }
  EXPECT_EQ(found, 1 + 2 + 2 + 2 + 3 + 5);
}

// What is left out is the mechanism without it, of the same numbers.
TEST(KnownMistakes, OfSettingsAreWhatTheySay) {
  const auto without = [](const char* name, const char* key) {
    TestVectorEntry entry = entry_named(name);
    Json settings = entry.depth_mixing.to_json();
    settings.erase(key);
    entry.depth_mixing = DepthMixing(settings, entry.shape);
    return make_test_vectors(entry);
  };
  const auto difference = [](const TestVectors& a, const std::string& of_a, const TestVectors& b,
                             const std::string& of_b) {
    return (a.find(of_a) - b.find(of_b)).abs().max().item<double>();
  };
  const char *scale = "block_attn_res.score_scale=learned",
             *summary = "block_attn_res.block_summary=rms",
             *values = "block_attn_res.value_query=true";
  const auto mistaken = [](const char* name, Mistake mistake) {
    return mistaken_vectors(entry_named(name), mistake);
  };
  EXPECT_LT(difference(mistaken(scale, Mistake::scale_left_out), "mixed.8",
                       without(scale, "score_scale"), "mixed.8"),
            1e-13);
  EXPECT_LT(difference(mistaken(summary, Mistake::summary_left_out), "mixed.8",
                       without(summary, "block_summary"), "mixed.8"),
            1e-13);
  const TestVectors right = make_test_vectors(entry_named(values));
  EXPECT_LT(difference(mistaken(values, Mistake::value_query_left_out), "mixed.value.4", right,
                       "mixed.4"),
            1e-13);
  const TestVectors swapped = mistaken(values, Mistake::mixtures_swapped);
  EXPECT_LT(difference(swapped, "mixed.value.4", right, "mixed.4"), 1e-13);
  EXPECT_LT(difference(swapped, "input.4", right, "input.value.4"), 1e-13);
  EXPECT_GT(difference(right, "mixed.4", right, "mixed.value.4"), 0.1);
}

// Beside whatever else is wrong.
TEST(Diagnosis, FindsQueriesThatDoNotStartAtZero) {
  for (const char* name :
       {"attn_res", "block_attn_res", "block_attn_res.heads=4", "delta_attn_res"}) {
    const TestVectorEntry& entry = entry_named(name);
    NamedTensors results = results_of(entry, make_test_vectors(entry));
    for (auto& [full_name, tensor] : results) {
      if (full_name.find("/start.pseudo_query.") == std::string::npos) continue;
      EXPECT_EQ(tensor.abs().max().item<double>(), 0);
      tensor = 0.02 * at::randn(tensor.sizes(), at::kDouble);
    }
    const Diagnosis diagnosis = diagnose_results(results).at(0);
    EXPECT_FALSE(diagnosis.matches());
    ASSERT_EQ(diagnosis.mistakes.size(), 1U) << name;
    EXPECT_EQ(diagnosis.mistakes[0].mistake.name, "random_queries");
  }
  NamedTensors both =
      results_of(block_entry(), mistaken_vectors(block_entry(), Mistake::recursive_blocks));
  for (auto& [full_name, tensor] : both) {
    if (full_name.find("/start.pseudo_query.") != std::string::npos) tensor = tensor + 0.02;
  }
  std::vector<std::string> found;
  const std::vector<Diagnosis> diagnoses = diagnose_results(both);
  for (const auto& match : diagnoses.at(0).mistakes) found.emplace_back(match.mistake.name);
  EXPECT_THAT(found, ::testing::UnorderedElementsAre("random_queries", "recursive_blocks"));
}

// A gain that starts at zero is no random query.
TEST(Diagnosis, ComparesWhatParametersStartAt) {
  NamedTensors results = results_of(block_entry(), make_test_vectors(block_entry()));
  for (auto& [name, tensor] : results) {
    if (name.ends_with("/start.key_norm.3")) tensor = at::zeros_like(tensor);
  }
  const Diagnosis diagnosis = diagnose_results(results).at(0);
  EXPECT_EQ(diagnosis.departure.value().name, "start.key_norm.3");
  EXPECT_TRUE(diagnosis.mistakes.empty());
}

TEST(Diagnosis, FindsADecayThatIsReadWhole) {
  const auto diagnose_decays = [](Mistake mistake, at::ScalarType dtype) {
    NamedTensors results;
    for (const auto& [name, tensor] : make_decay_vectors(dtype, mistake).results) {
      results.emplace_back(std::string(kDecayEntry) + "/" + name, tensor.detach());
    }
    return diagnose_results(results).at(0);
  };
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    EXPECT_TRUE(diagnose_decays(Mistake::none, dtype).matches());
    const Diagnosis whole = diagnose_decays(Mistake::decay_read_whole, dtype);
    EXPECT_FALSE(whole.matches());
    ASSERT_EQ(whole.mistakes.size(), 1U);
    EXPECT_EQ(whole.mistakes[0].mistake.name, "decay_read_whole");
  }
}

TEST(DecayVectors, AreWhatPlainLoopsGive) {
  const TestVectors vectors = make_decay_vectors();
  const auto numbers = [&](const char* name) {
    const at::Tensor tensor = vectors.find(name).detach().contiguous();
    return Vector(tensor.data_ptr<double>(), tensor.data_ptr<double>() + tensor.numel());
  };
  const Vector gate = numbers("gate"), A_log = numbers("parameter.A_log"),
               bias = numbers("parameter.dt_bias"), decay = numbers("log_decay");
  ASSERT_EQ(A_log.size(), 8U);
  ASSERT_EQ(bias.size(), 48U);
  EXPECT_EQ(A_log[6], 0);
  for (size_t i = 0; i < gate.size(); ++i) {
    const size_t of_heads = i % 48, head = of_heads / 8;
    const double scaled = std::exp(A_log[head]) * (gate[i] + bias[of_heads]);
    EXPECT_NEAR(decay[i], -5 / (1 + std::exp(-scaled)), 1e-13);
  }
}

TEST(Diagnosis, SaysThatADetachedBlockCannotShowWithoutGradients) {
  const TestVectors mistaken = mistaken_vectors(block_entry(), Mistake::detached_blocks);
  const Diagnosis diagnosis =
      diagnose_results(results_of(block_entry(), mistaken, is_forward)).at(0);
  EXPECT_TRUE(diagnosis.matches());
  EXPECT_FALSE(diagnosis.has_gradients);
  EXPECT_LT(diagnosis.found, diagnosis.results);
}

// A few sublayers' inputs are enough.
TEST(Diagnosis, FindsAMistakeInPartOfTheResults) {
  const TestVectors mistaken = mistaken_vectors(block_entry(), Mistake::l2_norm, at::kFloat);
  const Diagnosis diagnosis =
      diagnose_results(results_of(block_entry(), mistaken, [](const std::string& name) {
        return name == "input.4" || name == "input.5";
      })).at(0);
  ASSERT_EQ(diagnosis.mistakes.size(), 1U);
  EXPECT_EQ(diagnosis.mistakes[0].mistake.name, "l2_norm");
}

// In bfloat16 the nearest mistake is the right one, but for those that only round to bfloat16.
TEST(Diagnosis, FindsMistakesInBFloat16) {
  for (const TestVectorEntry& entry : block_entries()) {
    for (const KnownMistake& known : known_mistakes_of(entry)) {
      const TestVectors mistaken = mistaken_vectors(entry, known.mistake, at::kBFloat16);
      const Diagnosis diagnosis = diagnose_results(results_of(entry, mistaken)).at(0);
      if (known.mistake == Mistake::folded_query_rounded ||
          known.mistake == Mistake::folded_factors_rounded) {
        EXPECT_TRUE(diagnosis.matches()) << known.name;
      } else {
        ASSERT_FALSE(diagnosis.mistakes.empty()) << known.name;
        EXPECT_EQ(diagnosis.mistakes[0].mistake.name, known.name);
      }
    }
  }
}

// Largest difference of forward results, relative to the largest magnitude of each.
double distance(const TestVectors& a, const TestVectors& b, bool forward_only) {
  double largest = 0;
  for (size_t i = 0; i < a.results.size(); ++i) {
    const auto& [name, of_a] = a.results[i];
    if (forward_only && !is_forward(name)) continue;
    const at::Tensor of_b = b.results[i].second;
    if (at::equal(of_a, of_b)) continue;
    largest = attnres::testing::larger(
        largest, ((of_a - of_b).abs().max() / of_b.abs().max()).item<double>());
  }
  return largest;
}

TEST(KnownMistakes, EveryTwoGiveOtherNumbers) {
  for (const TestVectorEntry& entry : block_entries()) {
    std::vector<std::pair<KnownMistake, TestVectors>> all = {
        {{Mistake::none, "right", ""}, make_test_vectors(entry)}};
    for (const KnownMistake& known : known_mistakes_of(entry)) {
      all.emplace_back(known, mistaken_vectors(entry, known.mistake));
    }
    for (const auto& [a, of_a] : all) {
      for (const auto& [b, of_b] : all) {
        if (a.mistake == b.mistake) continue;
        const bool shows_in_gradients_only =
            std::min(a.mistake, b.mistake) == Mistake::none &&
            std::max(a.mistake, b.mistake) == Mistake::detached_blocks;
        EXPECT_GT(distance(of_a, of_b, !shows_in_gradients_only), 2e-3) << a.name << ", " << b.name;
      }
    }
  }
}

TEST(KnownMistakes, WithoutAnyItIsTheMechanism) {
  for (const char* name :
       {"attn_res", "block_attn_res", "attn_res.score_scale=0.25",
        "block_attn_res.score_scale=learned", "attn_res.value_query=true",
        "block_attn_res.value_query=true", "block_attn_res.block_summary=rms", "delta_attn_res",
        "delta_attn_res.block_size=3", "delta_attn_res.gate=none"}) {
    const TestVectorEntry& entry = entry_named(name);
    EXPECT_LT(distance(mistaken_vectors(entry, Mistake::none), make_test_vectors(entry),
                       /*forward_only=*/false),
              1e-13);
    EXPECT_FALSE(known_mistakes_of(entry).empty());
  }
  EXPECT_FALSE(has_known_mistakes(entry_named("attn_res.window=2").depth_mixing,
                                  entry_named("attn_res.window=2").shape));
  EXPECT_FALSE(
      has_known_mistakes(entry_named("residual").depth_mixing, entry_named("residual").shape));
}

// The first token in plain loops, with what the mistake does to the parameters or the block size.
class MistakesInPlainLoops : public ::testing::Test {
 protected:
  Vector given(const std::string& name) const {
    const at::Tensor tensor = vectors_.find(name).detach();
    const at::Tensor row = tensor.dim() == 3 ? tensor[0][0] : tensor;
    return {row.data_ptr<double>(), row.data_ptr<double>() + row.numel()};
  }
  Vector output(int l) const { return given(fmt::format("output.{}", l)); }

  std::vector<Vector> mixed(const Vector& embedding, size_t block_size,
                            const std::function<void(reference::Site&)>& change = {},
                            double eps = block_entry().shape.norm_eps) const {
    std::vector<reference::Site> sites;
    for (int l = 0; l <= 8; ++l) {
      reference::Site site;
      site.norm = given(fmt::format("parameter.input_norm.{}", l));
      if (l > 0) {
        site.w = given(fmt::format("parameter.pseudo_query.{}", l));
        site.g = given(fmt::format("parameter.key_norm.{}", l));
        if (change) change(site);
      }
      sites.push_back(site);
    }
    return reference::mixed_inputs(embedding, sites, block_size, eps, [&](size_t l, const Vector&) {
      return output(static_cast<int>(l));
    });
  }

  void expect(Mistake mistake, const std::vector<Vector>& expected) const {
    for (int l = 0; l <= 8; ++l) expect_site(mistake, l, expected[l]);
  }

  // Softmax of scales_i w . (g * RMS(v_i)), of value(v_i).
  Vector attend(int l, const std::vector<Vector>& sources, const Vector& scales,
                const std::function<Vector(const Vector&)>& value) const {
    const Vector w = given(fmt::format("parameter.pseudo_query.{}", l)),
                 g = given(fmt::format("parameter.key_norm.{}", l));
    Vector h(w.size(), 0.0);
    double total = 0;
    for (size_t i = 0; i < sources.size(); ++i) {
      double score = 0;
      const double rms = reference::rms(sources[i], block_entry().shape.norm_eps);
      for (size_t c = 0; c < w.size(); ++c) score += w[c] * g[c] * sources[i][c] / rms;
      const double weight = std::exp(scales[i] * score);
      const Vector of_source = value(sources[i]);
      for (size_t c = 0; c < h.size(); ++c) h[c] += weight * of_source[c];
      total += weight;
    }
    for (double& number : h) number /= total;
    return h;
  }

  void expect_site(Mistake mistake, int l, const Vector& expected) const {
    const TestVectors mistaken = mistaken_vectors(block_entry(), mistake);
    const at::Tensor row = mistaken.find(fmt::format("mixed.{}", l))[0][0].contiguous();
    for (size_t c = 0; c < expected.size(); ++c) {
      EXPECT_NEAR(row.data_ptr<double>()[c], expected[c], 1e-13)
          << static_cast<int>(mistake) << ", site " << l;
    }
  }

  static void quarter_query(reference::Site& site) {
    for (double& w : site.w) w /= 4;  // 1 / sqrt(16)
  }

  static Vector sum(const std::vector<Vector>& vectors) {
    Vector total(vectors[0].size(), 0.0);
    for (const Vector& v : vectors) {
      for (size_t c = 0; c < v.size(); ++c) total[c] += v[c];
    }
    return total;
  }

  const TestVectors vectors_ = make_test_vectors(block_entry());
};

TEST_F(MistakesInPlainLoops, BlockSizeInLayers) {
  expect(Mistake::block_size_in_layers, mixed(given("embedding"), 6));
}

TEST_F(MistakesInPlainLoops, ScaledScores) {
  expect(Mistake::scaled_scores, mixed(given("embedding"), 3, quarter_query));
}

TEST_F(MistakesInPlainLoops, RoundedQueries) {
  const auto round = [](double x) {
    return static_cast<double>(static_cast<c10::BFloat16>(static_cast<float>(x)));
  };
  expect(Mistake::folded_query_rounded, mixed(given("embedding"), 3, [&](reference::Site& site) {
           for (size_t c = 0; c < site.w.size(); ++c) {
             site.w[c] = round(site.w[c] * site.g[c]);
             site.g[c] = 1;
           }
         }));
  expect(Mistake::folded_factors_rounded, mixed(given("embedding"), 3, [&](reference::Site& site) {
           for (size_t c = 0; c < site.w.size(); ++c) {
             site.w[c] = round(round(site.w[c]) * round(site.g[c]));
             site.g[c] = 1;
           }
         }));
}

TEST_F(MistakesInPlainLoops, OutputsThatAttendToNothing) {
  std::vector<Vector> expected = mixed(given("embedding"), 3);
  expected[8] = output(7);
  expect(Mistake::output_is_last_output, expected);
  expected[8] = sum({output(6), output(7)});
  expect(Mistake::output_is_last_partial, expected);
  expected[8] = sum({expected[7], output(7)});
  expect(Mistake::output_is_residual, expected);
  std::vector<Vector> all = {given("embedding")};
  for (int l = 0; l < 8; ++l) all.push_back(output(l));
  expected[8] = sum(all);
  expect(Mistake::output_is_sum, expected);
}

TEST_F(MistakesInPlainLoops, L2Norm) {
  expect(Mistake::l2_norm, mixed(given("embedding"), 3, quarter_query, /*eps=*/0));
}

// Single sites whose sources, scores or values are another.
TEST_F(MistakesInPlainLoops, SourcesScoresAndValues) {
  const Vector b0 = given("embedding"), b1 = sum({output(0), output(1), output(2)}),
               b2 = sum({output(3), output(4), output(5)}), last = sum({output(6), output(7)}),
               zeros(16, 0.0);
  const Vector ones(4, 1.0);
  const auto raw = [](const Vector& v) { return v; };
  expect_site(Mistake::none, 4, attend(4, {b0, b1, output(3)}, ones, raw));
  expect_site(Mistake::none, 8, attend(8, {b0, b1, b2, last}, ones, raw));

  expect_site(Mistake::embedding_in_first_block, 1,
              attend(1, {b0, sum({b0, output(0)})}, ones, raw));
  expect_site(Mistake::embedding_in_first_block, 4,
              attend(4, {b0, sum({b0, b1}), output(3)}, ones, raw));
  expect_site(Mistake::embedding_as_two_sources, 4, attend(4, {b0, b0, b1, output(3)}, ones, raw));
  expect_site(Mistake::zero_partial_sum, 0, b0);
  expect_site(Mistake::zero_partial_sum, 3, attend(3, {b0, b1, zeros}, ones, raw));
  expect_site(Mistake::zero_partial_sum, 8, attend(8, {b0, b1, b2, last}, ones, raw));
  Vector half = b0;
  for (double& value : half) value /= 2;
  expect_site(Mistake::zero_partial_sum_at_site_0, 0, half);
  expect_site(Mistake::zero_partial_sum_at_site_0, 6, attend(6, {b0, b1, b2, zeros}, ones, raw));
  expect_site(Mistake::short_block_dropped, 8, attend(8, {b0, b1, b2}, ones, raw));
  expect_site(Mistake::scaled_blocks_only, 5,
              attend(5, {b0, b1, sum({output(3), output(4)})}, {0.25, 0.25, 1}, raw));
  expect_site(Mistake::scaled_partial_only, 8, attend(8, {b0, b1, b2, last}, {1, 1, 1, 0.25}, raw));
  const auto normalized = [](const Vector& v) {
    Vector value = v;
    for (double& number : value) number /= reference::rms(v, block_entry().shape.norm_eps);
    return value;
  };
  expect_site(Mistake::values_normalized, 4, attend(4, {b0, b1, output(3)}, ones, normalized));
  const Vector gain = given("parameter.key_norm.4");
  expect_site(Mistake::values_are_keys, 4,
              attend(4, {b0, b1, output(3)}, ones, [&](const Vector& v) {
                Vector value = normalized(v);
                for (size_t c = 0; c < value.size(); ++c) value[c] *= gain[c];
                return value;
              }));
}

// What is kept of blocks, and what is written over it.
TEST_F(MistakesInPlainLoops, BanksOfBlocks) {
  const Vector b0 = given("embedding"), b1 = sum({output(0), output(1), output(2)}),
               b2 = sum({output(3), output(4), output(5)}), last = sum({output(6), output(7)});
  const auto attends = [&](Mistake mistake, int l, const std::vector<Vector>& sources) {
    const Vector ones(sources.size(), 1.0);
    expect_site(mistake, l, attend(l, sources, ones, [](const Vector& v) { return v; }));
  };
  expect_site(Mistake::prefix_sum_for_mixture, 0, b0);
  expect_site(Mistake::prefix_sum_for_mixture, 3, b1);
  expect_site(Mistake::prefix_sum_for_mixture, 5, sum({output(3), output(4)}));
  expect_site(Mistake::prefix_sum_for_mixture, 8, last);
  expect_site(Mistake::stream_for_mixture, 5, sum({b0, b1, output(3), output(4)}));
  expect_site(Mistake::stream_for_mixture, 8, sum({b0, b1, b2, last}));

  attends(Mistake::cumulative_blocks, 2, {b0, sum({output(0), output(1)})});
  attends(Mistake::cumulative_blocks, 8, {b0, b1, sum({b1, b2}), sum({b1, b2, last})});
  attends(Mistake::cumulative_with_embedding, 4, {b0, sum({b0, b1}), sum({b0, b1, output(3)})});
  attends(Mistake::cumulative_finished_blocks, 8, {b0, sum({b0, b1}), sum({b0, b1, b2}), last});
  attends(Mistake::recursive_blocks, 6, {b0, b1, sum({b0, b2})});
  attends(Mistake::recursive_blocks, 8, {b0, b1, sum({b0, b2}), last});
  attends(Mistake::recursive_partial_too, 2, {b0, sum({output(0), output(1)})});
  attends(Mistake::recursive_partial_too, 4, {b0, b1, sum({b0, output(3)})});
  attends(Mistake::recursive_partial_too, 8, {b0, b1, sum({b0, b2}), sum({b1, last})});

  const Vector h7 =
      attend(7, {b0, b1, b2, output(6)}, Vector(4, 1.0), [](const Vector& v) { return v; });
  expect_site(Mistake::last_slot_overwritten, 7, h7);
  attends(Mistake::last_slot_overwritten, 8, {b0, b1, h7, last});
  attends(Mistake::newest_block_only, 4, {b0, b1, output(3)});
  attends(Mistake::newest_block_only, 8, {b0, b2, last});
  attends(Mistake::embedding_slot_overwritten, 2, {b0, sum({output(0), output(1)})});
  attends(Mistake::embedding_slot_overwritten, 8, {b1, b2, last});
  attends(Mistake::embedding_summed_in_place, 1, {sum({b0, output(0)}), output(0)});
  attends(Mistake::embedding_summed_in_place, 8, {sum({b0, b1}), b1, b2, last});
}

TEST_F(MistakesInPlainLoops, BlocksThatEndALayerEarly) {
  const Vector b0 = given("embedding");
  const auto attends = [&](int l, const std::vector<Vector>& sources) {
    const Vector ones(sources.size(), 1.0);
    expect_site(Mistake::early_blocks, l,
                attend(l, sources, ones, [](const Vector& v) { return v; }));
  };
  attends(1, {b0, output(0)});
  attends(3, {b0, output(0), sum({output(1), output(2)})});
  attends(8, {b0, output(0), sum({output(1), output(2), output(3)}),
              sum({output(4), output(5), output(6)}), output(7)});
}

// The same of Delta Attention Residuals, by what the sources of a site are.
class DeltaMistakesInPlainLoops : public ::testing::Test {
 protected:
  Vector given(const std::string& name) const {
    const at::Tensor tensor = vectors_.find(name).detach();
    const at::Tensor row = tensor.dim() == 3 ? tensor[0][0] : tensor;
    return {row.data_ptr<double>(), row.data_ptr<double>() + row.numel()};
  }
  // v_first + .. + v_last
  Vector sum(int first, int last) const {
    Vector total(16, 0.0);
    for (int i = first; i <= last; ++i) {
      const Vector v = given(i == 0 ? "embedding" : fmt::format("output.{}", i - 1));
      for (size_t c = 0; c < v.size(); ++c) total[c] += v[c];
    }
    return total;
  }
  // stream r_l + a_l times the mixture of these sources
  void expect_mixes(Mistake mistake, int l, const std::vector<Vector>& sources,
                    std::optional<double> stream = 1) const {
    const auto parameter = [&](const char* role) {
      return given(fmt::format("parameter.{}.{}", role, l));
    };
    const Vector mixture = reference::attend(sources, parameter("pseudo_query"),
                                             parameter("key_norm"), delta_entry().shape.norm_eps),
                 r = sum(0, l);
    const double a = parameter("mixture_gate")[0];
    const at::Tensor row =
        mistaken_vectors(delta_entry(), mistake).find(fmt::format("mixed.{}", l))[0][0];
    for (size_t c = 0; c < r.size(); ++c) {
      const double expected = stream ? *stream * r[c] + a * mixture[c] : mixture[c];
      EXPECT_NEAR(row[static_cast<int64_t>(c)].item<double>(), expected, 1e-13)
          << static_cast<int>(mistake) << ", site " << l;
    }
  }

  const TestVectors vectors_ = make_test_vectors(delta_entry());
};

TEST_F(DeltaMistakesInPlainLoops, SourcesOfASite) {
  const Vector v0 = sum(0, 0), b1 = sum(1, 3), b2 = sum(4, 6), v0_and_b2 = [&] {
    Vector both = sum(4, 6);
    for (size_t c = 0; c < both.size(); ++c) both[c] += v0[c];
    return both;
  }();
  expect_mixes(Mistake::none, 7, {v0, b1, b2, sum(7, 7)});
  expect_mixes(Mistake::cumulative_with_embedding, 7, {v0, sum(0, 3), sum(0, 6), sum(0, 7)});
  expect_mixes(Mistake::recursive_blocks, 3, {v0, b1});
  expect_mixes(Mistake::recursive_blocks, 7, {v0, b1, v0_and_b2, sum(7, 7)});
  expect_mixes(Mistake::open_block_left_out, 5, {v0, b1});
  expect_mixes(Mistake::block_seen_late, 6, {v0, b1});
  expect_mixes(Mistake::block_seen_late, 7, {v0, b1, b2, sum(7, 7)});
  expect_mixes(Mistake::released_delta_blocks, 2, {v0});
  expect_mixes(Mistake::released_delta_blocks, 3, {v0});
  expect_mixes(Mistake::released_delta_blocks, 4, {v0, b1});
  expect_mixes(Mistake::released_delta_blocks, 7, {v0, b1, v0_and_b2});
}

TEST_F(DeltaMistakesInPlainLoops, WhatBecomesOfTheStream) {
  const std::vector<Vector> sources = {sum(0, 0), sum(1, 3), sum(4, 5)};
  const double a = given("parameter.mixture_gate.5")[0];
  expect_mixes(Mistake::stream_replaced, 5, sources, std::nullopt);
  expect_mixes(Mistake::stream_scaled_by_gate, 5, sources, 1 - a);
}

TEST(Diagnosis, SaysWhereUnknownMistakesBegin) {
  const TestVectors right = make_test_vectors(block_entry());
  NamedTensors results = results_of(block_entry(), right);
  for (auto& [name, tensor] : results) {
    if (name.ends_with("/mixed.5") || name.ends_with("/input.7")) tensor = tensor * 1.001;
  }
  Diagnosis diagnosis = diagnose_results(results).at(0);
  EXPECT_TRUE(diagnosis.mistakes.empty());
  EXPECT_FALSE(diagnosis.partly.has_value());
  EXPECT_EQ(diagnosis.departure.value().name, "mixed.5");
  EXPECT_NEAR(diagnosis.departure->error, 1e-3, 1e-9);

  for (auto& [name, tensor] : results) tensor = at::flip(tensor, {-1});
  diagnosis = diagnose_results(results).at(0);
  EXPECT_TRUE(diagnosis.mistakes.empty());
  EXPECT_EQ(diagnosis.departure.value().name, "mixed.0");

  for (auto& [name, tensor] : results) tensor = at::full_like(tensor, NAN);
  diagnosis = diagnose_results(results).at(0);
  EXPECT_TRUE(diagnosis.mistakes.empty());
  EXPECT_TRUE(std::isinf(diagnosis.worst.error));
}

TEST(Diagnosis, NamesTheFirstOfTwoMistakes) {
  const TestVectors scaled = mistaken_vectors(block_entry(), Mistake::scaled_scores),
                    last = mistaken_vectors(block_entry(), Mistake::output_is_last_partial);
  NamedTensors results = results_of(block_entry(), scaled, is_forward);
  for (auto& [name, tensor] : results) {
    if (name.ends_with("/mixed.8")) tensor = last.find("mixed.8");
  }
  const Diagnosis diagnosis = diagnose_results(results).at(0);
  EXPECT_TRUE(diagnosis.mistakes.empty());
  EXPECT_EQ(diagnosis.departure.value().name, "mixed.1");
  ASSERT_TRUE(diagnosis.partly.has_value());
  EXPECT_EQ(diagnosis.partly->mistake.name, "scaled_scores");
  EXPECT_EQ(diagnosis.partly->departure.value().name, "mixed.8");
}

TEST(Diagnosis, OtherMechanismsHaveNoKnownMistakes) {
  const TestVectorEntry& entry = entry_named("residual");
  const Diagnosis diagnosis =
      diagnose_results({{"residual/mixed.2", make_test_vectors(entry).find("mixed.1").detach()}})
          .at(0);
  EXPECT_FALSE(diagnosis.matches());
  EXPECT_TRUE(diagnosis.mistakes.empty());
}

TEST(Diagnosis, RefusesWhatDoesNotBelong) {
  const at::Tensor right = at::zeros({2, 4, 16});
  const auto message = [&](const NamedTensors& results) {
    return message_of<Error>([&] { diagnose_results(results); });
  };
  EXPECT_THAT(message({{"block_atn_res/mixed.0", right}}),
              HasSubstr("did you mean block_attn_res"));
  EXPECT_THAT(message({{"attn_res/mixd.0", right}}), HasSubstr("did you mean mixed.0"));
  EXPECT_THAT(message({{"attn_res/mixed.9", right}}), HasSubstr("no tensor 'mixed.9'"));
  EXPECT_THAT(message({{"mixed.0", right}}), HasSubstr("expected ENTRY/NAME"));
  EXPECT_THAT(message({{"attn_res/mixed.0", right[0]}}),
              HasSubstr("expected shape [2, 4, 16], got [4, 16]"));
  EXPECT_THAT(message({{"attn_res/mixed.0", right.to(at::kHalf)}}),
              HasSubstr("store float64, float32 or bfloat16"));
  EXPECT_THAT(message({{"attn_res/embedding", right}}), HasSubstr("only what was given"));
  EXPECT_THAT(message({}), HasSubstr("no tensors"));
  const auto path = fresh_folder("results") / "text";
  write_text(path, "not safetensors");
  EXPECT_THAT(message_of<Error>([&] { diagnose(path); }), HasSubstr("text"));
  EXPECT_THAT(message_of<Error>([&] { diagnose(path.string() + "nowhere"); }),
              HasSubstr("nowhere"));
}

}  // namespace
}  // namespace attnres::testing::diagnosis_test
