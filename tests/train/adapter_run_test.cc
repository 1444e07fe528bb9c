// Runs that train what lies beside a model's weights.
#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <string>

#include "attnres/formats/gguf_model.h"
#include "attnres/pretrained/adapter.h"
#include "attnres/pretrained/gguf_tokenizer.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "attnres/text/bytes.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "attnres/train/trainer.h"
#include "tests/text/test_files.h"
#include "tests/train/tiny_runs.h"

namespace attnres::testing::adapter_run_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class AdapterRun : public ::testing::Test {
 protected:
  AdapterRun() {
    write_text(base_ / "text.txt", real_text(20000));
    at::set_num_threads(1);
  }
  ~AdapterRun() override { at::set_num_threads(threads_); }

  // A model with residual connections whose rows have whole blocks.
  fs::path model(const std::string& type) const {
    const ByteTokenizer tokenizer;
    Json recipe = tiny_recipe({{"type", "residual"}});
    recipe["model"].update(Json{{"width", 64}, {"ffn_width", 96}});
    const Transformer made(parse_recipe(recipe).model, tokenizer.vocab_size(), /*seed=*/3);
    const fs::path path = base_ / type;
    if (type == "folder") {
      save_model_folder(path, made, tokenizer, /*context=*/64);
    } else {
      save_gguf(made, path, /*context=*/64, gguf_tokenizer(tokenizer, made.vocab_size()),
                gguf_file_type(type));
    }
    return path;
  }

  TrainJob job(const std::string& name, const fs::path& from, const Json& train,
               const Json& lora = Json::object()) const {
    Json recipe = tiny_recipe({{"type", "residual"}});
    auto directory = std::make_shared<ModelDirectory>(from);
    recipe["model"] = write_config(directory->config());
    recipe["model"]["lora"].update(lora);
    recipe["train"].update(Json{{"steps", 8}, {"checkpoint_every", 4}, {"eval_every", 3}});
    recipe["train"].update(train);
    const auto tokenizer = directory->tokenizer();
    recipe["tokenizer"] = write_config(TokenizerConfig{tokenizer->kind(), tokenizer->vocab_size()});
    return {.recipe = parse_recipe(recipe),
            .data = {base_ / "text.txt"},
            .out = base_ / name,
            .from = directory};
  }

  const int threads_ = at::get_num_threads();
  const fs::path base_ = fresh_folder("runs");
};

std::map<std::string, at::Tensor> tensors(const fs::path& folder, const char* name) {
  std::map<std::string, at::Tensor> all;
  const TensorFiles files(folder, name);
  for (const std::string& tensor : files.names()) all[tensor] = files.read(tensor);
  return all;
}

void expect_equal(const fs::path& a, const fs::path& b, const char* name) {
  const auto of_a = tensors(a, name), of_b = tensors(b, name);
  ASSERT_EQ(of_a.size(), of_b.size());
  for (const auto& [tensor, numbers] : of_a) {
    EXPECT_TRUE(at::equal(numbers, of_b.at(tensor))) << tensor;
  }
}

TEST_F(AdapterRun, SavesWhatItTrainsAndResumesToTheSameBits) {
  const Json lora = {{"rank", 2}, {"targets", {"q_proj", "down_proj"}}};
  for (const char* type : {"folder", "q8_0", "q4_0"}) {
    const fs::path from = model(type);
    const std::string undisturbed = std::string(type) + "-run", stopped = undisturbed + "-stopped";
    train(job(undisturbed, from, Json::object(), lora));
    TrainJob first = job(stopped, from, {{"steps", 4}}, lora);
    train(first);
    TrainJob second = job(stopped, from, Json::object(), lora);
    second.from = nullptr;
    second.resume = true;
    train(second);

    const fs::path last = RunPaths{base_ / undisturbed}.last();
    EXPECT_TRUE(is_adapter_folder(last));
    EXPECT_FALSE(has_tensor_files(last));
    const auto saved = tensors(last, kAdapterWeights);
    EXPECT_EQ(saved.size(), 2 * 2 * ModelDirectory(from).config().layers);
    for (const auto& [name, numbers] : saved) {
      EXPECT_NE(name.find(".lora_"), std::string::npos) << name;
      EXPECT_GT(numbers.abs().max().item<double>(), 1e-5) << name;  // B too: it was trained
    }
    expect_equal(last, RunPaths{base_ / stopped}.last(), kAdapterWeights);
    expect_equal(last, RunPaths{base_ / stopped}.last(), "optimizer");
    EXPECT_NO_THROW(load_model(RunPaths{base_ / undisturbed}.best()));
  }
}

TEST_F(AdapterRun, LearnsAndLeavesTheModelAlone) {
  const fs::path from = model("q8_0");
  const std::string before = read_file(from);
  TrainJob run =
      job("run", from, {{"steps", 30}, {"learning_rate", 0.02}, {"warmup", 1}}, {{"rank", 4}});
  const TrainSummary summary = train(run);
  EXPECT_LT(summary.best_loss, summary.uniform_loss - 0.3);
  EXPECT_EQ(read_file(from), before);
}

// What the rates say is trained whole, beside packed weights or maps of low rank.
TEST_F(AdapterRun, TrainsByTheRates) {
  const fs::path from = model("q8_0");
  train(job("norms", from, {{"rates", {{"*norm*", 1.0}, {"*", 0.0}}}}));
  for (const auto& [name, numbers] : tensors(RunPaths{base_ / "norms"}.last(), kAdapterWeights)) {
    EXPECT_NE(name.find("norm"), std::string::npos) << name;
  }
  train(job("both", from, {{"rates", {{"*norm*", 1.0}}}}, {{"rank", 1}, {"targets", {"v_proj"}}}));
  const int64_t layers = ModelDirectory(from).config().layers;
  EXPECT_EQ(tensors(RunPaths{base_ / "both"}.last(), kAdapterWeights).size(),
            2 * layers + 2 * layers + 1);
  // Where packed weights are trained all are numbers, and the whole model is saved.
  train(job("whole", from, {{"rates", {{"*norm*", 0.0}}}}));
  EXPECT_TRUE(has_tensor_files(RunPaths{base_ / "whole"}.last()));
}

// What an adapter has, and the next run leaves alone, is in the next one's files too.
TEST_F(AdapterRun, KeepsWhatTheAdapterBeforeItHas) {
  const fs::path from = model("q8_0");
  train(job("norms", from, {{"rates", {{"*norm*", 1.0}, {"*", 0.0}}}, {"learning_rate", 0.05}}));
  const fs::path first = RunPaths{base_ / "norms"}.last();
  train(job("maps", first, Json::object(), {{"rank", 1}, {"targets", {"v_proj"}}}));
  const auto before = tensors(first, kAdapterWeights),
             after = tensors(RunPaths{base_ / "maps"}.last(), kAdapterWeights);
  EXPECT_EQ(after.size(), before.size() + 2 * ModelDirectory(from).config().layers);
  for (const auto& [name, numbers] : before) {
    EXPECT_TRUE(at::equal(numbers, after.at(name))) << name;
    EXPECT_FALSE(at::equal(numbers, at::ones_like(numbers))) << name;  // they were trained
  }
}

TEST_F(AdapterRun, IsRefusedWhereNothingCarriesIt) {
  TrainJob scratch = job("scratch", model("folder"), Json::object(), {{"rank", 2}});
  scratch.from = nullptr;
  EXPECT_THAT(message_of<UsageError>([&] { train(scratch); }),
              HasSubstr("model.lora: its maps are trained beside those of a model; name it"));
  TrainJob unknown =
      job("unknown", model("folder"), Json::object(), {{"rank", 2}, {"targets", {"qproj"}}});
  EXPECT_THAT(message_of<UsageError>([&] { train(unknown); }),
              HasSubstr("model.lora.targets: qproj is no map"));
}

TEST_F(AdapterRun, IsOfTheModelThatItBeganWith) {
  const fs::path from = model("folder");
  train(job("run", from, {{"steps", 4}}, {{"rank", 2}}));
  fs::rename(from, base_ / "elsewhere");
  TrainJob again = job("run", base_ / "elsewhere", Json::object(), {{"rank", 2}});
  again.from = nullptr;
  again.resume = true;
  EXPECT_THAT(message_of<Error>([&] { train(again); }), HasSubstr("which is not here"));
}

}  // namespace
}  // namespace attnres::testing::adapter_run_test
