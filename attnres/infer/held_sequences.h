// Sequences of a pool that nobody continues, kept for prompts that begin as they do.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "attnres/infer/sequence_decoder.h"

namespace attnres {

// Tokens that two sequences begin with alike.
int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b);

struct KnownPrefix {
  int64_t sequence = -1;  // of the pool, the one to go on from; -1 where there is none
  int64_t tokens = 0;     // that it can be gone on from: it may have no states of all in common
  int64_t common = 0;     // that any sequence has in common with the prompt
};

class HeldSequences {
 public:
  // The decoder, whose pool it is, must outlive it.
  explicit HeldSequences(SequenceDecoder& decoder) : decoder_(decoder) {}

  // Takes over a sequence of the pool, and frees those that it begins with.
  void add(int64_t sequence, std::vector<int32_t> ids);
  // The one that shares the most tokens with these, which is used now.
  KnownPrefix find(std::span<const int32_t> ids);
  // Frees the one that was not used for longest, other than `except`. False where there is none.
  bool free_oldest(int64_t except = -1);

  int64_t count() const { return static_cast<int64_t>(held_.size()); }

 private:
  struct Held {
    int64_t sequence = 0;
    std::vector<int32_t> ids;
  };

  SequenceDecoder& decoder_;
  std::deque<Held> held_;  // the last used last
};

}  // namespace attnres
