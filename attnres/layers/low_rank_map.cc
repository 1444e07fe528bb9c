#include "attnres/layers/low_rank_map.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>

#include <cmath>

#include "attnres/ops/tensors.h"

namespace attnres {

LowRankMap::LowRankMap(ParameterRegistry& parameters, int site, int64_t inputs,
                       const MatrixRole& of) {
  const LowRank& low_rank = parameters.low_rank();
  if (low_rank.rank == 0 || !low_rank.is_beside(site, of.role)) return;
  const auto add = [&](const char* name, at::IntArrayRef shape, const Init& init) {
    const std::string role = of.role + name;
    parameters.add(site, role, ParameterKind::matrix, shape, init);
    return ProductWeight(parameters.find(site, role));
  };
  scale_ = low_rank.scale;
  in_ = add(kLowRankIn, {low_rank.rank, inputs},
            Init::uniform(1 / std::sqrt(static_cast<double>(inputs))));
  out_ = add(kLowRankOut, {of.outputs, low_rank.rank}, Init::zeros());
}

at::Tensor LowRankMap::added_to(const at::Tensor& y, const at::Tensor& x) const {
  if (!defined()) return y;
  const at::Tensor hidden = linear_map(x, in_.for_map_of(x));
  return y + linear_map(hidden, out_.for_map_of(hidden)) * scale_;
}

at::Tensor LowRankMap::merged_into(const at::Tensor& weight) const {
  if (!defined()) return weight;
  return weight + (at::mm(out_.whole(), in_.whole()) * scale_).to(weight.scalar_type());
}

bool LowRankMap::records() const {
  return defined() && attnres::records({in_.whole(), out_.whole()});
}

int64_t LowRankMap::version() const {
  return defined() ? in_.whole()._version() + out_.whole()._version() : 0;
}

}  // namespace attnres
