#include "attnres/train/parallel/parallel_start.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "attnres/parallel/together.h"
#include "attnres/support/build_info.h"
#include "attnres/support/hex.h"
#include "attnres/support/program.h"
#include "attnres/train/run_folder/run_folder.h"
#include "attnres/train/step/validation.h"

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
          {"from", job.from != nullptr ? job.from->path().string() : ""},
          {"resume", job.resume},
          {"trace", job.trace.string()},
          {"build", describe_build()}};
}

void broadcast_in_pieces(int32_t* tokens, int64_t count, Communicator& world) {
  constexpr int64_t kPiece = int64_t{1} << 28;
  for (int64_t first = 0; first < count; first += kPiece) {
    const at::Tensor piece =
        at::from_blob(tokens + first, {std::min(kPiece, count - first)}, at::kInt);
    world.broadcast(piece, 0, Traffic::number);
  }
}

// In the place of the number of tokens that are sent.
constexpr int64_t kTokenized = -1;

// All ranks call it.
void require_same_tokens(uint64_t hash, Communicator& world) {
  const std::vector<std::string> hashes = gather_texts(world, hex(hash));
  for (size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] == hashes[0]) continue;
    throw CommonError(
        fmt::format("rank {} finds other tokens where --data says than rank 0 does; all processes "
                    "must see the same files",
                    rank));
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
  const std::string list = differences_between_ranks(world, describe_job(job));
  if (!list.empty()) {
    throw CommonError(fmt::format(
        "the processes of a run must have the same recipe, text, folder and build, but these "
        "differ from rank 0's:{}\nstart all of them with the same program and command",
        list));
  }
  // The same on all ranks, whose recipes are equal.
  const ParallelConfig& parallel = job.recipe.parallel;
  if (const int64_t wanted = parallel.processes(); world.size() != wanted) {
    throw CommonError(fmt::format(
        "parallel: {}, but {} were started; start as many with {} {} train .., or change "
        "parallel.data, parallel.pipeline or parallel.tensor",
        parallel.describe_processes(), world.size(), mpirun_command(wanted), program()));
  }
}

SharedText share_text(const TrainJob& job, const RunText& text, Communicator& world) {
  SharedText shared = {.sources = text.train,
                       .validation = looked_at(text.validation, job.recipe.train),
                       .vocabulary = vocabulary_of(*text.tokenizer)};
  const bool tokenized = are_tokens(job.data);
  int64_t sizes[] = {shared.vocabulary.size, shared.vocabulary.end_of_document,
                     tokenized ? kTokenized : text.train.front().tokens.size(),
                     std::ssize(shared.validation.ids), std::ssize(shared.validation.counts)};
  broadcast_numbers(world, sizes, 0);
  broadcast_in_pieces(shared.validation.ids.data(), sizes[3], world);
  std::vector<int32_t> counts(shared.validation.counts.begin(), shared.validation.counts.end());
  broadcast_in_pieces(counts.data(), sizes[4], world);
  if (tokenized) {
    require_same_tokens(text.tokens_hash, world);
    return shared;
  }
  // Plain text has one source. A root's numbers are only read.
  std::vector<int32_t> tokens = text.train.front().tokens.read(0, sizes[2], shared.vocabulary.size);
  broadcast_in_pieces(tokens.data(), sizes[2], world);
  return shared;
}

SharedText receive_text(const TrainJob& job, Communicator& world) {
  int64_t sizes[5] = {};
  broadcast_numbers(world, sizes, 0);
  SharedText text;
  text.vocabulary = {sizes[0], static_cast<int32_t>(sizes[1])};
  text.validation.ids.resize(sizes[3]);
  broadcast_in_pieces(text.validation.ids.data(), sizes[3], world);
  std::vector<int32_t> counts(sizes[4]);
  broadcast_in_pieces(counts.data(), sizes[4], world);
  text.validation.counts.assign(counts.begin(), counts.end());
  require(are_tokens(job.data) == (sizes[2] == kTokenized),
          "--data: rank {} does not find there what rank 0 does; all processes must see the same "
          "files",
          world.rank());
  if (sizes[2] == kTokenized) {
    RunTokens tokens = open_run_tokens(job.data, job.recipe, text.vocabulary,
                                       /*holds_out=*/job.validation.empty());
    require_same_tokens(tokens.hash, world);
    text.sources = std::move(tokens.sources);
    return text;
  }
  std::vector<int32_t> tokens(sizes[2]);
  broadcast_in_pieces(tokens.data(), sizes[2], world);
  text.sources.push_back({TrainingTokens(std::move(tokens))});
  return text;
}

}  // namespace attnres
