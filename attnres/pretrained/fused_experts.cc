#include "attnres/pretrained/fused_experts.h"

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "attnres/formats/safetensors.h"
#include "attnres/pretrained/packed_tensors.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

// A map of an expert, and the rows of the fused one's that are its.
struct FusedMap {
  const char* in_file;
  const char* ours;
  int64_t first, step;

  // Of rows [N, ..].
  Tensor own_rows(const Tensor& all) const { return all.slice(0, first, std::nullopt, step); }
};
constexpr std::array kFusedMaps = {FusedMap{"gate_up_proj", "w1", 0, 2},
                                   FusedMap{"gate_up_proj", "w3", 1, 2},
                                   FusedMap{"down_proj", "w2", 0, 1}};
constexpr const char* kExpertsOf = ".mlp.experts.";

std::vector<int64_t> shape_of_file(const TensorFiles& files, const std::string& name, size_t dims) {
  const std::vector<int64_t>& shape = files.info(name).shape;
  // Else there would be any number of experts of no numbers.
  const bool has_numbers =
      std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size > 0; });
  require(shape.size() == dims && has_numbers,
          "{}: {} has the shape [{}], expected {} sizes above 0", files.what(), one_line(name),
          fmt::join(shape, ", "), dims);
  return shape;
}

MadeTensor packed_expert(const std::string& ours, const std::string& blocks,
                         const std::string& scales, const FusedMap& map, int64_t e) {
  const auto make = [map, e](const Tensors& of) {
    const Tensor bytes = map.own_rows(of[0].select(0, e)).flatten(1);
    return mxfp4_rows({bytes, map.own_rows(of[1].select(0, e))});
  };
  return {ours + ".weight", {blocks, scales}, make, WeightFormat::mxfp4};
}

void check_scales(const TensorFiles& files, const std::string& blocks, const std::string& scales) {
  require(files.contains(scales), "{}: {} is there, but not {}", files.what(), one_line(blocks),
          one_line(scales));
  std::vector<int64_t> shape = shape_of_file(files, blocks, 4);
  const bool is_bytes = files.info(blocks).dtype == at::kByte && shape.back() == 16;
  shape.pop_back();
  const TensorInfo &of = files.info(blocks), &info = files.info(scales);
  require(
      is_bytes && info.dtype == at::kByte && info.shape == shape,
      "{}: {} is {} [{}], {} is {} [{}]; expected bytes, in blocks of 16, and one for each block",
      files.what(), one_line(blocks), stored_dtype_name(of.dtype), fmt::join(of.shape, ", "),
      one_line(scales), stored_dtype_name(info.dtype), fmt::join(info.shape, ", "));
}

std::vector<MadeTensor> parts_of_map(const std::string& name, const std::string& stem,
                                     std::string_view end, const FusedMap& map,
                                     const TensorFiles& files) {
  std::vector<MadeTensor> made;
  const auto ours = [&](int64_t e) {
    return fmt::format("{}.block_sparse_moe.experts.{}.{}", stem, e, map.ours);
  };
  if (end == "_blocks") {
    const std::string scales = name.substr(0, name.size() - end.size()) + "_scales";
    check_scales(files, name, scales);
    const int64_t experts = shape_of_file(files, name, 4)[0];
    for (int64_t e = 0; e < experts; ++e) {
      made.push_back(packed_expert(ours(e), name, scales, map, e));
    }
  } else if (end == "_scales") {
    const std::string blocks = name.substr(0, name.size() - end.size()) + "_blocks";
    require(files.contains(blocks), "{}: {} is there, but not {}", files.what(), one_line(name),
            one_line(blocks));
  } else if (end == "_bias") {
    const int64_t experts = shape_of_file(files, name, 2)[0];
    for (int64_t e = 0; e < experts; ++e) {
      made.push_back({ours(e) + ".bias", {name}, [map, e](const Tensors& of) {
                        return map.own_rows(of[0].select(0, e));
                      }});
    }
  } else if (end.empty()) {
    const int64_t experts = shape_of_file(files, name, 3)[0];
    for (int64_t e = 0; e < experts; ++e) {
      made.push_back({ours(e) + ".weight", {name}, [map, e](const Tensors& of) {
                        return map.own_rows(of[0].select(0, e).t());
                      }});
    }
  }
  return made;
}

}  // namespace

std::vector<MadeTensor> made_of_fused_experts(const std::string& name, const TensorFiles& files) {
  const size_t at = name.find(kExpertsOf);
  if (at == std::string::npos) return {};
  const std::string stem = name.substr(0, at);
  std::vector<MadeTensor> made;
  for (const FusedMap& map : kFusedMaps) {
    const std::string before = stem + kExpertsOf + map.in_file;
    if (!name.starts_with(before)) continue;
    const std::string_view end = std::string_view(name).substr(before.size());
    for (MadeTensor& part : parts_of_map(name, stem, end, map, files)) {
      made.push_back(std::move(part));
    }
  }
  return made;
}

}  // namespace attnres
