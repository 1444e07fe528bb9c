// How the process manages its memory.
#pragma once

namespace attnres {

// From now on, memory that is freed stays with the process for its next allocation. glibc otherwise
// gives every large tensor back to the system, which faults its pages in again at the next step: a
// tenth of a small model's training time. Call it before the first tensor. Never throws.
void keep_freed_memory();

}  // namespace attnres
