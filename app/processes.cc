#include "app/processes.h"

#include <ATen/Parallel.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "attnres/infer/inference_group.h"
#include "attnres/parallel/mpi_communicator.h"
#include "attnres/parallel/together.h"
#include "attnres/support/error.h"
#include "attnres/support/json.h"

namespace attnres {
namespace {

// Every option of a command with its value, but for how many threads a process has.
Json options_of(const CLI::App& command) {
  Json options = {{"command", command.get_name()}};
  std::istringstream lines(command.config_to_str(/*default_also=*/true));
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos || line.starts_with("threads=")) continue;
    const std::string value = line.substr(equals + 1);
    const Json parsed = Json::parse(value, nullptr, /*allow_exceptions=*/false);
    options[line.substr(0, equals)] = parsed.is_discarded() ? Json(value) : parsed;
  }
  return options;
}

void lead_group(Communicator& world, const std::function<void(const MakeInferenceModel&)>& lead) {
  GroupLeader leader(world);
  try {
    lead([&](const LoadTransformer& load) { return leader.load(load); });
  } catch (...) {
    leader.end();
    throw;
  }
  leader.end();
}

}  // namespace

std::unique_ptr<Communicator> start_processes() {
  if (!has_mpi() && launched_rank() > 0) std::exit(0);  // rank 0 says why
  std::unique_ptr<Communicator> world = start_mpi();
  if (world->size() == 1) {
    world.reset();
    if (launched_rank() > 0) std::exit(0);
    fail(
        "{} processes were started, and OpenMPI, over which they talk, knows of one: start them "
        "with its mpirun (Debian: mpirun.openmpi), or one alone, without mpirun",
        launched_processes());
  }
  return world;
}

void share_cpus(Communicator& world) {
  std::string cpus(HOST_NAME_MAX + 1, '\0');
  ::gethostname(cpus.data(), HOST_NAME_MAX);
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return;
  cpus.append(reinterpret_cast<const char*>(&set), sizeof set);
  const std::vector<std::string> all = gather_texts(world, cpus);
  const auto sharers = static_cast<int>(std::count(all.begin(), all.end(), cpus));
  at::set_num_threads(std::clamp(CPU_COUNT(&set) / sharers, 1, at::get_num_threads()));
}

void require_one_process(const CLI::App& command) {
  constexpr std::array kTogether = {"train", "generate", "serve", "score"};
  const int processes = launched_processes();
  const std::string& name = command.get_name();
  if (processes == 1 || std::find(kTogether.begin(), kTogether.end(), name) != kTogether.end()) {
    return;
  }
  if (launched_rank() > 0) std::exit(0);
  fail_usage(
      "{}: {} processes were started, and each would do all of it; start one, without mpirun. "
      "Several together run train, generate, serve and score",
      name, processes);
}

void run_in_group(const CLI::App& command, const MachineOptions& machine,
                  const LoadTransformer& load,
                  const std::function<void(const MakeInferenceModel&)>& lead) {
  if (launched_processes() == 1) {
    machine.apply();
    return lead(make_local_model);
  }
  const std::unique_ptr<Communicator> world = start_processes();
  const bool leads = world->rank() == 0;
  try {
    or_end_all(*world, [&] {
      require_alike(*world, options_of(command),
                    "the processes of a tensor group must be started with the same options, but "
                    "these differ from rank 0's:");
      do_together(*world, [&] { machine.apply(); });
      if (machine.threads == 0) share_cpus(*world);
    });
    if (leads) {
      lead_group(*world, lead);
    } else {
      or_end_all(*world, [&] { GroupFollower(*world, load).follow(); });
    }
  } catch (const CommonFailure&) {
    // With an exit code of their own the others could end the job before it is said.
    if (leads) throw;
  }
}

}  // namespace attnres
