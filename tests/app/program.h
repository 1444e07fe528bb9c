// Runs the program as its users do.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "attnres/support/file.h"
#include "tests/text/test_files.h"

namespace attnres::testing {

struct Result {
  int exit_code = 0;
  std::string out, err;
};

// What a process left in `folder`, by the status with which it ended.
inline Result result_of(int status, const std::filesystem::path& folder) {
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          read_file(folder / "out"), read_file(folder / "err")};
}

// `shell` is a line for sh, in which "attnres" stands for the program.
inline Result run_shell(const std::string& shell) {
  const std::filesystem::path folder = fresh_folder("program");
  const auto quoted = [&](const char* name) {
    return fmt::format("'{}'", (folder / name).string());
  };
  // On the PATH, so that it prints its commands as "attnres ..".
  const std::string folder_of_program =
      std::filesystem::path(ATTNRES_PROGRAM).parent_path().string();
  const std::string line = "PATH='" + folder_of_program + "':$PATH; { " + shell + "; } >" +
                           quoted("out") + " 2>" + quoted("err");
  return result_of(std::system(line.c_str()), folder);
}

// The same for "attnres " + arguments, without a program's start where no shell is needed for it:
// libtorch takes 0.4 s to load, 1.1 s under sanitizers. main is called in a child of this process.
Result run_program(const std::string& arguments);

}  // namespace attnres::testing
