// The depth attention of a whole model on a GPU, forward and backward: the launches of all of its
// sites in Block AttnRes, with the additions and norms around them. Sublayers are not there: their
// outputs and the gradients of their inputs are given. Built with ATTNRES_CUDA=ON as
// build/bench_gpu_model.
//
//   bench_gpu_model [TOKENS WIDTH SUBLAYERS BLOCK_SIZE]     16384 2048 64 8 if none is given
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "attnres/ops/depth_attention/cuda.h"
#include "attnres/ops/rms_norm/cuda.h"
#include "bench/gpu/timing.h"

namespace attnres::gpu {
namespace {

// A gradient as it is stored, of one that was summed up.
__global__ void round_rows(const float* from, BFloat16* to, int64_t count) {
  for (int64_t i = 8 * (blockIdx.x * int64_t{blockDim.x} + threadIdx.x); i < count;
       i += 8 * int64_t{gridDim.x} * blockDim.x) {
    float x[8];
    load_constant_floats(from + i, x);
    store_row(to + i, x);
  }
}

__global__ void sum_rows(const BFloat16* a, const BFloat16* b, BFloat16* to, int64_t count) {
  for (int64_t i = 8 * (blockIdx.x * int64_t{blockDim.x} + threadIdx.x); i < count;
       i += 8 * int64_t{gridDim.x} * blockDim.x) {
    float x[8], y[8];
    load_constant_row(a + i, x);
    load_constant_row(b + i, y);
    ATTNRES_UNROLL
    for (int j = 0; j < 8; ++j) x[j] += y[j];
    store_row(to + i, x);
  }
}

void require_done(bool done) {
  if (done) return;
  std::fprintf(stderr, "there is no kernel for this model\n");
  std::exit(1);
}

class Model {
 public:
  Model(int64_t tokens, int64_t width, int64_t sublayers, int64_t block_size)
      : T_(tokens), D_(width), L_(sublayers), S_(block_size), blocks_(sublayers / block_size) {
    const int64_t rows = T_ * D_;
    sources_ = memory_.many<BFloat16>(blocks_ + 1, rows);
    slots_ = memory_.many<float>(blocks_ + 1, rows);
    outputs_ = memory_.many<BFloat16>(L_, rows);
    partial_ = memory_.many<BFloat16>(L_, rows);
    x_ = memory_.many<BFloat16>(L_ + 1, rows);
    o_ = memory_.many<BFloat16>(S_, rows);
    grad_o_ = memory_.many<BFloat16>(S_, rows);
    grad_sums_ = memory_.many<BFloat16>(2, rows);
    grad_x_ = memory_.rows<BFloat16>(rows);
    queries_ = memory_.rows<float>((L_ + 1) * D_);
    gains_ = memory_.rows<float>((L_ + 1) * D_);
    factors_ = memory_.rows<float>((L_ + 1) * D_);
    rms_ = memory_.many<float>(blocks_ + 1, T_);
    of_site_ = memory_.many<float>((L_ + 1) * kOfSite, T_);
    phase_one_ = memory_.many<float>(blocks_ * 4, S_ * (blocks_ + 1) * T_);
    partial_sums_ = memory_.rows<float>(runs_of_tokens(T_, D_) * S_ * D_);
    sums_ = memory_.rows<float>(S_ * 2 * D_);
    grad_scores_ = memory_.rows<float>(S_ * T_);
    out_scores_ = memory_.rows<float>((blocks_ + 1) * T_);
    out_weights_ = memory_.rows<float>((blocks_ + 1) * T_);
  }

  void forward() {
    for (int64_t b = 0; b < blocks_; ++b) {
      phase_one(b);
      for (int64_t s = 0; s < S_; ++s) site(b, s);
      add(b);
    }
    output_site();
  }

  void backward() {
    output_site_backward();
    for (int64_t b = blocks_ - 1; b >= 0; --b) {
      round_rows<<<2048, 256, 0, stream>>>(slots_[b + 1], grad_sums_[S_ % 2], T_ * D_);
      for (int64_t s = S_ - 1; s >= 0; --s) site_backward(b, s);
      phase_one_backward(b);
    }
  }

 private:
  enum { kRms, kScore, kWeight, kEarlier, kRho, kGradSum, kOfSite };
  float* of_site(int64_t l, int which) { return of_site_[l * kOfSite + which]; }
  // m, ell, scores and weights of a block's phase 1.
  float* of_block(int64_t b, int which) { return phase_one_[b * 4 + which]; }

  void phase_one(int64_t b) {
    const int64_t N = b + 1;
    bool known[256] = {};
    for (int64_t n = 0; n < b; ++n) known[n] = true;
    require_done(
        depth_attention_on_gpu<BFloat16>({{sources_.data(), queries_ + b * S_ * D_, N, S_, T_, D_},
                                          1e-6,
                                          false,
                                          rms_.data(),
                                          known,
                                          o_.data(),
                                          of_block(b, 0),
                                          of_block(b, 1),
                                          of_block(b, 2),
                                          of_block(b, 3)},
                                         stream));
  }

  // What site s > 0 of a block reads beside phase 1: the sum of the outputs before it.
  BFloat16* sum(int64_t b, int64_t s) { return s == 1 ? outputs_[b * S_] : partial_[b * S_ + s]; }

  void site(int64_t b, int64_t s) {
    const int64_t l = b * S_ + s;
    const bool formed = s > 1;
    const BFloat16* recent[] = {s > 0 ? sum(b, s) : nullptr};
    float* rms[] = {of_site(l, kRms)};
    const bool known[] = {false};
    require_done(phase_two_on_gpu<BFloat16>({.num_recent = s > 0 ? 1 : 0,
                                             .num_tokens = T_,
                                             .width = D_,
                                             .earlier_TD = o_[s],
                                             .max_T = of_block(b, 0) + s * T_,
                                             .sum_T = of_block(b, 1) + s * T_,
                                             .recent_K = recent,
                                             .partial_TD = formed ? sum(b, s - 1) : nullptr,
                                             .pending_TD = formed ? outputs_[l - 1] : nullptr,
                                             .sum_TD = formed ? sum(b, s) : nullptr,
                                             .folded_query_D = queries_ + l * D_,
                                             .eps = 1e-6,
                                             .gain_D = gains_ + l * D_,
                                             .norm_eps = 1e-6,
                                             .inverse_rms_K = rms,
                                             .rms_known_K = known,
                                             .x_TD = x_[l],
                                             .normalized_TD = nullptr,
                                             .scores_KT = of_site(l, kScore),
                                             .weights_KT = of_site(l, kWeight),
                                             .earlier_weight_T = of_site(l, kEarlier),
                                             .rho_T = of_site(l, kRho)},
                                            stream));
  }

  // The block's sum, the next source.
  void add(int64_t b) {
    sum_rows<<<2048, 256, 0, stream>>>(sum(b, S_ - 1), outputs_[(b + 1) * S_ - 1], sources_[b + 1],
                                       T_ * D_);
  }

  void output_site() {
    const bool known[256] = {};
    BFloat16* outputs[] = {x_[L_]};
    require_done(depth_attention_on_gpu<BFloat16>(
        {{sources_.data(), queries_ + L_ * D_, blocks_ + 1, 1, T_, D_},
         1e-6,
         true,
         rms_.data(),
         known,
         outputs,
         nullptr,
         nullptr,
         out_scores_,
         out_weights_},
        stream));
  }

  void output_site_backward() {
    const std::vector<BFloat16*> none(blocks_ + 1, nullptr);
    const BFloat16* grad_outputs[] = {grad_x_};
    const bool no[256] = {};
    const kernel::DepthAttentionBackward<BFloat16> op{
        .inputs = {sources_.data(), queries_ + L_ * D_, blocks_ + 1, 1, T_, D_},
        .inverse_rms_N = rms_.data(),
        .scores_SNT = out_scores_,
        .weights_SNT = out_weights_,
        .grad_outputs_S = grad_outputs,
        .grad_sum_ST = nullptr,
        .grad_weights_SNT = nullptr,
        .grad_sources_N = none.data(),
        .accumulate_N = no,
        .other_grad_scores_ST = nullptr,
        .grad_sums_N = slots_.data()};
    require_done(depth_attention_backward_on_gpu(op, true, partial_sums_, sums_, stream));
  }

  // The gradient of output l - 1 is that of the sum that site l reads.
  void site_backward(int64_t b, int64_t s) {
    const int64_t l = b * S_ + s;
    const BFloat16* recent[] = {s > 0 ? sum(b, s) : nullptr};
    const float* rms[] = {of_site(l, kRms)};
    BFloat16* grad_recent[] = {grad_sums_[s % 2]};
    const bool no[] = {false};
    require_done(phase_two_backward_on_gpu<BFloat16>(
        {.num_recent = s > 0 ? 1 : 0,
         .num_tokens = T_,
         .width = D_,
         .recent_K = recent,
         .folded_query_D = queries_ + l * D_,
         .gain_D = gains_ + l * D_,
         .norm_eps = 1e-6,
         .inverse_rms_K = rms,
         .scores_KT = of_site(l, kScore),
         .weights_KT = of_site(l, kWeight),
         .earlier_weight_T = of_site(l, kEarlier),
         .rho_T = of_site(l, kRho),
         .kept_TD = x_[l],
         .kept_factor_D = factors_ + l * D_,
         .grad_x_TD = grad_x_,
         .grad_sum_TD = s > 0 ? grad_sums_[(s + 1) % 2] : nullptr,
         .grad_earlier_TD = grad_o_[s],
         .grad_sum_T = of_site(l, kGradSum),
         .grad_recent_K = grad_recent,
         .accumulate_K = no,
         .grad_scores_T = grad_scores_ + s * T_},
        partial_sums_, sums_, stream));
  }

  void phase_one_backward(int64_t b) {
    const std::vector<BFloat16*> none(b + 1, nullptr);
    bool accumulate[256];
    std::fill_n(accumulate, b + 1, true);
    const kernel::DepthAttentionBackward<BFloat16> op{
        .inputs = {sources_.data(), queries_ + b * S_ * D_, b + 1, S_, T_, D_},
        .inverse_rms_N = rms_.data(),
        .scores_SNT = of_block(b, 2),
        .weights_SNT = of_block(b, 3),
        .grad_outputs_S = grad_o_.data(),
        .grad_sum_ST = nullptr,
        .grad_weights_SNT = nullptr,
        .grad_sources_N = none.data(),
        .accumulate_N = accumulate,
        .other_grad_scores_ST = grad_scores_,
        .grad_sums_N = slots_.data()};
    require_done(depth_attention_backward_on_gpu(op, false, partial_sums_, sums_, stream));
  }

  const int64_t T_, D_, L_, S_, blocks_;
  Memory memory_;
  std::vector<BFloat16*> sources_, outputs_, partial_, x_, o_, grad_o_, grad_sums_;
  std::vector<float*> slots_, rms_, of_site_, phase_one_;
  BFloat16* grad_x_;
  float *queries_, *gains_, *factors_, *partial_sums_, *sums_, *grad_scores_, *out_scores_,
      *out_weights_;
};

void run(int64_t tokens, int64_t width, int64_t sublayers, int64_t block_size) {
  check_cuda(cudaStreamCreate(&stream), "stream");
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
  Model model(tokens, width, sublayers, block_size);
  const double forward = milliseconds([&] { model.forward(); });
  const double backward = milliseconds([&] { model.backward(); });
  std::printf("%s: %ld tokens of %ld, %ld sublayers in blocks of %ld, bfloat16\n", properties.name,
              static_cast<long>(tokens), static_cast<long>(width), static_cast<long>(sublayers),
              static_cast<long>(block_size));
  std::printf("forward %.2f ms, backward %.2f ms, together %.2f ms\n", forward, backward,
              forward + backward);
}

}  // namespace
}  // namespace attnres::gpu

int main(int argc, char** argv) {
  int64_t shape[] = {16384, 2048, 64, 8};
  for (int i = 1; i < argc && i < 5; ++i) shape[i - 1] = std::atol(argv[i]);
  try {
    attnres::gpu::run(shape[0], shape[1], shape[2], shape[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
