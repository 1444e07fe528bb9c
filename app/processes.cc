#include "app/processes.h"

#include <ATen/Parallel.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "attnres/parallel/mpi_communicator.h"
#include "attnres/parallel/together.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// Every option of a command with its value, but for how many threads a process has.
std::string options_of(const CLI::App& command) {
  std::istringstream lines(command.config_to_str(/*default_also=*/true));
  std::string options = "command=" + command.get_name() + "\n", line;
  while (std::getline(lines, line)) {
    if (!line.empty() && !line.starts_with("threads=")) options += line + "\n";
  }
  return options;
}

std::map<std::string, std::string> by_name(const std::string& options) {
  std::map<std::string, std::string> values;
  std::istringstream lines(options);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = std::min(line.find('='), line.size());
    values[line.substr(0, equals)] = line.substr(std::min(equals + 1, line.size()));
  }
  return values;
}

void require_same_options(const CLI::App& command, Communicator& world) {
  const std::vector<std::string> options = gather_texts(world, options_of(command));
  const std::map<std::string, std::string> of_first = by_name(options[0]);
  std::string list;
  for (size_t rank = 1; rank < options.size(); ++rank) {
    for (const auto& [name, value] : by_name(options[rank])) {
      const auto first = of_first.find(name);
      const std::string expected = first != of_first.end() ? first->second : "";
      if (value != expected) {
        list += fmt::format("\n  rank {}: {}: {} -> {}", rank, name, expected, value);
      }
    }
  }
  if (list.empty()) return;
  world.barrier();  // nobody ends before all have heard of it
  throw CommonFailure(
      fmt::format("the processes of a tensor group must be started with the same options, but "
                  "these differ from rank 0's:{}",
                  list));
}

void lead_group(Communicator& world, const std::function<void(GroupLeader*)>& lead) {
  GroupLeader leader(world);
  try {
    lead(&leader);
  } catch (...) {
    leader.end();
    throw;
  }
  leader.end();
}

}  // namespace

std::unique_ptr<Communicator> start_processes() {
  if (!has_mpi() && launched_rank() > 0) std::exit(0);
  return start_mpi();
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
  const int processes = launched_processes();
  if (processes == 1) return;
  if (launched_rank() > 0) std::exit(0);
  fail_usage(
      "{}: {} processes were started, and each would do all of it; start one, without mpirun. "
      "Several together run train, generate, serve and score",
      command.get_name(), processes);
}

void run_in_group(const CLI::App& command, const MachineOptions& machine, const LoadPart& load,
                  const std::function<void(GroupLeader*)>& lead) {
  if (launched_processes() == 1) {
    machine.apply();
    return lead(nullptr);
  }
  const std::unique_ptr<Communicator> world = start_processes();
  const bool leads = world->rank() == 0;
  try {
    or_end_all(*world, [&] {
      require_same_options(command, *world);
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
