#include "attnres/parallel/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/support/progress.h"

namespace attnres {
namespace {

void require_contiguous(const at::Tensor& tensor) {
  require(tensor.defined() && tensor.is_contiguous() && tensor.is_cpu(),
          "communicator: expected a contiguous tensor on the CPU");
}

// Calls `share` with a copy of the numbers, whose memory stays where an error ends the run.
template <class Number, class Share>
void share_copy(std::span<Number> numbers, const Share& share) {
  const at::Tensor copy = at::empty({std::ssize(numbers)}, c10::CppTypeToScalarType<Number>::value);
  Number* const first = copy.mutable_data_ptr<Number>();
  std::copy(numbers.begin(), numbers.end(), first);
  share(copy);
  std::copy_n(first, numbers.size(), numbers.begin());
}

}  // namespace

PendingMessage::PendingMessage(std::shared_ptr<Waiting> waiting, Way way, int peer)
    : waiting_(std::move(waiting)), way_(way), peer_(peer) {
  ++waiting_->begun;
}

void PendingMessage::wait(const std::string& what) {
  if (is_done_) return;
  require(done_before(monotonic_seconds() + waiting_->time_limit),
          "rank {} has waited {} s for {}; that rank may hang or be gone, or the time limit "
          "(parallel.timeout of a recipe) is too short",
          waiting_->world_ranks[waiting_->rank], waiting_->time_limit, describe(what));
  is_done_ = true;
  --waiting_->begun;
}

void PendingMessage::wait_however_long() {
  using std::chrono::milliseconds;
  // As long as steps may follow each other at once.
  const double busy_until = monotonic_seconds() + 0.2;
  while (!is_done()) {
    monotonic_seconds() < busy_until ? std::this_thread::yield()
                                     : std::this_thread::sleep_for(milliseconds(5));
  }
}

bool PendingMessage::is_done() {
  if (is_done_ || !done_before(0)) return is_done_;
  is_done_ = true;
  --waiting_->begun;
  return true;
}

std::string PendingMessage::describe(const std::string& what) const {
  const auto& ranks = waiting_->world_ranks;
  if (way_ == Way::from) return fmt::format("{} from rank {}", what, ranks[peer_]);
  if (way_ == Way::to) return fmt::format("rank {} to take {}", ranks[peer_], what);
  return fmt::format("{} of ranks {}, to which one has not come", what, fmt::join(ranks, ", "));
}

Communicator::Communicator(int rank, std::vector<int> world_ranks)
    : rank_(rank),
      size_(static_cast<int>(world_ranks.size())),
      waiting_(std::make_shared<Waiting>()) {
  waiting_->world_ranks = std::move(world_ranks);
  waiting_->rank = rank;
}

void Communicator::require_rank(int rank) const {
  require(0 <= rank && rank < size_, "communicator: there is no rank {} of {}", rank, size_);
}

void Communicator::require_summable(const at::Tensor& tensor) const {
  require_contiguous(tensor);
  const at::ScalarType dtype = tensor.scalar_type();
  require(dtype == at::kFloat || dtype == at::kDouble || dtype == at::kLong,
          "communicator: cannot add up tensors of {}; give float32, float64 or int64",
          c10::toString(dtype));
}

void Communicator::count(const at::Tensor& tensor, Traffic kind) {
  if (size_ > 1) bytes_sent_[static_cast<int>(kind)] += static_cast<int64_t>(tensor.nbytes());
}

std::unique_ptr<PendingMessage> Communicator::send(const at::Tensor& tensor, int to,
                                                   Channel channel, Traffic kind) {
  require_contiguous(tensor);
  require_rank(to);
  count(tensor, kind);
  return begin_send(tensor, to, channel);
}

std::unique_ptr<PendingMessage> Communicator::receive(const at::Tensor& into, int from,
                                                      Channel channel) {
  require_contiguous(into);
  require_rank(from);
  return begin_receive(into, from, channel);
}

std::unique_ptr<PendingMessage> Communicator::begin_all_reduce_sum(const at::Tensor& tensor,
                                                                   Traffic kind) {
  require_summable(tensor);
  count(tensor, kind);
  return begin_sum(tensor, std::nullopt);
}

std::unique_ptr<PendingMessage> Communicator::begin_reduce_sum(const at::Tensor& tensor, int root,
                                                               Traffic kind) {
  require_summable(tensor);
  require_rank(root);
  count(tensor, kind);
  return begin_sum(tensor, root);
}

std::unique_ptr<PendingMessage> Communicator::begin_broadcast(const at::Tensor& tensor, int root,
                                                              Traffic kind) {
  require_contiguous(tensor);
  require_rank(root);
  if (rank_ == root) count(tensor, kind);
  return begin_to_all(tensor, root);
}

void Communicator::all_reduce_sum(const at::Tensor& tensor, Traffic kind, const std::string& what) {
  begin_all_reduce_sum(tensor, kind)->wait(what);
}

void Communicator::broadcast(const at::Tensor& tensor, int root, Traffic kind,
                             const std::string& what) {
  begin_broadcast(tensor, root, kind)->wait(what);
}

void Communicator::barrier() {
  begin_sum(at::zeros({1}, at::kLong), std::nullopt)->wait("a barrier");
}

void Communicator::require_nothing_left() {
  require(waiting_->begun == 0,
          "communicator: rank {} has begun {} messages or sums, and never seen that they are done",
          world_rank(rank_), waiting_->begun);
  require_no_message();
}

void sum_numbers(Communicator& communicator, std::span<double> numbers, const std::string& what) {
  share_copy(numbers, [&](const at::Tensor& copy) {
    communicator.all_reduce_sum(copy, Traffic::number, what);
  });
}

void sum_numbers(Communicator& communicator, std::span<int64_t> numbers, const std::string& what) {
  share_copy(numbers, [&](const at::Tensor& copy) {
    communicator.all_reduce_sum(copy, Traffic::number, what);
  });
}

void broadcast_numbers(Communicator& communicator, std::span<int64_t> numbers, int root,
                       const std::string& what) {
  share_copy(numbers, [&](const at::Tensor& copy) {
    communicator.broadcast(copy, root, Traffic::number, what);
  });
}

std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text) {
  std::vector<int64_t> sizes(communicator.size());
  sizes[communicator.rank()] = std::ssize(text);
  sum_numbers(communicator, sizes);
  std::vector<std::string> texts;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const int64_t size = sizes[rank];
    if (size == 0) {
      texts.emplace_back();
      continue;
    }
    const at::Tensor bytes = at::empty({size}, at::kByte);
    if (rank == communicator.rank()) std::memcpy(bytes.mutable_data_ptr(), text.data(), size);
    communicator.broadcast(bytes, rank, Traffic::number);
    texts.emplace_back(static_cast<const char*>(bytes.const_data_ptr()), size);
  }
  return texts;
}

}  // namespace attnres
