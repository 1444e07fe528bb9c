#include "attnres/parallel/mpi_communicator.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <filesystem>

#include "attnres/parallel/gradient_sums.h"
#include "attnres/parallel/pipeline.h"
#include "attnres/support/error.h"
#include "tests/model/named_configs.h"
#include "tests/parallel/mpirun.h"
#include "tests/text/test_files.h"

namespace attnres::testing::mpi_communicator_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What each process does that a test below has started.

void exchange_messages(Communicator& world) {
  const int next = (world.rank() + 1) % 3, before = (world.rank() + 2) % 3;
  const at::Tensor a = at::zeros({100000}), b = at::zeros({2}), c = at::zeros({2});
  auto first = world.receive(a, before, Channel::forward);
  auto second = world.receive(b, before, Channel::forward);
  const at::Tensor sevens = at::full({2}, 7.0f), ones = at::full({100000}, 1.0f);
  auto sent = world.send(sevens, next, Channel::backward, Traffic::open);
  auto large = world.send(ones, next, Channel::forward, Traffic::open);
  auto small = world.send(sevens, next, Channel::forward, Traffic::sealed);
  second->wait();
  first->wait();
  EXPECT_TRUE(first->is_done());
  EXPECT_TRUE(a.equal(ones));
  EXPECT_TRUE(b.equal(sevens));
  EXPECT_THROW(world.require_nothing_left(), Error);
  world.receive(c, before, Channel::backward)->wait();
  EXPECT_TRUE(c.equal(sevens));
  for (auto* message : {&sent, &large, &small}) (*message)->wait();
  EXPECT_EQ(world.bytes_sent(Traffic::open), 400008);
}

void do_together(Communicator& world) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kLong}) {
    const at::Tensor sum = at::full({5}, world.rank() + 1, dtype);
    world.all_reduce_sum(sum, Traffic::number);
    EXPECT_TRUE(sum.equal(at::full({5}, 6, dtype)));
  }
  // Many at once, waited for in another order; of numbers whose sum depends on the order of adding,
  // the same bits everywhere.
  std::vector<at::Tensor> sums, at_root;
  std::vector<std::unique_ptr<PendingMessage>> begun;
  for (int i = 0; i < 4; ++i) {
    sums.push_back(at::cos(at::arange(50000) * (world.rank() + i + 0.1)) *
                   std::pow(10, world.rank()));
    at_root.push_back(sums.back().clone());
    begun.push_back(world.begin_all_reduce_sum(sums[i], Traffic::number));
    begun.push_back(world.begin_reduce_sum(at_root[i], i % 3, Traffic::number));
  }
  EXPECT_THAT(message_of<Error>([&] { world.require_nothing_left(); }),
              HasSubstr("has begun 8 messages or sums"));
  for (auto message = begun.rbegin(); message != begun.rend(); ++message) (*message)->wait();
  for (int i = 0; i < 4; ++i) {
    const at::Tensor first = sums[i].clone();
    world.begin_broadcast(first, 0, Traffic::number)->wait();
    EXPECT_TRUE(sums[i].equal(first));
    if (world.rank() == i % 3) {
      EXPECT_TRUE(at::allclose(at_root[i], first, 1e-5, 1e-3));
    }
  }
  const at::Tensor value = at::full({3}, world.rank(), at::kInt);
  world.broadcast(value, 2, Traffic::parameter);
  EXPECT_TRUE(value.equal(at::full({3}, 2, at::kInt)));
  const auto pair = world.split(world.rank() == 1 ? -1 : 0);
  EXPECT_EQ(pair == nullptr, world.rank() == 1);
  if (pair != nullptr) {
    EXPECT_EQ(pair->size(), 2);
    EXPECT_EQ(pair->rank(), world.rank() / 2);
  }
  EXPECT_THAT(gather_texts(world, std::string(world.rank(), 'x')), ElementsAre("", "x", "xx"));
  world.barrier();
}

// The gradients of a model of its own, and those of the pipeline.
void compute_in_a_pipeline(Communicator& world) {
  at::set_num_threads(1);
  const ModelConfig config = small_config(block_attn_res(3), 5);
  const Transformer whole = model_of(config);
  const PipelinePlan plan =
      plan_pipeline(whole.mixer(), whole.sublayers(), {3, 2}, TransferPolicy::owned);
  const Transformer model = model_of(config, at::kDouble, plan.sites_of(world.rank()));
  std::vector<Batch> batches;
  double expected_loss = 0;
  for (int m = 0; m < 4; ++m) {
    batches.push_back({random_ids(2, 6, 10 + m), random_ids(2, 6, 20 + m)});
    const LossSum loss = whole.loss_sum(batches[m]);
    loss.sum.backward();
    expected_loss += loss.sum.item<double>();
  }
  const auto alone = world.split(world.rank());
  GradientSums sums({.model = model,
                     .whole = whole,
                     .sites = plan.sites_by_rank(),
                     .pipeline = world,
                     .replicas = *alone});
  const LossNumbers numbers = Pipeline(model, plan, world).forward_backward(batches, {});
  sums.add_up();
  if (world.rank() == 2) {
    EXPECT_NEAR(numbers.loss, expected_loss, 1e-9);
  }
  for (const Parameter& p : model.parameters().all()) {
    const at::Tensor expected = whole.parameters().find(p.site, p.role)->tensor.grad();
    EXPECT_TRUE(at::allclose(p.tensor.grad(), expected, 1e-12, 1e-12))
        << p.role << " of site " << p.site;
  }
  world.require_nothing_left();
}

TEST(OfMpirun, DoesEverything) {
  if (launched_processes() != 3) GTEST_SKIP() << "started by MpiCommunicator.*";
  const auto world = start_mpi();
  ASSERT_EQ(world->size(), 3);
  exchange_messages(*world);
  do_together(*world);
  compute_in_a_pipeline(*world);
}

TEST(OfMpirun, GivesUp) {
  if (launched_processes() != 2) GTEST_SKIP() << "started by MpiCommunicator.*";
  const auto world = start_mpi();
  if (world->rank() == 1) world->abort("a disk is full");
  world->receive(at::zeros({1}), 1, Channel::forward)->wait();
}

// Rank 1 stops itself, as a hanging one does.
TEST(OfMpirun, HasARankThatHangs) {
  if (launched_processes() != 2) GTEST_SKIP() << "started by MpiCommunicator.*";
  const auto world = start_mpi();
  world->set_time_limit(1);
  if (world->rank() == 1) ::raise(SIGSTOP);
  try {
    world->receive(at::zeros({1}), 1, Channel::forward)->wait("the forward of micro-batch 3");
  } catch (const Error& error) {
    world->abort(error.what());
  }
}

// This program again, as processes.
Result run_tests(int processes, const std::string& filter) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  return run_shell(mpirun(processes, fmt::format("'{}' --gtest_filter={}", self, filter)));
}

TEST(MpiCommunicator, KeepsTheContract) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  const Result result = run_tests(3, "OfMpirun.DoesEverything");
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("SKIPPED")));
}

TEST(MpiCommunicator, EndsAllProcesses) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  const Result result = run_tests(2, "OfMpirun.GivesUp");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("rank 1 of 2: a disk is full"));
}

TEST(MpiCommunicator, EndsAllWhereOneHangs) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  const Result result = run_tests(2, "OfMpirun.HasARankThatHangs");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err,
              HasSubstr("rank 0 has waited 1 s for the forward of micro-batch 3 from rank 1"));
}

// A file that is no library stands in the way of the system's.
TEST(MpiCommunicator, IsLoadedWhereProcessesAskForEachOther) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  const std::filesystem::path folder = fresh_folder("no_mpi");
  write_file(folder / "libmpi.so.40", "no library");
  const std::string without = fmt::format("LD_LIBRARY_PATH='{}' ", folder.string());
  const std::string alone = without + "attnres score --ids 1,2,3 --model '" ATTNRES_SOURCE_DIR
                                      "/models/tiny-shakespeare'";
  EXPECT_EQ(run_shell(alone).exit_code, 0) << run_shell(alone).err;
  for (const int rank : {0, 1}) {
    const Result result = run_shell(
        fmt::format("export OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK={}; {}", rank, alone));
    EXPECT_EQ(result.exit_code, rank == 0 ? 1 : 0);
    EXPECT_EQ(result.err.find("libmpi.so.40") != std::string::npos, rank == 0) << result.err;
    EXPECT_EQ(result.err.find("install OpenMPI 4 or 5") != std::string::npos, rank == 0);
  }
}

// Another launcher's processes do not find each other by OpenMPI.
TEST(MpiCommunicator, RefusesProcessesOfAnotherLauncher) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  for (const int rank : {0, 1}) {
    const Result result =
        run_shell(fmt::format("ASAN_OPTIONS=\"$ASAN_OPTIONS:detect_leaks=0\" PMI_SIZE=2 "
                              "PMI_RANK={} attnres score --ids 1,2,3 --model '{}'",
                              rank, ATTNRES_SOURCE_DIR "/models/tiny-shakespeare"));
    EXPECT_EQ(result.exit_code, rank == 0 ? 1 : 0);
    EXPECT_EQ(result.err.find("2 processes were started, and OpenMPI") != std::string::npos,
              rank == 0)
        << result.err;
  }
}

TEST(MpiCommunicator, IsAbsentFromABuildWithoutMpi) {
  if (has_mpi()) GTEST_SKIP() << "this build has MPI";
  try {
    start_mpi();
    FAIL() << "processes without MPI";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("this build has no MPI"));
  }
}

}  // namespace
}  // namespace attnres::testing::mpi_communicator_test
