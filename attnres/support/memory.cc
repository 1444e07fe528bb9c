#include "attnres/support/memory.h"

#include <c10/util/Exception.h>
#include <c10/util/Flags.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <regex>

#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/tensor_memory.h"

C10_DECLARE_bool(caffe2_use_fatal_for_enforce);

namespace attnres {
namespace {

// libc10 and Debian's libsentencepiece both have a variable FLAGS_minloglevel, and of two the
// linker takes one, libc10's. There sentencepiece makes an object that is larger, over libc10's
// next variable, with which a failed check of torch's allocator ends the process and throws
// nothing.
[[maybe_unused]] const bool kChecksThrow = [] {
  FLAGS_caffe2_use_fatal_for_enforce = false;
  return true;
}();

}  // namespace

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);         // a threshold is an int: 2 GiB at most
  mallopt(M_TRIM_THRESHOLD, -1);  // never
  mallopt(M_ARENA_MAX, 2);        // the end of each but the first is never given back
  constexpr int kUnlessSet = 0;
  ::setenv("THP_MEM_ALLOC_ENABLE", "1", kUnlessSet);  // libtorch's allocator looks for it
  use_tensor_memory();
}

void give_back_freed_memory() {
  malloc_trim(0);
  trim_tensor_memory();
}

void lock_in_memory(const void* begin, size_t bytes) {
  if (::mlock(begin, bytes) == 0) return;
  const int error = errno;
  rlimit allowed{};
  ::getrlimit(RLIMIT_MEMLOCK, &allowed);
  const std::string limit = allowed.rlim_cur == RLIM_INFINITY
                                ? "without a limit"
                                : format_bytes(static_cast<double>(allowed.rlim_cur));
  fail("cannot keep {} in memory: {}; this process may lock {} (ulimit -l)",
       format_bytes(static_cast<double>(bytes)), std::strerror(error), limit);
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  if (of_torch == nullptr) return false;
  // Of its allocator on the CPU, of CUDA, and of cuBLAS.
  constexpr std::array kTexts = {"can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED"};
  const std::string what = of_torch->what_without_backtrace();
  return std::any_of(kTexts.begin(), kTexts.end(),
                     [&](const char* text) { return what.find(text) != std::string::npos; });
}

std::string describe_out_of_memory(const std::exception& error, const std::string& where) {
  std::string text = "memory ran out" + (where.empty() ? "" : " on " + where);
  static const std::regex kAsked(
      "ried to allocate ([0-9]+) bytes|ried to allocate ([0-9.]+ [KMGT]iB)");
  std::cmatch asked;
  if (!std::regex_search(error.what(), asked, kAsked)) return text;
  return text + ": " + (asked[1].matched ? format_bytes(std::stod(asked[1])) : asked[2].str()) +
         " more were asked for";
}

}  // namespace attnres
