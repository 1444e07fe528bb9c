// Text of files into tokens, and training on these.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "attnres/data/token_folder.h"
#include "attnres/infer/inference_model.h"
#include "attnres/infer/score.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/text/bytes.h"
#include "tests/app/program.h"
#include "tests/data/compressed.h"
#include "tests/train/tiny_runs.h"

namespace attnres::testing::tokenize_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TokenizeAndTrain : public ::testing::Test {
 protected:
  TokenizeAndTrain() { ByteTokenizer().save(base_ / "bytes"); }

  std::string path(const std::string& name) const {
    return fmt::format("'{}'", (base_ / name).string());
  }
  Result tokenize(const std::string& data, const std::string& out, const std::string& more = "") {
    return run_program(fmt::format("tokenize --model {} --data {} --out {} {}", path("bytes"),
                                   path(data), path(out), more));
  }
  // Trains a recipe with this change.
  Result train(const std::string& options, const Json& change = Json::object()) {
    Json recipe = block_recipe();
    // The learning rate is that of any number of steps.
    recipe["train"].update({{"steps", 6},
                            {"schedule", "wsd"},
                            {"decay_fraction", 0},
                            {"eval_every", 3},
                            {"checkpoint_every", 3}});
    recipe.merge_patch(change);
    write_text(base_ / "recipe.json", recipe.dump());
    return run_program(
        fmt::format("train --recipe {} --threads 1 {}", path("recipe.json"), options));
  }
  std::vector<Json> metrics(const std::string& run) const {
    return metrics_without_times({base_ / run});
  }

  const fs::path base_ = fresh_folder("work");
};

// Lines of an enormous, very repetitive file: 400 MB out of 100 KB.
TEST_F(TokenizeAndTrain, TextThatMemoryDoesNotHold) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer takes terabytes of addresses";
#endif
  std::string lines;
  for (int i = 0; lines.size() < size_t{400} << 20; ++i) {
    lines += fmt::format("{{\"text\": \"{} {}\"}}\n", i, std::string(60'000, 'x'));
  }
  write_text(base_ / "large.jsonl.zst", zstd_compressed(lines));
  write_text(base_ / "small.jsonl", lines.substr(0, lines.find('\n') + 1));
  const int64_t text_bytes = std::ssize(lines);
  lines = {};
  // What the program takes without a text, and much less than the text besides.
  const auto in_memory = [&](const char* data, int64_t kibibytes) {
    return run_shell(
        fmt::format("ulimit -v {}; attnres tokenize --threads 2 --model {} --data {} --out {}",
                    kibibytes, path("bytes"), path(data), path(std::string(data) + " tokens")));
  };
  int64_t enough = 1 << 20;  // KiB of address space, most of it never used
  while (in_memory("small.jsonl", enough).exit_code != 0) {
    enough += 1 << 18;
    ASSERT_LT(enough, int64_t{1} << 24);
    fs::remove_all(base_ / "small.jsonl tokens");
  }
  ASSERT_LT((1 << 18) * int64_t{1024}, text_bytes);
  const Result result = in_memory("large.jsonl.zst", enough + (1 << 18));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_GT(read_token_index(base_ / "large.jsonl.zst tokens").text_bytes(), text_bytes * 9 / 10);
}

// They are 64 GiB, nearly all of it a hole: only what is looked at is read.
TEST_F(TokenizeAndTrain, TokensThatMemoryDoesNotHold) {
  write_text(base_ / "train.bin", "");
  fs::resize_file(base_ / "train.bin", uint64_t{64} << 30);
  write_text(base_ / "own.txt", real_text(5000));
  const Result result =
      train(fmt::format("--data {} --tokenizer {} --validation {} --out {}", path("train.bin"),
                        path("bytes"), path("own.txt"), path("run")));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("34.4B tokens to train on"));
  EXPECT_EQ(metrics("run").size(), 6U);
}

TEST_F(TokenizeAndTrain, GivesTheRunOfTheTextItself) {
  write_text(base_ / "text.txt", real_text(30'000));
  write_text(base_ / "own.txt", real_text(40'000).substr(35'000));
  ASSERT_EQ(tokenize("text.txt", "tokens").exit_code, 0);
  const std::string own = fmt::format("--validation {} --out ", path("own.txt"));
  ASSERT_EQ(train(fmt::format("--data {} {}", path("text.txt"), own + path("plain"))).exit_code, 0);
  const Result mapped = train(fmt::format("--data {} {}", path("tokens"), own + path("mapped")));
  ASSERT_EQ(mapped.exit_code, 0) << mapped.err;
  EXPECT_EQ(metrics("mapped"), metrics("plain"));

  // Made longer it goes on alike, knowing where the tokens are.
  const Result first = train(fmt::format("--data {} {}", path("tokens"), own + path("resumed")),
                             {{"train", {{"steps", 3}}}});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Result rest = run_program(
      fmt::format("train --resume --threads 1 --out {} --set train.steps=6", path("resumed")));
  ASSERT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(metrics("resumed"), metrics("mapped"));
}

// Documents that do not see each other have other losses, and resume to the same.
TEST_F(TokenizeAndTrain, PacksAndMasksDocuments) {
  std::string lines;
  for (int i = 0; i < 400; ++i) {
    lines += Json{{"text", fmt::format("{} squared is {}", i, i * i)}}.dump() + "\n";
  }
  write_text(base_ / "text.jsonl", lines);
  ASSERT_EQ(tokenize("text.jsonl", "tokens").exit_code, 0);
  const auto losses = [&](const Json& data, const std::string& run) {
    const Result result =
        train(fmt::format("--data {} --out {}", path("tokens"), path(run)), {{"data", data}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return metrics(run);
  };
  const auto seen = losses({{"mask_documents", false}}, "seen");
  const auto masked = losses({{"mask_documents", true}}, "masked");
  const auto packed = losses({{"packing", "documents"}, {"mask_documents", true}}, "packed");
  EXPECT_NE(seen[0]["loss"], masked[0]["loss"]);
  EXPECT_NE(packed[0]["loss"], masked[0]["loss"]);
}

// A full disk, here a limit on files, costs what was being written and nothing else.
TEST_F(TokenizeAndTrain, GoesOnAfterAFullDisk) {
  std::string lines;
  for (int i = 0; i < 3000; ++i) {
    lines += Json{{"text", fmt::format("{} {}", i, std::string(100, 'x'))}}.dump() + "\n";
  }
  write_text(base_ / "text.jsonl", lines);
  ASSERT_EQ(tokenize("text.jsonl", "whole", "--tokens-a-file 50000").exit_code, 0);
  for (const char* kibibytes : {"80", "14"}) {  // of tokens; of hashes or of the index
    const std::string out = std::string("limited ") + kibibytes;
    const Result full = run_shell(
        fmt::format("trap '' XFSZ; ulimit -f {}; attnres tokenize --model {} --data {} --out {} "
                    "--tokens-a-file 50000",
                    kibibytes, path("bytes"), path("text.jsonl"), path(out)));
    EXPECT_EQ(full.exit_code, 1);
    const Result rest = tokenize("text.jsonl", out, "--tokens-a-file 50000");
    EXPECT_EQ(rest.exit_code, 0) << rest.err;
    EXPECT_THAT(rest.out, HasSubstr("0 duplicates"));
    EXPECT_EQ(read_token_index(base_ / out).hash(), read_token_index(base_ / "whole").hash());
    open_token_folder(base_ / out, read_token_index(base_ / out));
  }
}

TEST_F(TokenizeAndTrain, TrainsATokenizerOfItsOwn) {
  std::string lines;
  for (const char c : real_text(60'000)) {
    lines += c;
    if (c == '\n' && lines.size() % 7 == 0) lines += '\0';
  }
  std::string documents;
  for (size_t begin = 0, end; begin < lines.size(); begin = end + 1) {
    end = std::min(lines.find('\0', begin), lines.size());
    documents += Json{{"body", lines.substr(begin, end - begin)}}.dump() + "\n";
  }
  write_text(base_ / "text.jsonl", documents);
  const std::string command =
      fmt::format("tokenize --train bpe --vocab-size 500 --field body --data {} --out {}",
                  path("text.jsonl"), path("tokens"));
  const Result result = run_program(command);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("trained a tokenizer of 500 tokens on 5"));
  EXPECT_THAT(result.err, HasSubstr(" KiB of text"));
  const TokenIndex index = read_token_index(base_ / "tokens");
  EXPECT_EQ(index.tokenizer, "bpe");
  EXPECT_EQ(index.vocab_size, 500);
  EXPECT_LT(index.tokens(), index.text_bytes() / 2);
  EXPECT_THAT(run_program(command).out, HasSubstr("was tokenized to its end before"));
  // The recipe says bytes; the tokens say what they are.
  const Result trained = train(fmt::format("--data {} --out {}", path("tokens"), path("run")));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(read_run_json({base_ / "run"})["recipe"]["tokenizer"]["vocab_size"], 500);
}

// Long questions, so that many rows of 32 hold no answer.
std::string conversations(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const std::string question = fmt::format("{} {}?", std::string(i % 150, 'x'), i);
    lines += Json{{"messages",
                   {{{"role", "user"}, {"content", question}},
                    {{"role", "assistant"}, {"content", fmt::format("{}!", i * i)}}}}}
                 .dump() +
             "\n";
  }
  return lines;
}

// What a model makes of tokens, in windows that are scored whole.
struct Losses {
  double answers = 0, everything = 0;  // means
  int64_t counted = 0;                 // tokens of answers
};
// Losses of the last tokens of a folder.
Losses losses_by_hand(const fs::path& tokens, int64_t last, const fs::path& model_folder) {
  const TrainingTokens all = open_token_folder(tokens, read_token_index(tokens));
  std::vector<uint32_t> raw(last);
  all.read(all.size() - last, last, 256, raw.data());
  const auto model = load_model(model_folder);
  Losses losses;
  int64_t scored = 0;
  for (int64_t start = 0; start + 1 < last; start += 32) {
    const int64_t end = std::min<int64_t>(start + 32, last);
    std::vector<int32_t> window;
    for (int64_t t = start; t < end; ++t) {
      window.push_back(static_cast<int32_t>(raw[t] & ~kNoTarget));
    }
    const std::vector<double> scores = score_sequence(LocalModel(*model), window, 32);
    for (int64_t t = start + 1; t < end; ++t) {
      const bool counts = (raw[t] & kNoTarget) == 0;
      losses.everything -= scores[t - start - 1];
      losses.answers -= counts ? scores[t - start - 1] : 0;
      losses.counted += counts;
      ++scored;
    }
  }
  losses.answers /= static_cast<double>(losses.counted);
  losses.everything /= static_cast<double>(scored);
  return losses;
}

TEST_F(TokenizeAndTrain, ScoresTheAnswersOfConversations) {
  write_text(base_ / "chats.jsonl", conversations(300));
  const Result made = tokenize("chats.jsonl", "tokens", "--chat");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const int64_t all = read_token_index(base_ / "tokens").tokens();
  for (const char* packing : {"stream", "documents"}) {
    const Json change = {{"data", {{"packing", packing}}},
                         {"train", {{"batch_size", 1}, {"eval_tokens", 1 << 20}, {"steps", 30}}}};
    const Result result =
        train(fmt::format("--data {} --out {}", path("tokens"), path(packing)), change);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("to validate, of which "));
    const RunPaths run{base_ / packing};
    const int64_t held = std::llround(0.05 * static_cast<double>(all));
    const Losses expected = losses_by_hand(base_ / "tokens", held, run.last());
    const double loss = metrics(packing).back()["val_loss"];
    EXPECT_NEAR(loss, expected.answers, 1e-4);
    EXPECT_GT(std::abs(loss - expected.everything), 1e-2);
    const auto scored = [&](const std::string& what) {
      const Result result = run_program(fmt::format(
          "eval {} --model '{}' --context 32 --json --threads 1", what, run.last().string()));
      EXPECT_EQ(result.exit_code, 0) << result.err;
      return Json::parse(result.out);
    };
    EXPECT_NEAR(scored("--run " + path(packing))["loss"].get<double>(), expected.answers, 1e-4);
    const Losses of_all = losses_by_hand(base_ / "tokens", all, run.last());
    const Json evaluated = scored("--data " + path("tokens"));
    EXPECT_NEAR(evaluated["loss"].get<double>(), of_all.answers, 1e-4);
    EXPECT_EQ(evaluated["tokens"], of_all.counted);
  }
  // Without answers there is nothing to score, or to learn.
  const Json few = {{"train", {{"eval_tokens", 32}}}};
  EXPECT_THAT(train(fmt::format("--data {} --out {}", path("tokens"), path("few")), few).err,
              HasSubstr("make train.eval_tokens larger"));
}

// What follows "next:" in what a command printed.
std::string next_command(const Result& result) {
  const size_t begin = result.out.find("next:  ");
  EXPECT_NE(begin, std::string::npos) << result.out << result.err;
  return result.out.substr(begin + 7, result.out.find('\n', begin) - begin - 7);
}

TEST_F(TokenizeAndTrain, SaysWhatToDoNextWithTokensAndModels) {
  const std::string few_steps =
      " train.steps=2 train.eval_every=2 train.eval_tokens=256 "
      "train.batch_size=1 train.context=64 --threads 1 --out ";
  write_text(base_ / "chats.jsonl", conversations(300));
  // A tokenizer alone is no model to go on with.
  EXPECT_EQ(next_command(tokenize("chats.jsonl", "plain", "--field messages --chat")),
            "attnres train --recipe recipes/tiny-block-attn-res.json --data " +
                (base_ / "plain").string() + " --set data.packing=documents");
  const std::string model = ATTNRES_SOURCE_DIR "/models/tiny-shakespeare";
  const std::string train_on =
      next_command(run_program(fmt::format("tokenize --chat --model '{}' --data {} --out {}", model,
                                           path("chats.jsonl"), path("tokens"))));
  EXPECT_EQ(train_on, fmt::format("attnres train --from {} --data {} --set data.packing=documents",
                                  model, (base_ / "tokens").string()));
  const Result trained = run_shell(train_on + few_steps + path("run"));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const std::string talk = next_command(trained);
  EXPECT_THAT(talk, HasSubstr("--chat"));
  const Result talked = run_shell("echo hello | " + talk + " --max-tokens 3");
  EXPECT_EQ(talked.exit_code, 0) << talked.err;
  // Text is gone on with.
  write_text(base_ / "text.txt", real_text(20'000));
  EXPECT_THAT(
      next_command(train(fmt::format("--data {} --out {}", path("text.txt"), path("text")))),
      HasSubstr("--prompt \"The \""));
}

TEST_F(TokenizeAndTrain, TellsOtherTokensFromThoseOfTheRun) {
  write_text(base_ / "text.txt", real_text(20'000));
  write_text(base_ / "other.txt", real_text(30'000).substr(10'000));
  ASSERT_EQ(tokenize("text.txt", "tokens").exit_code, 0);
  ASSERT_EQ(train(fmt::format("--data {} --out {}", path("tokens"), path("run"))).exit_code, 0);
  const std::string verify = fmt::format("tokenize --verify {}", path("tokens"));
  EXPECT_THAT(run_program(verify).out, HasSubstr("all as they were written"));
  fs::rename(base_ / "tokens", base_ / "moved");
  ASSERT_EQ(tokenize("other.txt", "tokens").exit_code, 0);
  const Result resumed = run_program(
      fmt::format("train --resume --threads 1 --out {} --set train.steps=9", path("run")));
  EXPECT_EQ(resumed.exit_code, 1);
  EXPECT_THAT(resumed.err, HasSubstr("data.hash"));
  // Bytes that changed under the same index are found where all are read.
  const std::string other = read_file(base_ / "tokens/tokens-00000.bin");
  write_text(base_ / "moved/tokens-00000.bin", other);
  fs::remove_all(base_ / "tokens");
  fs::rename(base_ / "moved", base_ / "tokens");
  const Result damaged = run_program(verify);
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.err, AllOf(HasSubstr("1 problem found"), HasSubstr("tokens-00000.bin")));
  const Result text = run_program("tokenize --verify " + path("text.txt"));
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.err, HasSubstr("text.txt: is no folder of tokens"));
}

TEST_F(TokenizeAndTrain, SaysWhatIsWrong) {
  write_text(base_ / "text.txt", real_text(20'000));
  const auto expect_error = [](const Result& result, int exit_code, const auto& matcher) {
    EXPECT_EQ(result.exit_code, exit_code);
    EXPECT_THAT(result.err, matcher);
  };
  expect_error(run_program(fmt::format("tokenize --model {} --out {}", path("bytes"), path("x"))),
               2, HasSubstr("--out needs --data"));
  expect_error(
      run_program(fmt::format("tokenize --model {} --data {}", path("bytes"), path("text.txt"))), 2,
      HasSubstr("name a folder for their tokens (--out)"));
  expect_error(tokenize("none.jsonl", "x"), 1, HasSubstr("no such file"));
  expect_error(run_program("tokenize --out x --data y"), 2, HasSubstr("--train"));
  expect_error(run_program(fmt::format("tokenize --train words --data {} --out {}",
                                       path("text.txt"), path("x"))),
               2, AllOf(HasSubstr("words"), HasSubstr("sentencepiece")));

  write_text(base_ / "train.bin", std::string(20'000, 'a'));
  expect_error(train(fmt::format("--data {} --out {}", path("train.bin"), path("run"))), 2,
               AllOf(HasSubstr("which tokenizer"), HasSubstr("--tokenizer")));
  // 'aa' is token 24929.
  expect_error(train(fmt::format("--data {} --tokenizer {} --validation {} --out {}",
                                 path("train.bin"), path("bytes"), path("text.txt"), path("run"))),
               1, AllOf(HasSubstr("is 24929"), HasSubstr("256 tokens")));
  ASSERT_EQ(tokenize("text.txt", "tokens").exit_code, 0);
  fs::resize_file(base_ / "tokens/tokens-00000.bin", 100);
  expect_error(train(fmt::format("--data {} --out {}", path("tokens"), path("cut"))), 1,
               AllOf(HasSubstr("100 bytes"), HasSubstr("truncated")));
}

}  // namespace
}  // namespace attnres::testing::tokenize_test
