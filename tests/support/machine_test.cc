#include "attnres/support/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "attnres/support/file.h"

namespace attnres::machine_test {
namespace {
namespace fs = std::filesystem;
using ::testing::ElementsAre;

constexpr int64_t kMiB = 1 << 20;

// A made-up /proc and /sys: 16 GiB, 8 of them available, no cgroup limits.
class FakeMachine : public ::testing::Test {
 protected:
  FakeMachine() : root_(fs::path(::testing::TempDir()) / "machine") {
    fs::remove_all(root_);
    put("proc/cpuinfo",
        "processor\t: 0\nmodel\t\t: 2\nmodel name\t: A CPU @ 2 GHz\n"
        "flags\t\t: fpu sse4_2 avx fma avx2 avx512fake\n");
    put("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n");
    put("sys/devices/system/cpu/cpu0/cache/index0/size", "48K\n");
    put("sys/devices/system/cpu/cpu0/cache/index3/size", "32768K\n");
    put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  }

  void put(const fs::path& path, const std::string& text) {
    make_folder((root_ / path).parent_path());
    write_file(root_ / path, text);
  }

  fs::path root_;
};

TEST_F(FakeMachine, IsDescribed) {
  const Machine machine = describe_machine(root_);
  EXPECT_EQ(machine.cpu, "A CPU @ 2 GHz");
  EXPECT_THAT(machine.instruction_sets, ElementsAre("SSE4.2", "AVX", "FMA", "AVX2"));
  EXPECT_EQ(machine.cache, 32 * kMiB);
  EXPECT_EQ(machine.memory, 16384 * kMiB);
  EXPECT_EQ(machine.huge_pages, "madvise");
  EXPECT_EQ(available_memory(root_), 8192 * kMiB);
}

TEST_F(FakeMachine, ProcessorsOfArmAreNamedByTheirNumbers) {
  put("proc/cpuinfo",
      "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
      "CPU part\t: 0xd0c\nCPU revision\t: 1\n");
  EXPECT_EQ(describe_machine(root_).cpu, "ARM Neoverse-N1");
  EXPECT_THAT(describe_machine(root_).instruction_sets, ElementsAre("NEON", "SVE"));
  put("proc/cpuinfo", "CPU implementer\t: 0x61\nCPU part\t: 0xd0c\n");
  EXPECT_EQ(cpu_model(root_), "ARM64, implementer 0x61, part 0xd0c");
}

TEST_F(FakeMachine, WithoutProcTheKernelIsAsked) {
  fs::remove_all(root_ / "proc");
  const int64_t all = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  EXPECT_EQ(describe_machine(root_).memory, all);
  EXPECT_GT(available_memory(root_), 0);
  EXPECT_LE(available_memory(root_), all);
#ifdef __x86_64__
  // The kernel's file has it from the processor too.
  EXPECT_EQ(cpu_model(root_), cpu_model());
#endif
}

TEST_F(FakeMachine, CgroupVersion2LimitsMemoryAndCores) {
  put("proc/self/cgroup", "0::/slice/job\n");
  put("sys/fs/cgroup/slice/job/memory.max", "max\n");
  put("sys/fs/cgroup/slice/job/memory.current", "1048576\n");
  put("sys/fs/cgroup/slice/memory.max", "1073741824\n");  // the group above has the limit
  put("sys/fs/cgroup/slice/memory.current", "536870912\n");
  put("sys/fs/cgroup/slice/memory.stat", "anon 1\ninactive_file 104857600\n");
  put("sys/fs/cgroup/slice/job/cpu.max", "50000 100000\n");
  EXPECT_EQ(available_memory(root_), (1024 - 512 + 100) * kMiB);
  const Machine machine = describe_machine(root_);
  EXPECT_EQ(machine.memory, 1024 * kMiB);
  EXPECT_EQ(machine.cores, 1);
}

TEST_F(FakeMachine, CgroupVersion1LimitsMemory) {
  put("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/job\n0::/\n");
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2147483648\n");
  put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1073741824\n");
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n");
  EXPECT_EQ(available_memory(root_), 1024 * kMiB);
  EXPECT_EQ(describe_machine(root_).memory, 2048 * kMiB);
}

TEST_F(FakeMachine, LimitAboveTheMachineDoesNotCount) {
  put("proc/self/cgroup", "0::/\n");
  put("sys/fs/cgroup/memory.max", "999999999999999\n");
  put("sys/fs/cgroup/memory.current", "0\n");
  EXPECT_EQ(available_memory(root_), 8192 * kMiB);
}

TEST(Machine, ThisOneMakesSense) {
  const Machine machine = describe_machine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_GT(available_memory(), 0);
  EXPECT_LE(available_memory(), machine.memory);
}

TEST(Machine, PeakFollowsAllocations) {
  constexpr int64_t kSize = 64 * kMiB;
  if (!reset_peak_resident_bytes()) GTEST_SKIP() << "the kernel does not reset the peak";
  const int64_t before = peak_resident_bytes();
  { const std::vector<char> memory(kSize, 1); }
  EXPECT_GE(peak_resident_bytes(), before + kSize * 9 / 10);
  // The kernel updates the two counters in batches of pages, each in its own time.
  EXPECT_LE(resident_bytes(), peak_resident_bytes() + kMiB);
}

TEST(Machine, CopySpeedIsPositive) {
  EXPECT_GT(measure_copy(1), 0);
  EXPECT_GT(measure_copy(2), 0);
}

}  // namespace
}  // namespace attnres::machine_test
