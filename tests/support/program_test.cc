#include "attnres/support/program.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace attnres::program_test {
namespace {

class TypedProgram : public ::testing::Test {
 protected:
  ~TypedProgram() override { set_program("attnres"); }
};

TEST_F(TypedProgram, IsWhatCommandsBeginWith) {
  EXPECT_EQ(program(), "attnres");
  set_program("");  // a caller that gives no name
  EXPECT_EQ(program(), "attnres");
  set_program("my builds/attnres");
  EXPECT_EQ(program(), "'my builds/attnres'");
  set_program("my python/python3 -m attnres");
  EXPECT_EQ(program(), "'my python/python3' -m attnres");
}

TEST_F(TypedProgram, StandsInExamplesWhereACommandBegins) {
  const std::string examples =
      "attnres is what this is: attnres train says so.\n"
      "\n"
      "  attnres train --recipe a.json\n"
      "  mpirun -n 2 attnres train --out runs/two \\\n"
      "    --set name=attnres\n";
  EXPECT_EQ(as_typed("  attnres train"), "  attnres train");
  set_program("build/attnres");
  EXPECT_EQ(as_typed(examples),
            "build/attnres is what this is: attnres train says so.\n"
            "\n"
            "  build/attnres train --recipe a.json\n"
            "  " +
                mpirun_command(2) +
                " build/attnres train --out runs/two \\\n"
                "    --set name=attnres\n");
  EXPECT_EQ(as_typed(""), "");
  EXPECT_EQ(as_typed("mpirun -n 2 others"), "mpirun -n 2 others");
}

TEST(MpirunCommand, HasWhatOpenMpiAsksFor) {
  const std::string two = mpirun_command(2), many = mpirun_command(100'000);
  EXPECT_EQ(two.find("--allow-run-as-root") != std::string::npos, ::geteuid() == 0);
  EXPECT_TRUE(two.ends_with(" -n 2")) << two;
  EXPECT_NE(many.find("--oversubscribe"), std::string::npos) << many;
}

}  // namespace
}  // namespace attnres::program_test
