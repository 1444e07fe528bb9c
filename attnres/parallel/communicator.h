// What processes that train one model together say to each other. There is one over MPI
// (mpi_communicator.h), and one between threads of a process (thread_communicator.h).
//
// The contract is such that NCCL fits it. It has no tags: it would need an ncclComm_t for each
// channel and group, since within one channel the messages between two ranks are received in the
// order in which they were sent, which the schedule keeps to (schedule.h). A message or a
// reduction would be enqueued on a stream of its channel, wait() be an event that the computing
// stream waits for, all tensors on the GPU, and abort() ncclCommAbort.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace attnres {

// Messages of one channel arrive in the order in which they were sent; those of different channels
// overtake each other.
enum class Channel { forward, backward, other };

// What is sent, counted by itself.
enum class Traffic {
  sealed,              // a pipeline's sealed tensors, forward
  open,                // its open tensors
  sealed_gradient,     // of the ones, backward
  open_gradient,       // of the others
  tensor_group,        // rows and partial sums of sublayers, and their gradients (tensor_ranks.h)
  parameter_gradient,  // of parameters that several processes hold
  parameter,           // parameters and moments, as they are gathered and scattered
  number,              // sums of losses and counts, and what processes agree upon
};
inline constexpr int kTrafficKinds = static_cast<int>(Traffic::number) + 1;

// A message that was begun. Its tensor is used until it is done. Where one is destroyed before
// (since an error ends the run), the memory of its tensor stays.
class PendingMessage {
 public:
  virtual ~PendingMessage() = default;
  virtual void wait() = 0;     // until it is done; again and again
  virtual bool is_done() = 0;  // does not wait
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  int rank() const { return rank_; }  // 0 .. size() - 1
  int size() const { return size_; }

  // Begins to send what the receiver has begun, or will, to receive. The tensor may be changed when
  // it is done. Contiguous tensors; all of these throw Error where another rank has failed, or the
  // receiver expects another number of bytes.
  std::unique_ptr<PendingMessage> send(const at::Tensor& tensor, int to, Channel channel,
                                       Traffic kind);
  std::unique_ptr<PendingMessage> receive(const at::Tensor& into, int from, Channel channel);

  // In place, of all ranks, which call it in the same order: the sum, the same bits on every rank.
  // float32, float64 and int64.
  void all_reduce_sum(const at::Tensor& tensor, Traffic kind);
  // The root's numbers, to all.
  void broadcast(const at::Tensor& tensor, int root, Traffic kind);
  virtual void barrier() = 0;

  // All ranks call it: a communicator of those that name the same group, in their order. Null for a
  // rank that names a negative one.
  virtual std::unique_ptr<Communicator> split(int group) = 0;

  // Ends all ranks, everywhere, since this one cannot go on.
  [[noreturn]] virtual void abort(const std::string& message) = 0;

  // Throws Error where a message was sent to this rank that it has not received.
  virtual void require_nothing_left() = 0;

  // Bytes that this rank has handed to send, to all_reduce_sum, or as the root to broadcast. What
  // the sum of n ranks takes beneath is the communicator's affair.
  int64_t bytes_sent(Traffic kind) const { return bytes_sent_[static_cast<int>(kind)]; }

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  virtual std::unique_ptr<PendingMessage> begin_send(const at::Tensor& tensor, int to,
                                                     Channel channel) = 0;
  virtual std::unique_ptr<PendingMessage> begin_receive(const at::Tensor& into, int from,
                                                        Channel channel) = 0;
  virtual void sum_in_place(const at::Tensor& tensor) = 0;
  virtual void take_from(int root, const at::Tensor& tensor) = 0;

  void require_rank(int rank) const;

  int rank_, size_;
  std::array<int64_t, kTrafficKinds> bytes_sent_ = {};
};

// A text of every rank, to all: by rank.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text);

}  // namespace attnres
