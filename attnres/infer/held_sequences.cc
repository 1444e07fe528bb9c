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

std::optional<KnownPrefix> HeldSequences::find(std::span<const int32_t> ids) {
  auto best = held_.end();
  int64_t most = 0;
  for (auto held = held_.begin(); held != held_.end(); ++held) {
    const int64_t tokens = common_prefix(held->ids, ids);
    if (tokens > most) {
      best = held;
      most = tokens;
    }
  }
  if (best == held_.end()) return std::nullopt;
  std::rotate(best, best + 1, held_.end());
  return KnownPrefix{held_.back().sequence, most};
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
