// Ranges of tokens computed by several threads at once give what one thread gives, and write
// nothing that another range reads or writes: under -DATTNRES_SANITIZE=thread that is checked,
// which is why the threads here are not OpenMP's, whose locks ThreadSanitizer does not see.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <thread>
#include <vector>

#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/ops/depth_attention/kernel_phase_two.h"
#include "attnres/support/random.h"

namespace attnres::kernel {
namespace {

constexpr int64_t kThreadedSources = 5, kThreadedSites = 3, kThreadedTokens = 203,
                  kThreadedWidth = 37;
using Numbers = std::vector<float>;

Numbers random_numbers(const char* name, int64_t count) {
  const RandomStream random(1, name);
  Numbers numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(random.normal(i));
  return numbers;
}

// Calls work(range, first, last) for `ranges` ranges of tokens that do not start at whole cache
// lines, each on a thread of its own.
void in_ranges(int ranges, const std::function<void(int, int64_t, int64_t)>& work) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranges; ++r) {
    threads.emplace_back(
        [&, r] { work(r, kThreadedTokens * r / ranges, kThreadedTokens * (r + 1) / ranges); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Phase 1 and 2, forward and backward. Sums over tokens are per range, and not returned.
std::vector<Numbers> compute(int ranges) {
  const int64_t rows = kThreadedTokens * kThreadedWidth;
  const Numbers queries = random_numbers("queries", kThreadedSites * kThreadedWidth);
  const Numbers gain = random_numbers("gain", kThreadedWidth);
  std::vector<Numbers> sources;
  for (int n = 0; n < kThreadedSources; ++n) {
    sources.push_back(random_numbers(("source" + std::to_string(n)).c_str(), rows));
  }
  const Numbers partial = random_numbers("partial", rows), pending = random_numbers("p", rows);
  const Numbers grad_x = random_numbers("dx", rows);
  const Numbers grad_ell = random_numbers("dl", kThreadedSites * kThreadedTokens);

  std::array<Numbers, kThreadedSources> rms, grad_sources;
  std::array<Numbers, kThreadedSites> outputs;
  rms.fill(Numbers(kThreadedTokens));
  grad_sources.fill(Numbers(rows));
  outputs.fill(Numbers(rows));
  Numbers max(kThreadedSites * kThreadedTokens), sum(kThreadedSites * kThreadedTokens),
      scores(kThreadedSites * kThreadedSources * kThreadedTokens),
      weights(kThreadedSites * kThreadedSources * kThreadedTokens);
  std::array<const float*, kThreadedSources> source_pointers, rms_read;
  std::array<float*, kThreadedSources> rms_pointers, grad_pointers;
  std::array<float*, kThreadedSites> output_pointers;
  std::array<const float*, kThreadedSites> grad_outputs;
  std::array<bool, kThreadedSources> no = {};
  for (int n = 0; n < kThreadedSources; ++n) {
    source_pointers[n] = sources[n].data();
    rms_pointers[n] = rms[n].data();
    rms_read[n] = rms[n].data();
    grad_pointers[n] = grad_sources[n].data();
  }
  for (int s = 0; s < kThreadedSites; ++s) {
    output_pointers[s] = outputs[s].data();
    grad_outputs[s] = grad_x.data();
  }
  const DepthAttentionInputs<float> inputs = {source_pointers.data(), queries.data(),
                                              kThreadedSources,       kThreadedSites,
                                              kThreadedTokens,        kThreadedWidth};
  const DepthAttentionForward<float> one = {.inputs = inputs,
                                            .eps = 1e-6,
                                            .complete = false,
                                            .inverse_rms_N = rms_pointers.data(),
                                            .rms_known_N = no.data(),
                                            .outputs_S = output_pointers.data(),
                                            .max_ST = max.data(),
                                            .sum_ST = sum.data(),
                                            .scores_SNT = scores.data(),
                                            .weights_SNT = weights.data()};
  in_ranges(ranges, [&](int, int64_t a, int64_t b) { depth_attention_forward(one, a, b); });

  const DepthAttentionBackward<float> one_back = {.inputs = inputs,
                                                  .inverse_rms_N = rms_read.data(),
                                                  .scores_SNT = scores.data(),
                                                  .weights_SNT = weights.data(),
                                                  .grad_outputs_S = grad_outputs.data(),
                                                  .grad_sum_ST = grad_ell.data(),
                                                  .grad_weights_SNT = nullptr,
                                                  .grad_sources_N = grad_pointers.data(),
                                                  .accumulate_N = no.data()};
  std::vector<Numbers> sums(ranges, Numbers(kThreadedSites * kThreadedWidth));
  in_ranges(ranges, [&](int r, int64_t a, int64_t b) {
    depth_attention_backward(one_back, a, b, sums[r].data());
  });

  Numbers total(rows), x(rows), z(kThreadedTokens), w(kThreadedTokens), kappa(kThreadedTokens),
      rho(kThreadedTokens), r(kThreadedTokens);
  Numbers grad_earlier(rows), grad_sum(kThreadedTokens), grad_total(rows), factor(gain);
  for (float& value : factor) value = 1 / value;
  const float* recent = total.data();
  float *rms_recent = r.data(), *grad_recent = grad_total.data();
  const float* rms_recent_read = r.data();
  const PhaseTwoForward<float> two = {.num_recent = 1,
                                      .num_tokens = kThreadedTokens,
                                      .width = kThreadedWidth,
                                      .earlier_TD = outputs[0].data(),
                                      .max_T = max.data(),
                                      .sum_T = sum.data(),
                                      .recent_K = &recent,
                                      .partial_TD = partial.data(),
                                      .pending_TD = pending.data(),
                                      .sum_TD = total.data(),
                                      .folded_query_D = queries.data(),
                                      .eps = 1e-6,
                                      .gain_D = gain.data(),
                                      .norm_eps = 1e-6,
                                      .inverse_rms_K = &rms_recent,
                                      .rms_known_K = no.data(),
                                      .x_TD = x.data(),
                                      .normalized_TD = nullptr,
                                      .scores_KT = z.data(),
                                      .weights_KT = w.data(),
                                      .earlier_weight_T = kappa.data(),
                                      .rho_T = rho.data()};
  in_ranges(ranges, [&](int, int64_t a, int64_t b) { phase_two_forward(two, a, b); });

  const PhaseTwoBackward<float> two_back = {.num_recent = 1,
                                            .num_tokens = kThreadedTokens,
                                            .width = kThreadedWidth,
                                            .recent_K = &recent,
                                            .folded_query_D = queries.data(),
                                            .gain_D = gain.data(),
                                            .norm_eps = 1e-6,
                                            .inverse_rms_K = &rms_recent_read,
                                            .scores_KT = z.data(),
                                            .weights_KT = w.data(),
                                            .earlier_weight_T = kappa.data(),
                                            .rho_T = rho.data(),
                                            .kept_TD = x.data(),
                                            .kept_factor_D = factor.data(),
                                            .grad_x_TD = grad_x.data(),
                                            .grad_sum_TD = partial.data(),
                                            .grad_earlier_TD = grad_earlier.data(),
                                            .grad_sum_T = grad_sum.data(),
                                            .grad_recent_K = &grad_recent,
                                            .accumulate_K = no.data()};
  std::vector<Numbers> site_sums(ranges, Numbers(2 * kThreadedWidth));
  in_ranges(ranges, [&](int range, int64_t a, int64_t b) {
    phase_two_backward(two_back, a, b, site_sums[range].data());
  });

  std::vector<Numbers> results = {max, sum,          scores,   weights,   total,
                                  x,   grad_earlier, grad_sum, grad_total};
  for (const Numbers& output : outputs) results.push_back(output);
  for (const Numbers& gradient : grad_sources) results.push_back(gradient);
  return results;
}

TEST(KernelThreads, GiveTheSameBitsAndDoNotRace) {
  const std::vector<Numbers> alone = compute(1);
  for (const int ranges : {2, 3, 8}) EXPECT_EQ(compute(ranges), alone) << ranges;
}

}  // namespace
}  // namespace attnres::kernel
