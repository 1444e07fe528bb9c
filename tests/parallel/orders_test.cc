#include "attnres/parallel/orders.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tests/parallel/thread_communicator.h"

namespace attnres::testing::orders_test {
namespace {

struct Rest {};

struct Walk {
  double speed = 0;
  int32_t steps = 0;
};

struct Carry {
  std::vector<int32_t> ids = {};
  std::vector<Walk> ways = {};
  bool gently = false;

  void show_to(auto& visitor) { visitor(ids, ways, gently); }
};

using Order = std::variant<Rest, Walk, Carry>;
using Orders = std::vector<Order>;

// Shown as text, in which all that they say is seen.
std::string text_of(const Orders& orders) {
  std::string text;
  const auto add = [&](auto... numbers) { ((text += std::to_string(numbers) + " "), ...); };
  for (const Order& order : orders) {
    add(order.index());
    if (const auto* walk = std::get_if<Walk>(&order)) add(walk->speed, walk->steps);
    if (const auto* carry = std::get_if<Carry>(&order)) {
      for (const int32_t id : carry->ids) add(id);
      for (const Walk& way : carry->ways) add(way.speed, way.steps);
      add(carry->gently);
    }
  }
  return text;
}

TEST(Orders, ArriveAsTheyWereSent) {
  const std::vector<Orders> all = {{},
                                   {Rest{}},
                                   {Walk{-0.5, 7}, Rest{}, Carry{}, Carry{{}, {{2, 3}}, true}},
                                   {Carry{{1, -2, 3}, {{0.25, 4}, {1, -5}}, false}}};
  run_on_threads(3, [&](Communicator& ranks) {
    for (const Orders& orders : all) {
      if (ranks.rank() == 0) {
        send_order(orders, ranks);
      } else {
        const auto heard = receive_order<Orders>(ranks, Patience::time_limit);
        EXPECT_EQ(text_of(heard), text_of(orders));
      }
    }
    ranks.require_nothing_left();
  });
  // Negative control: another number is another text.
  EXPECT_NE(text_of({Walk{-0.5, 7}}), text_of({Walk{-0.5, 8}}));
}

}  // namespace
}  // namespace attnres::testing::orders_test
