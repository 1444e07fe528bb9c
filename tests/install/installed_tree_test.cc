// The installed tree, as a project elsewhere uses it: the examples, built and run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/app/program.h"

namespace attnres::testing::installed_tree_test {
namespace {

using ::testing::HasSubstr;

// As after building the program alone: not everything that is installed was built.
void forget_kernels_library() {
  std::filesystem::remove(ATTNRES_BUILD_DIR "/libattnres_kernels.so");
}

class InstalledTree : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { forget_kernels_library(); }
  void SetUp() override {
    const Result result = run_shell(fmt::format("'{}' --install '{}' --prefix '{}'", ATTNRES_CMAKE,
                                                ATTNRES_BUILD_DIR, prefix_.string()));
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }

  // The shell's line that configures an example.
  std::string configure(const std::filesystem::path& build, const std::string& options,
                        const std::string& example = "cpp_consumer") const {
    return fmt::format(
        "'{}' -G Ninja -S '{}/examples/{}' -B '{}' -DCMAKE_PREFIX_PATH='{}' "
        "-DCMAKE_C_FLAGS='{}' -DCMAKE_CXX_FLAGS='{}' {}",
        ATTNRES_CMAKE, ATTNRES_SOURCE_DIR, example, build.string(), prefix_.string(),
        ATTNRES_SANITIZE_FLAGS, ATTNRES_SANITIZE_FLAGS, options);
  }

  const std::filesystem::path prefix_ = fresh_folder("installed");
};

TEST_F(InstalledTree, ConsumersBuildAndRun) {
  const std::filesystem::path build = fresh_folder("consumer");
  const Result built =
      run_shell(configure(build, "-DLibTorch_ROOT='" ATTNRES_LIBTORCH "'") +
                fmt::format(" && '{}' --build '{}'", ATTNRES_CMAKE, build.string()));
  ASSERT_EQ(built.exit_code, 0) << built.out << built.err;
  // dh_0 / dw = alpha_0 alpha_1 (e_0 - e_1) / RMS(e_0), and RMS(e_0) is close to 1 / 2.
  const std::string expected =
      "h 0.9820136 0.0179864 0.0000000 0.0000000\n"
      "dh0/dw 0.0353256 -0.0353256 0.0000000 0.0000000\n";
  for (const char* program : {"with_tensors", "with_pointers"}) {
    const Result run = run_shell(fmt::format("'{}'", (build / program).string()));
    EXPECT_EQ(run.exit_code, 0) << program << run.err;
    EXPECT_EQ(run.out, expected) << program;
  }
}

// It needs no torch to build, and continues what the program continues.
TEST_F(InstalledTree, ProgramsAreBuiltOnTheEngine) {
  const std::filesystem::path build = fresh_folder("engine_consumer");
  const Result built =
      run_shell(configure(build, "", "engine_consumer") +
                fmt::format(" && '{}' --build '{}'", ATTNRES_CMAKE, build.string()));
  ASSERT_EQ(built.exit_code, 0) << built.out << built.err;
  const std::string model = ATTNRES_SOURCE_DIR "/models/tiny-shakespeare";
  std::string expected;
  for (const char* prompt : {"KING", "QUEEN", "FOOL"}) {
    const Result alone = run_program(fmt::format(
        "generate --model '{}' --prompt {} --temperature 0 --max-tokens 20 --stop '\n\n'", model,
        prompt));
    expected += fmt::format("[{}{}]\n", prompt, alone.out.substr(0, alone.out.size() - 1));
  }
  for (const char* program : {"in_cpp", "in_c"}) {
    const Result run = run_shell(fmt::format("'{}' '{}'", (build / program).string(), model));
    EXPECT_EQ(run.exit_code, 0) << program << run.err;
    EXPECT_EQ(run.out, expected) << program;
    const Result missing = run_shell(fmt::format("'{}' /nowhere", (build / program).string()));
    EXPECT_EQ(missing.exit_code, 1);
    EXPECT_THAT(missing.err, HasSubstr("/nowhere"));
  }
}

// Nobody has to know what to include before it; those of C are C.
TEST_F(InstalledTree, EveryHeaderCompilesAlone) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "compiled, and not run: the same without sanitizers";
#endif
  const std::filesystem::path include = prefix_ / "include";
  int headers = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(include)) {
    if (!entry.is_regular_file()) continue;
    ++headers;
    const std::string header = entry.path().string();
    const bool is_c = entry.path().parent_path() == include;
    std::string line = fmt::format(
        "c++ -std=c++20 -Wall -Werror -fsyntax-only -x c++ -I '{0}' -isystem '{1}/include' "
        "-isystem '{1}/include/torch/csrc/api/include' -include '{2}' /dev/null",
        include.string(), ATTNRES_LIBTORCH, header);
    if (is_c) {
      line += fmt::format(" && cc -std=c11 -Wall -Wextra -Werror -fsyntax-only -x c '{}'", header);
    }
    const Result result = run_shell(line);
    EXPECT_EQ(result.exit_code, 0) << header << "\n" << result.err;
  }
  EXPECT_GE(headers, 8);
}

TEST_F(InstalledTree, MissingTorchIsNamed) {
  const Result result =
      run_shell(configure(fresh_folder("no_torch"), "-DLibTorch_INCLUDE_DIR=/nowhere"));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("attnres::ops needs torch"));
}

TEST_F(InstalledTree, IsHardened) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "sanitizers have checks of their own";
#endif
  const std::string check = "'" ATTNRES_SOURCE_DIR "/tests/install/check_hardened' ";
  const Result result =
      run_shell(check + fmt::format("'{0}'/bin/* '{0}'/lib*/*.so", prefix_.string()));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const Result refuses = run_shell(check + "--self-test");
  EXPECT_EQ(refuses.exit_code, 0) << refuses.err;
}

TEST_F(InstalledTree, ProgramRuns) {
  const Result result = run_shell(fmt::format("'{}/bin/attnres' --help", prefix_.string()));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  // What it writes about itself is there too.
  const std::filesystem::path share = prefix_ / "share";
  EXPECT_THAT(read_file(share / "man/man1/attnres-train.1"), HasSubstr("\\fB\\-\\-recipe\\fR"));
  for (const char* completion :
       {"bash-completion/completions/attnres", "zsh/site-functions/_attnres",
        "fish/vendor_completions.d/attnres.fish"}) {
    EXPECT_THAT(read_file(share / completion), HasSubstr("tiny-residual")) << completion;
  }
}

}  // namespace
}  // namespace attnres::testing::installed_tree_test
