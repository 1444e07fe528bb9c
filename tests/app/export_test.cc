// The export command, and the trained model that comes with the program.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/formats/gguf_model.h"
#include "attnres/parameters/packed_matrix.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"
#include "attnres/text/bytes.h"
#include "attnres/text/sentencepiece.h"
#include "attnres/train/recipe/recipe.h"
#include "tests/app/program.h"
#include "tests/formats/gguf_parser.h"

namespace attnres::testing::export_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kModel = std::string(ATTNRES_SOURCE_DIR) + "/models/tiny-shakespeare";

class Export : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(out_); }
  const fs::path out_ = fs::path(::testing::TempDir()) / "exported";
};

// A play's ordinary words, and the same letters in an order that no play has.
double loss_of(const fs::path& model, const std::string& text) {
  const fs::path file = fs::path(::testing::TempDir()) / "scored.txt";
  write_file(file, text);
  const Result result =
      run_program(fmt::format("eval --model {} --data {} --json", model.string(), file.string()));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return parse_json(result.out, "eval").at("loss").get<double>();
}

const std::string kSpeech =
    "KING HENRY:\nMy lord, the people of the city come\nTo speak with you; and they will not be "
    "gone\nTill they have heard what you will say to them.\n";

TEST_F(Export, KeepsTheModelInFewerBytes) {
  for (const char* type : {"f32", "bf16", "f16"}) {
    fs::remove_all(out_);
    const Result result = run_program(
        fmt::format("export --model {} --type {} --out {}", kModel, type, out_.string()));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NEAR(loss_of(out_, kSpeech), loss_of(kModel, kSpeech), 1e-4) << type;
  }
  EXPECT_LT(fs::file_size(out_ / "model.safetensors"), 4'000'000u);
}

TEST_F(Export, ReplacesNothing) {
  make_folder(out_);
  write_file(out_ / "precious", "text");
  const Result result =
      run_program(fmt::format("export --model {} --out {}", kModel, out_.string()));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("is there already"));
  EXPECT_EQ(read_file(out_ / "precious"), "text");
}

// A Llama model of this vocabulary, with the tokenizer beside it.
fs::path llama_with(const Tokenizer& tokenizer, int64_t vocab_size) {
  const fs::path folder = fresh_folder("llama");
  const ModelConfig config = read_model_config({{"layers", 1}, {"width", 32}, {"heads", 2}});
  const Transformer model(config, vocab_size, /*seed=*/1);
  save_model(model, folder, /*context=*/64, tokenizer.end_of_document());
  tokenizer.save(folder);
  return folder;
}

TEST_F(Export, GgufHoldsTheByteTokenizer) {
  const Result result =
      run_program(fmt::format("export --model {} --format gguf --out {}",
                              llama_with(ByteTokenizer(), 258).string(), out_.string()));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("for llama.cpp's llama"));
  const ParsedGguf file(out_);
  const auto at = [&](const std::string& key) { return file.at("tokenizer.ggml." + key); };
  EXPECT_EQ(at("model"), "gpt2");
  EXPECT_EQ(at("pre"), "gpt-2");
  EXPECT_EQ(at("merges"), Json::array());
  EXPECT_EQ(at("add_bos_token"), false);
  EXPECT_EQ(at("bos_token_id"), 0);
  EXPECT_EQ(at("eos_token_id"), 0);
  ASSERT_EQ(at("tokens").size(), 258u);
  EXPECT_EQ(at("tokens")['A'], "A");
  EXPECT_EQ(at("tokens")[' '], "\u0120");
  EXPECT_EQ(at("token_type")[255], 1);
  EXPECT_EQ(at("token_type")[257], 5) << "a token that the tokenizer lacks is unused";
  EXPECT_EQ(file.tensor("token_embd.weight").sizes, (std::vector<int64_t>{32, 258}));
}

TEST_F(Export, GgufHoldsSentencePiece) {
  const std::string text = "the cat and the hat and the bat sat on the mat";
  const SentencePieceTokenizer tokenizer(train_sentencepiece({{"words.txt", text}}, 285), "words");
  const Result result = run_program(
      fmt::format("export --model {} --format gguf --type q8_0 --out {}",
                  llama_with(tokenizer, tokenizer.vocab_size()).string(), out_.string()));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const ParsedGguf file(out_);
  const auto at = [&](const std::string& key) { return file.at("tokenizer.ggml." + key); };
  EXPECT_EQ(at("model"), "llama");
  EXPECT_EQ(at("add_space_prefix"), false);
  EXPECT_EQ(at("add_bos_token"), false);
  EXPECT_EQ(at("eos_token_id"), tokenizer.end_of_document());
  EXPECT_EQ(at("unknown_token_id"), 0);
  ASSERT_EQ(at("tokens").size(), 285u);
  EXPECT_EQ(at("tokens")[1], "<s>");
  EXPECT_EQ(at("tokens")[3 + 'A'], "<0x41>");
  EXPECT_EQ(at("token_type")[0], 2);
  EXPECT_EQ(at("token_type")[1], 3);
  EXPECT_EQ(at("token_type")[3 + 'A'], 6);
  // A learned token's text is what it decodes to, with U+2581 for a space; earlier ones score more.
  double last_score = 1;
  for (int32_t id = 259; id < 285; ++id) {
    std::string text_of_token = tokenizer.token_text(id);
    if (text_of_token.starts_with(' ')) text_of_token.replace(0, 1, "\u2581");
    EXPECT_EQ(at("tokens")[id], text_of_token);
    EXPECT_EQ(at("token_type")[id], 1);
    EXPECT_LT(at("scores")[id].get<double>(), last_score);
    last_score = at("scores")[id].get<double>();
  }
}

TEST_F(Export, GgufRefusesWhatLlamaCppCannotCompute) {
  const Result result =
      run_program(fmt::format("export --model {} --format gguf --out {}", kModel, out_.string()));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("block_attn_res: llama.cpp computes it with delta and latent"));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(Export, HuggingFaceTakesWhatOtherProgramsKnowOnly) {
  const auto exported = [&](const Json& model, const std::string& more = "") {
    fs::remove_all(out_);
    const fs::path folder = fresh_folder("model");
    save_model(Transformer(read_model_config(model), 256, /*seed=*/1), folder, /*context=*/64, 0);
    ByteTokenizer().save(folder);
    return run_program(fmt::format("export --model {} --format huggingface --out {} {}",
                                   folder.string(), out_.string(), more));
  };
  Json model = {{"layers", 2}, {"width", 32}, {"heads", 2}};
  EXPECT_EQ(exported(model).exit_code, 0);
  EXPECT_EQ(read_json(out_ / "config.json")["model_type"], "llama");

  model["depth_mixing"] = {{"type", "attn_res"}};
  Result result = exported(model);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("attn_res"));
  model["depth_mixing"] = {{"type", "block_attn_res"}, {"block_size", 3}};
  EXPECT_THAT(exported(model).err, HasSubstr("block_size is 3"));

  // Kimi K3's, retrofitted.
  model.update(
      Json{{"attention", {"delta", "latent"}},
           {"experts", {{"count", 2}}},
           {"activation", {{"type", "situ"}}},
           {"depth_mixing",
            {{"type", "block_attn_res"}, {"block_size", 2}, {"norm_eps", "per_source_count"}}}});
  result = exported(model);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("--approximate"));
  model["depth_mixing"]["score_scale"] = 0.5;
  EXPECT_THAT(exported(model, "--approximate").err,
              HasSubstr("model.depth_mixing.score_scale is 0.5, but Kimi K3 has 1.0"));
  model["depth_mixing"].erase("score_scale");
  result = exported(model, "--approximate");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("differ by at most"));
  EXPECT_EQ(read_json(out_ / "config.json")["model_type"], "kimi_k3");
  model["depth_mixing"].erase("norm_eps");
  EXPECT_THAT(exported(model, "--approximate").err, HasSubstr("leave it out"));
}

// As generate ends, so does llama.cpp.
TEST_F(Export, GgufSaysWhereElseTextsEnd) {
  const fs::path folder = llama_with(ByteTokenizer(), 258);
  write_text(folder / "generation_config.json", R"({"eos_token_id": [10, 0, 12]})");
  const Result result = run_program(
      fmt::format("export --model {} --format gguf --out {}", folder.string(), out_.string()));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const ParsedGguf file(out_);
  EXPECT_EQ(file.at("tokenizer.ggml.eos_token_id"), 0);
  EXPECT_EQ(file.at("tokenizer.ggml.eot_token_id"), 10);
  EXPECT_EQ(file.at("tokenizer.ggml.eom_token_id"), 12);
}

// What scripts/demo trains can be exported in q8_0.
TEST(Demo, TrainsAModelThatLlamaCppHas) {
  const Recipe recipe =
      load_recipe(fs::path(ATTNRES_SOURCE_DIR) / "recipes/demo-residual.json", {});
  EXPECT_EQ(gguf_architecture(recipe.model), "llama");
  EXPECT_TRUE(fits(WeightFormat::q8_0, recipe.model.width));
  EXPECT_TRUE(fits(WeightFormat::q8_0, recipe.model.ffn_width));
}

TEST_F(Export, GgufReplacesNothing) {
  write_file(out_, "text");
  const Result result =
      run_program(fmt::format("export --model {} --format gguf --out {}",
                              llama_with(ByteTokenizer(), 256).string(), out_.string()));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("name a file that is not"));
  EXPECT_EQ(read_file(out_), "text");
}

TEST_F(Export, SafetensorsHaveNoBlocks) {
  const Result result =
      run_program(fmt::format("export --model {} --type q8_0 --out {}", kModel, out_.string()));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--format gguf"));
}

TEST(ShippedModel, IsWhatSaveModelWrites) {
  const fs::path folder = fresh_folder("saved");
  const fs::path shipped = kModel;
  const ModelDirectory opened(shipped);
  save_model(*opened.load(), folder, opened.context(), opened.stored().document_ids, at::kBFloat16);
  ByteTokenizer().save(folder);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path name = entry.path().filename();
    ASSERT_TRUE(fs::exists(shipped / name)) << name;
    EXPECT_TRUE(read_file(shipped / name) == read_file(entry.path()))
        << name << " is another one; write the folder again: attnres export --type bf16";
  }
  EXPECT_TRUE(fs::exists(folder / "modeling_attnres.py"));
  const Json config = read_json(folder / "config.json");
  EXPECT_TRUE(config.at("auto_map").contains("AutoModelForCausalLM"));
}

TEST(ShippedModel, KnowsShakespeare) {
  std::string backwards(kSpeech.rbegin(), kSpeech.rend());
  EXPECT_LT(loss_of(kModel, kSpeech), 2.2);
  EXPECT_GT(loss_of(kModel, backwards), 3.5);
}

TEST(ShippedModel, ShowsItsDepthWeights) {
  const fs::path file = fs::path(::testing::TempDir()) / "speech.txt";
  write_file(file, kSpeech);
  const Result result =
      run_program(fmt::format("inspect --model {} --data {} --json", kModel, file.string()));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json sites = parse_json(result.out, "inspect").at("sites");
  ASSERT_EQ(sites.size(), 17u);
  double largest = 0, smallest = 1;
  for (const Json& site : sites) {
    double sum = 0;
    for (const Json& weight : site.at("weights")) {
      sum += weight.get<double>();
      largest = std::max(largest, weight.get<double>() * (site.at("weights").size() > 1));
      smallest = std::min(smallest, weight.get<double>());
    }
    EXPECT_NEAR(sum, 1, 1e-5);
  }
  EXPECT_GT(largest / smallest, 3) << "it was trained, so its weights are far from uniform";
}

}  // namespace
}  // namespace attnres::testing::export_test
