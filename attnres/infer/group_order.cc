#include "attnres/infer/group_order.h"

#include <ATen/ops/empty.h>

#include <utility>

namespace attnres {
namespace {

// An order as whole numbers: each list after its length.
class Writer {
 public:
  void add(int64_t number) { numbers_.push_back(number); }
  void add(const std::vector<int32_t>& ids) {
    add(std::ssize(ids));
    numbers_.insert(numbers_.end(), ids.begin(), ids.end());
  }
  const std::vector<int64_t>& numbers() const { return numbers_; }

 private:
  std::vector<int64_t> numbers_;
};

class Reader {
 public:
  explicit Reader(const int64_t* numbers) : next_(numbers) {}

  int64_t take() { return *next_++; }
  std::vector<int32_t> take_ids() {
    std::vector<int32_t> ids(take());
    for (int32_t& id : ids) id = static_cast<int32_t>(take());
    return ids;
  }

 private:
  const int64_t* next_;
};

std::vector<int64_t> written(const GroupOrder& order) {
  Writer writer;
  for (const int64_t number : {order.size.sequences, order.size.tokens, order.size.page_tokens,
                               order.size.snapshot_bytes}) {
    writer.add(number);
  }
  const DecodeOrder& decoding = order.decoding;
  writer.add(std::ssize(decoding.changes));
  for (const PoolChange& change : decoding.changes) {
    writer.add(static_cast<int64_t>(change.kind));
    writer.add(change.sequence);
    writer.add(change.length);
    writer.add(change.result);
  }
  writer.add(decoding.ids);
  writer.add(std::ssize(decoding.continuations));
  for (const Continuation& more : decoding.continuations) {
    writer.add(more.sequence);
    writer.add(more.tokens);
  }
  writer.add(decoding.depth_weights ? 1 : 0);
  writer.add(order.ids);
  return writer.numbers();
}

GroupOrder read(GroupOrder::Kind kind, const int64_t* numbers) {
  Reader reader(numbers);
  GroupOrder order = {.kind = kind};
  for (int64_t* number : {&order.size.sequences, &order.size.tokens, &order.size.page_tokens,
                          &order.size.snapshot_bytes}) {
    *number = reader.take();
  }
  DecodeOrder& decoding = order.decoding;
  decoding.changes.resize(reader.take());
  for (PoolChange& change : decoding.changes) {
    change.kind = static_cast<PoolChange::Kind>(reader.take());
    change.sequence = reader.take();
    change.length = reader.take();
    change.result = reader.take();
  }
  decoding.ids = reader.take_ids();
  decoding.continuations.resize(reader.take());
  for (Continuation& more : decoding.continuations) {
    more.sequence = reader.take();
    more.tokens = reader.take();
  }
  decoding.depth_weights = reader.take() != 0;
  order.ids = reader.take_ids();
  return order;
}

}  // namespace

void send_order(const GroupOrder& order, Communicator& ranks) {
  std::vector<int64_t> body = written(order);
  int64_t head[] = {static_cast<int64_t>(order.kind), std::ssize(body)};
  broadcast_numbers(ranks, head, 0, "an order");
  broadcast_numbers(ranks, body, 0, "an order");
}

GroupOrder receive_order(Communicator& ranks) {
  const at::Tensor head = at::empty({2}, at::kLong);
  ranks.begin_broadcast(head, 0, Traffic::number)->wait_however_long();
  const int64_t* number = head.const_data_ptr<int64_t>();
  std::vector<int64_t> body(number[1]);
  broadcast_numbers(ranks, body, 0, "what rank 0 says is next");
  return read(static_cast<GroupOrder::Kind>(number[0]), body.data());
}

}  // namespace attnres
