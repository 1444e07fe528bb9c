// What processes that train one model together say to each other. There is one over MPI
// (mpi_communicator.h), and for tests one between threads of a process.
//
// The contract is such that NCCL fits it. It has no tags: it would need an ncclComm_t for each
// channel and group, since within one channel the messages between two ranks are received in the
// order in which they were sent, which the schedule keeps to (schedule.h). A message or a
// reduction would be enqueued on a stream of its channel, wait() be an event that the computing
// stream waits for, all tensors on the GPU, and abort() ncclCommAbort.
//
// No rank waits for ever: who waits longer than the time limit throws Error, which says who waits
// for whom, and for what.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
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

// What a communicator and what was begun with it share.
struct Waiting {
  std::vector<int> world_ranks = {};  // of its ranks, by which errors name them
  int rank = 0;
  double time_limit = 600;  // seconds
  int64_t begun = 0;        // and not yet seen to be done
};

// A message, a sum or a broadcast that was begun. Its tensor is used until it is done. Where one is
// destroyed before (since an error ends the run), the memory of its tensor stays.
class PendingMessage {
 public:
  // With the rank that it goes to or comes from; without one it is of all ranks together.
  enum class Way { to, from, together };
  PendingMessage(std::shared_ptr<Waiting> waiting, Way way, int peer = -1);
  virtual ~PendingMessage() = default;
  PendingMessage(const PendingMessage&) = delete;
  PendingMessage& operator=(const PendingMessage&) = delete;

  // Until it is done; again and again. Throws Error after the time limit, which calls it `what`.
  void wait(const std::string& what = "a message");
  // The same without a time limit, for who may be idle for days: soon looks only now and then,
  // which takes no processor.
  void wait_however_long();
  bool is_done();  // does not wait

 private:
  // False where that is not so before a time of monotonic_seconds().
  virtual bool done_before(double deadline) = 0;
  std::string describe(const std::string& what) const;

  std::shared_ptr<Waiting> waiting_;
  Way way_;
  int peer_;
  bool is_done_ = false;
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

  // In place, of all ranks, which call all of these in the same order: the sum, the same bits on
  // every rank, or to the root alone; the others' tensors are then undefined in value. float32,
  // float64 and int64.
  std::unique_ptr<PendingMessage> begin_all_reduce_sum(const at::Tensor& tensor, Traffic kind);
  std::unique_ptr<PendingMessage> begin_reduce_sum(const at::Tensor& tensor, int root,
                                                   Traffic kind);
  // The root's numbers, to all.
  std::unique_ptr<PendingMessage> begin_broadcast(const at::Tensor& tensor, int root, Traffic kind);
  // The same, waited for.
  void all_reduce_sum(const at::Tensor& tensor, Traffic kind, const std::string& what = "a sum");
  void broadcast(const at::Tensor& tensor, int root, Traffic kind,
                 const std::string& what = "a broadcast");
  void barrier();

  // All ranks call it: a communicator of those that name the same group, in their order. Null for a
  // rank that names a negative one.
  virtual std::unique_ptr<Communicator> split(int group) = 0;

  // Ends all ranks, everywhere, since this one cannot go on.
  [[noreturn]] virtual void abort(const std::string& message) = 0;

  // Throws Error where a message was sent to this rank that it has not received, or this rank has
  // begun something and never seen that it is done.
  void require_nothing_left();

  // Bytes that this rank has handed to send, to a sum, or as the root to a broadcast. What the sum
  // of n ranks takes beneath is the communicator's affair.
  int64_t bytes_sent(Traffic kind) const { return bytes_sent_[static_cast<int>(kind)]; }

  // How long this rank waits for another, in seconds; also of communicators split off from now on.
  void set_time_limit(double seconds) { waiting_->time_limit = seconds; }
  // What a rank is called in errors: its number among all.
  int world_rank(int rank) const { return waiting_->world_ranks.at(rank); }

 protected:
  // A group of these ranks of all, in their order.
  Communicator(int rank, std::vector<int> world_ranks);

  const std::shared_ptr<Waiting>& waiting() const { return waiting_; }

 private:
  virtual std::unique_ptr<PendingMessage> begin_send(const at::Tensor& tensor, int to,
                                                     Channel channel) = 0;
  virtual std::unique_ptr<PendingMessage> begin_receive(const at::Tensor& into, int from,
                                                        Channel channel) = 0;
  // To all, or to the root where there is one.
  virtual std::unique_ptr<PendingMessage> begin_sum(const at::Tensor& tensor,
                                                    std::optional<int> root) = 0;
  virtual std::unique_ptr<PendingMessage> begin_to_all(const at::Tensor& tensor, int root) = 0;
  virtual void require_no_message() = 0;

  void require_rank(int rank) const;
  void require_summable(const at::Tensor& tensor) const;
  void count(const at::Tensor& tensor, Traffic kind);

  int rank_, size_;
  std::shared_ptr<Waiting> waiting_;
  std::array<int64_t, kTrafficKinds> bytes_sent_ = {};
};

// Numbers, in place, as Traffic::number: each one's sum over all ranks, or the root's, to all.
void sum_numbers(Communicator& communicator, std::span<double> numbers,
                 const std::string& what = "a sum");
void sum_numbers(Communicator& communicator, std::span<int64_t> numbers,
                 const std::string& what = "a sum");
void broadcast_numbers(Communicator& communicator, std::span<int64_t> numbers, int root,
                       const std::string& what = "a broadcast");

// A text of every rank, to all: by rank.
std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text);

}  // namespace attnres
