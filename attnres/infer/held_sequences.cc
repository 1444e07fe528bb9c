#include "attnres/infer/held_sequences.h"

#include <algorithm>
#include <utility>

namespace attnres {

int64_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

void HeldSequences::add(int64_t sequence, std::vector<int32_t> ids) {
  std::erase_if(held_, [&](const Held& held) {
    const auto length = static_cast<int64_t>(held.ids.size());
    const bool covered = common_prefix(held.ids, ids) == length;
    if (covered) decoder_.free(held.sequence);
    return covered;
  });
  held_.push_back({sequence, std::move(ids)});
}

KnownPrefix HeldSequences::find(std::span<const int32_t> ids) {
  auto best = held_.end();
  KnownPrefix known;
  for (auto held = held_.begin(); held != held_.end(); ++held) {
    const int64_t common = common_prefix(held->ids, ids);
    const int64_t tokens = decoder_.pool().length_truncated(held->sequence, common);
    known.common = std::max(known.common, common);
    if (tokens > known.tokens) {
      best = held;
      known.sequence = held->sequence;
      known.tokens = tokens;
    }
  }
  if (best != held_.end()) std::rotate(best, best + 1, held_.end());
  return known;
}

bool HeldSequences::free_oldest(int64_t except) {
  const auto oldest = std::find_if(held_.begin(), held_.end(),
                                   [&](const Held& held) { return held.sequence != except; });
  if (oldest == held_.end()) return false;
  decoder_.free(oldest->sequence);
  held_.erase(oldest);
  return true;
}

}  // namespace attnres
