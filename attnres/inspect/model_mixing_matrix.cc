#include "attnres/inspect/model_mixing_matrix.h"

#include <ATen/core/grad_mode.h>

namespace attnres {
namespace {

class Observer : public RunObserver {
 public:
  void on_read(int, const ReadTrace& trace) override { probe.on_read(trace); }
  void on_write(int, at::Tensor& y) override { y = probe.leaf(y); }

  MixingMatrixProbe probe;
};

}  // namespace

std::vector<MixingMatrix> mixing_matrices(const Transformer& model, const at::Tensor& ids_BT) {
  const at::AutoGradMode recording(true);
  Observer observer;
  const at::Tensor embeddings = model.token_embeddings(ids_BT.flatten());
  DepthState state = model.mixer().start(observer.probe.leaf(embeddings));
  state.sequence.spans = std::make_shared<Spans>(Spans::whole(ids_BT.size(0), ids_BT.size(1)));
  MixingAnalysis analysis = {.hold_weights = true};
  state.analysis = &analysis;
  model.run(state, model.sublayers(), {.observer = &observer});
  model.output(state, {.observer = &observer});
  return observer.probe.matrices();
}

}  // namespace attnres
