#include "attnres/depth/mixing_matrix.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attnres/support/random.h"

namespace attnres {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int kProbes = 4;  // random signs a token

at::Tensor random_rows(at::IntArrayRef sizes, const RandomStream& random, bool signs) {
  at::Tensor rows = at::empty(sizes, at::kDouble);
  double* data = rows.mutable_data_ptr<double>();
  for (int64_t i = 0; i < rows.numel(); ++i) {
    data[i] = signs ? (random.bits(i) % 2 == 0 ? -1 : 1) : random.normal(i);
  }
  return rows;
}

Matrix blank(size_t size) {
  return Matrix(size, std::vector<double>(size, kNaN));
}

}  // namespace

int semiseparable_rank(const Matrix& lower_triangle) {
  constexpr double kZero = 1e-4;
  const auto size = static_cast<int64_t>(lower_triangle.size());
  int rank = 0;
  for (int64_t k = 0; k < size; ++k) {
    std::vector<at::Tensor> rows;
    for (int64_t l = k; l < size; ++l) {
      const std::vector<double>& row = lower_triangle[l];
      if (std::isnan(row[0])) continue;
      rows.push_back(at::tensor(at::ArrayRef<double>(row.data(), k + 1), at::kDouble));
    }
    if (rows.empty()) continue;
    const at::Tensor values = at::linalg_svdvals(at::stack(rows));
    const double largest = values.max().item<double>();
    if (largest == 0) continue;
    rank = std::max(rank, static_cast<int>(values.gt(kZero * largest).sum().item<int64_t>()));
  }
  return rank;
}

at::Tensor MixingMatrixProbe::leaf(const at::Tensor& source_TD) {
  sources_.push_back(source_TD.detach().clone().set_requires_grad(true));
  return sources_.back();
}

void MixingMatrixProbe::on_read(const ReadTrace& trace) {
  auto& streams = reads_.emplace_back();
  streams[""] = trace.mixed;
  for (const auto& [name, mixed] : trace.other_streams) streams[name] = mixed;
}

std::vector<MixingMatrix> MixingMatrixProbe::matrices() const {
  const size_t size = reads_.size();
  std::vector<std::string> names;
  for (const auto& streams : reads_) {
    for (const auto& [name, mixed] : streams) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  const int64_t numbers = sources_[0].numel();
  const RandomStream places(/*seed=*/0, "mixing_matrix.places");
  std::vector<int64_t> sampled;
  for (int s = 0; s < kMixingMatrixSamples; ++s) {
    sampled.push_back(static_cast<int64_t>(places.below(numbers, s)));
  }
  const at::Tensor sampled_places = at::tensor(sampled, at::kLong);

  std::vector<MixingMatrix> matrices;
  for (const std::string& name : names) {
    MixingMatrix matrix{name, blank(size), std::vector<Matrix>(kMixingMatrixSamples, blank(size))};
    for (size_t l = 0; l < size; ++l) {
      const auto read = reads_[l].find(name);
      if (read == reads_[l].end()) continue;
      const std::vector<at::Tensor> sources(sources_.begin(), sources_.begin() + l + 1);
      std::vector<at::Tensor> diagonals(l + 1);  // of dh_l / dv_i, [T, D]
      for (int probe = 0; probe < kProbes; ++probe) {
        const RandomStream random(/*seed=*/l * kProbes + probe, "mixing_matrix.signs");
        const at::Tensor signs =
            random_rows(sources[0].sizes(), random, /*signs=*/true).to(read->second.options());
        const auto gradients =
            torch::autograd::grad({read->second}, sources, {signs}, /*retain_graph=*/true,
                                  /*create_graph=*/false, /*allow_unused=*/true);
        for (size_t i = 0; i <= l; ++i) {
          if (!gradients[i].defined()) continue;
          const at::Tensor part = (gradients[i] * signs).to(at::kDouble) / kProbes;
          diagonals[i] = diagonals[i].defined() ? diagonals[i] + part : part;
        }
      }
      for (size_t i = 0; i <= l; ++i) {
        const bool unread = !diagonals[i].defined();
        matrix.mean[l][i] = unread ? 0 : diagonals[i].mean().item<double>();
        const at::Tensor singles = unread ? at::zeros({kMixingMatrixSamples}, at::kDouble)
                                          : diagonals[i].to(at::kCPU).take(sampled_places);
        for (int s = 0; s < kMixingMatrixSamples; ++s)
          matrix.samples[s][l][i] = singles[s].item<double>();
      }
    }
    matrices.push_back(std::move(matrix));
  }
  return matrices;
}

std::vector<MixingMatrix> mixing_matrices(const DepthMixer& mixer, int sublayers, int64_t width,
                                          int64_t tokens) {
  const at::AutoGradMode recording(true);
  const auto output = [&](int64_t number) {
    const RandomStream random(/*seed=*/number, "mixing_matrix.outputs");
    return random_rows({tokens, width}, random, /*signs=*/false);
  };
  MixingMatrixProbe probe;
  DepthState state = mixer.start(probe.leaf(output(0)));
  MixingAnalysis analysis = {.hold_weights = true};
  state.analysis = &analysis;
  for (int site = 0;; ++site) {
    mixer.read(state);
    probe.on_read(analysis.read);
    if (site == sublayers) return probe.matrices();
    mixer.write(state, {probe.leaf(output(site + 1))});
  }
}

}  // namespace attnres
