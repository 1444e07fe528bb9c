// A device that is none, so that what a GPU needs of the library is tested without one.
//
// libtorch takes its memory for another device's: to mix it with the CPU's throws, and where a
// tensor points to there is nothing that the host may read: what takes a tensor's numbers for the
// CPU's crashes at that very place. Every operation of libtorch is the CPU's, on copies. An
// operation of ours that has a kernel for the CPU alone is refused, as a GPU without one would
// refuse it: what runs here is composed of tensor operations.
//
//   const at::Tensor x = at::ones({2, 3}).to(pretend_device());
//   const HostReads reads;
//   x.sum().item<float>();
//   reads.count();  // 1: the host waited for the device once
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace attnres::testing {

// Which libtorch calls "pretend:0".
at::Device pretend_device();

// Counts how often the host waits for the device while this lives: it reads a number, or copies
// tensors, or calls an operation whose result's size depends on numbers. One at a time.
class HostReads {
 public:
  HostReads();
  int64_t count() const;
  // What it waited for, in the order of calls, for messages: "item", "copy of 12 numbers",
  // "aten::nonzero".
  std::vector<std::string> list() const;
};

// Bytes of its tensors: now, and the most there were since the call before.
int64_t pretend_bytes();
int64_t take_peak_pretend_bytes();

// While this lives, the device has so many bytes: it says so (device_memory), as "Pretend", and
// refuses an allocation beyond them as a GPU does. One at a time.
class LimitedMemory {
 public:
  explicit LimitedMemory(int64_t bytes);
  ~LimitedMemory();
  LimitedMemory(const LimitedMemory&) = delete;
  LimitedMemory& operator=(const LimitedMemory&) = delete;
};

}  // namespace attnres::testing
