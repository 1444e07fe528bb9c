// What rendering a template takes, and its bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "attnres/support/error.h"

namespace attnres::jinja {

// Limits of one rendering. A template that a model needs is far below each; one that loops or
// recurs without an end meets one of them, and is refused.
struct Limits {
  int64_t steps = 20'000'000;               // what is evaluated, and 32 bytes copied, are one each
  int64_t text_bytes = int64_t{32} << 20;   // of any text, what is rendered too
  int64_t held_bytes = int64_t{256} << 20;  // of the values that there are at once
  int depth = 1000;                         // of what is evaluated within each other
};

// Counts for the thread that made it, until it is destroyed.
class Meter {
 public:
  explicit Meter(const Limits& limits);
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;
  ~Meter();

  static Meter* current();

  // Each throws Error where a bound is passed.
  void spend(int64_t steps);
  void hold(int64_t bytes);
  void release(int64_t bytes) { held_ -= bytes; }
  void check_text(int64_t bytes) const;
  void enter();
  void leave() { --depth_; }

 private:
  Limits limits_;
  Meter* outer_;
  int64_t steps_ = 0;
  int64_t held_ = 0;
  int depth_ = 0;
};

// Steps of the current meter; none where there is no meter.
void spend(int64_t steps);
// Where a text would be of so many bytes.
void check_text_bytes(int64_t bytes);

// The bytes of a value, while it lives. What is made without a meter counts nowhere.
class HeldBytes {
 public:
  explicit HeldBytes(int64_t bytes = 0) : meter_(Meter::current()) { add(bytes); }
  HeldBytes(HeldBytes&& other) noexcept
      : meter_(other.meter_), bytes_(std::exchange(other.bytes_, 0)) {}
  HeldBytes& operator=(HeldBytes&& other) noexcept {
    std::swap(meter_, other.meter_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~HeldBytes() {
    if (meter_ != nullptr) meter_->release(bytes_);
  }

  void add(int64_t bytes) {
    if (meter_ != nullptr) meter_->hold(bytes);
    bytes_ += bytes;
  }

 private:
  Meter* meter_;
  int64_t bytes_ = 0;
};

// Allocates for a container whose bytes are counted so, before it grows.
template <class T>
class Counted {
 public:
  using value_type = T;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  Counted() : meter_(Meter::current()) {}
  template <class Other>
  Counted(const Counted<Other>& other) : meter_(other.meter()) {}

  T* allocate(size_t count) {
    if (meter_ != nullptr) meter_->hold(static_cast<int64_t>(count * sizeof(T)));
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T* first, size_t count) {
    std::allocator<T>().deallocate(first, count);
    if (meter_ != nullptr) meter_->release(static_cast<int64_t>(count * sizeof(T)));
  }
  Counted select_on_container_copy_construction() const { return {}; }
  Meter* meter() const { return meter_; }
  bool operator==(const Counted& other) const { return meter_ == other.meter_; }

 private:
  Meter* meter_;
};

// One level of what is evaluated.
class Level {
 public:
  explicit Level(Meter& meter) : meter_(meter) { meter_.enter(); }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  ~Level() { meter_.leave(); }

 private:
  Meter& meter_;
};

}  // namespace attnres::jinja
