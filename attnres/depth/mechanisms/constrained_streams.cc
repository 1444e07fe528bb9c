#include "attnres/depth/mechanisms/constrained_streams.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/sigmoid.h>

#include "attnres/ops/residual_streams/residual_streams.h"

namespace attnres {

std::string constrained_streams_details(const std::string& mix) {
  return "H is m x d, m = streams rows H_i, copies of v_0 at first. h_l = sum_i a_i H_i, x_l = "
         "norm(h_l); then H_i becomes sum_j A_ij H_j + b_i y_l; h_L is the sum of the rows. z = "
         "RMS of the m d numbers of H before sublayer l together, stream after stream. Each map "
         "has "
         "logits s (P z) + c, with its own s: a = sg(logits), b = 2 sg(logits). " +
         mix +
         " Site 0 has no a: h_0 = v_0. There all streams are equal, and of any positive multiple "
         "f v_0 the norm makes the same x_0, but for norm_eps / f^2 in place of norm_eps.";
}

std::vector<RoleText> constrained_streams_roles(const std::string& mix_rows,
                                                const std::string& without_read) {
  return {input_norm_role(),
          {"dynamic_maps",
           "[rows, m d]: P; m rows of b, then m of a (" + without_read + ")" + mix_rows},
          {"static_maps", "[rows]: c, in the order of the rows of P"},
          {"map_scales", "s, one for each map that the site has: of b, of a, of A"}};
}

ConstrainedStreams::ConstrainedStreams(int64_t streams, MixMatrix matrix, const MixerShape& shape,
                                       ParameterRegistry& parameters, bool single_pass)
    : StreamMixer(streams, shape, parameters, single_pass), matrix_(std::move(matrix)) {
  for (int l = 0; l < shape.sublayers; ++l) {
    std::vector<double> bias;
    int64_t maps = 0;
    const auto add_gates = [&](int site) {
      for (int64_t i = 0; i < streams; ++i) bias.push_back(i == site % streams ? 1 : -1);
      ++maps;
    };
    add_gates(l);                                         // b
    if (has_read(l)) add_gates(single_pass ? l + 1 : l);  // a
    const bool only_sum_is_read = matrix_.keeps_sum && l == shape.sublayers - 1;
    if (l > 0 && !only_sum_is_read && !matrix_.start.empty()) {
      bias.insert(bias.end(), matrix_.start.begin(), matrix_.start.end());
      ++maps;
    }
    const auto rows = static_cast<int64_t>(bias.size());
    Site site;
    site.projection = parameters.add(l, "dynamic_maps", ParameterKind::matrix,
                                     {rows, streams * shape.width}, Init::zeros());
    site.bias = parameters.add(l, "static_maps", ParameterKind::mixing, {rows},
                               Init::by_index([bias](int64_t i) { return bias[i]; }));
    site.scale =
        parameters.add(l, "map_scales", ParameterKind::mixing, {maps}, Init::constant(0.01));
    sites_.push_back(site);
  }
}

StreamMaps ConstrainedStreams::maps(const at::Tensor& streams_TMD, int l) const {
  const Site& site = sites_[l];
  const at::Tensor dynamic_TR = project_normalised(streams_TMD, site.projection, shape().norm_eps);
  int64_t row = 0, map = 0;
  const auto next_logits = [&](int64_t rows) {
    const at::Tensor logits =
        dynamic_TR.narrow(-1, row, rows) * site.scale[map++] + site.bias.narrow(0, row, rows);
    row += rows;
    return logits;
  };
  StreamMaps maps;
  maps.write = 2 * at::sigmoid(next_logits(streams()));
  if (has_read(l)) maps.read = at::sigmoid(next_logits(streams()));
  const int64_t left = site.bias.size(0) - row;
  if (left > 0) maps.mix = matrix_.of(next_logits(left));
  return maps;
}

}  // namespace attnres
