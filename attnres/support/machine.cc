#include "attnres/support/machine.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#ifdef __SSE2__
#include <cpuid.h>
#include <emmintrin.h>
#endif

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/progress.h"
#include "attnres/support/trim.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// All of a small file of /proc or /sys; empty if there is none.
std::string slurp(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

// The whole number that text begins with, blanks aside.
std::optional<int64_t> leading_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  return number;
}

std::optional<int64_t> number_in(const fs::path& path) {
  return leading_number(slurp(path));
}

// What follows `key` and `separator` on the first line that begins with the key.
std::string field(const std::string& text, std::string_view key, char separator) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t end = line.find(separator);
    if (end == std::string::npos || !line.starts_with(key)) continue;
    // "model name  : ..." pads its keys, and "model" is another key.
    if (end > key.size() && line.find_first_not_of(" \t", key.size()) != end) continue;
    const size_t begin = line.find_first_not_of(" \t", end + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

// A size in kB of /proc/meminfo or /proc/self/status, in bytes.
std::optional<int64_t> kilobytes(const std::string& text, std::string_view key) {
  const auto number = leading_number(field(text, key, ':'));
  if (!number) return std::nullopt;
  return *number * 1024;
}

// Of all memory, and of what can be allocated: what /proc/meminfo says, or where that is not
// mounted the kernel itself, which does not count the files that it could give up.
int64_t all_memory(const std::string& meminfo) {
  if (const auto bytes = kilobytes(meminfo, "MemTotal")) return *bytes;
  struct sysinfo said = {};
  return ::sysinfo(&said) == 0 ? static_cast<int64_t>(said.totalram) * said.mem_unit : 0;
}

int64_t allocatable_memory(const std::string& meminfo) {
  if (const auto bytes = kilobytes(meminfo, "MemAvailable")) return *bytes;
  struct sysinfo said = {};
  if (::sysinfo(&said) != 0) return 0;
  return static_cast<int64_t>(said.freeram + said.bufferram) * said.mem_unit;
}

// The folders of this process's cgroup for a controller, and of those above it. In a container the
// path may not be there as the process sees it; the folders that are not are harmless.
std::vector<fs::path> cgroup_folders(const fs::path& root, const std::string& controller) {
  std::vector<fs::path> folders;
  std::istringstream lines(slurp(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version_2 = controllers.empty();
    if (!version_2 && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) {
      continue;
    }
    const fs::path top = root / "sys/fs/cgroup" / (version_2 ? "" : controller);
    for (fs::path path = fs::path(line.substr(second + 1)).relative_path(); !path.empty();
         path = path.parent_path()) {
      folders.push_back(top / path);
    }
    folders.push_back(top);
  }
  return folders;
}

// What a cgroup may hold and still allocate; pages of files that it read can be given up.
struct MemoryLimit {
  int64_t limit = kUnlimited;
  int64_t available = kUnlimited;
};

MemoryLimit cgroup_memory(const fs::path& root) {
  MemoryLimit least;
  for (const fs::path& folder : cgroup_folders(root, "memory")) {
    const bool version_2 = fs::exists(folder / "memory.max");
    const auto limit = number_in(folder / (version_2 ? "memory.max" : "memory.limit_in_bytes"));
    const auto used = number_in(folder / (version_2 ? "memory.current" : "memory.usage_in_bytes"));
    if (!limit || !used) continue;  // "max"
    const std::string stat = slurp(folder / "memory.stat");
    const int64_t given_up =
        leading_number(field(stat, version_2 ? "inactive_file" : "total_inactive_file", ' '))
            .value_or(0);
    least.limit = std::min(least.limit, *limit);
    least.available = std::min(least.available, std::max<int64_t>(*limit - *used + given_up, 0));
  }
  return least;
}

// Processors' worth of time that the cgroups allow.
double cgroup_processors(const fs::path& root) {
  double least = std::numeric_limits<double>::infinity();
  for (const fs::path& folder : cgroup_folders(root, "cpu")) {
    double quota = -1, period = 0;
    if (fs::exists(folder / "cpu.max")) {
      std::istringstream(slurp(folder / "cpu.max")) >> quota >> period;  // "max 100000": no limit
    } else {
      quota = static_cast<double>(number_in(folder / "cpu.cfs_quota_us").value_or(-1));
      period = static_cast<double>(number_in(folder / "cpu.cfs_period_us").value_or(0));
    }
    if (quota > 0 && period > 0) least = std::min(least, quota / period);
  }
  return least;
}

int affinity() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

std::vector<std::string> instruction_sets(const std::string& cpuinfo) {
  static constexpr std::pair<const char*, const char*> kNames[] = {{"sse4_2", "SSE4.2"},
                                                                   {"avx", "AVX"},
                                                                   {"fma", "FMA"},
                                                                   {"f16c", "F16C"},
                                                                   {"avx2", "AVX2"},
                                                                   {"avx512f", "AVX-512"},
                                                                   {"avx512_vnni", "AVX-512 VNNI"},
                                                                   {"avx512_bf16", "AVX-512 BF16"},
                                                                   {"amx_bf16", "AMX BF16"},
                                                                   {"asimd", "NEON"},
                                                                   {"bf16", "NEON BF16"},
                                                                   {"sve", "SVE"},
                                                                   {"sve2", "SVE2"}};
  std::istringstream words(field(cpuinfo, "flags", ':') + field(cpuinfo, "Features", ':'));
  std::set<std::string> flags;
  for (std::string word; words >> word;) flags.insert(word);
  std::vector<std::string> names;
  for (const auto& [flag, name] : kNames) {
    if (flags.contains(flag)) names.emplace_back(name);
  }
  return names;
}

// What ARM's processors, which have no names in /proc/cpuinfo, are called there by numbers.
std::string arm_model(const std::string& cpuinfo) {
  static constexpr std::pair<std::string_view, const char*> kOfArm[] = {
      {"0xd03", "Cortex-A53"},  {"0xd05", "Cortex-A55"},  {"0xd07", "Cortex-A57"},
      {"0xd08", "Cortex-A72"},  {"0xd09", "Cortex-A73"},  {"0xd0a", "Cortex-A75"},
      {"0xd0b", "Cortex-A76"},  {"0xd0c", "Neoverse-N1"}, {"0xd0d", "Cortex-A77"},
      {"0xd40", "Neoverse-V1"}, {"0xd41", "Cortex-A78"},  {"0xd44", "Cortex-X1"},
      {"0xd49", "Neoverse-N2"}, {"0xd4f", "Neoverse-V2"}};
  const std::string implementer = field(cpuinfo, "CPU implementer", ':');
  const std::string part = field(cpuinfo, "CPU part", ':');
  if (implementer.empty() || part.empty()) return "";
  for (const auto& [number, name] : kOfArm) {
    if (implementer == "0x41" && part == number) return fmt::format("ARM {}", name);
  }
  return fmt::format("ARM64, implementer {}, part {}", implementer, part);
}

// What the processor calls itself.
std::string own_name_of_processor() {
  std::string name;
#ifdef __SSE2__
  for (unsigned leaf = 0x80000002; leaf <= 0x80000004; ++leaf) {
    std::array<unsigned, 4> words = {};
    if (__get_cpuid(leaf, words.data(), &words[1], &words[2], &words[3]) == 0) return "";
    name.append(reinterpret_cast<const char*>(words.data()), sizeof(words));
  }
  name.resize(std::min(name.find('\0'), name.size()));
#endif
  return std::string(trimmed(name));
}

int64_t largest_cache(const fs::path& root) {
  int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    const std::string size = slurp(
        root / fmt::format("sys/devices/system/cpu/cpu0/cache/index{}/size", index));  // "32768K"
    largest = std::max(largest, leading_number(size).value_or(0) * 1024);
  }
  return largest;
}

// "always [madvise] never": the one in brackets.
std::string bracketed(const std::string& text) {
  const size_t begin = text.find('['), end = text.find(']');
  return end == std::string::npos ? "" : text.substr(begin + 1, end - begin - 1);
}

// Memory of our own, in large pages where the kernel gives them.
class Buffer {
 public:
  explicit Buffer(size_t size) : size_(size) {
    data_ = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(data_ != MAP_FAILED, "measuring copies: cannot allocate {}",
            format_bytes(static_cast<double>(size)));
    ::madvise(data_, size, MADV_HUGEPAGE);
  }
  ~Buffer() { ::munmap(data_, size_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* data() const { return static_cast<char*>(data_); }

 private:
  void* data_;
  size_t size_;
};

// Stores past the cache, so that the target's old lines are not read first. Sizes and addresses are
// multiples of 64.
void copy_streaming(char* to, const char* from, size_t size) {
#ifdef __SSE2__
  for (size_t i = 0; i < size; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
  }
  _mm_sfence();
#else
  std::memcpy(to, from, size);
#endif
}

void copy_plain(char* to, const char* from, size_t size) {
  std::memcpy(to, from, size);
}

void on_threads(int threads, const std::function<void(int)>& work) {
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work, i);
  work(0);
}

}  // namespace

Machine describe_machine(const fs::path& root) {
  Machine machine;
  const std::string cpuinfo = slurp(root / "proc/cpuinfo");
  machine.cpu = cpu_model(root);
  machine.instruction_sets = instruction_sets(cpuinfo);
  machine.cores = static_cast<int>(
      std::max(1.0, std::min<double>(affinity(), std::ceil(cgroup_processors(root)))));
  machine.cache = largest_cache(root);
  machine.memory = std::min(all_memory(slurp(root / "proc/meminfo")), cgroup_memory(root).limit);
  machine.huge_pages = bracketed(slurp(root / "sys/kernel/mm/transparent_hugepage/enabled"));
  return machine;
}

std::string cpu_model(const fs::path& root) {
  const std::string cpuinfo = slurp(root / "proc/cpuinfo");
  std::string name = field(cpuinfo, "model name", ':');
  if (name.empty()) name = arm_model(cpuinfo);
  return name.empty() ? own_name_of_processor() : name;
}

double load_average() {
  double of_last_minute = 0;
  return getloadavg(&of_last_minute, 1) == 1 ? of_last_minute : 0;
}

int64_t available_memory(const fs::path& root) {
  return std::min(allocatable_memory(slurp(root / "proc/meminfo")), cgroup_memory(root).available);
}

int64_t resident_bytes() {
  return kilobytes(slurp("/proc/self/status"), "VmRSS").value_or(0);
}

int64_t peak_resident_bytes() {
  if (const auto bytes = kilobytes(slurp("/proc/self/status"), "VmHWM")) return *bytes;
  struct rusage used = {};
  return ::getrusage(RUSAGE_SELF, &used) == 0 ? int64_t{used.ru_maxrss} * 1024 : 0;
}

bool reset_peak_resident_bytes() {
  std::ofstream out("/proc/self/clear_refs");
  out << "5" << std::flush;
  return out.good();
}

double measure_copy(int threads) {
  require(threads >= 1, "measure_copy: expected 1 thread or more, got {}", threads);
  constexpr int64_t kMiB = 1 << 20;
  const int64_t cache = largest_cache("/");
  // Beyond half a gigabyte the measuring itself would take long.
  const int64_t wanted = std::clamp<int64_t>(5 * cache, 128 * kMiB, 512 * kMiB);
  const size_t part = static_cast<size_t>(wanted / threads) / 4096 * 4096;
  const size_t size = part * static_cast<size_t>(threads);
  const Buffer from(size), to(size);
  // Each thread's pages come to lie where it runs.
  on_threads(threads, [&](int i) {
    std::memset(from.data() + i * part, 1, part);
    std::memset(to.data() + i * part, 0, part);
  });
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 4; ++round) {
    for (const auto copy : {copy_plain, copy_streaming}) {
      const double start = monotonic_seconds();
      on_threads(threads, [&](int i) { copy(to.data() + i * part, from.data() + i * part, part); });
      best = std::min(best, monotonic_seconds() - start);
    }
  }
  return 2.0 * static_cast<double>(size) / best / 1e9;
}

}  // namespace attnres
