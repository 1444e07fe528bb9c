#include "attnres/train/parallel_start.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "attnres/support/build_info.h"
#include "attnres/train/run_folder.h"

namespace attnres {
namespace {

std::vector<std::string> names_of(const std::vector<std::filesystem::path>& paths) {
  std::vector<std::string> names;
  for (const auto& path : paths) names.push_back(path.string());
  return names;
}

Json describe_job(const TrainJob& job) {
  return {{"recipe", recipe_to_json(job.recipe)},
          {"data", names_of(job.data)},
          {"validation", names_of(job.validation)},
          {"out", job.out.string()},
          {"from", job.from.string()},
          {"resume", job.resume},
          {"trace", job.trace.string()},
          {"build",
           {{"version", program_version()},
            {"compiler", compiler_version()},
            {"torch", torch_version()}}}};
}

void broadcast_in_pieces(int32_t* tokens, int64_t count, Communicator& world) {
  constexpr int64_t kPiece = int64_t{1} << 28;
  for (int64_t first = 0; first < count; first += kPiece) {
    const at::Tensor piece =
        at::from_blob(tokens + first, {std::min(kPiece, count - first)}, at::kInt);
    world.broadcast(piece, 0, Traffic::number);
  }
}

}  // namespace

void require_all_began(const std::string& problem, Communicator& world) {
  const std::vector<std::string> problems = gather_texts(world, problem);
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    throw CommonError(rank == 0 ? problems[0] : fmt::format("rank {}: {}", rank, problems[rank]));
  }
}

void require_same_job(const TrainJob& job, Communicator& world) {
  const std::vector<std::string> jobs = gather_texts(world, describe_job(job).dump());
  std::string list;
  for (size_t rank = 1; rank < jobs.size(); ++rank) {
    for (const std::string& difference :
         differences(Json::parse(jobs[0]), Json::parse(jobs[rank]))) {
      list += fmt::format("\n  rank {}: {}", rank, difference);
    }
  }
  if (!list.empty()) {
    throw CommonError(fmt::format(
        "the processes of a run must have the same recipe, text, folder and build, but these "
        "differ from rank 0's:{}\nstart all of them with the same program and command",
        list));
  }
  // The same on all ranks, whose recipes are equal.
  const ParallelConfig& parallel = job.recipe.parallel;
  if (const int64_t wanted = parallel.data * parallel.pipeline; world.size() != wanted) {
    throw CommonError(fmt::format(
        "parallel: {} replicas with {} pipeline ranks each are {} processes, but {} were started; "
        "start as many with mpirun -n {} attnres train .., or change parallel.data or "
        "parallel.pipeline",
        parallel.data, parallel.pipeline, wanted, world.size(), wanted));
  }
}

void send_text(const std::vector<int32_t>& tokens, int64_t vocab_size, Communicator& world) {
  const at::Tensor sizes = at::empty({2}, at::kLong);
  int64_t* size = sizes.mutable_data_ptr<int64_t>();
  size[0] = static_cast<int64_t>(tokens.size());
  size[1] = vocab_size;
  world.broadcast(sizes, 0, Traffic::number);
  // A root's numbers are only read.
  broadcast_in_pieces(const_cast<int32_t*>(tokens.data()), size[0], world);
}

SharedText receive_text(Communicator& world) {
  const at::Tensor sizes = at::empty({2}, at::kLong);
  world.broadcast(sizes, 0, Traffic::number);
  const int64_t* size = sizes.const_data_ptr<int64_t>();
  SharedText text = {std::vector<int32_t>(size[0]), size[1]};
  broadcast_in_pieces(text.tokens.data(), size[0], world);
  return text;
}

}  // namespace attnres
