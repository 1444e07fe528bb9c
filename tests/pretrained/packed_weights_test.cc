// Models whose weights are packed as they are loaded.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/instruction_sets.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"
#include "tests/formats/gguf_models.h"
#include "tests/model/small_models.h"
#include "tests/pretrained/parts.h"
#include "tests/text/test_files.h"
#include "tests/tolerances.h"

namespace attnres::testing::packed_weights_test {
namespace {

using ::testing::HasSubstr;

// Rows of 64 and 96 numbers.
Transformer dense_model() {
  ModelConfig config = small_config(block_attn_res(2));
  config.width = 64;
  config.ffn_width = 96;
  config.init_std = 0.2;
  return perturbed(Transformer(config, kSmallVocabulary, /*seed=*/1));
}

at::Tensor log_probabilities(const Transformer& model, int64_t tokens) {
  const at::Tensor ids = random_ids(1, tokens), targets = random_ids(1, tokens, 6);
  return model.log_probabilities(ids, targets).to(at::kDouble);
}

double largest(const at::Tensor& difference) {
  return difference.abs().max().item<double>();
}

class Packed {
 public:
  Packed(const Transformer& model, WeightFormat format) : model_(model) {
    const auto folder = fresh_folder("saved");
    save_model(model, folder, /*context=*/64, /*document_ids=*/0);
    packed = load_model(folder, {at::kFloat, at::kFloat, format});
    rounded_ = load_model(folder);
    for (const Parameter& p : packed->parameters().all()) {
      if (!p.packed.defined()) continue;
      ++count;
      EXPECT_EQ(p.packed.format, fits(format, p.packed.columns) ? format : WeightFormat::f16)
          << p.role;
      const at::NoGradGuard not_recording;
      at::Tensor(rounded_->parameters().find(p.site, p.role)->tensor)
          .copy_(unpack_weight(p.packed));
    }
  }

  // From the model with weights that are rounded alike, and of that from the model.
  double error(int64_t tokens) const {
    return largest(log_probabilities(*packed, tokens) - log_probabilities(*rounded_, tokens));
  }
  double rounding(int64_t tokens) const {
    return largest(log_probabilities(*rounded_, tokens) - log_probabilities(model_, tokens));
  }

  const Transformer& rounded() const { return *rounded_; }

  std::unique_ptr<Transformer> packed;
  int count = 0;

 private:
  const Transformer& model_;
  std::unique_ptr<Transformer> rounded_;
};

TEST(PackedWeights, AreTheRoundedWeights) {
  const Transformer model = dense_model();
  for (const WeightFormat format :
       {WeightFormat::f16, WeightFormat::bf16, WeightFormat::q8_0, WeightFormat::q4_0}) {
    const Packed pair(model, format);
    EXPECT_EQ(pair.count, 2 + 3 * 7);
    // Where weights have blocks they are multiplied as they are, by inputs that are rounded too;
    // of many tokens not on every instruction set, where numbers are unpacked.
    {
      const InstructionSet least(depth_attention_instruction_sets().back());
      EXPECT_LT(pair.error(96), std::min(2e-4, pair.rounding(96) / 4));
    }
    EXPECT_LT(pair.error(6), has_blocks(format) ? 0.3 : 2e-4);
    EXPECT_LT(pair.error(96), has_blocks(format) ? 2 * pair.rounding(96) : 2e-4);
    EXPECT_GT(pair.rounding(6), 1e-4);
  }
}

TEST(PackedWeights, AreThoseOfEveryLayer) {
  const Transformer model = kimi_model(true, block_attn_res(2), at::kFloat);
  const Packed pair(model, WeightFormat::bf16);
  EXPECT_GT(pair.count, 40);
  EXPECT_LT(pair.error(6), std::min(1e-3, pair.rounding(6) / 4));
  EXPECT_LT(pair.error(48), std::min(1e-3, pair.rounding(48) / 4));
  EXPECT_GT(Packed(model, WeightFormat::q8_0).count, 40);
}

// Beside packed weights, of the rest: those of the model with the numbers that they stand for.
TEST(PackedWeights, GiveGradientsToWhatIsNotPacked) {
  const auto expect_alike = [](const Transformer& model, WeightFormat format) {
    const Packed pair(model, format);
    std::map<std::string, at::Tensor> gradients[2];
    double losses[2];
    for (const int rounded : {0, 1}) {
      const Transformer& of = rounded ? pair.rounded() : *pair.packed;
      const at::Tensor loss = of.loss(random_ids(2, 40), random_ids(2, 40, 6));
      loss.backward();
      losses[rounded] = loss.item<double>();
      for (const Parameter& p : of.parameters().all()) {
        const bool is_packed = pair.packed->parameters().find(p.site, p.role)->packed.defined();
        EXPECT_FALSE(!rounded && is_packed && p.tensor.grad().defined()) << p.role;
        if (is_packed || !p.tensor.grad().defined()) continue;
        gradients[rounded][fmt::format("{} of {}", p.role, p.site)] = p.tensor.grad();
      }
    }
    EXPECT_NEAR(losses[0], losses[1], 1e-5);
    EXPECT_GE(gradients[0].size(), 14u);
    ASSERT_EQ(gradients[0].size(), gradients[1].size());
    for (const auto& [name, gradient] : gradients[0]) {
      EXPECT_TRUE(close(gradient, gradients[1].at(name), 1e-4)) << name;
      EXPECT_GT(gradient.abs().max().item<double>(), 1e-7) << name;
    }
  };
  for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::q8_0, WeightFormat::q4_0}) {
    expect_alike(dense_model(), format);
    expect_alike(kimi_model(true, block_attn_res(2), at::kFloat), format);
  }
}

// Half of its heads have 32 channels.
Transformer model_for_two(const Json& depth_mixing, int64_t ffn_width) {
  ModelConfig config = small_config(depth_mixing);
  config.width = 64;
  config.head_width = 16;
  config.ffn_width = ffn_width;
  return perturbed(Transformer(config, kSmallVocabulary, /*seed=*/1));
}

TEST(PackedWeights, ArePartsOfTheWholeInATensorGroup) {
  const auto folder = fresh_folder("saved");
  save_model(model_for_two(block_attn_res(2), /*ffn_width=*/128), folder, /*context=*/64,
             /*document_ids=*/0);
  const auto with_experts = fresh_folder("experts");
  save_model(kimi_model(false, block_attn_res(2), at::kFloat), with_experts, 64, 0);
  const auto file = saved_gguf(model_for_two(residual(), /*ffn_width=*/128), "q8_0");
  for (const WeightFormat format : {WeightFormat::f16, WeightFormat::q8_0, WeightFormat::q4_0}) {
    expect_parts(folder, {at::kFloat, at::kFloat, format});
    expect_parts(file, {at::kFloat, at::kFloat, format});
  }
  expect_parts(with_experts, {at::kFloat, at::kFloat, WeightFormat::bf16});
  const auto experts_file = saved_gguf(perturbed_model(gguf_kimi()), "f16");
  expect_parts(experts_file, {at::kFloat, at::kFloat, WeightFormat::f16});
}

TEST(PackedWeights, AreNotCutWithinBlocks) {
  const auto folder = fresh_folder("saved");
  save_model(model_for_two(residual(), /*ffn_width=*/96), folder, /*context=*/64,
             /*document_ids=*/0);
  const OneOfAGroup group({0, 2});
  const auto load = [&](WeightFormat format) {
    return message_of<UsageError>([&] {
      load_model(folder, {at::kFloat, at::kFloat, format}, {}, &group);
    });
  };
  EXPECT_THAT(load(WeightFormat::q8_0), HasSubstr("has 48 of down_proj (site 1)"));
  load_model(folder, {at::kFloat, at::kFloat, WeightFormat::f16}, {}, &group);
}

}  // namespace
}  // namespace attnres::testing::packed_weights_test
