// Depth attention's CUDA kernels, run on the host.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>

#include "tests/cuda_kernels/depth_sites.h"
#include "tests/cuda_kernels/host_block.h"

namespace attnres::gpu::depth_attention_cuda_test {
namespace {

constexpr HostOrder kForwards, kBackwards{.backwards = true, .late_copies = true};
constexpr int64_t kShared = 227 << 10;

template <class Storage>
GroupResults<Storage> run(const SiteGroup& group, const HostLauncher& launcher) {
  const GroupData<Storage> data(group);
  GroupRun<Storage, HostLauncher> run(group, data, launcher);
  EXPECT_TRUE(run.run());
  return run.results();
}

void expect_below(const GroupErrors& errors, const GroupErrors& most) {
  EXPECT_LT(errors.x, most.x);
  EXPECT_LT(errors.outputs, most.outputs);
  EXPECT_LT(errors.slots, most.slots);
  EXPECT_LT(errors.queries, most.queries);
  EXPECT_LT(errors.gains, most.gains);
}

template <class Storage>
void expect_formula(const SiteGroup& group) {
  SCOPED_TRACE(::testing::Message()
               << group.earlier << " + " << group.finished << " sources, " << group.sites
               << " sites, " << group.tokens << " tokens of " << group.width);
  // x and gradients of outputs are rounded once, partial sums and o before them.
  const GroupErrors most = sizeof(Storage) == 4 ? GroupErrors{2e-6, 4e-6, 4e-6, 4e-6, 4e-6}
                                                : GroupErrors{1e-2, 2e-2, 1e-2, 2e-2, 1e-2};
  const GroupData<Storage> data(group);
  expect_below(errors_of(run<Storage>(group, {kForwards}), expected_results(group, data)), most);
}

TEST(CudaDepthAttention, SitesAreThoseOfTheFormulas) {
  for (const SiteGroup& group :
       {SiteGroup{3, 1, 4, 5, 64}, SiteGroup{0, 2, 3, 3, 8}, SiteGroup{1, 0, 1, 1, 40},
        SiteGroup{9, 0, 10, 3, 136}, SiteGroup{40, 3, 2, 2, 72}, SiteGroup{5, 2, 3, 9, 24},
        SiteGroup{5, 2, 3, 33, 264}, SiteGroup{2, 1, 9, 2, 1032}}) {
    expect_formula<float>(group);
    expect_formula<BFloat16>(group);
  }
}

TEST(CudaDepthAttention, ThreadsHaveSeveralVectorsOfWideRows) {
  for (const int64_t width : {4104, 8192}) expect_formula<BFloat16>({3, 1, 5, 2, width});
  for (const int64_t width : {2056, 8192}) expect_formula<float>({3, 1, 5, 2, width});
}

TEST(CudaDepthAttention, ErrorsAreSeen) {
  const SiteGroup group{3, 1, 4, 5, 64};
  GroupData<float> data(group);
  const auto results = run<float>(group, {kForwards});
  std::swap_ranges(data.queries.begin(), data.queries.begin() + group.width,
                   data.queries.begin() + group.width);
  const GroupErrors errors = errors_of(results, expected_results(group, data));
  for (const double error :
       {errors.x, errors.outputs, errors.slots, errors.queries, errors.gains}) {
    EXPECT_GT(error, 1e-2);
  }
}

// Neither the order of threads nor when copies are made, how many blocks there are and what fits
// into shared memory change a bit.
template <class Storage>
void expect_same_bits(const SiteGroup& group, int64_t shared_memory) {
  const uint64_t hash = run<Storage>(group, {kForwards}).hash();
  EXPECT_EQ(run<Storage>(group, {kBackwards, kShared, 1}).hash(), hash);
  EXPECT_EQ(run<Storage>(group, {kForwards, shared_memory, 2}).hash(), hash);
  EXPECT_EQ(run<Storage>(group, {kBackwards, shared_memory, 2}).hash(), hash);
}

TEST(CudaDepthAttention, BitsAreTheSameHoweverItIsRun) {
  expect_same_bits<float>({9, 3, 3, 3, 136}, 20 << 10);     // one source a step, nothing ahead
  expect_same_bits<BFloat16>({9, 3, 3, 3, 136}, 20 << 10);  // some sources a step
}

TEST(CudaDepthAttention, RefusesWhatItHasNoKernelFor) {
  const HostLauncher launcher{kForwards};
  for (const SiteGroup& group : {SiteGroup{2, 0, 1, 1, 12}, SiteGroup{2, 0, 1, 1, 8200}}) {
    const GroupData<float> data(group);
    EXPECT_FALSE((GroupRun<float, HostLauncher>(group, data, launcher).run()));
  }
  const SiteGroup small{2, 0, 1, 1, 64};
  const GroupData<float> data(small);
  EXPECT_FALSE((GroupRun<float, HostLauncher>(small, data, HostLauncher{kForwards, 512}).run()));
}

// The whole of depth attention at one site, with gradients of the depth weights.
template <class Storage>
void expect_single_pass(int64_t N, int64_t T, int64_t D, double most) {
  HostNumbers draw(2);
  const HostLauncher launcher{kForwards};
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

TEST(CudaDepthAttention, TheSinglePassIsTheFormula) {
  expect_single_pass<float>(2, 9, 64, 4e-6);
  expect_single_pass<float>(35, 2, 136, 4e-6);
  expect_single_pass<BFloat16>(7, 2, 264, 8e-3);
}

// What a GPU has to give, bit for bit: each line of bits.txt is a group of sites and its hash.
TEST(CudaDepthAttention, BitsAreThoseThatWereRecorded) {
  std::ifstream file(ATTNRES_SOURCE_DIR "/tests/cuda_kernels/bits.txt");
  std::string dtype, hash;
  SiteGroup group;
  int lines = 0;
  while (file >> dtype >> group.earlier >> group.finished >> group.sites >> group.tokens >>
         group.width >> hash) {
    const uint64_t is = dtype == "float32" ? run<float>(group, {kForwards}).hash()
                                           : run<BFloat16>(group, {kForwards}).hash();
    char text[17];
    std::snprintf(text, sizeof text, "%016lx", static_cast<unsigned long>(is));
    EXPECT_EQ(text, hash) << dtype << ", line " << lines;
    ++lines;
  }
  EXPECT_EQ(lines, 5);
}

}  // namespace
}  // namespace attnres::gpu::depth_attention_cuda_test
