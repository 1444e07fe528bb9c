#include "attnres/pretrained/packed_tensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>

#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/formats/gguf_models.h"
#include "tests/model/small_models.h"
#include "tests/pretrained/parts.h"

namespace attnres::testing::packed_tensors_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

ModelConfig llama() {
  return read_model_config({{"layers", 2},
                            {"width", 256},
                            {"heads", 8},
                            {"head_width", 32},
                            {"kv_heads", 2},
                            {"ffn_width", 512},
                            {"init_std", 0.1}});
}

NamedTensors tensors_of(const fs::path& folder) {
  const TensorFiles files(folder);
  NamedTensors tensors;
  for (const std::string& name : files.names()) tensors.emplace_back(name, files.read(name));
  return tensors;
}

bool is_map(const std::string& name, const at::Tensor& tensor) {
  return tensor.dim() == 2 && name.find("_proj.weight") != std::string::npos;
}

// A folder whose maps are `changed`, with the quantization in config.json.
template <class F>
fs::path quantized(const Transformer& model, const Json& quantization, const F& changed) {
  const fs::path folder = fresh_folder("quantized");
  save_model(model, folder, /*context=*/64, /*document_ids=*/0);
  NamedTensors tensors;
  for (const auto& [name, tensor] : tensors_of(folder)) {
    if (is_map(name, tensor)) {
      for (const auto& made : changed(name, tensor)) tensors.push_back(made);
    } else {
      tensors.emplace_back(name, tensor);
    }
  }
  write_safetensors(folder / "model.safetensors", tensors);
  Json config = read_json(folder / "config.json");
  config["quantization_config"] = quantization;
  write_file(folder / "config.json", config.dump());
  return folder;
}

const Json kFp8 = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
const Json kMxfp4 = {{"quant_method", "compressed-tensors"}, {"format", "mxfp4-pack-quantized"}};

// The largest numbers, over 448, of a weight's blocks of 128 x 128, number by number.
at::Tensor scales_of_blocks(const at::Tensor& weight) {
  const int64_t n = (weight.size(0) + 127) / 128, k = (weight.size(1) + 127) / 128;
  at::Tensor scales = at::zeros({n, k});
  for (int64_t i = 0; i < weight.size(0); ++i) {
    for (int64_t j = 0; j < weight.size(1); ++j) {
      float& scale = scales.accessor<float, 2>()[i / 128][j / 128];
      scale = std::max(scale, std::fabs(weight.accessor<float, 2>()[i][j]) / 448);
    }
  }
  return scales;
}

NamedTensors as_fp8(const std::string& name, const at::Tensor& weight) {
  const at::Tensor scales = scales_of_blocks(weight);
  at::Tensor stored = weight.clone();
  for (int64_t i = 0; i < weight.size(0); ++i) {
    for (int64_t j = 0; j < weight.size(1); ++j) {
      stored.accessor<float, 2>()[i][j] /= scales.accessor<float, 2>()[i / 128][j / 128];
    }
  }
  return {{name, stored.to(at::kFloat8_e4m3fn)}, {name + "_scale_inv", scales}};
}

// The same numbers in float32.
at::Tensor numbers_of_fp8(const at::Tensor& weight) {
  const NamedTensors stored = as_fp8("", weight);
  at::Tensor numbers = stored[0].second.to(at::kFloat);
  for (int64_t i = 0; i < weight.size(0); ++i) {
    for (int64_t j = 0; j < weight.size(1); ++j) {
      numbers.accessor<float, 2>()[i][j] *= stored[1].second.accessor<float, 2>()[i / 128][j / 128];
    }
  }
  return numbers;
}

constexpr float kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

// Codes that follow from the place, and scales of 2^-6 to 2^-3.
int code_at(int64_t i, int64_t j) {
  return static_cast<int>((7 * i + 5 * j + i * j) % 16);
}
int exponent_at(int64_t i, int64_t group) {
  return static_cast<int>(121 + (i + group) % 4);
}

NamedTensors as_mxfp4(const std::string& name, const at::Tensor& weight) {
  const int64_t N = weight.size(0), K = weight.size(1);
  at::Tensor packed = at::empty({N, K / 2}, at::kByte), scales = at::empty({N, K / 32}, at::kByte);
  for (int64_t i = 0; i < N; ++i) {
    for (int64_t j = 0; j < K; j += 2) {
      packed[i][j / 2] = code_at(i, j) + 16 * code_at(i, j + 1);
    }
    for (int64_t g = 0; g < K / 32; ++g) scales[i][g] = exponent_at(i, g);
  }
  return {{name + "_packed", packed}, {name + "_scale", scales}};
}

at::Tensor numbers_of_mxfp4(const at::Tensor& weight) {
  at::Tensor numbers = at::empty_like(weight);
  for (int64_t i = 0; i < weight.size(0); ++i) {
    for (int64_t j = 0; j < weight.size(1); ++j) {
      numbers.accessor<float, 2>()[i][j] =
          std::ldexp(kE2m1[code_at(i, j)], exponent_at(i, j / 32) - 127);
    }
  }
  return numbers;
}

struct Form {
  const char* name;
  const Json& quantization;
  NamedTensors (*store)(const std::string&, const at::Tensor&);
  at::Tensor (*numbers)(const at::Tensor&);
  WeightFormat format;
};

class PackedTensors : public ::testing::TestWithParam<Form> {
 protected:
  fs::path folder(const Transformer& model) const {
    return quantized(model, GetParam().quantization, GetParam().store);
  }
};

INSTANTIATE_TEST_SUITE_P(
    Forms, PackedTensors,
    ::testing::Values(Form{"fp8", kFp8, as_fp8, numbers_of_fp8, WeightFormat::fp8},
                      Form{"mxfp4", kMxfp4, as_mxfp4, numbers_of_mxfp4, WeightFormat::mxfp4}),
    [](const auto& info) { return info.param.name; });

TEST_P(PackedTensors, AreTheNumbersThatTheyStandFor) {
  const Transformer model = perturbed_model(llama());
  const auto read = load_model(folder(model));
  int maps = 0;
  for (const Parameter& parameter : model.parameters().all()) {
    const at::Tensor found =
        read->parameters().find(parameter.site, parameter.role)->tensor.detach();
    const bool is_quantized = parameter.role.ends_with("_proj");
    maps += is_quantized;
    const at::Tensor expected =
        is_quantized ? GetParam().numbers(parameter.tensor.detach()) : parameter.tensor.detach();
    EXPECT_TRUE(at::equal(found, expected)) << parameter.role;
  }
  EXPECT_EQ(maps, 2 * 7);
}

TEST_P(PackedTensors, StayPackedWhereAModelIsToInfer) {
  const Transformer model = perturbed_model(llama());
  const fs::path path = folder(model);
  const ModelDirectory directory(path);
  const auto packed = directory.load(Precision(at::kFloat, at::kFloat, directory.weight_formats()));
  const auto numbers = directory.load();
  int kept = 0;
  for (const Parameter& parameter : packed->parameters().all()) {
    if (!parameter.role.ends_with("_proj")) continue;
    EXPECT_EQ(parameter.packed.format, GetParam().format) << parameter.role;
    EXPECT_TRUE(at::equal(unpack_weight(parameter.packed),
                          numbers->parameters().find(parameter.site, parameter.role)->tensor));
    ++kept;
  }
  EXPECT_EQ(kept, 2 * 7);
  // Products with whole numbers round x.
  EXPECT_LT(difference(*packed, *numbers), GetParam().format == WeightFormat::fp8 ? 1e-3 : 1.0);
  EXPECT_GT(difference(*numbers, model), 1e-2) << "or this says nothing";
}

TEST_P(PackedTensors, RefuseAScaleOfAnotherShape) {
  const Transformer model = perturbed_model(llama());
  const fs::path path =
      quantized(model, GetParam().quantization, [](const std::string& name, const at::Tensor& of) {
        NamedTensors stored = GetParam().store(name, of);
        stored[1].second = stored[1].second.narrow(1, 0, 1).contiguous();
        return stored;
      });
  EXPECT_THAT(message_of<Error>([&] { load_model(path); }),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("_scale"), HasSubstr("expected")));
}

TEST_P(PackedTensors, RefuseNumbersThatAreNone) {
  const Transformer model = perturbed_model(llama());
  const fs::path path =
      quantized(model, GetParam().quantization, [](const std::string& name, const at::Tensor& of) {
        NamedTensors stored = GetParam().store(name, of);
        if (name.find("layers.1.mlp.up_proj") != std::string::npos) {
          const bool is_fp8 = GetParam().format == WeightFormat::fp8;
          at::Tensor bytes = stored[is_fp8 ? 0 : 1].second.view(at::kByte);
          bytes.view(-1)[5] = is_fp8 ? 255 : 253;
        }
        return stored;
      });
  EXPECT_THAT(message_of<Error>([&] { load_model(path); }),
              AllOf(HasSubstr("layers.1.mlp.up_proj"), HasSubstr("not finite")));
}

TEST_P(PackedTensors, AreCutForATensorGroup) {
  const fs::path path = folder(perturbed_model(llama()));
  expect_parts(path, {at::kFloat, at::kFloat, ModelDirectory(path).weight_formats()});
}

}  // namespace
}  // namespace attnres::testing::packed_tensors_test
