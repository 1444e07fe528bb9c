// What rank 0 sends to the others of a tensor group: of all messages between processes the one that
// is read as more than numbers of a known count.
#include <string>
#include <string_view>
#include <vector>

#include "attnres/infer/group_order.h"
#include "attnres/parallel/orders.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::orders_fuzz {
namespace {

using namespace testing;

std::string bytes_of(GroupOrders orders) {
  OrderParts parts;
  parts(orders);
  return parts.bytes();
}

void run(std::string_view input) {
  bytes_of(order_of<GroupOrders>(std::string(input)));
}

std::vector<std::string> seeds() {
  return {bytes_of({LoadOrder{}, EndOrder{}}),
          bytes_of({CountTokensOrder{}, MakePoolOrder{}, ChangePoolOrder{}}),
          bytes_of({DecodeOrder{.ids = {1, 2},
                                .continuations = {{.sequence = 1, .tokens = 2, .snapshots = {1}}},
                                .depth_weights = true},
                    ReadOrder{.ids = {3}}})};
}

const ListedFuzzTarget kListed({"orders", run, seeds});

}  // namespace
}  // namespace attnres::orders_fuzz
