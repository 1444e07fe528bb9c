// Several processes that continue and score texts as one tensor group, started as users do.
#include <gmock/gmock.h>

#include <csignal>

#include "attnres/parallel/mpi_communicator.h"
#include "tests/end_to_end/processes.h"
#include "tests/end_to_end/runs.h"
#include "tests/parallel/mpirun.h"
#include "tests/serve/http_client.h"

namespace attnres::testing::group_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kModel =
    " --threads 1 --model '" ATTNRES_SOURCE_DIR "/models/tiny-shakespeare' ";

std::string program(const std::string& command, const std::string& more) {
  return "'" ATTNRES_PROGRAM "' " + command + kModel + more;
}

class MpirunOfAGroup : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  }

  static std::string output_of(const std::string& line) {
    const Result result = run_shell(line);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }
};

TEST_F(MpirunOfAGroup, ContinuesTextsAsOneProcessDoes) {
  const std::string generate = program("generate", "--prompt - --temperature 0 --max-tokens 24");
  const std::string expected = output_of("echo KING HENRY: | " + generate);
  EXPECT_GT(expected.size(), 20u);
  EXPECT_EQ(output_of("echo KING HENRY: | env " + mpirun(2, generate)), expected);

  // Many at once, of which some share a beginning, and one is token ids.
  const fs::path folder = fresh_folder("prompts");
  write_text(folder / "prompts.jsonl", R"("First Citizen: before we proceed")"
                                       "\n"
                                       R"("First Citizen: before we proceed any further")"
                                       "\n"
                                       R"({"ids": [75, 73, 78, 71]})"
                                       "\n"
                                       R"({"prompt": "QUEEN", "id": 7})"
                                       "\n");
  const auto results = [&](const std::string& name, int processes) {
    const std::string command =
        program("generate", fmt::format("--prompts {} --out {} --temperature 0 --max-tokens 9 "
                                        "--sequences 3 --stop E --weights bf16",
                                        quoted(folder / "prompts.jsonl"), quoted(folder / name)));
    output_of(processes > 1 ? mpirun(processes, command) : command);
    return read_file(folder / name);
  };
  EXPECT_EQ(results("two", 2), results("one", 1));
}

TEST_F(MpirunOfAGroup, ScoresAsOneProcessDoes) {
  const auto logprobs = [&](const std::string& ids, int processes) {
    const std::string command = program("score", "--json --ids " + ids);
    return Json::parse(output_of(processes > 1 ? mpirun(processes, command) : command))["logprobs"]
        .get<std::vector<double>>();
  };
  const auto difference = [](const std::vector<double>& a, const std::vector<double>& b) {
    EXPECT_EQ(a.size(), b.size());
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    return largest;
  };
  const std::vector<double> alone = logprobs("75,73,78,71,32", 1);
  EXPECT_LT(difference(logprobs("75,73,78,71,32", 2), alone), 1e-4);
  EXPECT_GT(difference(logprobs("75,73,78,72,32", 1), alone), 1e-2);  // negative control
}

TEST_F(MpirunOfAGroup, SaysOnceWhatIsWrong) {
  const auto refused = [&](const std::string& command) {
    const Result result = run_shell(command);
    EXPECT_NE(result.exit_code, 0);
    const size_t first = result.err.find("attnres: error: ");
    EXPECT_NE(first, std::string::npos) << result.err;
    EXPECT_EQ(result.err.find("attnres: error: ", first + 1), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
    return result.err;
  };
  const auto generate = [](const std::string& more) {
    return program("generate", "--prompt a --max-tokens 2 " + more);
  };
  EXPECT_THAT(refused(mpirun(1, generate("")) + " : -n 1 " + generate("--seed 7")),
              HasSubstr("rank 1: seed: 1 -> 7"));
  EXPECT_THAT(refused(mpirun(3, generate(""))), HasSubstr("cannot be shared out equally to the 3"));
  EXPECT_THAT(refused(mpirun(2, generate("--weights q8_0"))),
              AllOf(HasSubstr("has 176 of down_proj"), HasSubstr("f16")));
  EXPECT_THAT(refused(mpirun(2, program("generate", "--prompt-file none"))), HasSubstr("none"));
  EXPECT_THAT(refused(mpirun(2, "'" ATTNRES_PROGRAM "' mechanisms")),
              HasSubstr("mechanisms: 2 processes were started"));
}

// All of a server's processes end with one that is killed.
TEST_F(MpirunOfAGroup, ServesAndEndsWithAProcessThatIsKilled) {
  Child launcher = Child::of_shell(mpirun(2, program("serve", "--port 0")));
  const std::string listening = "listening on http://127.0.0.1:";
  ASSERT_TRUE(launcher.wait_until([&] {
    const std::string said = launcher.errors();
    const size_t at = said.find(listening);
    return at != std::string::npos && said.find('\n', at) != std::string::npos;
  })) << launcher.errors();
  const std::string said = launcher.errors();
  Client client(std::stoi(said.substr(said.find(listening) + listening.size())));
  client.send(
      post("/v1/completions",
           R"({"prompt": "KING", "max_tokens": 3, "temperature": 0, "depth_weights": true})"));
  EXPECT_THAT(client.read_all(), AllOf(HasSubstr("200 OK"), HasSubstr("weights")));

  const Ranks ranks(launcher.id());
  ASSERT_EQ(ranks.count(), 2u);
  ranks.signal_last(SIGKILL);
  EXPECT_NE(launcher.wait(), 0);
  EXPECT_THAT(launcher.errors(), HasSubstr("signal 9 (Killed)"));
  EXPECT_TRUE(ranks.all_end());
}

}  // namespace
}  // namespace attnres::testing::group_test
