#include "attnres/train/run_folder/run_folder.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "attnres/train/recipe/recipe.h"
#include "tests/text/test_files.h"

namespace attnres::run_folder_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Json run() {
  return {{"recipe", {{"name", "a"}, {"train", {{"steps", 10}, {"seed", 1}}}}},
          {"data", {{"paths", {"text"}}, {"hash", "h"}, {"tokens_hash", "t"}}},
          {"machine", {{"threads", 2}}}};
}

TEST(SameRun, MayHaveAnotherMachineAndOtherPaths) {
  Json other = run();
  other["machine"]["threads"] = 7;
  other["data"]["paths"] = {"elsewhere"};
  EXPECT_NO_THROW(require_same_run("folder", run(), other));
}

TEST(SameRun, MayHaveBegunBeforeAKeyWasThere) {
  Json newer = run();
  newer["recipe"] = recipe_to_json(parse_recipe(newer["recipe"]));
  ASSERT_TRUE(newer["recipe"]["model"]["experts"].contains("renormalize"));
  Json older = newer;
  older["recipe"]["model"]["experts"].erase("renormalize");
  EXPECT_NO_THROW(require_same_run("folder", older, newer));
  newer["recipe"]["train"]["clip"] = 0.5;
  EXPECT_THAT(message_of<Error>([&] { require_same_run("folder", older, newer); }),
              HasSubstr("train.clip"));
}

TEST(SameRun, HasTheSameRecipeAndData) {
  Json other = run();
  other["recipe"]["train"]["seed"] = 2;
  other["data"]["tokens_hash"] = "u";
  const std::string message = message_of<Error>([&] { require_same_run("folder", run(), other); });
  EXPECT_THAT(message, HasSubstr("folder: "));
  EXPECT_THAT(message, HasSubstr("\n  train.seed: 1 -> 2"));
  EXPECT_THAT(message, HasSubstr("\n  data.tokens_hash: \"t\" -> \"u\""));
  EXPECT_THAT(message, Not(HasSubstr("data.hash")));
  EXPECT_THAT(message, HasSubstr("another --out"));
}

TEST(SameRun, SaysWhatToDoWhereItsTextHasChanged) {
  Json other = run();
  other["data"]["hash"] = "g";
  EXPECT_THAT(message_of<Error>([&] { require_same_run("folder", run(), other); }),
              HasSubstr("\n  data.hash: \"h\" -> \"g\": the text has changed; restore it, or name "
                        "where it lies with --data\n"));
}

TEST(SameRun, HasTheSameRatesInTheirOrder) {
  const auto with_rates = [](const Json& rates) {
    Json json = run();
    json["recipe"]["train"]["rates"] = rates;
    return json;
  };
  const auto refusal = [](const Json& before, const Json& after) {
    return message_of<Error>([&] { require_same_run("folder", before, after); });
  };
  const Json rates = {{"a*", 0.5}, {"*b", 2.0}}, swapped = {{"*b", 2.0}, {"a*", 0.5}};
  EXPECT_NO_THROW(require_same_run("folder", run(), with_rates(Json::object())));
  EXPECT_NO_THROW(require_same_run("folder", with_rates(rates), with_rates(rates)));
  EXPECT_THAT(refusal(run(), with_rates(rates)), HasSubstr("train.rates: null -> "));
  EXPECT_THAT(refusal(with_rates(rates), with_rates({{"a*", 0.5}, {"*b", 1.0}})),
              HasSubstr("train.rates.*b: 2.0 -> 1.0"));
  EXPECT_THAT(refusal(with_rates(rates), with_rates(swapped)),
              HasSubstr("train.rates: its patterns have another order"));
}

// The steps to come and what is written when are free; the steps that are done are not.
TEST(SameRun, MayBecomeLongerButNotShorter) {
  Json longer = run();
  longer["recipe"]["train"].update({{"steps", 20}, {"eval_every", 5}});
  EXPECT_NO_THROW(require_same_run("folder", run(), longer));
  const std::string message = message_of<Error>([&] { require_same_run("folder", longer, run()); });
  EXPECT_THAT(message, HasSubstr("train.steps: 20 -> 10"));
  EXPECT_THAT(message, Not(HasSubstr("eval_every: 5")));
}

TEST(SameRun, NotesWhatChangedAndWhen) {
  EXPECT_EQ(with_changes(run(), run(), 10), run());
  Json longer = run();
  longer["recipe"]["train"]["steps"] = 20;
  longer["machine"]["threads"] = 7;
  Json noted = with_changes(run(), longer, 10);
  EXPECT_EQ(noted["recipe"], longer["recipe"]);
  EXPECT_EQ(noted["machine"], run()["machine"]);
  EXPECT_EQ(noted["changes"], Json::parse(R"([{"step": 10, "train.steps": [10, 20]}])"));
  longer["recipe"]["train"]["eval_every"] = 5;
  noted = with_changes(noted, longer, 15);
  EXPECT_EQ(noted["changes"].size(), 2u);
  EXPECT_EQ(noted["changes"][1], Json::parse(R"({"step": 15, "train.eval_every": [null, 5]})"));
}

TEST(FreeFolder, HoldsNothingThatARunWouldOverwriteOrHideBehind) {
  const RunPaths paths{fresh_folder("run")};
  EXPECT_NO_THROW(require_free_folder({paths.folder / "new"}));
  write_text(paths.folder / "notes.txt", "mine");
  EXPECT_NO_THROW(require_free_folder(paths));
  for (const char* name : {"metrics.jsonl", "probes.jsonl", "samples.jsonl", "config.json",
                           "study.json", "tokens.json"}) {
    write_text(paths.folder / name, "mine");
    EXPECT_THAT(message_of<Error>([&] { require_free_folder(paths); }), HasSubstr(name));
    std::filesystem::remove(paths.folder / name);
  }
}

TEST(RunJson, IsARuns) {
  const RunPaths paths{fresh_folder("run")};
  EXPECT_THAT(message_of<Error>([&] { read_run_json(paths); }), HasSubstr("run.json"));
  write_text(paths.run_json(), run().dump());
  // What an earlier version wrote: it drew its rows.
  Json expected = run();
  expected["recipe"]["data"]["order"] = "drawn";
  EXPECT_EQ(read_run_json(paths), expected);
  Json newer = run();
  newer["recipe"]["data"]["order"] = "epochs";
  write_text(paths.run_json(), newer.dump());
  EXPECT_EQ(read_run_json(paths), newer);
  write_text(paths.run_json(), "{\"recipe\": {\"train\": 3}}");
  EXPECT_THAT(message_of<Error>([&] { read_run_json(paths); }), HasSubstr("run.json: not a run's"));
  for (const char* part :
       {"/recipe/name", "/recipe/train/steps", "/data/paths", "/data/hash", "/data/split",
        "/data/tokenizer", "/data/validation_paths", "/data/validation_hash",
        "/data/validation_left_out", "/data/least_validation_bytes", "/parameters", "/changes"}) {
    Json other = run();
    other[Json::json_pointer(part)] = {{"neither", "text"}};
    write_text(paths.run_json(), other.dump());
    EXPECT_THAT(message_of<Error>([&] { read_run_json(paths); }),
                AllOf(HasSubstr(std::string(part) + ": expected a "),
                      HasSubstr(R"(, got {"neither":"text"})")));
  }
  write_text(paths.run_json(), "[]");
  EXPECT_THAT(message_of<Error>([&] { read_run_json(paths); }), HasSubstr("run.json: not a run's"));
}

}  // namespace
}  // namespace attnres::run_folder_test
