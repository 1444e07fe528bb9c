// Which tokens may come next, for a text that has to be of some form.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace attnres {

struct AllowedTokens {
  std::vector<uint32_t> bits;  // of token i: bit i % 32 of number i / 32
  bool none = false;           // no token is allowed
  bool end = false;            // the text may end here

  bool operator[](int64_t token) const {
    const auto word = static_cast<size_t>(token / 32);
    return word < bits.size() && (bits[word] >> (token % 32) & 1) != 0;
  }
};

// How far one text has come.
class ConstraintState {
 public:
  virtual ~ConstraintState() = default;
  // Valid until the next call. Throws Error where nothing may come, not even the end, and where
  // finding out takes too long.
  virtual const AllowedTokens& allowed() = 0;
  // A token that is allowed.
  virtual void accept(int32_t token) = 0;
};

// Immutable: one serves any number of texts and threads.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  virtual std::unique_ptr<ConstraintState> start() const = 0;
};

}  // namespace attnres
