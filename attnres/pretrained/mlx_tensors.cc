#include "attnres/pretrained/mlx_tensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

using Tensors = std::vector<at::Tensor>;
constexpr std::array kMaps = {"q", "k", "v"};

// The name with `to` in the place of its end; empty where it does not end so.
std::string with_end(const std::string& name, const std::string& end, const std::string& to) {
  if (!name.ends_with(end)) return "";
  return name.substr(0, name.size() - end.size()) + to;
}

at::Tensor one_after_another(const at::Tensor& of_all, size_t map) {
  const int64_t channels = of_all.size(0) / std::ssize(kMaps);
  return of_all.narrow(0, static_cast<int64_t>(map) * channels, channels);
}

// [.., K, 1] of mlx to [.., 1, K].
at::Tensor kernels(const at::Tensor& stored) {
  return stored.transpose(1, 2);
}

// Maps and kernels that lie one after another.
std::vector<MadeTensor> of_fused(const std::string& name) {
  std::vector<MadeTensor> made;
  for (size_t map = 0; map < kMaps.size(); ++map) {
    const std::string of = std::string(".self_attn.") + kMaps[map];
    const std::string proj = with_end(name, ".self_attn.qkv_proj.weight", of + "_proj.weight");
    const std::string conv =
        with_end(name, ".self_attn.qkv_conv.conv.weight", of + "_conv1d.weight");
    if (!proj.empty()) {
      made.push_back(
          {proj, {name}, [map](const Tensors& t) { return one_after_another(t[0], map); }});
    } else if (!conv.empty()) {
      made.push_back({conv, {name}, [map](const Tensors& t) {
                        return kernels(one_after_another(t[0], map));
                      }});
    }
  }
  return made;
}

std::vector<MadeTensor> of_kernels(const std::string& name) {
  for (const char* map : kMaps) {
    const std::string conv = with_end(name, fmt::format(".self_attn.{}_conv.conv.weight", map),
                                      fmt::format(".self_attn.{}_conv1d.weight", map));
    if (!conv.empty()) return {{conv, {name}, [](const Tensors& t) { return kernels(t[0]); }}};
  }
  return {};
}

std::vector<MadeTensor> of_latents(const std::string& name) {
  const std::string kv_b = with_end(name, ".embed_q.weight", ".kv_b_proj.weight");
  if (kv_b.empty()) return {};
  const std::string values = with_end(name, ".embed_q.weight", ".unembed_out.weight");
  return {{kv_b, {name, values}, [](const Tensors& t) {
             return at::cat({t[0].transpose(1, 2), t[1]}, 1).flatten(0, 1);
           }}};
}

std::vector<MadeTensor> of_experts(const std::string& name, int64_t experts) {
  std::vector<MadeTensor> made;
  for (const auto& [theirs, ours] :
       {std::pair("gate_proj", "w1"), {"down_proj", "w2"}, {"up_proj", "w3"}}) {
    const std::string end = fmt::format(".mlp.switch_mlp.{}.weight", theirs);
    if (!name.ends_with(end)) continue;
    for (int64_t e = 0; e < experts; ++e) {
      const std::string of = fmt::format(".block_sparse_moe.experts.{}.{}.weight", e, ours);
      made.push_back(
          {with_end(name, end, of), {name}, [e](const Tensors& t) { return t[0].select(0, e); }});
    }
  }
  return made;
}

// What only lies elsewhere.
std::vector<MadeTensor> of_renamed(const std::string& name) {
  for (const auto& [theirs, ours] :
       {std::pair(".mlp.shared_experts.", ".block_sparse_moe.shared_experts."),
        {".mlp.routed_expert_", ".block_sparse_moe.routed_expert_"},
        {".mlp.gate.", ".block_sparse_moe.gate."},
        {".mlp.e_score_correction_bias", ".block_sparse_moe.gate.e_score_correction_bias"}}) {
    const size_t at = name.find(theirs);
    if (at == std::string::npos) continue;
    std::string renamed = name;
    return {{renamed.replace(at, std::string_view(theirs).size(), ours), {name}}};
  }
  return {};
}

}  // namespace

std::vector<MadeTensor> made_of_mlx_tensor(const std::string& name,
                                           const std::vector<int64_t>& shape) {
  const auto has_dims = [&](size_t dims) {
    const bool fits = shape.size() == dims && std::all_of(shape.begin(), shape.end(),
                                                          [](int64_t size) { return size > 0; });
    require(fits, "{} has the shape [{}], expected {} sizes above 0, as mlx-lm saves it",
            one_line(name), one_line(fmt::format("{}", fmt::join(shape, ", "))), dims);
  };
  if (std::vector<MadeTensor> fused = of_fused(name); !fused.empty()) {
    has_dims(name.ends_with("qkv_proj.weight") ? 2 : 3);
    require(shape[0] % std::ssize(kMaps) == 0, "{} has {} rows, which are not three maps",
            one_line(name), shape[0]);
    return fused;
  }
  if (std::vector<MadeTensor> of_one = of_kernels(name); !of_one.empty()) {
    has_dims(3);
    return of_one;
  }
  if (std::vector<MadeTensor> latents = of_latents(name); !latents.empty()) {
    has_dims(3);
    return latents;
  }
  if (name.find(".mlp.switch_mlp.") != std::string::npos) {
    has_dims(3);
    return of_experts(name, shape[0]);
  }
  return of_renamed(name);
}

}  // namespace attnres
