#include <fmt/core.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "attnres/infer/evaluate.h"
#include "attnres/infer/generate.h"
#include "attnres/infer/inference_model.h"
#include "attnres/infer/score.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/text/bytes.h"
#include "attnres/text/utf8.h"
#include "tests/app/program.h"
#include "tests/model/small_models.h"

namespace attnres::testing::commands_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kLlama = std::string(ATTNRES_SOURCE_DIR) + "/tests/fixtures/llama_tiny";

void expect_fails(const std::string& arguments, int exit_code,
                  const std::vector<std::string>& parts) {
  const Result result = run_program(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << arguments;
  EXPECT_EQ(result.out, "") << arguments;
  EXPECT_THAT(result.err, StartsWith("attnres: error: "));
  for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part)) << arguments;
}

TEST(Program, ItsVersionIsTheProjects) {
  const std::string cmake = read_file(std::string(ATTNRES_SOURCE_DIR) + "/CMakeLists.txt");
  const size_t begin = cmake.find("project(attnres VERSION ") + 24;
  const Result result = run_program("--version");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "attnres " + cmake.substr(begin, cmake.find(' ', begin) - begin) + "\n");
}

TEST(Program, EveryCommandExplainsItself) {
  EXPECT_THAT(run_program("--help").out, HasSubstr("generate"));
  for (const char* command : {"eval", "score", "generate", "inspect"}) {
    const Result result = run_program(std::string(command) + " --help");
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_THAT(result.out, HasSubstr("--model PATH"));
    EXPECT_THAT(result.out, HasSubstr("Examples:"));
  }
}

TEST(Program, NamesTheNearestCommandAndOption) {
  expect_fails("trian", 2, {"unknown command trian", "train"});
  expect_fails("scor --ids 1,2", 2, {"unknown command scor", "score"});
  expect_fails("score --modle x --model y", 2, {"unknown option --modle", "--model"});
  expect_fails("", 2, {"--help"});
  expect_fails("inspect --model a --model b", 2, {"--model: is given 2 times; give it once; see"});
}

TEST(Program, ChecksWhatIsShared) {
  const std::string with_model = " --model " + kLlama;
  for (const std::string command : {"score --ids 1,2", "inspect", "generate", "eval --data x"}) {
    expect_fails(command, 2, {"--model"});
    expect_fails(command + with_model + " --device cuda", 2, {"--device cuda: ", "GPU"});
    expect_fails(command + " --model nowhere", 1, {"nowhere", "no such"});
  }
  expect_fails("inspect --threads 0" + with_model, 2, {"--threads", "1 to"});
  expect_fails("inspect --threads -3" + with_model, 2, {"--threads"});
  for (const std::string device : {"tpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1000", ""}) {
    expect_fails(fmt::format("inspect --device '{}'{}", device, with_model), 2,
                 {"--device", "cuda"});
  }
}

// A lock, or a chain of links, hides what is there.
TEST(Program, SaysWhatCannotBeSeen) {
  const fs::path folder = fresh_folder("hidden");
  fs::create_symlink("loop", folder / "loop");
  const std::string loop = (folder / "loop").string();
  for (const char* command :
       {"report ", "watch ", "train --recipe tiny-residual --out ", "train --resume --out ",
        "inspect --model ", "eval --run ", "tokenize --model ", "generate --model "}) {
    expect_fails(command + loop, 1, {loop, "cannot be seen: Too many levels of symbolic links"});
  }
}

TEST(Serve, TakesOriginsThatBrowsersSend) {
  for (const char* origin : {"foo", "example.org", "https://", "https://example.org/", "*"}) {
    expect_fails(fmt::format("serve --model {} --origin '{}'", kLlama, origin), 2,
                 {"--origin: expected a scheme and a host", "such as https://example.org"});
  }
  expect_fails("serve --model nowhere --origin http://localhost:3000", 1, {"nowhere"});
}

TEST(Score, PrintsWhatTheModelSays) {
  const auto model = load_model(kLlama);
  const Result result = run_program("score --model " + kLlama + " --ids 5,17,3 --json --threads 1");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["ids"], (Json{5, 17, 3}));
  // To the last bit.
  EXPECT_EQ(json["logprobs"].get<std::vector<double>>(),
            score_sequence(LocalModel(*model), {5, 17, 3}, 64));
  EXPECT_EQ(result.err, "");
}

TEST(Score, ReadsASequencePerLine) {
  const fs::path file = fresh_folder("ids") / "ids.txt";
  write_text(file, "5,17,3\n \n\n1 2\n\n");
  const Result result = run_program("score --model " + kLlama + " --ids-file " + file.string());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::istringstream lines(result.out);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(Json::parse(line)["logprobs"].size(), 2u);
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(Json::parse(line)["ids"], (Json{1, 2}));
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(Score, RefusesBadIds) {
  const std::string score = "score --model " + kLlama;
  expect_fails(score, 2, {"--ids"});
  expect_fails(score + " --ids 5,x", 2, {"'x' is not a token id"});
  expect_fails(score + " --ids 5,1.5", 2, {"1.5"});
  expect_fails(score + " --ids 5,99999999999", 2, {"99999999999"});
  expect_fails(score + " --ids 5,48", 2, {"48", "0 to 47"});
  for (const char* ids : {"1,,2", ",1,2", "1,2,", "1, ,2"}) {
    expect_fails(fmt::format("{} --ids '{}'", score, ids), 2, {ids, "missing", "comma"});
  }
  expect_fails(score + " --ids 5,-1", 2, {"-1", "0 to 47"});
  expect_fails(score + " --ids 5", 2, {"at least 2"});
  expect_fails(score + " --ids 1,2 --ids-file x", 2, {"--ids"});
  std::string many = "1";
  for (int i = 0; i < 64; ++i) many += ",1";
  expect_fails(score + " --ids " + many, 2, {"65", "context of 64"});
  const fs::path file = fresh_folder("ids") / "ids.txt";
  // Before anything is scored.
  for (const auto& [last, part] :
       {std::pair{"48,1", "0 to 47"}, {"1", "at least 2"}, {"1,", "comma"}}) {
    write_text(file, fmt::format("1,2\n\n{}\n", last));
    expect_fails(fmt::format("{} --ids-file {}", score, file.string()), 1, {"line 3", part});
  }
  write_text(file, std::string("GGUF\3\0\0 1,2", 11));
  expect_fails(fmt::format("{} --ids-file {}", score, file.string()), 1,
               {"line 1", "'GGUF   ' is not a token id; expected whole numbers"});
  write_text(file, "\n\n");
  expect_fails(fmt::format("{} --ids-file {}", score, file.string()), 1, {"no token ids"});
}

TEST(Score, EndsQuietlyWhenNobodyReads) {
  const fs::path file = fresh_folder("ids") / "ids.txt";
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n";
  write_text(file, lines);
  const Result result = run_shell("attnres score --model " + kLlama + " --ids-file " +
                                  file.string() + " | head -n 1");
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, StartsWith("{\"ids\""));
}

TEST(Score, SaysWhenItsOutputIsLost) {
  const fs::path file = fresh_folder("ids") / "ids.txt";
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n";
  write_text(file, lines);
  const std::string score = "score --model " + kLlama;
  // Shorter and longer than what stdio keeps back.
  for (const std::string& arguments :
       {score + " --ids 1,2 --json", score + " --ids-file " + file.string(),
        std::string("--version"), std::string("--help"), std::string("train --help")}) {
    const Result full = run_shell("attnres " + arguments + " > /dev/full");
    EXPECT_EQ(full.exit_code, 1) << arguments;
    EXPECT_EQ(full.err,
              "attnres: error: cannot write to standard output: No space left on device\n")
        << arguments;
    const Result closed = run_shell("attnres " + arguments + " >&-");
    EXPECT_EQ(closed.exit_code, 1) << arguments;
    EXPECT_EQ(closed.err, "attnres: error: cannot write to standard output: Bad file descriptor\n")
        << arguments;
  }
}

// Text is shown as it comes.
TEST(Generate, SaysWhenItsOutputIsLost) {
  const Result full = run_shell("attnres generate --model " ATTNRES_SOURCE_DIR
                                "/models/tiny-shakespeare --prompt KING --max-tokens 8 >/dev/full");
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_EQ(full.err, "attnres: error: cannot write to standard output: No space left on device\n");
}

TEST(Program, KeepsItsExitCodeWhereNobodyReadsTheError) {
  EXPECT_EQ(run_shell("attnres nonsense 2> /dev/full").exit_code, 2);
  EXPECT_EQ(run_shell("attnres inspect --model nowhere 2> /dev/full").exit_code, 1);
}

// A byte model with random weights, whose text is anything but UTF-8.
class ByteModel : public ::testing::Test {
 protected:
  ByteModel() {
    save_model(model_, folder_, 64, 0);
    ByteTokenizer().save(folder_);
    write_text(data_,
               "Attention over depth, for every token its own mixture. " + std::string(200, 'x'));
  }
  Result run(const std::string& command, const std::string& arguments) const {
    return run_program(command + " --model " + folder_.string() + " --threads 1 " + arguments);
  }

  const fs::path folder_ = fresh_folder("model");
  const fs::path data_ = fresh_folder("data") / "data.txt";
  const Transformer model_ =
      small_model(block_attn_res(), {.vocab_size = 256, .precision = at::kFloat});
};

TEST_F(ByteModel, EvalPrintsTheEvaluation) {
  const ByteTokenizer tokenizer;
  std::vector<int32_t> tokens = tokenizer.encode(read_file(data_));
  tokens.push_back(tokenizer.end_of_document());
  const Evaluation expected = evaluate(LocalModel(model_), tokenizer, {tokens}, {.context = 64});
  const Result result = run("eval", "--data " + data_.string() + " --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_NEAR(json["loss"].get<double>(), expected.loss, 1e-5);
  EXPECT_NEAR(json["perplexity"].get<double>(), expected.perplexity, 1e-4 * expected.perplexity);
  EXPECT_NEAR(json["bits_per_byte"].get<double>(), expected.bits_per_byte, 1e-5);
  EXPECT_EQ(json["tokens"], expected.tokens);
  EXPECT_THAT(result.err, HasSubstr(fmt::format("{0}/{0} tokens | ", expected.tokens)));
  EXPECT_THAT(run("eval", "--data " + data_.string()).out, HasSubstr("bits per byte"));
  const Result limited =
      run("eval", "--data " + data_.string() + " --json --context 8 --max-tokens 16");
  EXPECT_EQ(Json::parse(limited.out)["tokens"], 14);
}

TEST_F(ByteModel, EvalRefuses) {
  EXPECT_EQ(run("eval", "").exit_code, 2);
  EXPECT_EQ(run("eval", "--data x --run y").exit_code, 2);
  expect_fails("eval --run /nowhere", 1, {"--run /nowhere: holds no run"});
  const fs::path study = fresh_folder("study");
  write_text(study / "study.json", "{}");
  expect_fails("eval --run " + study.string(), 1, {"holds a study", "/runs/NAME"});
  EXPECT_EQ(run("eval", "--data /nowhere").exit_code, 1);
  EXPECT_EQ(run("eval", "--context 1 --data " + data_.string()).exit_code, 2);
  EXPECT_EQ(run("eval", "--context 65 --data " + data_.string()).exit_code, 2);
}

TEST_F(ByteModel, GeneratePrintsTheGreedyContinuation) {
  GenerationSettings settings;
  settings.sampling.temperature = 0;
  settings.max_tokens = 12;
  settings.ends = {0};
  const std::vector<int32_t> prompt = {'d', 'e', 'p', 't', 'h'};
  const Generation expected = generate(LocalModel(model_), prompt, 64, settings);
  const Result result = run("generate", "--prompt depth --temperature 0 --max-tokens 12 --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["tokens"].get<std::vector<int32_t>>(), expected.tokens);
}

TEST_F(ByteModel, GenerateStreamsWholeCharacters) {
  const std::string arguments = "--prompt depth --max-tokens 50 --seed 7";
  const Result streamed = run("generate", arguments);
  const Result json = run("generate", arguments + " --json");
  ASSERT_EQ(streamed.exit_code, 0) << streamed.err;
  EXPECT_EQ(first_invalid_utf8(streamed.out), streamed.out.size());
  EXPECT_EQ(streamed.out.substr(0, streamed.out.size() - 1),
            Json::parse(json.out)["text"].get<std::string>());
  EXPECT_NE(run("generate", "--prompt depth --max-tokens 50 --seed 8").out, streamed.out);
}

TEST_F(ByteModel, GenerateSaysThatTheContextIsFull) {
  const Result result = run("generate", "--prompt depth --max-tokens 1000 --json --seed 7");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  if (json["stop"] == "context") {
    EXPECT_THAT(result.err, HasSubstr("context of 64"));
    EXPECT_EQ(json["tokens"].size(), 59u);
  } else {
    EXPECT_EQ(json["stop"], "end_of_document");
  }
  EXPECT_EQ(run("generate", "--prompt " + std::string(64, 'x')).exit_code, 1);
}

TEST_F(ByteModel, GenerateChecksItsSettings) {
  for (const char* wrong : {"--temperature -1", "--top-p 0", "--top-p 1.5", "--top-k -1",
                            "--max-tokens 0", "--max-tokens x", "--seed -1"}) {
    const Result result = run("generate", std::string("--prompt a ") + wrong);
    EXPECT_EQ(result.exit_code, 2) << wrong;
    EXPECT_THAT(result.err, StartsWith("attnres: error: ")) << wrong;
  }
}

TEST_F(ByteModel, InspectCountsEveryParameterOnce) {
  const Result result = run("inspect", "--json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  int64_t sum = 0;
  for (const auto& [part, count] : json["parameters"].items()) {
    EXPECT_GT(count.get<int64_t>(), 0) << part;
    if (part != "total") sum += count.get<int64_t>();
  }
  EXPECT_EQ(json["parameters"]["total"], sum);
  EXPECT_EQ(sum, model_.parameters().count());
  // Settings of what the model does not have are not shown.
  const std::string text = run("inspect", "").out;
  for (const char* unused : {"delta_attention", "latent_attention", "experts", "linear_beta"}) {
    EXPECT_TRUE(json["model"].contains(unused) || std::string(unused) == "linear_beta");
    EXPECT_THAT(text, ::testing::Not(HasSubstr(unused)));
  }
  for (const char* used : {"kv_heads", "rope_theta", "ffn_width", "\"type\":\"silu\""}) {
    EXPECT_THAT(text, HasSubstr(used));
  }
  // A pseudo-query and a key norm at each site but the first.
  EXPECT_EQ(json["parameters"]["depth mixing"], 2 * 6 * 32);
  EXPECT_FALSE(json.contains("sites"));
}

TEST_F(ByteModel, InspectMeasuresDepthWeights) {
  const Result result = run("inspect", "--json --data " + data_.string());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  ASSERT_EQ(json["sites"].size(), 7u);
  for (const Json& site : json["sites"]) {
    double sum = 0;
    for (const Json& weight : site["weights"]) sum += weight.get<double>();
    EXPECT_NEAR(sum, 1, 1e-6);
    EXPECT_EQ(site["weights"].size(), site["sources"].size());
  }
  EXPECT_NEAR(json["inter_block"].get<double>() + json["intra_block"].get<double>(), 1, 1e-12);
  const Result table = run("inspect", "--data " + data_.string());
  for (const char* part : {"attention 1", "feed-forward 3", "output", "embedding", "block 1",
                           "partial sum", "entropy", "dominant"}) {
    EXPECT_THAT(table.out, HasSubstr(part));
  }
}

TEST_F(ByteModel, InspectKeepsToTheWidthOfTheTerminal) {
  const Result result = run_shell(fmt::format(
      "export COLUMNS=60; attnres inspect --model {} --data {}", folder_.string(), data_.string()));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line == folder_.string() || line.size() <= 60u) << line;
  }
  EXPECT_THAT(result.out, HasSubstr("p = partial sum)"));
}

TEST_F(ByteModel, InspectSaysWhenThereAreNoDepthWeights) {
  save_model(small_model(residual(), {.vocab_size = 256, .precision = at::kFloat}), folder_, 64, 0);
  const Result result = run("inspect", "--data " + data_.string());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("residual has no depth weights"));
}

TEST(Inspect, ShowsTheSettingsThatAModelUses) {
  const std::string kimi = std::string(ATTNRES_SOURCE_DIR) + "/tests/fixtures/kimi_k3_tiny";
  const Result result = run_program("inspect --model " + kimi);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* used :
       {"delta_attention", "latent_attention", "experts", "linear_beta", "heads"}) {
    EXPECT_THAT(result.out, HasSubstr(used));
  }
  for (const char* unused : {"kv_heads", "rope_theta"}) {
    EXPECT_THAT(result.out, ::testing::Not(HasSubstr(unused)));
  }
}

}  // namespace
}  // namespace attnres::testing::commands_test
