// What is trained beside a model, from the command line.
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/support/json.h"
#include "tests/app/program.h"

namespace attnres::testing::app_adapter_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A model of 8 bits and a text.
class Beside : public ::testing::Test {
 protected:
  Beside() {
    write_file(at("plain.json"), R"({"name": "plain",
        "model": {"layers": 3, "width": 64, "heads": 4, "ffn_width": 96, "init_std": 0.2},
        "train": {"steps": 4, "batch_size": 2, "context": 16, "eval_every": 4, "eval_tokens": 64,
                  "checkpoint_every": 4, "sample_tokens": 0}})");
    write_file(at("text"), std::string(4000, 'a') + std::string(4000, 'b'));
    run(fmt::format("train --recipe {} --data {} --out {}", at("plain.json"), at("text"),
                    at("run")));
    run(fmt::format("export --model {} --format gguf --type q8_0 --out {}", at("run"),
                    at("model.gguf")));
  }

  std::string at(const char* name) const { return (folder_ / name).string(); }
  static std::string run(const std::string& arguments) {
    const Result result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.err;
    return result.out;
  }
  static std::string refusal(const std::string& arguments) {
    const Result result = run_program(arguments);
    EXPECT_NE(result.exit_code, 0) << arguments;
    return result.err;
  }
  static std::vector<double> scores(const std::string& model) {
    const std::string out =
        run(fmt::format("score --model {} --ids 97,97,98,98,10,97 --json", model));
    return parse_json(out, "score")["logprobs"].get<std::vector<double>>();
  }
  static double difference(const std::vector<double>& a, const std::vector<double>& b) {
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
    return most;
  }
  void train(const std::string& arguments) const {
    run(
        fmt::format("train --data {} {} train.steps=8 train.context=16 train.batch_size=2 "
                    "train.warmup=1 train.learning_rate=0.05 train.sample_tokens=0",
                    at("text"), arguments));
  }

  const fs::path folder_ = fresh_folder("beside");
};

TEST_F(Beside, IsTakenAsAModelOrBesideOneAndIsMerged) {
  const std::string model = at("model.gguf"), mine = at("mine");
  train(fmt::format("--from {} --out {} --set model.lora.rank=2", model, mine));
  const std::vector<double> adapted = scores(mine);
  EXPECT_GT(difference(adapted, scores(model)), 0.01);
  EXPECT_EQ(scores(model + " --adapter " + mine), adapted);
  EXPECT_EQ(scores(at("run") + std::string(" --adapter ") + mine).size(), adapted.size());
  for (const char* command : {"inspect --model {}", "generate --model {} --prompt a --max-tokens 2",
                              "eval --model {} --data "}) {
    const std::string line = fmt::format(fmt::runtime(command), mine);
    run(line.ends_with("--data ") ? line + at("text") : line);
  }
  run(fmt::format("export --model {} --out {}", mine, at("merged")));
  // Beside packed weights inputs are rounded too.
  EXPECT_LT(difference(scores(at("merged")), adapted), 0.05);
  EXPECT_THAT(run(fmt::format("inspect --model {} --json", at("merged"))),
              ::testing::Not(HasSubstr("lora_A")));
}

TEST_F(Beside, IsWhatARetrofitAdds) {
  const std::string model = at("model.gguf"), mixed = at("mixed");
  EXPECT_THAT(
      run(fmt::format("retrofit --model {} --block-size 2 --beside --out {}", model, mixed)),
      HasSubstr("parameters are new; log-probabilities of 64 random tokens differ by at most"));
  EXPECT_LT(difference(scores(mixed), scores(model)), 0.02);
  const uintmax_t size = fs::file_size(fs::path(mixed) / "adapter_model.safetensors");
  EXPECT_LT(size, fs::file_size(model) / 4);
  train(fmt::format("--from {} --out {} --set 'train.rates={{\"*_res_*\": 1, \"*\": 0}}'", mixed,
                    at("queries")));
  EXPECT_GT(difference(scores(at("queries")), scores(mixed)), 1e-4);
  EXPECT_THAT(run(fmt::format("inspect --model {} --data {}", at("queries"), at("text"))),
              HasSubstr("mean depth weights"));
  // Both at once.
  train(
      fmt::format("--from {} --out {} --set model.lora.rank=1 "
                  "'train.rates={{\"*_res_*\": 1}}'",
                  mixed, at("both")));
  EXPECT_GT(difference(scores(at("both")), scores(at("queries"))), 1e-4);
}

TEST_F(Beside, SaysWhatDoesNotFit) {
  const std::string model = at("model.gguf"), mine = at("mine");
  train(fmt::format("--from {} --out {} --set model.lora.rank=2", model, mine));
  EXPECT_THAT(refusal(fmt::format("retrofit --model {} --block-size 2 --beside --out {}", mine,
                                  at("again"))),
              HasSubstr("has an adapter already"));
  EXPECT_THAT(refusal(fmt::format("score --ids 97,98 --model {} --adapter {}", mine, mine)),
              HasSubstr("is an adapter itself"));
  EXPECT_THAT(refusal(fmt::format("score --ids 97,98 --model {} --adapter {}", model, model)),
              HasSubstr("is no adapter, but a model"));
  EXPECT_THAT(refusal(fmt::format("train --recipe {} --data {} --out {} --set model.lora.rank=2",
                                  at("plain.json"), at("text"), at("scratch"))),
              AllOf(HasSubstr("model.lora"), HasSubstr("--from")));
  fs::remove(model);
  EXPECT_THAT(refusal(fmt::format("score --ids 97,98 --model {}", mine)),
              AllOf(HasSubstr("which is not here"), HasSubstr("--adapter")));
}

}  // namespace
}  // namespace attnres::testing::app_adapter_test
