// How the process manages its memory, and what is said where there is none left.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

namespace attnres {

// From now on, memory that is freed stays with the process for its next allocation. glibc otherwise
// gives every large tensor back to the system, which faults its pages in again at the next step: a
// tenth of a small model's training time. Large tensors have memory of their own, which small ones
// leave in one piece (tensor_memory.h), and get large pages, where the system gives them to who
// asks: weights are read faster. Call it before the first tensor. Never throws.
void keep_freed_memory();

// Gives what was freed so far back to the system: for who will do nothing for a while. Never
// throws.
void give_back_freed_memory();

// The system may not drop these pages any more: they are read at once, and stay while they are
// mapped. Throws Error, naming the limit of locked memory (`ulimit -l`), where it may not be.
void lock_in_memory(const void* begin, size_t bytes);

// Whether memory ran out: the host's, or a device's.
bool is_out_of_memory(const std::exception& error);

// Of such an error, on a line: "memory ran out on cuda:0 (NVIDIA H100): 2.0 GiB more were asked
// for". `where`: the device, or empty for the host.
std::string describe_out_of_memory(const std::exception& error, const std::string& where);

}  // namespace attnres
