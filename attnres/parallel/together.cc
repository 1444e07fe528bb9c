#include "attnres/parallel/together.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace attnres {

void do_together(Communicator& world, const std::function<void()>& work) {
  std::string problem;
  try {
    work();
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  const std::vector<std::string> problems = gather_texts(world, problem);
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    world.barrier();  // nobody ends before all have heard of it
    throw CommonFailure(rank == 0 ? problems[0] : fmt::format("rank {}: {}", rank, problems[rank]));
  }
}

void or_end_all(Communicator& world, const std::function<void()>& work) {
  try {
    work();
  } catch (const CommonFailure&) {
    throw;
  } catch (const c10::Error& error) {
    world.abort(error.what_without_backtrace());
  } catch (const std::exception& error) {
    world.abort(error.what());
  }
}

void require_alike(Communicator& world, const Json& own, const std::string& problem,
                   const std::string& advice) {
  const std::string list = differences_between_ranks(world, own);
  if (list.empty()) return;
  world.barrier();  // nobody ends before all have heard of it
  throw CommonFailure(problem + list + (advice.empty() ? "" : "\n" + advice));
}

std::string differences_between_ranks(Communicator& world, const Json& own) {
  const std::vector<std::string> all = gather_texts(world, own.dump());
  std::string list;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    for (const std::string& difference : differences(Json::parse(all[0]), Json::parse(all[rank]))) {
      list += fmt::format("\n  rank {}: {}", rank, difference);
    }
  }
  return list;
}

}  // namespace attnres
