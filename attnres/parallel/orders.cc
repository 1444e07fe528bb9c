#include "attnres/parallel/orders.h"

#include <ATen/ops/empty.h>

#include <cstring>

namespace attnres {

void send_order_bytes(const std::string& bytes, Communicator& ranks) {
  int64_t size[] = {std::ssize(bytes)};
  broadcast_numbers(ranks, size, 0, "an order");
  const at::Tensor sent = at::empty({size[0]}, at::kByte);
  std::memcpy(sent.mutable_data_ptr(), bytes.data(), bytes.size());
  ranks.broadcast(sent, 0, Traffic::number, "an order");
}

std::string receive_order_bytes(Communicator& ranks, Patience patience) {
  const std::string what = "what rank 0 says is next";
  const at::Tensor size = at::empty({1}, at::kLong);
  const auto heard = ranks.begin_broadcast(size, 0, Traffic::number);
  patience == Patience::however_long ? heard->wait_however_long() : heard->wait(what);
  const at::Tensor bytes = at::empty({*size.const_data_ptr<int64_t>()}, at::kByte);
  ranks.broadcast(bytes, 0, Traffic::number, what);
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

}  // namespace attnres
