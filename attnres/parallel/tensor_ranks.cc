#include "attnres/parallel/tensor_ranks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <vector>

#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using Messages = std::vector<std::unique_ptr<PendingMessage>>;

void wait_for(const Messages& messages) {
  for (const auto& message : messages) message->wait("what a tensor group brings together");
}

}  // namespace

at::Tensor TensorRanks::all_gather(const at::Tensor& part_of_own, int64_t rows) const {
  const at::Tensor part = part_of_own.contiguous();
  std::vector<int64_t> sizes = part.sizes().vec();
  sizes[0] = rows;
  const at::Tensor whole = at::empty(sizes, part.options().requires_grad(false));
  require(own(whole).sizes() == part.sizes(),
          "tensor group: of {} rows rank {} has {}, but it came with {}", rows, ranks_.rank(),
          own(whole).size(0), part.size(0));
  Messages received, sent;
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    if (rank == ranks_.rank()) continue;
    if (const at::Tensor rows_of_rank = of(rank, whole); rows_of_rank.numel() > 0) {
      received.push_back(ranks_.receive(rows_of_rank, rank, Channel::other));
    }
    if (part.numel() > 0) {
      sent.push_back(ranks_.send(part, rank, Channel::other, Traffic::tensor_group));
    }
  }
  own(whole).copy_(part);
  wait_for(received);
  wait_for(sent);
  return whole;
}

at::Tensor TensorRanks::reduce_scatter(const at::Tensor& summand) const {
  const at::Tensor whole = summand.contiguous(), mine = own(whole);
  std::vector<at::Tensor> parts(ranks_.size());  // of the own rows, by the rank that they are of
  Messages received, sent;
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    if (rank == ranks_.rank()) {
      parts[rank] = mine;
      continue;
    }
    parts[rank] = at::empty(mine.sizes(), whole.options().requires_grad(false));
    if (mine.numel() > 0) received.push_back(ranks_.receive(parts[rank], rank, Channel::other));
    if (const at::Tensor rows_of_rank = of(rank, whole); rows_of_rank.numel() > 0) {
      sent.push_back(ranks_.send(rows_of_rank, rank, Channel::other, Traffic::tensor_group));
    }
  }
  wait_for(received);
  const at::Tensor sum =
      at::zeros(mine.sizes(), whole.options().dtype(compute_dtype(whole)).requires_grad(false));
  for (const at::Tensor& part : parts) sum.add_(part);
  wait_for(sent);
  return sum.to(whole.scalar_type());
}

}  // namespace attnres
