// Where the runs of a study compute.
#include <gmock/gmock.h>

#include "attnres/study/study.h"
#include "attnres/support/compute_device.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/study/tiny_study.h"
#include "tests/text/test_files.h"

namespace attnres::testing::study_device_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Property;
using ::testing::ThrowsMessage;

constexpr int64_t kMemory = int64_t{1} << 31;

// A machine with two GPUs, as the CUDA library would say.
const GpuLibrary kTwoGpus = {.list =
                                 [] {
                                   Gpus gpus;
                                   gpus.all = {{"Pretend", kMemory}, {"Pretend", kMemory}};
                                   return gpus;
                                 },
                             .free_memory = [](int) { return kMemory; },
                             .peak_memory = [](int) { return kMemory; }};

class Heard : public StudyObserver {
 public:
  void on_message(std::string_view line) override { lines.emplace_back(line); }
  std::vector<std::string> lines;
};

// A study whose program says how it was called, and does nothing.
class StudyDevice : public ::testing::Test {
 protected:
  StudyDevice() {
    Json study = tiny_study();
    study["seeds"] = 1;
    study["axes"]["mixing"].erase("block");
    const fs::path text = base_ / "text";
    attnres::write_text(text, real_text(4000));
    job_.study = read_study(write_study(base_ / "s.json", study));
    job_.data = {text};
    job_.out = base_ / "out";
    job_.program = base_ / "program";
    job_.speed_of = [](const Recipe&) { return MachineSpeed{.matmul = 1e11, .copy = 3e10}; };
    attnres::write_text(job_.program, "#!/bin/sh\necho \"called with $*\"\n");
    fs::permissions(job_.program, fs::perms::owner_all);
    gpu_library = &kTwoGpus;
  }
  ~StudyDevice() override { gpu_library = nullptr; }

  // What the run was called with.
  std::string call(const std::string& device, Heard& heard) {
    job_.device = device;
    run_study(job_, heard);
    return read_file(StudyPaths{job_.out}.log("residual-seed1"));
  }
  std::string call(const std::string& device) {
    Heard heard;
    return call(device, heard);
  }
  std::string recorded() const {
    return read_json(StudyPaths{job_.out}.study_json()).at("device").get<std::string>();
  }

  const fs::path base_ = fresh_folder("study");
  StudyJob job_;
};

TEST_F(StudyDevice, IsTheCpuWhereNothingIsSaid) {
  EXPECT_THAT(call(""), AllOf(HasSubstr("called with train"), Not(HasSubstr("--device"))));
  EXPECT_EQ(recorded(), "cpu");
}

TEST_F(StudyDevice, IsThatOfItsFirstCall) {
  EXPECT_THAT(call("cuda"), HasSubstr("--device cuda:0"));
  EXPECT_EQ(recorded(), "cuda:0");
  Heard heard;
  EXPECT_THAT(call("", heard), HasSubstr("--device cuda:0"));
  EXPECT_THAT(heard.lines, Not(Contains(HasSubstr("from here on"))));
}

TEST_F(StudyDevice, ChangesAloud) {
  call("cuda:1");
  Heard heard;
  EXPECT_THAT(call("cpu", heard), Not(HasSubstr("--device")));
  EXPECT_THAT(heard.lines, Contains(AllOf(HasSubstr("from here on runs compute on cpu"),
                                          HasSubstr("until now on cuda:1"))));
  EXPECT_EQ(recorded(), "cpu");
}

// Before anything is written.
TEST_F(StudyDevice, ThatIsNotThereIsRefused) {
  EXPECT_THAT([&] { call("cuda:2"); },
              ThrowsMessage<UsageError>(HasSubstr("--device cuda:2: this process sees 2 GPUs")));
  EXPECT_FALSE(fs::exists(job_.out));
}

// Runs at once share it.
TEST_F(StudyDevice, HasTheMemoryOfRunsAtOnce) {
  job_.study.seeds = 8;
  job_.jobs = 8;
  Heard on_gpu;
  call("cuda", on_gpu);
  EXPECT_THAT(on_gpu.lines, Contains(AllOf(HasSubstr("8 runs at once need about"),
                                           HasSubstr("cuda:0 (Pretend) has 2.0 GiB"))));
  EXPECT_EQ(runs_side_by_side(8, 1, "cuda:0"), 1);
}

}  // namespace
}  // namespace attnres::testing::study_device_test
