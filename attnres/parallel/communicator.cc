#include "attnres/parallel/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "attnres/support/error.h"

namespace attnres {
namespace {

void require_contiguous(const at::Tensor& tensor) {
  require(tensor.defined() && tensor.is_contiguous() && tensor.is_cpu(),
          "communicator: expected a contiguous tensor on the CPU");
}

}  // namespace

void Communicator::require_rank(int rank) const {
  require(0 <= rank && rank < size_, "communicator: there is no rank {} of {}", rank, size_);
}

std::unique_ptr<PendingMessage> Communicator::send(const at::Tensor& tensor, int to,
                                                   Channel channel, Traffic kind) {
  require_contiguous(tensor);
  require_rank(to);
  bytes_sent_[static_cast<int>(kind)] += static_cast<int64_t>(tensor.nbytes());
  return begin_send(tensor, to, channel);
}

std::unique_ptr<PendingMessage> Communicator::receive(const at::Tensor& into, int from,
                                                      Channel channel) {
  require_contiguous(into);
  require_rank(from);
  return begin_receive(into, from, channel);
}

void Communicator::all_reduce_sum(const at::Tensor& tensor, Traffic kind) {
  require_contiguous(tensor);
  const at::ScalarType dtype = tensor.scalar_type();
  require(dtype == at::kFloat || dtype == at::kDouble || dtype == at::kLong,
          "communicator: cannot add up tensors of {}; give float32, float64 or int64",
          c10::toString(dtype));
  if (size_ == 1) return;
  bytes_sent_[static_cast<int>(kind)] += static_cast<int64_t>(tensor.nbytes());
  sum_in_place(tensor);
}

void Communicator::broadcast(const at::Tensor& tensor, int root, Traffic kind) {
  require_contiguous(tensor);
  require_rank(root);
  if (size_ == 1) return;
  if (rank_ == root) bytes_sent_[static_cast<int>(kind)] += static_cast<int64_t>(tensor.nbytes());
  take_from(root, tensor);
}

std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text) {
  const at::Tensor sizes = at::zeros({communicator.size()}, at::kLong);
  sizes.mutable_data_ptr<int64_t>()[communicator.rank()] = static_cast<int64_t>(text.size());
  communicator.all_reduce_sum(sizes, Traffic::number);
  std::vector<std::string> texts;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const int64_t size = sizes.const_data_ptr<int64_t>()[rank];
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
