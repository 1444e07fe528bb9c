// At which lengths of a request a model's recurrent states are kept, for prompts that begin alike.
#pragma once

#include <cstdint>
#include <vector>

namespace attnres {

constexpr int64_t kWorthSharing = 16;  // tokens: fewer are computed sooner than a fork is made

// Every 128 tokens of the prompt, for those that begin as it does; all but its last token, which
// the same prompt needs computed for what follows; and where it parted from another, since a
// beginning that came twice may come again.
class SnapshotLengths {
 public:
  SnapshotLengths() = default;  // none
  explicit SnapshotLengths(int64_t prompt_tokens, int64_t parting = 0)
      : whole_(prompt_tokens - 1), parting_(parting) {}

  // The longest up to `length`; 0 where there is none.
  int64_t last(int64_t length) const;
  // Those between the two, ascending.
  std::vector<int64_t> between(int64_t first, int64_t end) const;

 private:
  int64_t whole_ = 0, parting_ = 0;
};

}  // namespace attnres
