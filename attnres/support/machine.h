// What this machine is, and how much of it this process may use. Linux; what cannot be found out is
// left empty or zero.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace attnres {

struct Machine {
  std::string cpu;                            // its name
  std::vector<std::string> instruction_sets;  // those that matter to the kernels: "AVX2", "AVX-512"
  int cores = 1;           // usable by this process: its affinity and the cgroup's quota
  int64_t cache = 0;       // bytes of the largest cache
  int64_t memory = 0;      // bytes, of the machine or the cgroup, whichever has less
  std::string huge_pages;  // "always", "madvise" or "never"
};

// `root` is where /proc and /sys are found.
Machine describe_machine(const std::filesystem::path& root = "/");
std::string cpu_model(const std::filesystem::path& root = "/");

// Threads that wanted a core in the last minute, on average; 0 where that is not known.
double load_average();

// Bytes that can be allocated without swapping: what the kernel says is available, or what the
// process's cgroups (version 1 or 2, and those above them) still allow, whichever is less.
int64_t available_memory(const std::filesystem::path& root = "/");

// Bytes of this process in memory: now, and the most there were.
int64_t resident_bytes();
int64_t peak_resident_bytes();
// Makes the peak what is resident now. Returns false where the kernel does not let it.
bool reset_peak_resident_bytes();

// Speed of copying between two buffers that fit no cache, in 10^9 bytes a second, each byte counted
// as read once and written once. The faster of memcpy and stores that go past the cache; the best
// of a few rounds. About 0.1 s.
double measure_copy(int threads);

}  // namespace attnres
