#include "attnres/plan/plan.h"

#include "attnres/plan/fit.h"

namespace attnres {

Plan make_plan(const PlannedModel& model, const Layout& layout, const Cluster& cluster,
               const Prompt& prompt) {
  require_devices(layout, cluster);
  const PipelinePlan stages = stages_of(model, layout);
  const MemoryPlan memory = plan_memory(model, layout, stages, cluster);
  return {.layout = layout,
          .parameters = model.cost().parameters().count(),
          .tokens = static_cast<double>(layout.data * layout.micro_batches * layout.tokens),
          .memory = memory,
          .shortage = explain_shortage(model, layout, memory, cluster),
          .traffic = plan_traffic(model, layout),
          .mixing = mixing_traffic(model.recipe.model),
          .time = plan_time(model, layout, stages, cluster),
          .prefill =
              plan_prefill(model, prompt.context > 0 ? prompt.context : model.recipe.train.context,
                           prompt.chunk, cluster.devices_per_node)};
}

}  // namespace attnres
