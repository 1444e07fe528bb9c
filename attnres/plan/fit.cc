#include "attnres/plan/fit.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "attnres/model/layer_kind.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

double standing_bytes_of(const RankMemory& memory) {
  return memory.weights + memory.gradients + memory.moments;
}

// The fewest processes more that could share every layer, so that each of these fits; 0: none.
int64_t tensor_that_fits(const PlannedModel& model, const Layout& layout, double capacity,
                         const Cluster& cluster) {
  for (int64_t tensor = 2 * layout.tensor; tensor <= cluster.devices; tensor *= 2) {
    if (!has_equal_parts(model.recipe.model, tensor)) return 0;
    if (largest_site(model, tensor).bytes <= capacity) return tensor;
  }
  return 0;
}

// What would help where weights, gradients and moments are too many.
std::string remedy_of_standing(const PlannedModel& model, const Layout& layout,
                               const MemoryPlan& memory, const Cluster& cluster) {
  const auto [site, bytes] = largest_site(model, layout.tensor);
  const int64_t shared = tensor_that_fits(model, layout, memory.capacity, cluster);
  const std::string share =
      shared == 0
          ? "No layout helps: more processes cannot share its layers. Experts are not spread "
            "over devices (there is no expert parallelism)"
          : fmt::format("Share its layers (parallel.tensor={})", shared);
  if (bytes > memory.capacity) {
    return fmt::format("{} alone is {} with its gradients and moments. {}",
                       site == model.cost().sublayers()
                           ? "The output"
                           : fmt::format("The sublayer of site {}", site),
                       format_bytes(bytes), share);
  }
  if (layout.size.ranks == model.cost().sublayers()) {
    return fmt::format("Every rank has one sublayer already. {}", share);
  }
  if (layout.size.ranks * layout.tensor == cluster.devices) {
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
  if (layout.size.ranks < std::min<int64_t>(cluster.devices, model.cost().sublayers())) {
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

LargestSite largest_site(const PlannedModel& model, int64_t tensor) {
  constexpr double kNumber = 4;  // bytes, of float32
  const double copies = model.activation_bytes == kNumber ? 0 : model.activation_bytes;
  const PlannedModel::Part& part = model.part(tensor);
  std::vector<double> bytes(part.cost.sublayers() + 1);
  const auto& parameters = part.cost.parameters().all();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto numbers = static_cast<double>(parameters[i].tensor.numel());
    for (const int site : parameters[i].used_at) {
      bytes.at(site) += (2 * kNumber + copies) * numbers + kNumber * part.updates[i].moments;
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
