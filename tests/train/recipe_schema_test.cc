#include <gmock/gmock.h>

#include <cmath>

#include "attnres/support/error.h"
#include "attnres/train/recipe/recipe.h"
#include "tests/support/json_schema.h"
#include "tests/text/test_files.h"

namespace attnres::testing::recipe_schema_test {
namespace {

namespace fs = std::filesystem;

const JsonSchema& schema() {
  static const JsonSchema recipes(recipe_schema());
  return recipes;
}

// Empty where it is taken.
std::string refusal(const Json& recipe) {
  try {
    parse_recipe(recipe);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(RecipeSchema, TakesEveryRecipeThatComesWithTheProgram) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(ATTNRES_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() != ".json") continue;
    const Json recipe = read_recipe(entry.path());
    EXPECT_TRUE(schema().accepts(recipe)) << entry.path();
    EXPECT_TRUE(schema().accepts(recipe_to_json(parse_recipe(recipe)))) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 10);
}

TEST(RecipeSchema, TakesWhatTheProgramTakes) {
  const std::vector<const char*> recipes = {
      R"({})",
      R"({"$schema": "schemas/recipe.json", "name": "a"})",
      R"({"train": {"epsilon": 1e-30, "beta1": 0, "rates": {"*.query_proj": 1000}}})",
      R"({"train": {"learning_rate": 10, "schedule": "wsd", "optimizer": "muon"}})",
      R"({"data": {"validation_fraction": 0.5, "order": "drawn", "weights": {"a.b": 3}}})",
      R"({"model": {"attention": ["latent", "delta"], "latent_attention": {"kv_rank": 32}}})",
      R"({"model": {"depth_mixing": {"num_blocks": 4, "type": "block_attn_res"}}})",
      R"({"model": {"depth_mixing": {"type": "attn_res", "query": "input_dependent"}}})",
      R"({"model": {"depth_mixing": {"type": "mhc", "streams": 16}}})",
      R"({"model": {"rope_scaling": {"type": "linear", "factor": 2}}})",
      R"({"tokenizer": {"kind": "bpe", "vocab_size": 400}})",
  };
  for (const char* text : recipes) {
    EXPECT_TRUE(schema().accepts(Json::parse(text))) << text;
    EXPECT_NO_THROW(parse_recipe(Json::parse(text))) << text;
  }
}

TEST(RecipeSchema, RefusesWhatTheProgramRefuses) {
  const std::vector<const char*> recipes = {
      R"([])",
      R"({"modle": {}})",
      R"({"$schema": 3})",
      R"({"name": 3})",
      R"({"axes": {}})",
      R"({"model": 3})",
      R"({"model": {"$schema": "x"}})",
      R"({"model": {"attention": "latent"}})",
      R"({"model": {"attention": ["latents"]}})",
      R"({"model": {"experts": {"cuont": 1}}})",
      R"({"model": {"depth_mixing": "mhc"}})",
      R"({"model": {"depth_mixing": {}}})",
      R"({"model": {"depth_mixing": {"type": "magic"}}})",
      R"({"model": {"depth_mixing": {"type": "residual", "streams": 4}}})",
      R"({"model": {"depth_mixing": {"type": "mhc", "streams": 17}}})",
      R"({"model": {"depth_mixing": {"type": "mhc_lite", "streams": 6}}})",
      R"({"train": {"rates": {"*": 1001}}})",
      R"({"train": {"rates": {"*": "a"}}})",
      R"({"data": {"weights": {"a": 0}}})",
      R"({"data": {"validation_fraction": 0}})",
      R"({"train": {"beta1": 1}})",
      R"({"parallel": {"timeout": 0}})",
      R"({"tokenizer": {"kind": "words"}})",
  };
  for (const char* text : recipes) {
    EXPECT_FALSE(schema().accepts(Json::parse(text))) << text;
    EXPECT_NE(refusal(Json::parse(text)), "") << text;
  }
}

// Values that a key cannot have: of another type, and just beyond its limits.
std::vector<Json> wrong_values(const ConfigKey& key) {
  std::vector<Json> wrong = {nullptr};
  const bool is_number = key.type == KeyType::whole || key.type == KeyType::number;
  const bool takes_any = key.type == KeyType::number_or_word;
  wrong.push_back(is_number ? Json("1") : takes_any ? Json(true) : Json(1.5));
  if (key.type == KeyType::whole) wrong.push_back(1.5);
  if (!key.limits.choices.empty()) {
    wrong.push_back(key.type == KeyType::texts ? Json{"no such"} : Json("no such"));
  }
  const auto beyond = [&](double limit, bool is_excluded, double direction) {
    if (std::isinf(limit)) return;
    const double value = is_excluded                  ? limit
                         : key.type == KeyType::whole ? limit + direction
                                                      : std::nextafter(limit, direction * INFINITY);
    const Json json = key.type == KeyType::whole ? Json(static_cast<int64_t>(value)) : Json(value);
    wrong.push_back(key.type == KeyType::named_numbers ? Json{{"any", json}} : json);
  };
  beyond(key.limits.least, key.limits.above, -1);
  beyond(key.limits.most, key.limits.below, 1);
  return wrong;
}

// Calls `check(path, key, recipe with {} where the key's object is)` for every key, in whose object
// what is `beside` it has to stand.
template <class Check>
void for_every_key(const std::vector<ConfigKey>& keys, const Json::json_pointer& path,
                   const Json& beside, const Check& check) {
  for (const ConfigKey& key : keys) {
    const Json::json_pointer at = path / key.name;
    Json recipe = Json::object();
    recipe[path] = beside;
    check(at, key, recipe);
    for_every_key(key.keys, at, Json::object(), check);
    for (const ConfigVariant& variant : key.variants) {
      for_every_key(variant.keys, at, {{"type", variant.type}}, check);
    }
  }
}

TEST(RecipeSchema, RefusesWithTheProgramWhatNoKeyCanBe) {
  int count = 0;
  for_every_key(recipe_keys(), Json::json_pointer(), Json::object(),
                [&](const Json::json_pointer& at, const ConfigKey& key, Json recipe) {
                  EXPECT_NE(key.meaning, "") << at.to_string();
                  for (const Json& value : wrong_values(key)) {
                    recipe[at] = value;
                    EXPECT_FALSE(schema().accepts(recipe)) << recipe;
                    EXPECT_THAT(refusal(recipe), ::testing::HasSubstr(key.name)) << recipe;
                    ++count;
                  }
                });
  EXPECT_GE(count, 300);
}

// A default is within the limits, and each choice is one that the program knows.
TEST(RecipeSchema, TakesDefaultsAndChoices) {
  for_every_key(
      recipe_keys(), Json::json_pointer(), Json::object(),
      [&](const Json::json_pointer& at, const ConfigKey& key, Json recipe) {
        std::vector<Json> values;
        if (!key.standard.empty() && key.limits.otherwise.empty())
          values.push_back(Json::parse(key.standard));
        for (const Choice& choice : key.limits.choices) {
          const bool is_list = key.type == KeyType::texts;
          values.push_back(is_list ? Json::array({choice.name}) : Json(choice.name));
        }
        for (const Json& value : values) {
          recipe[at] = value;
          EXPECT_TRUE(schema().accepts(recipe)) << recipe;
          const std::string message = refusal(recipe);  // it may not go with other keys
          EXPECT_THAT(message, ::testing::Not(::testing::HasSubstr(key.name + ": expected ")))
              << recipe;
          EXPECT_THAT(message, ::testing::Not(::testing::HasSubstr("there is no"))) << recipe;
        }
      });
}

}  // namespace
}  // namespace attnres::testing::recipe_schema_test
