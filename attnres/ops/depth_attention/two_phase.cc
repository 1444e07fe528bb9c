#include "attnres/ops/depth_attention/two_phase.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>

#include <span>

#include "attnres/ops/depth_attention/phases.h"
#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/recorded_operation.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// As operations read it; without the dispatcher where it is that already.
Tensor rows_in(const Tensor& tensor, at::ScalarType compute) {
  return tensor.scalar_type() == compute ? tensor.contiguous() : tensor.to(compute).contiguous();
}

template <class T>
void multiply(const Tensor& a, const Tensor& b, T* product) {
  const T *x = a.const_data_ptr<T>(), *y = b.const_data_ptr<T>();
  for (int64_t i = 0; i < a.numel(); ++i) product[i] = x[i] * y[i];
}

// Whether operations on such rows are called past the dispatcher, at whose costs a decoded token
// would pass every site: nothing is recorded, and the CPU has the kernels.
bool calls_kernels(const Tensor& rows, bool recording) {
  return !recording && has_kernel(rows);
}

// [S, D]: the queries, folded in the compute type of rows.
Tensor fold_queries(const std::vector<DepthQuery>& queries, const Tensor& rows, bool recording) {
  const at::ScalarType compute = compute_dtype(rows);
  if (!calls_kernels(rows, recording)) {
    Tensors folded;
    for (const auto& [query, key_gain] : queries) {
      folded.push_back(at::mul(query.to(compute), key_gain.to(compute)));
    }
    return at::stack(folded);
  }
  const int64_t S = std::ssize(queries), D = queries[0].pseudo_query.numel();
  const Tensor folded_SD = at::empty({S, D}, at::TensorOptions().dtype(compute));
  for (int64_t s = 0; s < S; ++s) {
    const Tensor query = rows_in(queries[s].pseudo_query, compute);
    const Tensor key_gain = rows_in(queries[s].key_gain, compute);
    if (compute == at::kDouble) {
      multiply(query, key_gain, folded_SD.mutable_data_ptr<double>() + s * D);
    } else {
      multiply(query, key_gain, folded_SD.mutable_data_ptr<float>() + s * D);
    }
  }
  return folded_SD;
}

// Finished sources, with places for the reciprocal RMS that are not known. Known ones that come
// after one of those are computed anew, to the same numbers.
struct ReadSources {
  explicit ReadSources(std::span<DepthSource> sources) {
    for (DepthSource& source : sources) {
      if (!source.inverse_rms.defined()) {
        source.inverse_rms = empty_per_token(source.value());
      } else if (num_known == std::ssize(values)) {
        ++num_known;
      }
      values.push_back(source.value());
      inverse_rms.push_back(source.inverse_rms);
    }
  }
  SourceRows rows() const { return {values, inverse_rms, num_known}; }

  Tensors values, inverse_rms;
  int64_t num_known = 0;
};

std::span<DepthSource> recent_sources(const SiteSources& site) {
  if (site.sources == nullptr) return {};
  return std::span(*site.sources).subspan(site.first_recent);
}

Tensors inputs_of(const SiteSources& site, const DepthQuery& query, const Tensor& norm_gain) {
  Tensors inputs;
  if (site.earlier != nullptr) inputs.push_back(site.earlier->output);
  for (const DepthSource& source : recent_sources(site)) inputs.push_back(source.value());
  for (const Tensor& part : {site.partial, site.pending}) {
    if (part.defined()) inputs.push_back(part);
  }
  inputs.insert(inputs.end(), {query.pseudo_query, query.key_gain});
  if (norm_gain.defined()) inputs.push_back(norm_gain);
  return inputs;
}

}  // namespace

DepthSource::DepthSource(const Tensor& value) : value_(with_slot(value)) {}

std::vector<EarlierSources> depth_attention_phase_one(std::vector<DepthSource>& sources,
                                                      size_t num_sources,
                                                      const std::vector<DepthQuery>& queries,
                                                      double eps) {
  require(num_sources > 0 && num_sources <= sources.size() && !queries.empty(),
          "depth attention: phase 1 needs at least one source and one query");
  const std::span<DepthSource> earlier = std::span(sources).first(num_sources);
  Tensors inputs;
  for (const DepthSource& source : earlier) inputs.push_back(source.value());
  for (const DepthQuery& query : queries) {
    inputs.insert(inputs.end(), {query.pseudo_query, query.key_gain});
  }
  RecordedOperation recorded("attnres::depth_attention_phase_one", [&] { return inputs; });
  const bool recording = records(inputs);
  const ReadSources read(earlier);
  const Tensor& first = read.values[0];
  const Tensor queries_SD = fold_queries(queries, first, recording);
  PhaseOneResult result = allocate_phase_one(first, std::ssize(read.values), std::ssize(queries),
                                             /*for_backward=*/recording);
  const auto phase_one = calls_kernels(first, recording) ? &phase_one_cpu : &phase_one_out;
  phase_one({read.rows(), queries_SD, eps}, result);

  std::vector<EarlierSources> sites;
  for (int64_t s = 0; s < std::ssize(queries); ++s) {
    sites.push_back({result.outputs[s], result.max, result.sum, queries_SD, s});
  }
  recorded.wrote(result.outputs);
  if (!recording) return sites;

  const Tensors results = record_phase_one(read.values, queries_SD, read.inverse_rms, result,
                                           /*in_schedule=*/true);
  const Tensors max = result.max.split(1), sum = results.back().split(1),
                rows = queries_SD.split(1);
  for (size_t s = 0; s < sites.size(); ++s) sites[s] = {results[s], max[s], sum[s], rows[s], 0};
  return sites;
}

SiteInput depth_attention_phase_two(const SiteSources& site, const DepthQuery& query, double eps,
                                    const Tensor& norm_gain, double norm_eps) {
  const bool has_earlier = site.earlier != nullptr;
  const EarlierSources earlier = has_earlier ? *site.earlier : EarlierSources();
  const std::span<DepthSource> finished = recent_sources(site);
  const Tensor& part = site.pending.defined() ? site.pending : site.partial;
  const bool formed = site.partial.defined() && site.pending.defined();
  require(part.defined() || !finished.empty() || has_earlier,
          "depth attention: a site without sources");
  const Tensor& like = part.defined()     ? part
                       : finished.empty() ? earlier.output
                                          : finished.front().value();
  RecordedOperation recorded("attnres::depth_attention_phase_two", [&] {
    Tensors inputs = inputs_of(site, query, norm_gain);
    if (has_earlier) inputs.push_back(earlier.sum[earlier.row]);
    return inputs;
  });
  const bool recording = at::GradMode::is_enabled() && records(inputs_of(site, query, norm_gain));
  ReadSources read(finished);
  if (part.defined()) {
    // Where nothing is added it is the same numbers, but its gradient comes through this site,
    // which adds to it.
    read.values.push_back(formed ? empty_like_rows(part) : recording ? same_data(part) : part);
    if (recording) read.inverse_rms.push_back(empty_per_token(part));
  }
  const Tensor queries_SD =
      has_earlier ? earlier.queries_SD : fold_queries({query}, like, recording);
  const PhaseTwoResult result = allocate_phase_two(like, std::ssize(read.values), has_earlier,
                                                   norm_gain.defined(), /*for_backward=*/recording);
  const auto phase_two = calls_kernels(like, recording) ? &phase_two_cpu : &phase_two_out;
  const PhaseTwoInputs inputs{.earlier = earlier.output,
                              .max = earlier.max,
                              .sum = earlier.sum,
                              .recent = read.rows(),
                              .partial = formed ? site.partial : Tensor(),
                              .pending = formed ? site.pending : Tensor(),
                              .queries_SD = queries_SD,
                              .row = earlier.row,
                              .eps = eps,
                              .norm_gain_D = prepare_norm_gain(norm_gain, like, recording),
                              .norm_eps = norm_eps};
  phase_two(inputs, result);
  const Tensor partial = part.defined() ? read.values.back() : Tensor();
  recorded.wrote({result.x, formed ? partial : Tensor()});
  if (!recording) return {result.x, partial};
  Tensors parts;
  if (site.partial.defined()) parts.push_back(site.partial);
  if (site.pending.defined()) parts.push_back(site.pending);
  const Tensors results =
      record_phase_two(inputs, parts, given(norm_gain), result, /*in_schedule=*/true);
  return {results[0], parts.empty() ? Tensor() : results[1]};
}

}  // namespace attnres
