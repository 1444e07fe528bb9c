// Test vectors: numbers by which an implementation of a mechanism elsewhere can be checked, site by
// site, without a model around it. A mixer runs alone in float64, with given numbers for what the
// sublayers return, so that only the mixing has to be implemented. docs/test-vectors.md describes
// the file.
//
// An entry is one mechanism with its settings. Its tensors, l a site from 0 to L, L the output:
//
//   given    embedding, output.l        [B, T, d]  v_0, and what sublayer l returns
//            parameter.ROLE.l           moved from its start by noise
//            parameter.ROLE             the same, of no one site
//            heads.q.l, .k.l, .v.l      [B, T, H or H_kv, d / H], an attention's projections,
//                                       where the mechanism changes them
//            cotangent.NAME             c of the input or adapted heads NAME
//   results  mixed.l, mixed.STREAM.l    [B, T, d]  h_l, which site l reads
//            input.l, input.key.l, ..   [B, T, d]  x_l, what sublayer l, and some of its maps, get
//            adapted.q.l, .k.l, .v.l    heads.* as the mechanism changed them
//            start.ROLE.l               what parameter.ROLE.l starts at, where that is not drawn
//            gradient.NAME              of sum <c, x> over all inputs and adapted heads x, with
//                                       respect to the given NAME (cotangents left out)
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attnres/depth/depth_mixing.h"

namespace attnres {

struct TestVectorEntry {
  std::string name;  // the mechanism's; of an ablation arm "attn_res.heads=4"
  DepthMixing depth_mixing;
  MixerShape shape;
};

// Every mechanism, and more of those with settings: every setting departs somewhere from its
// default. norm_eps is large, so that an eps in the wrong place shows; of the blocks the last is
// short.
const std::vector<TestVectorEntry>& test_vector_entries();

// The mechanism's formula, as the entry's settings make it.
std::string test_vector_formula(const TestVectorEntry& entry);
// What the symbols mean in formulas, details and roles.
const char* test_vector_notation();

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct TestVectors {
  NamedTensors given, results;  // results by site, then gradients, then starts

  // A given tensor or a result; undefined if there is none of this name.
  at::Tensor find(const std::string& name) const;
};

using MixerFactory = std::function<std::unique_ptr<DepthMixer>(
    const DepthMixing& mixing, const MixerShape&, ParameterRegistry&)>;

// The given numbers depend on the entry and their names only; in other dtypes they are rounded.
// `make` may give another mixer with the same parameters.
TestVectors make_test_vectors(const TestVectorEntry& entry, at::ScalarType dtype = at::kDouble,
                              const MixerFactory& make = &DepthMixing::make_mixer);

struct WrittenVectors {
  size_t entries = 0, tensors = 0;
};

// A safetensors file of float64 tensors "ENTRY/NAME", with a JSON text for each entry as metadata
// that explains it without any other source; the same bytes every time. Of all entries, and those
// of decay_vectors.h, or of the mechanisms named. Throws UsageError on a mechanism that there is
// not.
WrittenVectors write_test_vectors(const std::filesystem::path& path,
                                  const std::vector<std::string>& mechanism_names);

}  // namespace attnres
