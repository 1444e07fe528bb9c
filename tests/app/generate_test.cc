// How generate chooses tokens and where it stops, as its options say.
#include "attnres/infer/generate.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/infer/inference_model.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/text/bytes.h"
#include "tests/app/program.h"
#include "tests/model/small_models.h"

namespace attnres::testing::app_generate_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A byte model with random weights and a context of 64.
class Sampled : public ::testing::Test {
 protected:
  Sampled() {
    save_model(model_, folder_, /*context=*/64, /*document_ids=*/0);
    ByteTokenizer().save(folder_);
  }
  Result run(const std::string& arguments) const {
    return run_program(
        fmt::format("generate --model '{}' --threads 1 {}", folder_.string(), arguments));
  }
  Json json(const std::string& arguments) const {
    const Result result = run(arguments + " --json");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.exit_code == 0 ? Json::parse(result.out) : Json();
  }
  // Lets through the small letters only, each as likely as the model says.
  static std::string letters() {
    std::string options = "--prompt depth --max-tokens 40 ";
    for (int id = 'a'; id <= 'z'; ++id) options += fmt::format("--logit-bias {}=100 ", id);
    return options;
  }

  const fs::path folder_ = fresh_folder("model");
  const Transformer model_ =
      small_model(block_attn_res(), {.vocab_size = 256, .precision = at::kFloat});
};

TEST_F(Sampled, TakesWhatTheLibraryTakes) {
  const auto tokens = [this](const SamplingSettings& sampling) {
    GenerationSettings settings;
    settings.sampling = sampling;
    settings.max_tokens = 12;
    settings.ends = {0};
    return generate(LocalModel(model_), {'d', 'e', 'p', 't', 'h'}, 64, settings).tokens;
  };
  const auto without = tokens({});
  const auto expect_option = [&](const std::string& option, const SamplingSettings& sampling) {
    const auto expected = tokens(sampling);
    EXPECT_NE(without, expected) << option;
    EXPECT_EQ(json("--prompt depth --max-tokens 12 " + option)["tokens"], expected) << option;
  };
  expect_option("--min-p 0.3", {.min_p = 0.3});
  expect_option("--repetition-penalty 1.5", {.repetition_penalty = 1.5});
  expect_option("--presence-penalty 1.5", {.presence_penalty = 1.5});
  expect_option("--frequency-penalty -1.5", {.frequency_penalty = -1.5});
  expect_option("--logit-bias 7=2.5 --logit-bias 8=-1e2", {.logit_bias = {{7, 2.5}, {8, -100.0}}});
  expect_option("--seed 9", {.seed = 9});
}

TEST_F(Sampled, EndsBeforeTheFirstStopText) {
  const std::string text = json(letters())["text"];
  ASSERT_EQ(text.size(), 40u);
  const std::string first = text.substr(11, 3), later = text.substr(20, 2);
  const size_t end = std::min(text.find(first), text.find(later));
  const std::string stops = fmt::format("--stop {} --stop '[x]' --stop {} ", later, first);
  const Json found = json(letters() + stops);
  EXPECT_EQ(found["text"], text.substr(0, end));
  EXPECT_EQ(found["stop"], "stop_string");
  EXPECT_EQ(run(letters() + stops).out, text.substr(0, end) + "\n");
  // What is held back comes when the text ends.
  const Json other = json(letters() + fmt::format("--stop {}_", text.substr(37)));
  EXPECT_EQ(other["text"], text);
  EXPECT_EQ(other["stop"], "max_tokens");
}

// The tokenizer ends documents with byte 0, config.json and generation_config.json with others.
TEST_F(Sampled, EndsWhereEveryFileOfTheModelSaysThatDocumentsDo) {
  const std::string text = json(letters())["text"];
  ASSERT_EQ(text.size(), 40u);
  const auto ends_before = [&](char end) {
    const Json found = json(letters());
    EXPECT_EQ(found["text"], text.substr(0, text.find(end)));
    EXPECT_EQ(found["stop"], "end_of_document");
  };
  const char later = text[20];
  write_text(folder_ / "generation_config.json",
             Json{{"eos_token_id", {255, static_cast<int>(later)}}}.dump());
  ends_before(later);
  EXPECT_EQ(json("--ids 100,101,112,116,104 " + letters().substr(letters().find("--max")))["stop"],
            "end_of_document");
  write_text(folder_ / "prompts.jsonl", R"({"prompt": "depth"})");
  const fs::path out = folder_ / "out.jsonl";
  const Result many =
      run(fmt::format("--prompts '{}' --out '{}' {}", (folder_ / "prompts.jsonl").string(),
                      out.string(), letters().substr(letters().find("--max"))));
  EXPECT_EQ(many.exit_code, 0) << many.err;
  EXPECT_EQ(Json::parse(read_file(out))["text"], text.substr(0, text.find(later)));

  fs::remove(folder_ / "generation_config.json");
  const char earlier = text[5];
  Json config = read_json(folder_ / "config.json");
  config["eos_token_id"] = static_cast<int>(earlier);
  write_text(folder_ / "config.json", config.dump());
  ends_before(earlier);
}

// Options that are not given are the model's own.
TEST_F(Sampled, TakesWhatTheModelSays) {
  const auto say = [&](const Json& json) {
    write_text(folder_ / "generation_config.json", json.dump());
  };
  const std::string prompt = "--prompt depth --max-tokens 12 ";
  const Json plain = json(prompt + "--temperature 0.7 --top-k 3 --repetition-penalty 1.5");
  say({{"temperature", 0.7}, {"top_k", 3}, {"repetition_penalty", 1.5}, {"do_sample", true}});
  EXPECT_EQ(json(prompt), plain);
  EXPECT_THAT(run(prompt).err, HasSubstr("generation_config.json has it: temperature 0.7, top-k 3, "
                                         "repetition-penalty 1.5\n"));
  const Result given = run(prompt + "--temperature 1 --top-k 0 --repetition-penalty 1");
  EXPECT_EQ(given.err, "");
  say({{"do_sample", false}});
  const Json greedy = json(prompt);
  say(Json::object());
  EXPECT_EQ(greedy, json(prompt + "--temperature 0"));
  EXPECT_NE(greedy, plain);
  say({{"top_p", 7}});
  EXPECT_THAT(run(prompt).err, AllOf(HasSubstr("generation_config.json: top-p: expected")));
  say({{"top_k", "many"}});
  EXPECT_THAT(run(prompt).err, HasSubstr("generation_config.json: top_k: expected a whole number"));
}

// Nobody else looks at how the model would be sampled.
TEST_F(Sampled, DoesWithoutAGenerationConfigThatIsWrong) {
  const std::string prompt = "--prompt depth --max-tokens 12 ";
  const Json plain = json(prompt);
  const fs::path file = folder_ / "generation_config.json";
  for (const char* wrong : {"{", "[]", R"({"temperature": "hot"})", R"({"top_p": 7})"}) {
    write_text(file, wrong);
    const Result refused = run(prompt);
    EXPECT_EQ(refused.exit_code, 1) << wrong;
    EXPECT_THAT(refused.err, AllOf(HasSubstr("generation_config.json"),
                                   HasSubstr("do without what it says of sampling: "
                                             "--generation-config none")));
    EXPECT_EQ(json(prompt + "--generation-config none"), plain) << wrong;
    EXPECT_EQ(json(prompt + "--temperature 1 --top-k 0 --top-p 1 --min-p 0 --repetition-penalty 1"),
              plain)
        << wrong;
    for (const std::string command : {"score --ids 1,2,3", "inspect --text depth"}) {
      const Result other = run_program(command + " --threads 1 --model " + folder_.string());
      EXPECT_EQ(other.exit_code, 0) << wrong << other.err;
    }
  }
  write_text(file, R"({"temperature": "hot", "do_sample": 3, "top_k": 5})");
  EXPECT_EQ(json(prompt + "--temperature 1"), json(prompt + "--generation-config none --top-k 5"))
      << "what is given is not looked at";
  write_text(file, R"({"do_sample": false})");
  EXPECT_NE(json(prompt), plain);
  EXPECT_EQ(json(prompt + "--generation-config none"), plain);
  EXPECT_EQ(run(prompt + "--generation-config other").exit_code, 2);
}

TEST_F(Sampled, GivesLogProbabilities) {
  EXPECT_FALSE(json(letters()).contains("logprobs"));
  const Json found = json(letters() + "--logprobs 2");
  std::string ids = "100,101,112,116,104", text;
  for (const Json& token : found["logprobs"]) {
    ids += fmt::format(",{}", token["id"].get<int>());
    text += token["text"];
    ASSERT_EQ(token["top"].size(), 2u);
    EXPECT_GE(token["top"][0]["logprob"], token["top"][1]["logprob"]);
    EXPECT_TRUE(token["top"][0].contains("text"));
  }
  EXPECT_EQ(text, found["text"]);
  const Result scored =
      run_program(fmt::format("score --model '{}' --ids {} --json", folder_.string(), ids));
  const auto expected = Json::parse(scored.out)["logprobs"].get<std::vector<double>>();
  for (size_t i = 0; i < found["logprobs"].size(); ++i) {
    EXPECT_NEAR(found["logprobs"][i]["logprob"].get<double>(), expected[4 + i], 1e-4);
  }
  const Json of_ids = json("--ids 5,17,3 --max-tokens 4 --logprobs 0");
  EXPECT_EQ(of_ids["logprobs"].size(), of_ids["tokens"].size());
  EXPECT_TRUE(of_ids["logprobs"][0]["top"].empty());
  EXPECT_FALSE(of_ids["logprobs"][0].contains("text"));
}

TEST_F(Sampled, KeepsToAForm) {
  const auto text = [&](const std::string& options) {
    const Json found = json("--prompt depth --max-tokens 300 --temperature 1 " + options);
    EXPECT_EQ(found["stop"], "end_of_document") << options;
    return found["text"].get<std::string>();
  };
  const std::string schema =
      R"({"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]})";
  const auto expect_of_schema = [&](const std::string& options) {
    const std::string found = text(options);
    const Json value = Json::parse(found, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(value == Json::parse(R"({"n": 1})") || value == Json::parse(R"({"n": 2})"))
        << found;
  };
  expect_of_schema(fmt::format("--json-schema '{}'", schema));
  write_text(folder_ / "schema.json", schema);
  expect_of_schema(fmt::format("--json-schema '{}'", (folder_ / "schema.json").string()));

  const auto is_of_grammar = [](const std::string& found) {
    return found == "xz" || found == "yz";
  };
  EXPECT_TRUE(is_of_grammar(text("--regex '[xy]z'")));
  EXPECT_TRUE(is_of_grammar(text("--grammar 'root ::= [xy] \"z\"'")));
  write_text(folder_ / "form.gbnf", "root ::= [xy] \"z\"\n");
  EXPECT_TRUE(is_of_grammar(text(fmt::format("--grammar '{}'", (folder_ / "form.gbnf").string()))));
  EXPECT_FALSE(is_of_grammar(json("--prompt depth --max-tokens 2 --temperature 1")["text"]));

  write_text(folder_ / "prompts.jsonl", "\"a\"\n\"b\"\n");
  const fs::path out = folder_ / "out.jsonl";
  const Result many = run(fmt::format("--prompts '{}' --out '{}' --regex '[xy]z'",
                                      (folder_ / "prompts.jsonl").string(), out.string()));
  EXPECT_EQ(many.exit_code, 0) << many.err;
  std::istringstream lines(read_file(out));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(is_of_grammar(Json::parse(line)["text"])) << line;
  }
}

TEST_F(Sampled, NamesTheOptionThatIsWrong) {
  for (const auto& [wrong, said] :
       {std::pair{"--prompt a --min-p 2", "--min-p: expected 0"},
        {"--prompt a --repetition-penalty 0", "--repetition-penalty: expected a number from 0.01"},
        {"--prompt a --presence-penalty 3", "--presence-penalty: expected a number from -2 to 2"},
        {"--prompt a --frequency-penalty -3", "--frequency-penalty: expected"},
        {"--prompt a --logit-bias 5", "--logit-bias: expected a token id and a number, such as"},
        {"--prompt a --logit-bias x=5", "got x=5"},
        {"--prompt a --logit-bias 5=1x", "got 5=1x"},
        {"--prompt a --logit-bias 5=101", "--logit-bias: expected a number from -100"},
        {"--prompt a --logit-bias 256=1", "--logit-bias: token id 256 is out of range"},
        {"--prompt a --logit-bias 5=1 --logit-bias 5=1", "--logit-bias: token 5 is there twice"},
        {"--prompt a --stop ''", "--stop: expected a text"},
        {"--prompt a --stop '\xe9'", "--stop: expected valid UTF-8"},
        {"--ids 1 --stop a", "--ids excludes --stop"},
        {"--ids 1 --regex a", "--ids excludes --regex"},
        {"--prompt a --regex a --grammar 'root ::= \"a\"'", "--grammar excludes --regex"},
        {"--prompt a --regex '(a'", "--regex: "},
        {"--prompt a --grammar 'root ::= b'", "--grammar: "},
        {"--prompt a --json-schema '{\"not\": {}}'", "--json-schema: #/not: "},
        {"--prompt a --logprobs 3", "--logprobs: they are shown with --json"},
        {"--prompt a --json --logprobs -1", "--logprobs: expected a whole number, 0 or more"}}) {
    const Result result = run(wrong);
    EXPECT_EQ(result.exit_code, 2) << wrong;
    EXPECT_THAT(result.err, AllOf(HasSubstr("error: "), HasSubstr(said))) << wrong;
    EXPECT_EQ(result.out, "") << wrong;
  }
  std::string all = "--prompt a";
  for (int id = 0; id < 256; ++id) all += fmt::format(" --logit-bias {}=-100", id);
  const Result none = run(all);
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, AllOf(HasSubstr("every token is forbidden"), Not(HasSubstr("weights"))));
}

}  // namespace
}  // namespace attnres::testing::app_generate_test
