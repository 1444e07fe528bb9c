// generate --prompts and --chat.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "attnres/infer/generate.h"
#include "attnres/infer/inference_model.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/file.h"
#include "attnres/support/json.h"
#include "attnres/text/bytes.h"
#include "tests/app/program.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"

namespace attnres::testing::generate_prompts_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string quoted(const fs::path& path) {
  return fmt::format("'{}'", path.string());
}

class ManyPrompts : public ::testing::Test {
 protected:
  ManyPrompts() {
    save_model(model_, folder_, /*context=*/64, /*document_ids=*/0);
    ByteTokenizer().save(folder_);
  }
  std::string command(const std::string& arguments) const {
    return fmt::format("attnres generate --model {} --threads 1 {}", quoted(folder_), arguments);
  }
  std::string writing(const fs::path& out, const std::string& more = "") const {
    return command(fmt::format("--prompts {} --out {} --max-tokens 20 {}", quoted(prompts_),
                               quoted(out), more));
  }
  static std::vector<Json> lines_of(const fs::path& file) {
    std::vector<Json> lines;
    std::istringstream text(read_file(file));
    for (std::string line; std::getline(text, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  // What each prompt gives by itself.
  std::vector<int32_t> alone(const std::string& prompt, uint64_t seed) const {
    return generate(LocalModel(model_), ByteTokenizer().encode(prompt), 64,
                    {.sampling = {.seed = seed}, .max_tokens = 20, .ends = {0}})
        .tokens;
  }

  const Transformer model_ =
      small_model(block_attn_res(), {.vocab_size = 256, .precision = at::kFloat});
  const fs::path folder_ = fresh_folder("model"), work_ = fresh_folder("work");
  const fs::path prompts_ = work_ / "prompts.jsonl", out_ = work_ / "out.jsonl";
};

TEST_F(ManyPrompts, AreContinuedAsAlone) {
  write_text(
      prompts_,
      "\"depth\"\n\n{\"prompt\": \"in depth\", \"id\": 7}\n{\"ids\": [100, 101]}\n\"depth\"");
  const Result result = run_shell(writing(out_, "--sequences 2 --logprobs 1"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("4 of 4 prompts"));
  const std::vector<Json> lines = lines_of(out_);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0]["tokens"].get<std::vector<int32_t>>(), alone("depth", 1));
  EXPECT_EQ(lines[1]["tokens"].get<std::vector<int32_t>>(), alone("in depth", 2));
  EXPECT_EQ(lines[2]["tokens"].get<std::vector<int32_t>>(), alone("de", 3));
  EXPECT_EQ(lines[3]["tokens"].get<std::vector<int32_t>>(), alone("depth", 4));
  EXPECT_NE(lines[0]["tokens"], lines[3]["tokens"]);
  EXPECT_EQ(lines[1]["id"], 7);
  EXPECT_EQ(lines[1]["stop"], "max_tokens");
  EXPECT_EQ(lines[1]["logprobs"].size(), 20u);
  EXPECT_FALSE(fs::exists(out_.string() + ".part"));
}

TEST_F(ManyPrompts, GoOnWhereTheyWereInterrupted) {
  std::string prompts;
  for (int i = 0; i < 30; ++i) prompts += fmt::format("\"prompt {}\"\n", i);
  write_text(prompts_, prompts);
  const fs::path whole = work_ / "whole.jsonl";
  ASSERT_EQ(run_shell(writing(whole)).exit_code, 0);
  // The disk is full somewhere in a line.
  const Result cut = run_shell("ulimit -f 4; " + writing(out_));
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_THAT(cut.err, HasSubstr("out.jsonl.part: "));
  EXPECT_FALSE(fs::exists(out_));
  const fs::path part = out_.string() + ".part";
  ASSERT_GT(fs::file_size(part), 1000u);
  EXPECT_THAT(run_shell(writing(out_, "--seed 3")).err, HasSubstr("other prompts or settings"));
  const Result rest = run_shell(writing(out_));
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_THAT(rest.err, ::testing::Not(StartsWith("0 of 30 prompts")));
  EXPECT_EQ(read_file(out_), read_file(whole));
  EXPECT_FALSE(fs::exists(part));
  EXPECT_THAT(run_shell(writing(out_)).err, HasSubstr("is there already"));
}

TEST_F(ManyPrompts, AreCheckedBeforeAnyIsContinued) {
  const auto refusal = [&](const std::string& line) {
    write_text(prompts_, "\"fine\"\n" + line + "\n");
    const Result result = run_shell(writing(out_));
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_FALSE(fs::exists(out_.string() + ".part"));
    return result.err;
  };
  EXPECT_THAT(refusal("{\"prompt\""), HasSubstr("prompts.jsonl, line 2: "));
  EXPECT_THAT(refusal("{}"), HasSubstr("expected a text, or an object"));
  EXPECT_THAT(refusal("{\"ids\": [1, 256]}"), HasSubstr("line 2: token id 256"));
  EXPECT_THAT(refusal("{\"ids\": []}"), HasSubstr("a list of token ids"));
  EXPECT_THAT(refusal("{\"prompt\": \"x\", \"text\": 1}"), HasSubstr("\"text\" is the result's"));
  EXPECT_THAT(refusal("\"" + std::string(64, 'x') + "\""), HasSubstr("64 tokens"));
  write_text(prompts_, "\n");
  EXPECT_THAT(run_shell(writing(out_)).err, HasSubstr("has no prompts"));
  EXPECT_EQ(run_shell(command("--prompts x")).exit_code, 2);
  EXPECT_EQ(run_shell(writing(out_, "--prompt x")).exit_code, 2);
}

TEST_F(ManyPrompts, ChatAnswersEachLine) {
  const Result chat = run_shell("printf 'hello\\n\\nagain\\n/new\\nhello\\n' | " +
                                command("--chat --temperature 0 --max-tokens 9 --stop '\n'"));
  ASSERT_EQ(chat.exit_code, 0) << chat.err;
  // The answer to the first message, from the transcript.
  const std::string first = run_shell("printf 'User: hello\\nAssistant:' | " +
                                      command("--prompt - --temperature 0 --max-tokens 9 "
                                              "--stop '\n'"))
                                .out;
  const std::string shown = first.substr(std::min(first.find_first_not_of(' '), first.size() - 1));
  EXPECT_THAT(chat.out, StartsWith(shown));
  EXPECT_EQ(chat.out.substr(chat.out.size() - shown.size()), shown);
}

TEST_F(ManyPrompts, AChatSaysItsCommandsAndKnowsNoOthers) {
  const auto chat_of = [&](const std::string& lines) {
    return run_shell("printf '" + lines + "' | " +
                     command("--chat --temperature 0 --max-tokens 9"));
  };
  const Result help = chat_of("/help\\nhello\\n"), plain = chat_of("hello\\n");
  EXPECT_EQ(help.exit_code, 0) << help.err;
  EXPECT_THAT(help.err, HasSubstr("/new begins another conversation"));
  EXPECT_EQ(help.out, plain.out);  // no message to the model
  const Result unknown = chat_of("/quit\\n");
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("there is no command /quit"));
  EXPECT_EQ(chat_of("/usr/bin is a path\\n").exit_code, 0);
}

TEST_F(ManyPrompts, ChatGivesTheTemplateItsArguments) {
  write_text(folder_ / "chat_template.jinja",
             "{{ name ~ times }}{% for m in messages %}{{ m.content }}{% endfor %}");
  const auto chat = [&](const std::string& arguments) {
    return run_shell("printf 'hello\\n' | " +
                     command("--chat --temperature 0 --max-tokens 9 " + arguments));
  };
  const auto answer_to = [&](const std::string& prompt) {
    std::string text =
        run_shell(command("--prompt '" + prompt + "' --temperature 0 --max-tokens 9")).out;
    text.erase(0, text.find_first_not_of(' '));
    return text.ends_with('\n') ? text : text + "\n";
  };
  const Result told =
      chat("--template-argument name=KING --template-argument 'times={\"a\": [2]}'");
  ASSERT_EQ(told.exit_code, 0) << told.err;
  EXPECT_EQ(told.out, answer_to("KING{'\\''a'\\'': [2]}hello"));
  EXPECT_NE(told.out, answer_to("hello"));
  for (const auto& [wrong, said] :
       {std::pair{"name", "expected a name and a value, such as enable_thinking=false, got name"},
        {"messages=1", "messages is a part of the conversation itself"},
        {"mood=1", "this model's chat template does not read mood"},
        {"name=1 --template-argument name=2", "name is there twice"}}) {
    const Result refused = chat(std::string("--template-argument ") + wrong);
    EXPECT_EQ(refused.exit_code, 2) << wrong;
    EXPECT_THAT(refused.err, HasSubstr(std::string("--template-argument: ") + said));
  }
}

TEST_F(ManyPrompts, ChatForgetsTheOldestWhereTheContextIsFull) {
  const Result chat = run_shell("printf 'a message of some length\\nand another\\nand more\\n' | " +
                                command("--chat --temperature 0 --max-tokens 20"));
  ASSERT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_THAT(chat.err, HasSubstr("forgot the oldest messages"));
  const Result long_message = run_shell(
      fmt::format("printf '{}\\n' | {}", std::string(60, 'x'), command("--chat --max-tokens 20")));
  EXPECT_EQ(long_message.exit_code, 1);
  EXPECT_THAT(long_message.err, HasSubstr("leaves no room for an answer"));
}

}  // namespace
}  // namespace attnres::testing::generate_prompts_test
