// Rank 0 says what is done next, and the others, who have no plan of their own, do it with it.
//
// An order is a value of a type that all ranks have alike, being of one build: anything that can be
// copied byte by byte, lists and variants of orders, and a struct that shows its parts:
//
//   struct Decode {
//     std::vector<int32_t> ids;
//     bool depth_weights = false;
//     void show_to(auto& visitor) { visitor(ids, depth_weights); }
//   };
//   using Order = std::variant<MakePool, Decode, End>;
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "attnres/parallel/communicator.h"
#include "attnres/support/error.h"

namespace attnres {

// The parts of an order, one after another, to or from bytes. Throws Error where the bytes are of
// no such order.
class OrderParts {
 public:
  OrderParts() = default;  // writes them
  explicit OrderParts(std::string bytes) : bytes_(std::move(bytes)), reads_(true) {}

  const std::string& bytes() const { return bytes_; }
  // Of those that were to be read.
  bool at_end() const { return next_ == bytes_.size(); }

  template <class... Parts>
  void operator()(Parts&... parts) {
    (pass(parts), ...);
  }

 private:
  void pass_bytes(void* part, size_t count) {
    if (reads_) {
      require_order(count <= bytes_.size() - next_);
      next_ += bytes_.copy(static_cast<char*>(part), count, next_);
    } else {
      bytes_.append(static_cast<const char*>(part), count);
    }
  }
  static void require_order(bool sound) {
    require(sound, "what rank 0 sends is no order: give all processes the same program");
  }
  void pass(bool& part) {
    auto byte = static_cast<unsigned char>(part);
    pass_bytes(&byte, 1);
    require_order(byte <= 1);
    part = byte == 1;
  }
  template <class T>
  void pass(T& part) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      pass_bytes(&part, sizeof(T));
    } else {
      part.show_to(*this);
    }
  }
  template <class T>
  void pass(std::vector<T>& list) {
    int64_t size = std::ssize(list);
    pass(size);
    // Each takes a byte or more.
    require_order(!reads_ || (size >= 0 && size <= std::ssize(bytes_)));
    if constexpr (std::is_trivially_copyable_v<T>) {
      require_order(!reads_ || size * sizeof(T) <= bytes_.size() - next_);
      list.resize(size);
      pass_bytes(list.data(), list.size() * sizeof(T));
    } else {
      if (reads_) list.clear();
      for (int64_t i = 0; i < size; ++i) pass(reads_ ? list.emplace_back() : list[i]);
    }
  }
  template <class... T>
  void pass(std::variant<T...>& one) {
    size_t index = one.index(), kind = 0;
    pass(index);
    require_order(index < sizeof...(T));
    if (reads_) ((kind++ == index ? void(one.template emplace<T>()) : void()), ...);
    std::visit([&](auto& part) { pass(part); }, one);
  }

  std::string bytes_;
  bool reads_ = false;
  size_t next_ = 0;  // to read
};

// How long one waits for an order: as for all else (Communicator::set_time_limit), or for days.
enum class Patience { time_limit, however_long };

void send_order_bytes(const std::string& bytes, Communicator& ranks);
std::string receive_order_bytes(Communicator& ranks, Patience patience);

// Called by rank 0, for all others.
template <class Order>
void send_order(Order order, Communicator& ranks) {
  OrderParts parts;
  parts(order);
  send_order_bytes(parts.bytes(), ranks);
}

// The order that bytes say. Throws Error where they are of another.
template <class Order>
Order order_of(std::string bytes) {
  Order order;
  OrderParts parts(std::move(bytes));
  parts(order);
  require(parts.at_end(),
          "what rank 0 sends is longer than its order: give all processes the same program");
  return order;
}

// Called by the others: what rank 0 sends next. Throws Error where another rank has failed, or has
// another program.
template <class Order>
Order receive_order(Communicator& ranks, Patience patience) {
  return order_of<Order>(receive_order_bytes(ranks, patience));
}

}  // namespace attnres
