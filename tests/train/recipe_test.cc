#include "attnres/train/recipe/recipe.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "tests/text/test_files.h"

namespace attnres::recipe_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Recipe, FillsInDefaultsAndReadsThemBack) {
  const Recipe recipe = parse_recipe({{"model", {{"layers", 3}}}, {"train", {{"steps", 7}}}});
  EXPECT_EQ(recipe.model.layers, 3);
  EXPECT_EQ(recipe.train.steps, 7);
  EXPECT_EQ(recipe.train.batch_size, TrainConfig().batch_size);
  const Json full = recipe_to_json(recipe);
  EXPECT_EQ(full["model"]["kv_heads"], recipe.model.heads);
  EXPECT_EQ(full["train"]["schedule"], "cosine");
  EXPECT_EQ(recipe_to_json(parse_recipe(full)), full);
}

TEST(Recipe, EveryRecipeOfTheProjectIsValid) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(ATTNRES_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() != ".json") continue;
    EXPECT_NO_THROW(load_recipe(entry.path(), {})) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 2);
}

TEST(Recipe, TakesOverrides) {
  const fs::path file = fresh_folder("recipe") / "r.json";
  write_text(file, R"({"train": {"steps": 7}})");
  const Recipe recipe =
      load_recipe(file, {"train.steps=9", "model.depth_mixing.type=block_attn_res",
                         "model.depth_mixing.block_size=4", "name=other"});
  EXPECT_EQ(recipe.train.steps, 9);
  EXPECT_EQ(recipe.name, "other");
  EXPECT_EQ(recipe.model.depth_mixing.to_json()["block_size"], 4);
}

TEST(Recipe, HasRatesOnlyWhereTheyAreSet) {
  EXPECT_FALSE(recipe_to_json(parse_recipe(Json::object()))["train"].contains("rates"));
  const Json rates = {{"b.*", 0.5}, {"*", 0.1}};
  EXPECT_EQ(recipe_to_json(parse_recipe({{"train", {{"rates", rates}}}}))["train"]["rates"], rates);
}

// A choice taken back takes the settings of what was chosen with it.
TEST(Overrides, OfAChoiceDropWhatItLeavesWithoutMeaning) {
  using ::testing::ElementsAre;
  const Json blocks = {
      {"model",
       {{"attention", {"delta", "latent"}},
        {"delta_attention", {{"heads", 2}}},
        {"latent_attention", {{"kv_rank", 8}}},
        {"experts", {{"count", 4}, {"chosen", 1}}},
        {"depth_mixing", {{"type", "block_attn_res"}, {"block_size", 2}, {"key_norm", false}}}}},
      {"tokenizer", {{"kind", "sentencepiece"}, {"vocab_size", 400}}}};
  const auto dropped = [&](const std::vector<std::string>& overrides) {
    Json recipe = blocks;
    const std::vector<std::string> keys = apply_overrides(recipe, overrides);
    parse_recipe(recipe);  // is a recipe again
    return keys;
  };
  EXPECT_THAT(dropped({"model.depth_mixing.type=residual"}),
              ElementsAre("model.depth_mixing.block_size=2", "model.depth_mixing.key_norm=false"));
  // What the new mechanism has too stays.
  EXPECT_THAT(dropped({"model.depth_mixing.type=attn_res"}),
              ElementsAre("model.depth_mixing.block_size=2"));
  EXPECT_THAT(dropped({"model.attention=[\"delta\"]"}),
              ElementsAre("model.latent_attention.kv_rank=8"));
  EXPECT_THAT(dropped({"model.attention=[\"latent\"]"}),
              ElementsAre("model.delta_attention.heads=2"));
  EXPECT_THAT(dropped({"model.experts.count=0"}), ElementsAre("model.experts.chosen=1"));
  EXPECT_THAT(dropped({"model.depth_mixing.num_blocks=4"}),
              ElementsAre("model.depth_mixing.block_size=2"));
  EXPECT_THAT(dropped({"tokenizer.kind=bytes"}), ElementsAre("tokenizer.vocab_size=400"));
  // Nothing else does.
  EXPECT_THAT(dropped({"model.depth_mixing.type=block_attn_res", "model.experts.count=2",
                       "model.attention=[\"latent\", \"delta\"]", "train.steps=3"}),
              ElementsAre());
  EXPECT_THAT(dropped({}), ElementsAre());
}

TEST(Overrides, KeepWhatIsAskedFor) {
  Json recipe = {{"model", {{"depth_mixing", {{"type", "block_attn_res"}, {"block_size", 2}}}}}};
  EXPECT_TRUE(apply_overrides(
                  recipe, {"model.depth_mixing.type=residual", "model.depth_mixing.block_size=4"})
                  .empty());
  EXPECT_THAT(message_of<UsageError>([&] { parse_recipe(recipe); }),
              HasSubstr("model.depth_mixing.block_size"));
}

// A mistake is not taken for a setting of another mechanism while its own stays.
TEST(Overrides, LeaveMistakesToBeFound) {
  Json recipe = {{"model", {{"depth_mixing", {{"type", "attn_res"}, {"block_sizes", 2}}}}}};
  EXPECT_TRUE(apply_overrides(recipe, {"model.depth_mixing.type=attn_res"}).empty());
  EXPECT_THROW(parse_recipe(recipe), UsageError);
}

// What the recipe has, and only sometimes writes, is where it belongs.
TEST(Recipe, TakesEveryKeyWhereItBelongs) {
  EXPECT_NO_THROW(parse_recipe({{"train", {{"rates", {{"*", 0.5}}}}}}));
  EXPECT_NO_THROW(parse_recipe({{"data", {{"weights", {{"a", 0.5}}}}}}));
  EXPECT_NO_THROW(parse_recipe(recipe_to_json(parse_recipe(Json::object()))));
}

struct BadValue {
  std::string override;
  std::vector<std::string> parts;  // of the message
};

class BadRecipe : public ::testing::TestWithParam<BadValue> {};

TEST_P(BadRecipe, NamesTheKey) {
  const fs::path file = fresh_folder("recipe") / "r.json";
  write_text(file, "{}");
  const std::string message =
      message_of<UsageError>([&] { load_recipe(file, {GetParam().override}); });
  for (const std::string& part : GetParam().parts) EXPECT_THAT(message, HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(
    Values, BadRecipe,
    ::testing::Values(
        BadValue{"modle.layers=3", {"unknown key modle", "model"}},
        BadValue{"train.lr=3", {"unknown key train.lr: the nearest", "train.learning_rate"}},
        BadValue{"lr=3", {"unknown key lr: did you mean train.learning_rate?"}},
        BadValue{"train.layers=3", {"unknown key train.layers: did you mean model.layers?"}},
        BadValue{"model.seq_len=3", {"model.seq_len: did you mean train.context?"}},
        BadValue{"model.n_embd=3", {"the nearest known key is model.width"}},
        BadValue{"tokenizer.type=bpe", {"the nearest known key is tokenizer.kind"}},
        BadValue{"train.beta=3", {"the nearest known key is train.beta1"}},
        BadValue{R"(model.depth_mixing={"type": "block_attn_res", "num_block": 2})",
                 {"model.depth_mixing.num_block:", "model.depth_mixing.num_blocks"}},
        BadValue{"model.depth_mixing.type=blok", {"mechanism blok: did you mean block_attn_res?"}},
        BadValue{"train.learningrate=3", {"train.learningrate", "train.learning_rate"}},
        BadValue{"data.validation_fraction=0", {"data.validation_fraction", "got 0"}},
        BadValue{"data.validation_fraction=0.6", {"data.validation_fraction", "at most 0.5"}},
        BadValue{"train.steps=0", {"train.steps", "1 to 1000000000", "got 0"}},
        BadValue{"train.steps=1.5", {"train.steps", "whole number", "1.5"}},
        BadValue{"train.steps=99999999999999999999", {"train.steps", "whole number"}},
        BadValue{"train.steps=2000000000", {"train.steps", "1 to 1000000000"}},
        BadValue{"train.batch_size=-1", {"train.batch_size", "-1"}},
        BadValue{"train.batch_size=4611686018427387904", {"train.batch_size"}},
        BadValue{"train.context=4611686018427387904", {"train.context"}},
        BadValue{"train.sample_tokens=4611686018427387904", {"train.sample_tokens"}},
        BadValue{"train.accumulate=3", {"train.accumulate", "16", "3"}},
        BadValue{"train.accumulate=0", {"train.accumulate"}},
        BadValue{"train.context=1", {"train.context", "2 to 16777216"}},
        BadValue{"train.warmup=-1", {"train.warmup"}}, BadValue{"train.seed=-1", {"train.seed"}},
        BadValue{"train.eval_every=0", {"train.eval_every"}},
        BadValue{"train.eval_tokens=0", {"train.eval_tokens"}},
        BadValue{"train.checkpoint_every=0", {"train.checkpoint_every"}},
        BadValue{"train.sample_tokens=-1", {"train.sample_tokens"}},
        BadValue{"train.learning_rate=11", {"train.learning_rate", "0 to 10", "11"}},
        BadValue{"train.learning_rate=fast", {"train.learning_rate", "a number", "fast"}},
        BadValue{"train.decay_fraction=2", {"train.decay_fraction", "0 to 1"}},
        BadValue{"train.final_fraction=-0.1", {"train.final_fraction"}},
        BadValue{"train.weight_decay=-1", {"train.weight_decay"}},
        BadValue{"train.beta1=1", {"train.beta1", "below 1"}},
        BadValue{"train.beta2=1", {"train.beta2", "below 1"}},
        BadValue{"train.epsilon=0", {"train.epsilon"}}, BadValue{"train.clip=-1", {"train.clip"}},
        BadValue{"train.schedule=linear", {"train.schedule", "cosine or wsd", "linear"}},
        BadValue{"train.optimizer=sgd", {"train.optimizer", "adamw or muon", "sgd"}},
        BadValue{"train.muon_momentum=1", {"train.muon_momentum", "below 1"}},
        BadValue{"train.expert_balance_rate=-1", {"train.expert_balance_rate", "0 to 1"}},
        BadValue{R"(train.rates={"*.a": -1})", {"train.rates.*.a", "0 to 1000", "got -1"}},
        BadValue{R"(train.rates={"*.a": "b"})", {"train.rates.*.a", "a number"}},
        BadValue{"train.rates=0.1", {"train.rates", "an object of numbers"}},
        BadValue{"train.recompute=1", {"train.recompute", "true or false"}},
        BadValue{"train=3", {"train", "an object", "3"}},
        BadValue{"model=3", {"model: expected an object, got 3"}},
        BadValue{"model.depth_mixing=3", {"model.depth_mixing: expected an object, got 3"}},
        BadValue{"model.layers=0", {"model.layers"}},
        BadValue{"model.width=30", {"model.width", "30", "4 heads"}},
        BadValue{"model.kv_heads=3", {"model.kv_heads"}},
        BadValue{"model.depth_mixing.type=magic", {"magic", "residual, attn_res, block_attn_res"}},
        BadValue{"model.depth_mixing.type=blockattnres", {"did you mean block_attn_res?"}},
        BadValue{
            "model.depth_mixing=mhc",
            {"write model.depth_mixing.type=mhc with --set", R"({"type": "mhc"} in a recipe)"}},
        BadValue{R"(model.depth_mixing={"type": "block_attn_res", "block_size": 9})",
                 {"block_size", "1 to 8", "got 9"}},
        BadValue{"model.depth_mixing.block_size=2", {"block_size"}},
        BadValue{"tokenizer.kind=words", {"tokenizer", "words", "sentencepiece"}},
        BadValue{"parallel.policy=both", {"parallel.policy", "both", "naive, report or owned"}},
        BadValue{"parallel.data=0", {"parallel.data", "0"}},
        BadValue{"parallel.data=2", {"parallel.data", "train.accumulate"}},
        BadValue{"parallel.virtual=2", {"parallel.virtual", "parallel.pipeline"}},
        BadValue{"parallel.tensor=0", {"parallel.tensor", "0"}},
        BadValue{"parallel.tensor=3", {"model.heads", "3 processes", "parallel.tensor"}},
        BadValue{"parallel.pipeline=1000", {"parallel.pipeline", "1000 stages"}},
        BadValue{"tokenizer.vocab_size=300", {"tokenizer.vocab_size", "256"}},
        BadValue{"name=3", {"name", "text"}}));

TEST(Recipe, ThatIsBrokenSaysWhere) {
  const fs::path file = fresh_folder("recipe") / "r.json";
  write_text(file, "{\n\"name\": \"a\",\n}");
  EXPECT_THAT(message_of<Error>([&] { load_recipe(file, {}); }),
              AllOf(HasSubstr("r.json"), HasSubstr("line 3, column 1")));
  write_text(file, "[1]");
  EXPECT_THAT(message_of<Error>([&] { load_recipe(file, {}); }), HasSubstr("an object"));
  EXPECT_EQ(message_of<UsageError>([&] { load_recipe(file, {"train.steps=2"}); }),
            file.string() + ": expected an object, got [1]");
}

TEST(Recipe, NamesTheFileOfAMistakeThatIsItsOwn) {
  const fs::path file = fresh_folder("recipe") / "r.json";
  write_text(file, R"({"trian": {"steps": 7}})");
  EXPECT_THAT(message_of<UsageError>([&] { load_recipe(file, {"train.steps=2"}); }),
              StartsWith(file.string() + ": unknown key trian"));
  write_text(file, "{}");
  EXPECT_THAT(message_of<UsageError>([&] { load_recipe(file, {"train.stepps=2"}); }),
              StartsWith("unknown key train.stepps"));
  EXPECT_NO_THROW(load_recipe(file, {"model={}"}));
}

TEST(ParallelConfig, CountsItsProcessesInWords) {
  EXPECT_EQ((ParallelConfig{.data = 1, .pipeline = 2}).describe_processes(),
            "1 replica with 2 pipeline ranks is 2 processes");
  EXPECT_EQ((ParallelConfig{.data = 2, .pipeline = 1}).describe_processes(),
            "2 replicas with 1 pipeline rank each are 2 processes");
  EXPECT_EQ((ParallelConfig{.data = 2, .pipeline = 4, .tensor = 2}).describe_processes(),
            "2 replicas with 4 pipeline ranks of 2 processes each are 16 processes");
}

TEST(Recipe, IsNoStudy) {
  const std::string study = ATTNRES_SOURCE_DIR "/recipes/studies/block-size.json";
  EXPECT_THAT(message_of<UsageError>([&] { load_recipe(study, {"train.steps=3"}); }),
              AllOf(HasSubstr("this is a study"), HasSubstr("attnres study")));
}

}  // namespace
}  // namespace attnres::recipe_test
