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

namespace attnres {

// The parts of an order, one after another, to or from bytes.
class OrderParts {
 public:
  OrderParts() = default;  // writes them
  explicit OrderParts(std::string bytes) : bytes_(std::move(bytes)), reads_(true) {}

  const std::string& bytes() const { return bytes_; }

  template <class... Parts>
  void operator()(Parts&... parts) {
    (pass(parts), ...);
  }

 private:
  void pass_bytes(void* part, size_t count) {
    if (reads_) {
      next_ += bytes_.copy(static_cast<char*>(part), count, next_);
    } else {
      bytes_.append(static_cast<const char*>(part), count);
    }
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
    list.resize(size);
    if constexpr (std::is_trivially_copyable_v<T>) {
      pass_bytes(list.data(), list.size() * sizeof(T));
    } else {
      for (T& part : list) pass(part);
    }
  }
  template <class... T>
  void pass(std::variant<T...>& one) {
    size_t index = one.index(), kind = 0;
    pass(index);
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

// Called by the others: what rank 0 sends next. Throws Error where another rank has failed.
template <class Order>
Order receive_order(Communicator& ranks, Patience patience) {
  Order order;
  OrderParts parts(receive_order_bytes(ranks, patience));
  parts(order);
  return order;
}

}  // namespace attnres
