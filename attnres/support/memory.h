// How the process manages its memory.
#pragma once

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

}  // namespace attnres
