#include "attnres/plan/inference.h"

#include <gtest/gtest.h>

#include <cmath>

#include "attnres/formats/gguf_reader.h"
#include "attnres/pretrained/model_directory.h"
#include "tests/formats/gguf_models.h"

namespace attnres::testing::inference_plan_test {
namespace {

// A GGUF file's tensors are what is told of them, but for what else it says and its padding.
TEST(InferenceSize, IsThatOfAFile) {
  for (const ModelConfig& config : {gguf_llama(), gguf_kimi(), gguf_k3()}) {
    for (const char* type : {"f16", "q8_0", "q4_k_m"}) {
      const Transformer model = perturbed_model(config);
      const std::filesystem::path file = saved_gguf(model, type);
      const GgufFile gguf(file);
      double bytes = 0;
      for (const std::string& name : gguf.names()) {
        const GgufTensorInfo& info = gguf.info(name);
        double rows = 1;
        for (size_t i = 0; i + 1 < info.shape.size(); ++i)
          rows *= static_cast<double>(info.shape[i]);
        bytes += rows *
                 static_cast<double>(packed_row_bytes(weight_format(info.type), info.shape.back()));
      }
      const InferenceSize size =
          inference_size(config, kSmallVocabulary, gguf_formats(model, gguf_file_type(type)), 100);
      EXPECT_EQ(size.parameters, model.parameters().count());
      // Of Kimi K3 it has zeros that nothing reads, of its gates the products of two maps.
      EXPECT_NEAR(size.weights, bytes, 0.08 * bytes) << type;
      EXPECT_EQ(size.kept, static_cast<double>(model.make_pool({.tokens = 100})->bytes()));
    }
  }
}

// By hand: of four experts two, of the embedding a row.
TEST(InferenceSize, CountsWhatATokenReads) {
  const ModelConfig config = gguf_kimi();
  const InferenceSize size = inference_size(config, kSmallVocabulary, {}, 64);
  const double stack = 4.0 * 3 * 4 * 32 * 64, layers = 2;  // float32, after a dense layer
  EXPECT_EQ(size.experts, layers * stack);
  EXPECT_EQ(size.weights - size.read, layers * stack / 2 + 4.0 * (kSmallVocabulary - 1) * 64);
  EXPECT_EQ(size.copies, 0);
  const double latent = 4.0 * 4 * (24 + 16) * 32;  // of the map from latents, taken apart
  EXPECT_EQ(inference_size(config, kSmallVocabulary, WeightFormat::q8_0, 64).copies, latent);
}

TEST(MeasureToken, TimesEveryKindOfLayer) {
  for (const ModelConfig& config : {gguf_llama(), gguf_kimi(), gguf_k3(), gguf_deepseek2()}) {
    const double seconds = measure_token(config, kSmallVocabulary, WeightFormat::q8_0);
    EXPECT_TRUE(std::isfinite(seconds));
  }
}

}  // namespace
}  // namespace attnres::testing::inference_plan_test
