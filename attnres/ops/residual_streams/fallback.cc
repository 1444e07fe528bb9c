#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>

#include "attnres/ops/composed.h"
#include "attnres/ops/residual_streams/residual_streams.h"
#include "attnres/ops/tensors.h"

namespace attnres {

using at::Tensor;

Tensor read_streams_composed(const Tensor& streams_TMD, const Tensor& read_TM) {
  note_composed("residual streams", streams_TMD);
  const at::ScalarType wide = compute_dtype(streams_TMD);
  const Tensor h_TD = (read_TM.to(wide).unsqueeze(-1) * streams_TMD.to(wide)).sum(1);
  return h_TD.to(streams_TMD.scalar_type());
}

Tensor write_streams_composed(const Tensor& streams_TMD, const StreamsWriting& writing) {
  note_composed("residual streams", streams_TMD);
  const at::ScalarType wide = compute_dtype(streams_TMD);
  Tensor mixed_TMD = streams_TMD.to(wide);
  if (writing.mix_TMM.defined()) mixed_TMD = at::matmul(writing.mix_TMM.to(wide), mixed_TMD);
  const Tensor added_TMD =
      writing.write_TM.to(wide).unsqueeze(-1) * writing.y_TD.to(wide).unsqueeze(1);
  return (mixed_TMD + added_TMD).to(streams_TMD.scalar_type());
}

Tensor project_normalised_composed(const Tensor& x_NK, const Tensor& projection_RK, double eps) {
  const at::ScalarType wide = compute_dtype(x_NK);
  const Tensor product_NR =
      at::matmul(x_NK.to(projection_RK.scalar_type()), projection_RK.t()).to(wide);
  const Tensor mean_square_N1 = x_NK.to(wide).square().mean(-1, /*keepdim=*/true);
  return product_NR * at::rsqrt(mean_square_N1 + eps);
}

}  // namespace attnres
