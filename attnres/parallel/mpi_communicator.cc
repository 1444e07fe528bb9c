#include "attnres/parallel/mpi_communicator.h"

#include <fmt/core.h>
#include <mpi.h>

#include <climits>
#include <cstdio>
#include <utility>

#include "attnres/support/error.h"

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
  explicit MpiMessage(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  ~MpiMessage() override {
    if (request_ == MPI_REQUEST_NULL) return;
    tensor_.unsafeReleaseTensorImpl();  // MPI may still use its memory
  }
  MpiMessage(const MpiMessage&) = delete;
  MpiMessage& operator=(const MpiMessage&) = delete;

  MPI_Request& request() { return request_; }
  // Of one that is received: from where, so that its length is checked.
  void expect_from(int from) { from_ = from; }

  void wait() override {
    if (request_ == MPI_REQUEST_NULL) return;
    MPI_Status status;
    check(MPI_Wait(&request_, &status), "waiting for a message");
    finish(status);
  }
  bool is_done() override {
    if (request_ == MPI_REQUEST_NULL) return true;
    int done = 0;
    MPI_Status status;
    check(MPI_Test(&request_, &done, &status), "looking for a message");
    if (done != 0) finish(status);
    return done != 0;
  }

 private:
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
  MPI_Request request_ = MPI_REQUEST_NULL;
  int from_ = -1;
};

class MpiCommunicator : public Communicator {
 public:
  explicit MpiCommunicator(MPI_Comm comm)
      : Communicator(rank_of(comm), size_of(comm)), comm_(comm) {
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

  void barrier() override { check(MPI_Barrier(comm_), "waiting for all ranks"); }

  std::unique_ptr<Communicator> split(int group) override {
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_, group < 0 ? MPI_UNDEFINED : group, rank(), &part),
          "splitting a communicator");
    if (part == MPI_COMM_NULL) return nullptr;
    return std::make_unique<MpiCommunicator>(part);
  }

  [[noreturn]] void abort(const std::string& message) override {
    fmt::print(stderr, "attnres: error: rank {} of {}: {}\n", rank(), size(), message);
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
    throw_error(message);
  }

  void require_nothing_left() override {
    int is_there = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &is_there, &status),
          "looking for messages");
    require(is_there == 0, "communicator: rank {} has not received a message of rank {}", rank(),
            status.MPI_SOURCE);
  }

 private:
  static int rank_of(MPI_Comm comm) {
    int rank = 0;
    MPI_Comm_rank(comm, &rank);
    return rank;
  }
  static int size_of(MPI_Comm comm) {
    int size = 0;
    MPI_Comm_size(comm, &size);
    return size;
  }

  std::unique_ptr<PendingMessage> begin_send(const at::Tensor& tensor, int to,
                                             Channel channel) override {
    const Buffer buffer(tensor);
    auto message = std::make_unique<MpiMessage>(tensor);
    check(MPI_Isend(buffer.data, buffer.count, buffer.type, to, static_cast<int>(channel), comm_,
                    &message->request()),
          "sending");
    return message;
  }
  std::unique_ptr<PendingMessage> begin_receive(const at::Tensor& into, int from,
                                                Channel channel) override {
    const Buffer buffer(into);
    auto message = std::make_unique<MpiMessage>(into);
    message->expect_from(from);
    check(MPI_Irecv(buffer.data, buffer.count, buffer.type, from, static_cast<int>(channel), comm_,
                    &message->request()),
          "receiving");
    return message;
  }

  void sum_in_place(const at::Tensor& tensor) override {
    const Buffer buffer(tensor);
    check(MPI_Allreduce(MPI_IN_PLACE, buffer.data, buffer.count, buffer.type, MPI_SUM, comm_),
          "adding up");
  }
  void take_from(int root, const at::Tensor& tensor) override {
    const Buffer buffer(tensor);
    check(MPI_Bcast(buffer.data, buffer.count, buffer.type, root, comm_), "broadcasting");
  }

  MPI_Comm comm_;
};

}  // namespace

bool has_mpi() {
  return true;
}

std::unique_ptr<Communicator> start_mpi() {
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "starting");
  return std::make_unique<MpiCommunicator>(MPI_COMM_WORLD);
}

}  // namespace attnres
