#include "attnres/parallel/mpi_communicator.h"

#include <fmt/core.h>
#include <mpi.h>

#include <climits>
#include <cstdio>
#include <numeric>
#include <thread>
#include <utility>

#include "attnres/support/error.h"
#include "attnres/support/progress.h"

namespace attnres {
namespace {

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail("MPI: {}: {}; another rank may have ended", what, std::string(text, length));
}

MPI_Datatype mpi_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kLong:
      return MPI_INT64_T;
    default:
      return MPI_BYTE;
  }
}

// A tensor as MPI counts it. MPI-3's counts are ints.
struct Buffer {
  explicit Buffer(const at::Tensor& tensor)
      : data(tensor.data_ptr()), type(mpi_type(tensor.scalar_type())) {
    const int64_t all = type == MPI_BYTE ? static_cast<int64_t>(tensor.nbytes()) : tensor.numel();
    require(all <= INT_MAX,
            "MPI: a tensor of {} numbers is too large for one message, of {} at "
            "most",
            all, INT_MAX);
    count = static_cast<int>(all);
  }

  void* data;
  MPI_Datatype type;
  int count = 0;
};

class MpiMessage : public PendingMessage {
 public:
  MpiMessage(std::shared_ptr<Waiting> waiting, Way way, int peer, at::Tensor tensor)
      : PendingMessage(std::move(waiting), way, peer),
        tensor_(std::move(tensor)),
        from_(way == Way::from ? peer : -1) {}
  ~MpiMessage() override {
    if (request_ == MPI_REQUEST_NULL) return;
    tensor_.unsafeReleaseTensorImpl();  // MPI may still use its memory
  }
  MpiMessage(const MpiMessage&) = delete;
  MpiMessage& operator=(const MpiMessage&) = delete;

  MPI_Request& request() { return request_; }

 private:
  // Looks again and again, since MPI_Wait knows no time limit.
  bool done_before(double deadline) override {
    for (;;) {
      int done = 0;
      MPI_Status status;
      check(MPI_Test(&request_, &done, &status), "looking for a message");
      if (done != 0) {
        finish(status);
        return true;
      }
      if (monotonic_seconds() >= deadline) return false;
      std::this_thread::yield();
    }
  }

  void finish(const MPI_Status& status) {
    if (from_ >= 0) {
      const Buffer buffer(tensor_);
      int count = 0;
      MPI_Get_count(&status, buffer.type, &count);
      require(count == buffer.count, "communicator: expected {} numbers of rank {}, and got {}",
              buffer.count, from_, count);
    }
    tensor_.reset();
  }

  at::Tensor tensor_;
  int from_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

class MpiCommunicator : public Communicator {
 public:
  explicit MpiCommunicator(MPI_Comm comm)
      : Communicator(rank_of(comm), world_ranks_of(comm)), comm_(comm) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  ~MpiCommunicator() override {
    if (comm_ == MPI_COMM_WORLD) {
      MPI_Finalize();
    } else {
      MPI_Comm_free(&comm_);
    }
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  std::unique_ptr<Communicator> split(int group) override {
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_, group < 0 ? MPI_UNDEFINED : group, rank(), &part),
          "splitting a communicator");
    if (part == MPI_COMM_NULL) return nullptr;
    auto communicator = std::make_unique<MpiCommunicator>(part);
    communicator->set_time_limit(waiting()->time_limit);
    return communicator;
  }

  [[noreturn]] void abort(const std::string& message) override {
    fmt::print(stderr, "attnres: error: rank {} of {}: {}\n", rank(), size(), message);
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    throw_error(message);
  }

 private:
  static int rank_of(MPI_Comm comm) {
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    return rank;
  }
  static std::vector<int> world_ranks_of(MPI_Comm comm) {
    int size = 0;
    MPI_Comm_size(comm, &size);
    std::vector<int> own(size), of_world(size);
    std::iota(own.begin(), own.end(), 0);
    MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
    MPI_Comm_group(comm, &group);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_translate_ranks(group, size, own.data(), world, of_world.data());
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    return of_world;
  }

  std::unique_ptr<MpiMessage> message(PendingMessage::Way way, int peer, const at::Tensor& tensor) {
    return std::make_unique<MpiMessage>(waiting(), way, peer, tensor);
  }

  std::unique_ptr<PendingMessage> begin_send(const at::Tensor& tensor, int to,
                                             Channel channel) override {
    const Buffer buffer(tensor);
    auto sent = message(PendingMessage::Way::to, to, tensor);
    check(MPI_Isend(buffer.data, buffer.count, buffer.type, to, static_cast<int>(channel), comm_,
                    &sent->request()),
          "sending");
    return sent;
  }
  std::unique_ptr<PendingMessage> begin_receive(const at::Tensor& into, int from,
                                                Channel channel) override {
    const Buffer buffer(into);
    auto expected = message(PendingMessage::Way::from, from, into);
    check(MPI_Irecv(buffer.data, buffer.count, buffer.type, from, static_cast<int>(channel), comm_,
                    &expected->request()),
          "receiving");
    return expected;
  }

  std::unique_ptr<PendingMessage> begin_sum(const at::Tensor& tensor,
                                            std::optional<int> root) override {
    const Buffer buffer(tensor);
    auto sum = message(PendingMessage::Way::together, -1, tensor);
    if (!root) {
      check(MPI_Iallreduce(MPI_IN_PLACE, buffer.data, buffer.count, buffer.type, MPI_SUM, comm_,
                           &sum->request()),
            "adding up");
    } else {
      const bool is_root = rank() == *root;
      check(MPI_Ireduce(is_root ? MPI_IN_PLACE : buffer.data, is_root ? buffer.data : nullptr,
                        buffer.count, buffer.type, MPI_SUM, *root, comm_, &sum->request()),
            "adding up");
    }
    return sum;
  }
  std::unique_ptr<PendingMessage> begin_to_all(const at::Tensor& tensor, int root) override {
    const Buffer buffer(tensor);
    auto broadcast = message(PendingMessage::Way::together, -1, tensor);
    check(MPI_Ibcast(buffer.data, buffer.count, buffer.type, root, comm_, &broadcast->request()),
          "broadcasting");
    return broadcast;
  }

  void require_no_message() override {
    int is_there = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &is_there, &status),
          "looking for messages");
    require(is_there == 0, "communicator: rank {} has not received a message of rank {}", rank(),
            status.MPI_SOURCE);
  }

  MPI_Comm comm_;
};

}  // namespace

// What start_mpi (start_mpi.cc) calls in this library.
extern "C" Communicator* attnres_start_mpi() {
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "starting");
  require(provided >= MPI_THREAD_SERIALIZED,
          "MPI: this library lets only one thread of a process use it; take one with "
          "MPI_THREAD_SERIALIZED, as OpenMPI and MPICH have it");
  return std::make_unique<MpiCommunicator>(MPI_COMM_WORLD).release();
}

}  // namespace attnres
