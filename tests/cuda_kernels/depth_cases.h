// What depth attention's CUDA kernels have to give, with any Launcher whose memory the host can
// read: the formulas' numbers, and the bits that were recorded.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/cuda_kernels/depth_sites.h"

namespace attnres::gpu {

template <class Storage, class Launcher>
GroupResults<Storage> run(const SiteGroup& group, const Launcher& launcher) {
  const GroupData<Storage> data(group);
  GroupRun<Storage, Launcher> run(group, data, launcher);
  EXPECT_TRUE(run.run());
  return run.results();
}

inline void expect_below(const GroupErrors& errors, const GroupErrors& most) {
  EXPECT_LT(errors.x, most.x);
  EXPECT_LT(errors.outputs, most.outputs);
  EXPECT_LT(errors.slots, most.slots);
  EXPECT_LT(errors.queries, most.queries);
  EXPECT_LT(errors.gains, most.gains);
}

template <class Storage, class Launcher>
void expect_formula(const SiteGroup& group, const Launcher& launcher) {
  SCOPED_TRACE(::testing::Message() << group.earlier << " + " << group.finished << " sources, "
                                    << group.sites << " sites, " << group.tokens << " tokens of "
                                    << group.width << (group.keeps_x ? ", x kept" : ""));
  // x and gradients of outputs are rounded once, partial sums and o before them; gradients of what
  // was summed once more where h/RMS is that of the rounded x.
  const double slots = group.keeps_x ? 1.2e-2 : 1e-2;
  const GroupErrors most = sizeof(Storage) == 4 ? GroupErrors{2e-6, 4e-6, 4e-6, 4e-6, 4e-6}
                                                : GroupErrors{1e-2, 2e-2, slots, 2e-2, 1e-2};
  const GroupData<Storage> data(group);
  expect_below(errors_of(run<Storage>(group, launcher), expected_results(group, data)), most);
}

template <class Launcher>
void expect_sites_of_the_formulas(const Launcher& launcher) {
  for (const SiteGroup& group :
       {SiteGroup{3, 1, 4, 5, 64}, SiteGroup{0, 2, 3, 3, 8}, SiteGroup{1, 0, 1, 1, 40},
        SiteGroup{9, 0, 10, 3, 136}, SiteGroup{40, 3, 2, 2, 72}, SiteGroup{5, 2, 3, 9, 24},
        SiteGroup{5, 2, 3, 33, 264}, SiteGroup{2, 1, 9, 2, 1032}}) {
    for (const bool keeps_x : {false, true}) {
      SiteGroup kept = group;
      kept.keeps_x = keeps_x;
      expect_formula<float>(kept, launcher);
      expect_formula<BFloat16>(kept, launcher);
    }
  }
  // Threads have several vectors of wide rows.
  for (const int64_t width : {4104, 8192}) expect_formula<BFloat16>({3, 1, 5, 2, width}, launcher);
  for (const int64_t width : {2056, 8192}) expect_formula<float>({3, 1, 5, 2, width}, launcher);
}

// The whole of depth attention at one site, with gradients of the depth weights.
template <class Storage, class Launcher>
void expect_single_pass(int64_t N, int64_t T, int64_t D, double most, const Launcher& launcher) {
  HostNumbers draw(2);
  std::vector<std::vector<Storage>> v(N), dv(N, std::vector<Storage>(T * D));
  std::vector<const Storage*> sources;
  std::vector<Storage*> grads;
  std::vector<float> rms(N * T), scores(N * T), weights(N * T), dq(D), memory(64 * D);
  std::vector<float*> rms_N;
  std::vector<const float*> saved_rms;
  for (int64_t n = 0; n < N; ++n) {
    v[n] = draw.rows<Storage>(T * D);
    sources.push_back(v[n].data());
    grads.push_back(dv[n].data());
    rms_N.push_back(rms.data() + n * T);
    saved_rms.push_back(rms_N.back());
  }
  const auto query = draw.rows<float>(D, 0, 3 / std::sqrt(static_cast<double>(D)));
  const auto dh = draw.rows<Storage>(T * D);
  const auto dalpha = draw.rows<float>(N * T);
  std::vector<Storage> h(T * D);
  Storage* outputs[] = {h.data()};
  const Storage* grad_outputs[] = {dh.data()};
  const bool no[kMostSources] = {};
  const kernel::DepthAttentionInputs<Storage> inputs{sources.data(), query.data(), N, 1, T, D};
  ASSERT_TRUE(depth_attention_forward<Storage>({inputs, 1e-6, true, rms_N.data(), no, outputs,
                                                nullptr, nullptr, scores.data(), weights.data()},
                                               launcher));
  ASSERT_TRUE(
      depth_attention_backward<Storage>({inputs, saved_rms.data(), scores.data(), weights.data(),
                                         grad_outputs, nullptr, dalpha.data(), grads.data(), no},
                                        memory.data(), dq.data(), launcher));

  std::vector<double> h_expected, dq_expected(D), alpha_expected(N * T);
  std::vector<std::vector<double>> dv_expected(N);
  for (int64_t t = 0; t < T; ++t) {
    reference::Matrix<double> v_ND(N);
    reference::Vector<double> dh_D, q, da;
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t c = 0; c < D; ++c) v_ND[n].push_back(number(v[n][t * D + c]));
      da.push_back(dalpha[n * T + t]);
    }
    for (int64_t c = 0; c < D; ++c) {
      dh_D.push_back(number(dh[t * D + c]));
      q.push_back(query[c]);
    }
    const reference::Vector<double> ones(D, 1.0);
    const auto out = reference::depth_attention(v_ND, q, ones, 1e-6);
    const auto grad = reference::depth_attention_backward(v_ND, q, ones, 1e-6, dh_D, da);
    h_expected.insert(h_expected.end(), out.h_D.begin(), out.h_D.end());
    for (int64_t n = 0; n < N; ++n) {
      alpha_expected[n * T + t] = out.alpha_N[n];
      dv_expected[n].insert(dv_expected[n].end(), grad.sources_ND[n].begin(),
                            grad.sources_ND[n].end());
    }
    for (int64_t c = 0; c < D; ++c) dq_expected[c] += grad.query_D[c];
  }
  EXPECT_LT(relative_error(h, h_expected), most);
  EXPECT_LT(relative_error(weights, alpha_expected), 4e-6);
  EXPECT_LT(relative_error(dq, dq_expected), 4e-6);
  for (int64_t n = 0; n < N; ++n) EXPECT_LT(relative_error(dv[n], dv_expected[n]), most);
  std::swap(dv_expected[0], dv_expected[N - 1]);
  EXPECT_GT(relative_error(dv[0], dv_expected[0]), 1e-1);
}

template <class Launcher>
void expect_single_passes_of_the_formula(const Launcher& launcher) {
  expect_single_pass<float>(2, 9, 64, 4e-6, launcher);
  expect_single_pass<float>(35, 2, 136, 4e-6, launcher);
  expect_single_pass<BFloat16>(7, 2, 264, 8e-3, launcher);
}

// What a GPU has to give, bit for bit: each line of bits.txt is a group of sites and its hash.
template <class Launcher>
void expect_recorded_bits(const Launcher& launcher) {
  std::ifstream file(ATTNRES_SOURCE_DIR "/tests/cuda_kernels/bits.txt");
  std::string dtype, hash;
  SiteGroup group;
  int lines = 0;
  while (file >> dtype >> group.earlier >> group.finished >> group.sites >> group.tokens >>
         group.width >> hash) {
    const uint64_t is = dtype == "float32" ? run<float>(group, launcher).hash()
                                           : run<BFloat16>(group, launcher).hash();
    char text[17];
    std::snprintf(text, sizeof text, "%016lx", static_cast<unsigned long>(is));
    EXPECT_EQ(text, hash) << dtype << ", line " << lines;
    ++lines;
  }
  EXPECT_EQ(lines, 5);
}

}  // namespace attnres::gpu
