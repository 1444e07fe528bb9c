#include "attnres/formats/gguf.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>

#include "attnres/support/error.h"
#include "attnres/support/random.h"
#include "tests/formats/gguf_parser.h"
#include "tests/text/test_files.h"

namespace attnres::testing::gguf_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Normal numbers over many magnitudes, a block of zeros, and one outlier.
at::Tensor numbers(std::vector<int64_t> shape, uint64_t seed = 1) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  const RandomStream random(seed, "numbers");
  float* x = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    x[i] = static_cast<float>(random.normal(i) * std::exp2(i / 32 % 24 - 12));
    if (i / 32 == 3) x[i] = 0;
  }
  x[0] = -5000;
  return tensor;
}

GgufTensor named(const std::string& name, const at::Tensor& tensor, GgufType type) {
  return {name, tensor.sizes().vec(), type, [tensor] { return tensor; }};
}

TEST(Gguf, KeepsMetadata) {
  const fs::path path = fresh_folder("gguf") / "file.gguf";
  write_gguf(path,
             {{"yes", true},
              {"no", false},
              {"whole", uint32_t{4'000'000'000}},
              {"real", 0.25f},
              {"text", "caf\u00e9\n"},
              {"empty", ""},
              {"wholes", std::vector<int32_t>{-1, 0, 7}},
              {"reals", std::vector<float>{-0.5f, 1e6f}},
              {"texts", std::vector<std::string>{"a", "", "\u2581b"}},
              {"none", std::vector<std::string>()}},
             {});
  const ParsedGguf file(path);
  EXPECT_THAT(file.keys(), ElementsAre("yes", "no", "whole", "real", "text", "empty", "wholes",
                                       "reals", "texts", "none"));
  EXPECT_EQ(file.at("yes"), true);
  EXPECT_EQ(file.at("no"), false);
  EXPECT_EQ(file.at("whole"), 4'000'000'000);
  EXPECT_EQ(file.at("real"), 0.25);
  EXPECT_EQ(file.at("text"), "caf\u00e9\n");
  EXPECT_EQ(file.at("empty"), "");
  EXPECT_EQ(file.at("wholes"), Json({-1, 0, 7}));
  EXPECT_EQ(file.at("reals"), Json({-0.5, 1e6}));
  EXPECT_EQ(file.at("texts"), Json({"a", "", "\u2581b"}));
  EXPECT_EQ(file.at("none"), Json::array());
}

TEST(Gguf, AlignsTensorsOfAnyShape) {
  const fs::path path = fresh_folder("gguf") / "file.gguf";
  const std::vector<std::vector<int64_t>> shapes = {{1}, {3, 5}, {2, 3, 4}, {1, 7, 1, 3}, {33}};
  std::vector<GgufTensor> tensors;
  std::vector<at::Tensor> values;
  for (const auto& shape : shapes) {
    values.push_back(numbers(shape));
    tensors.push_back(named(fmt::format("t{}", tensors.size()), values.back(), GgufType::f32));
  }
  write_gguf(path, {{"key", "odd"}}, tensors);
  const ParsedGguf file(path);
  EXPECT_EQ(file.size(), file.expected_size());
  ASSERT_EQ(file.tensors().size(), shapes.size());
  uint64_t end = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const ParsedTensor& tensor = file.tensors()[i];
    EXPECT_EQ(tensor.name, fmt::format("t{}", i));
    EXPECT_EQ(tensor.sizes, std::vector<int64_t>(shapes[i].rbegin(), shapes[i].rend()));
    EXPECT_EQ(tensor.offset, end);
    end = (end + ParsedGguf::stored_bytes(tensor) + 31) / 32 * 32;
    for (int64_t j = 0; j < tensor.numel(); ++j) {
      ASSERT_EQ(tensor.at(j), values[i].flatten()[j].item<float>());
    }
  }
}

// What is not contiguous is stored in the order of its indices.
TEST(Gguf, StoresTransposed) {
  const fs::path path = fresh_folder("gguf") / "file.gguf";
  const at::Tensor tensor = numbers({3, 5}).t();
  write_gguf(path, {}, {named("t", tensor, GgufType::f32)});
  const ParsedGguf file(path);
  EXPECT_THAT(file.tensors()[0].sizes, ElementsAre(3, 5));
  for (int64_t row = 0; row < 5; ++row) {
    for (int64_t column = 0; column < 3; ++column) {
      EXPECT_EQ(file.tensors()[0].at(row * 3 + column), tensor[row][column].item<float>());
    }
  }
}

// The largest error of a stored number over what the header promises.
double error_over_bound(GgufType type, double quantile = 1) {
  const fs::path path = fresh_folder("gguf") / "file.gguf";
  const at::Tensor tensor = numbers({64, 96});
  write_gguf(path, {}, {named("t", tensor, type)});
  const ParsedGguf file(path);
  const float* x = tensor.const_data_ptr<float>();
  double worst = 0;
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    double bound = std::fabs(x[i]) * std::exp2(type == GgufType::bf16 ? -8 : -11);
    if (type == GgufType::f16) bound = std::max(bound, std::exp2(-25));
    if (type == GgufType::q8_0 || type == GgufType::q4_0) {
      double m = 0;
      for (int64_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j)
        m = std::max<double>(m, std::fabs(x[j]));
      bound = type == GgufType::q4_0 ? std::max(m / 7.9, m / 8 + std::exp2(-21))
              : m < std::exp2(-7)    ? m / 254 + std::exp2(-18)
                                     : m / 220;
    }
    bound *= quantile;
    const double error = std::fabs(file.tensors()[0].at(i) - x[i]);
    worst = std::max(worst, error == 0 ? 0 : error / bound);
  }
  return worst;
}

TEST(Gguf, RoundsWithinItsBounds) {
  for (const GgufType type : {GgufType::f16, GgufType::bf16, GgufType::q8_0, GgufType::q4_0}) {
    EXPECT_LE(error_over_bound(type), 1) << static_cast<uint32_t>(type);
    EXPECT_GT(error_over_bound(type, 0.5), 1) << "a bound of half the size would not hold";
  }
}

TEST(Gguf, RefusesWhatTheFormatHasNot) {
  const fs::path path = fresh_folder("gguf") / "file.gguf";
  const auto refusal = [&](const std::vector<GgufTensor>& tensors, const GgufMetadata& keys = {}) {
    const std::string message = message_of<Error>([&] { write_gguf(path, keys, tensors); });
    EXPECT_TRUE(fs::is_empty(path.parent_path())) << "nothing half written remains";
    return message;
  };
  const auto tensor = [](std::vector<int64_t> shape, GgufType type = GgufType::f32) {
    return named("t", at::zeros(shape), type);
  };
  EXPECT_THAT(refusal({tensor({2}), tensor({3})}), HasSubstr("two tensors are named t"));
  EXPECT_THAT(refusal({tensor({4, 33}, GgufType::q8_0)}), HasSubstr("rows have 33 numbers"));
  EXPECT_THAT(refusal({tensor({1, 1, 1, 1, 1})}), HasSubstr("5 dimensions"));
  EXPECT_THAT(refusal({tensor({0, 3})}), HasSubstr("has no numbers"));
  EXPECT_THAT(refusal({named(std::string(64, 'n'), at::zeros({1}), GgufType::f32)}),
              HasSubstr("64 bytes"));
  EXPECT_THAT(refusal({named("t", at::full({32}, 1e5f), GgufType::f16)}),
              HasSubstr("too large for float16"));
  EXPECT_THAT(refusal({named("t", at::full({32}, NAN), GgufType::q8_0)}), HasSubstr("not finite"));
  GgufTensor wrong = tensor({2, 3});
  wrong.shape = {3, 2};
  EXPECT_THAT(refusal({wrong}), HasSubstr("have the shape [2, 3], not [3, 2]"));
  EXPECT_THAT(refusal({}, {{"key", true}, {"key", false}}), HasSubstr("two keys are named key"));
}

}  // namespace
}  // namespace attnres::testing::gguf_test
