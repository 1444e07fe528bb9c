#include "attnres/support/tensor_memory.h"

#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace attnres {
namespace {

constexpr size_t kLine = 64;                 // of a cache
constexpr size_t kRegion = size_t{1} << 28;  // of addresses; pages come when written
constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kMost = size_t{1} << 46;  // more than there are addresses for two of

size_t class_of(size_t bytes) {
  return std::bit_width(bytes - 1) - std::bit_width(TensorMemory::kLeast - 1);
}

// Those that lie in the block as a whole: what is beyond it shall not come with them.
void ask_for_large_pages(char* block, size_t bytes) {
  const auto begin = reinterpret_cast<size_t>(block);
  const size_t first = (begin + kHugePage - 1) / kHugePage * kHugePage,
               last = (begin + bytes) / kHugePage * kHugePage;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

// libtorch's allocator on the CPU.
class LargeApart final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const block = bytes < TensorMemory::kLeast ? nullptr : memory().take(bytes);
    if (block == nullptr) return c10::GetDefaultCPUAllocator()->allocate(bytes);
    c10::profiledCPUMemoryReporter().New(block, bytes);
    return {block, block, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  // Never destroyed: tensors of other static objects may live longer.
  static TensorMemory& memory() {
    static TensorMemory& memory = *new TensorMemory;
    return memory;
  }

 private:
  static void release(void* block) {
    if (!memory().give(block)) return c10::GetDefaultCPUAllocator()->raw_deallocate(block);
    c10::profiledCPUMemoryReporter().Delete(block);
  }
};

bool is_used = false;

}  // namespace

void* TensorMemory::take(size_t bytes) {
  if (bytes > kMost) return nullptr;
  const size_t size_class = class_of(std::max(bytes, kLeast));
  const std::lock_guard lock(mutex_);
  if (classes_.size() <= size_class) classes_.resize(size_class + 1);
  SizeClass& own = classes_[size_class];
  if (!own.free.empty()) {
    char* const block = own.free.top();
    own.free.pop();
    return block;
  }
  if (own.next == own.end && !add_region(size_class)) return nullptr;
  ask_for_large_pages(own.next, bytes);
  return std::exchange(own.next, own.next + own.stride);
}

bool TensorMemory::give(void* block) {
  char* const begin = static_cast<char*>(block);
  const std::lock_guard lock(mutex_);
  const auto region = regions_.upper_bound(begin);
  if (region == regions_.end() || begin < region->second.begin) return false;
  classes_[region->second.size_class].free.push(begin);
  return true;
}

void TensorMemory::trim() {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const std::lock_guard lock(mutex_);
  for (SizeClass& own : classes_) {
    auto left = own.free;
    for (; !left.empty(); left.pop()) {
      const auto begin = reinterpret_cast<size_t>(left.top());
      const size_t first = (begin + page - 1) / page * page,
                   last = (begin + own.stride) / page * page;
      if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
    }
  }
}

// Blocks are a line longer than a power of two: otherwise all would begin at the same place of a
// page, and their numbers of one token lie in the same few lines of the first cache.
bool TensorMemory::add_region(size_t size_class) {
  SizeClass& own = classes_[size_class];
  const size_t bytes = kLeast << size_class;
  own.stride = bytes + kLine;
  const size_t blocks = std::max<size_t>(kRegion / own.stride, 1);
  void* const pages = ::mmap(nullptr, blocks * own.stride, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) return false;
  own.next = static_cast<char*>(pages);
  own.end = own.next + blocks * own.stride;
  regions_[own.end] = {own.next, own.stride, size_class};
  return true;
}

void use_tensor_memory() {
#if !defined(__SANITIZE_ADDRESS__)  // which sees every byte of malloc's blocks, and none of these
  if (std::exchange(is_used, true)) return;
  c10::SetCPUAllocator(new LargeApart);
#endif
}

void trim_tensor_memory() {
  if (is_used) LargeApart::memory().trim();
}

}  // namespace attnres
