#include "attnres/formats/gguf_file_type.h"

#include <gtest/gtest.h>

#include <set>

namespace attnres::gguf_file_type_test {
namespace {

GgufType type_in(const char* file, const std::string& name, int layer, int64_t columns = 4096,
                 int64_t experts = 0) {
  return type_of_matrix(gguf_file_type(file), {.name = name,
                                               .layer = layer,
                                               .layers = 32,
                                               .columns = columns,
                                               .experts = experts,
                                               .is_head = name == "output.weight"});
}

// The layers of a Llama 2 of 7 B whose values and second maps llama-quantize stores in q6_K.
const std::set<int> kMore = {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31};

TEST(GgufFileType, GivesMoreBitsWhereLlamaCppDoes) {
  for (int layer = 0; layer < 32; ++layer) {
    const bool more = kMore.contains(layer);
    for (const char* name : {"attn_v.weight", "ffn_down.weight", "ffn_down_exps.weight"}) {
      EXPECT_EQ(type_in("q4_k_m", name, layer), more ? GgufType::q6_K : GgufType::q4_K) << layer;
      EXPECT_EQ(type_in("q5_k_m", name, layer), more ? GgufType::q6_K : GgufType::q5_K) << layer;
      EXPECT_EQ(type_in("q6_k", name, layer), GgufType::q6_K) << layer;
      EXPECT_EQ(type_in("q4_0", name, layer), GgufType::q4_0) << "no mixture";
      EXPECT_EQ(type_in("q4_k_s", name, layer), layer < 4 ? GgufType::q5_K : GgufType::q4_K)
          << layer;
    }
    for (const char* name : {"attn_q.weight", "attn_k.weight", "attn_output.weight",
                             "ffn_gate.weight", "ffn_up.weight", "token_embd.weight"}) {
      EXPECT_EQ(type_in("q4_k_m", name, layer), GgufType::q4_K) << name;
    }
  }
  EXPECT_EQ(type_in("q4_k_s", "output.weight", 31), GgufType::q6_K);
  EXPECT_EQ(type_in("q8_0", "output.weight", 31), GgufType::q8_0);
}

TEST(GgufFileType, KeepsAttentionThatEightExpertsShare) {
  EXPECT_EQ(type_in("q4_k_m", "attn_v.weight", 5, 4096, 8), GgufType::q8_0);
  EXPECT_EQ(type_in("q4_k_m", "attn_k.weight", 5, 4096, 8), GgufType::q8_0);
  EXPECT_EQ(type_in("q4_k_m", "attn_output.weight", 5, 4096, 8), GgufType::q5_K);
  EXPECT_EQ(type_in("q4_k_m", "attn_k.weight", 5, 4096, 16), GgufType::q4_K);
}

TEST(GgufFileType, FindsATypeForRowsThatBlocksDoNotFit) {
  EXPECT_EQ(type_in("q4_k_m", "attn_q.weight", 5, 96), GgufType::q5_0);
  EXPECT_EQ(type_in("q5_k_m", "attn_q.weight", 5, 96), GgufType::q5_1);
  EXPECT_EQ(type_in("q4_k_m", "attn_v.weight", 0, 96), GgufType::q8_0);
  EXPECT_EQ(type_in("q4_k_m", "attn_q.weight", 5, 100), GgufType::f16);
  EXPECT_EQ(type_in("q4_0", "attn_q.weight", 5, 100), GgufType::f16);
  EXPECT_EQ(type_in("f32", "attn_q.weight", 5, 100), GgufType::f32);
}

}  // namespace
}  // namespace attnres::gguf_file_type_test
