#include "attnres/plan/fit.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

double standing_bytes_of(const RankMemory& memory) {
  return memory.weights + memory.gradients + memory.moments;
}

// What would help where weights, gradients and moments are too many.
std::string remedy_of_standing(const PlannedModel& model, const Layout& layout,
                               const MemoryPlan& memory, const Cluster& cluster) {
  const auto [site, bytes] = largest_site(model);
  if (bytes > memory.capacity) {
    return fmt::format(
        "No layout helps: {} alone is {} with its gradients and moments. Experts are not spread "
        "over devices, and tensors are not split (there is no expert or tensor parallelism)",
        site == model.cost.sublayers() ? "the output"
                                       : fmt::format("the sublayer of site {}", site),
        format_bytes(bytes));
  }
  if (layout.size.ranks == model.cost.sublayers()) {
    return "Every rank has one sublayer already: experts are not spread over devices, and tensors "
           "are not split (there is no expert or tensor parallelism)";
  }
  if (layout.size.ranks == cluster.devices) {
    return fmt::format("More ranks would each hold less, but {} is all that cluster {} has",
                       counted(cluster.devices, "device"), cluster.name);
  }
  return "More ranks (parallel.pipeline), in the place of replicas where devices run out, would "
         "each "
         "hold less; replicas hold the same each, since optimizer states are not spread over them";
}

std::string remedy_of_activations(const PlannedModel& model, const Layout& layout,
                                  const Cluster& cluster) {
  const TrainConfig& train = model.recipe.train;
  std::string remedy = layout.recompute ? "" : "Set train.recompute=true, or ";
  remedy += train.accumulate < train.batch_size
                ? "raise train.accumulate (the same batch in smaller parts)"
                : "lower train.context";
  if (layout.size.ranks < std::min<int64_t>(cluster.devices, model.cost.sublayers())) {
    remedy += ", or use more ranks (parallel.pipeline)";
  }
  remedy[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(remedy[0])));
  return remedy;
}

}  // namespace

Shortage shortage_of(const MemoryPlan& memory) {
  if (memory.fits()) return Shortage::none;
  for (const RankMemory& rank : memory.ranks) {
    if (standing_bytes_of(rank) > memory.capacity) return Shortage::standing;
  }
  return Shortage::activations;
}

LargestSite largest_site(const PlannedModel& model) {
  constexpr double kNumber = 4;  // bytes, of float32
  const double copies = model.activation_bytes == kNumber ? 0 : model.activation_bytes;
  std::vector<double> bytes(model.cost.sublayers() + 1);
  const auto& parameters = model.cost.parameters().all();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto numbers = static_cast<double>(parameters[i].tensor.numel());
    for (const int site : parameters[i].used_at) {
      bytes.at(site) += (2 * kNumber + copies) * numbers + kNumber * model.updates[i].moments;
    }
  }
  const auto most = std::max_element(bytes.begin(), bytes.end());
  return {.site = static_cast<int>(most - bytes.begin()), .bytes = *most};
}

std::string explain_shortage(const PlannedModel& model, const Layout& layout,
                             const MemoryPlan& memory, const Cluster& cluster) {
  const int rank = memory.fullest();
  const RankMemory& fullest = memory.ranks[rank];
  const std::string needs = fmt::format("Rank {} needs {}, a device has {}", rank,
                                        format_bytes(fullest.total), format_bytes(memory.capacity));
  switch (shortage_of(memory)) {
    case Shortage::none:
      return "";
    case Shortage::standing:
      return fmt::format("{}: weights, gradients and moments alone are {}. {}.", needs,
                         format_bytes(standing_bytes_of(fullest)),
                         remedy_of_standing(model, layout, memory, cluster));
    case Shortage::activations:
      return fmt::format(
          "{}: {} of activations, copies and their gradients beside {} of weights, gradients and "
          "moments. {}.",
          needs, format_bytes(fullest.in_step), format_bytes(standing_bytes_of(fullest)),
          remedy_of_activations(model, layout, cluster));
  }
  fail("plan: a shortage without a name");
}

}  // namespace attnres
