#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/conformance/test_vectors.h"
#include "attnres/formats/safetensors.h"
#include "attnres/support/json.h"
#include "tests/app/program.h"

namespace attnres::testing::vectors_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The vectors of two mechanisms.
class Vectors : public ::testing::Test {
 protected:
  Vectors() {
    const Result result =
        run_program("vectors --out " + path_.string() + " --mechanism attn_res block_attn_res");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("of 25 entries"));
  }

  // A file of one result of another program.
  fs::path results(const std::string& name, const std::string& from) const {
    const fs::path path = fresh_folder("results") / "mine.safetensors";
    write_safetensors(path, {{name, SafetensorsFile(path_).read(from)}});
    return path;
  }

  const fs::path path_ = fresh_folder("vectors") / "vectors.safetensors";
};

TEST_F(Vectors, MatchThemselves) {
  const Result result = run_program("diagnose " + path_.string());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("attn_res: matches"));
  EXPECT_THAT(result.out, HasSubstr("block_attn_res.heads=4: matches"));
}

TEST_F(Vectors, DiagnoseNamesAMistake) {
  // No final aggregation: the output of the last sublayer.
  const fs::path mine = results("attn_res/mixed.8", "attn_res/output.7");
  const Result result = run_program("diagnose " + mine.string());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, StartsWith("attn_res: no final aggregation"));
  EXPECT_THAT(result.out, HasSubstr("departs first at mixed.8"));
  EXPECT_EQ(result.err, "attnres: error: diagnose: 1 of 1 entry does not match\n");

  const Result as_json = run_program("diagnose --json " + mine.string());
  EXPECT_EQ(as_json.exit_code, 1);
  const Json report = parse_json(as_json.out, "diagnose");
  EXPECT_FALSE(report.at("ok").get<bool>());
  const Json& entry = report.at("entries").at(0);
  EXPECT_EQ(entry.at("mistakes").at(0).at("name"), "output_is_last_output");
  EXPECT_EQ(entry.at("departure").at("tensor"), "mixed.8");
  EXPECT_EQ(entry.at("found"), 1);
}

TEST_F(Vectors, DiagnoseSaysWhenItKnowsNoMistake) {
  const fs::path mine = results("attn_res/mixed.4", "attn_res/output.5");
  const Result result = run_program("diagnose " + mine.string());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, StartsWith("attn_res: none of the known mistakes"));
}

TEST_F(Vectors, RefusesWhatItDoesNotKnow) {
  const Result no_mechanism = run_program("vectors --out x --mechanism attn_rse");
  EXPECT_EQ(no_mechanism.exit_code, 2);
  EXPECT_THAT(no_mechanism.err, HasSubstr("there is no mechanism attn_rse"));
  EXPECT_EQ(run_program("vectors").exit_code, 2);
  EXPECT_EQ(run_program("vectors --markdown --out x").exit_code, 2);
  const Result nothing = run_program("diagnose");
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("diagnose: name a safetensors file of results"));
  EXPECT_THAT(nothing.err, HasSubstr("named as attnres vectors names them; see "));

  const Result no_file = run_program("diagnose nowhere.safetensors");
  EXPECT_EQ(no_file.exit_code, 1);
  EXPECT_THAT(no_file.err, HasSubstr("nowhere.safetensors"));
  const Result no_name =
      run_program("diagnose " + results("attn_res/mixt.4", "attn_res/mixed.4").string());
  EXPECT_EQ(no_name.exit_code, 1);
  EXPECT_EQ(no_name.out, "");
  EXPECT_THAT(no_name.err, HasSubstr("did you mean mixed.4"));
}

// Every mechanism written once more, from the texts in the file alone.
TEST(VectorsOfAll, AgreeWithPlainPython) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "needs python3";
  const fs::path path = fresh_folder("vectors") / "all.safetensors";
  const Result written = run_program("vectors --out " + path.string());
  ASSERT_EQ(written.exit_code, 0) << written.err;
  const std::string script = std::string(ATTNRES_SOURCE_DIR) + "/tests/python/vectors_check.py";
  const Result result = run_shell("python3 -B " + script + " " + path.string());
  const size_t entries = test_vector_entries().size() + 1;  // and the decays of Kimi K3
  EXPECT_EQ(result.out, fmt::format("{0} of {0} entries agree\n", entries)) << result.err;
  EXPECT_EQ(result.exit_code, 0);
}

TEST(VectorsOfAll, AreExplainedOnThePage) {
  const std::string page = read_file(std::string(ATTNRES_SOURCE_DIR) + "/docs/test-vectors.md");
  const Result result = run_program("vectors --markdown");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(page.substr(page.find("## Every mechanism\n")), result.out)
      << "write that section again: attnres vectors --markdown";
}

// The program in the documentation, as it stands there.
TEST_F(Vectors, TheDocumentedExampleAgrees) {
  if (std::system("python3 -c 'import numpy, safetensors' 2>/dev/null") != 0) {
    GTEST_SKIP() << "needs python3 with numpy and safetensors";
  }
  const std::string page = read_file(std::string(ATTNRES_SOURCE_DIR) + "/docs/test-vectors.md");
  const std::string fence = "```python\n";
  const size_t begin = page.find(fence) + fence.size();
  const fs::path script = fresh_folder("example") / "check.py";
  write_text(script, page.substr(begin, page.find("```", begin) - begin));
  const Result result = run_shell("python3 " + script.string() + " " + path_.string());
  EXPECT_EQ(result.out, "attn_res: all 9 sites agree\n") << result.err;
}

}  // namespace
}  // namespace attnres::testing::vectors_test
