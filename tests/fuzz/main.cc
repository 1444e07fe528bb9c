// One target under libFuzzer, whose main this has:
//   fuzz_NAME [libFuzzer's options] CORPUS..
//   fuzz_NAME --write-seeds FOLDER
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "tests/fuzz/fuzz_target.h"

using attnres::testing::fuzz_targets;

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::string((*argv)[1]) != "--write-seeds") return 0;
  const std::filesystem::path folder = (*argv)[2];
  const auto seeds = fuzz_targets().front().seeds();
  size_t read = 0;
  for (size_t i = 0; i < seeds.size(); ++i) {
    std::ofstream(folder / ("seed-" + std::to_string(i)), std::ios::binary) << seeds[i];
    if (attnres::testing::run_target(fuzz_targets().front(), seeds[i])) ++read;
  }
  std::cout << seeds.size() << " seeds, of which " << read << " are not refused" << std::endl;
  std::exit(0);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  attnres::testing::run_target(fuzz_targets().front(), {reinterpret_cast<const char*>(data), size});
  return 0;
}
