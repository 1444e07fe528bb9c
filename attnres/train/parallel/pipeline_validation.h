// What Validation looks at, by several processes that have a part of the model each.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attnres/data/evaluation_batches.h"
#include "attnres/parallel/communicator.h"
#include "attnres/parallel/pipeline.h"
#include "attnres/train/parallel/parallel_place.h"
#include "attnres/train/step/probe.h"
#include "attnres/train/text/run_tokens.h"

namespace attnres {

// All ranks make one, and call its functions, at the same time.
class PipelineValidation {
 public:
  // `tokens` are those of the validation text that are looked at; `part` is the place's. Place and
  // part must outlive it.
  PipelineValidation(const ParallelPlace& place, const Transformer& part, EvaluationTokens tokens,
                     const Vocabulary& vocabulary);

  // As Validation::loss, on every rank; the replicas share the windows, in batches as large as a
  // step's micro-batches and as many at once, so that no rank needs more memory than for a step.
  double loss();
  // As Validation::probe, by the first replica; on all ranks.
  ProbeReading probe();
  // The continuation of sample_prompt's tokens, by the first replica: every token by a pass over
  // all tokens so far, since the stages keep nothing of a sequence. On all ranks.
  std::vector<int32_t> sample();

 private:
  Json probe_part();
  int32_t next_token(const std::vector<int32_t>& tokens, size_t generated);

  const ParallelPlace& place_;
  const Transformer& part_;
  EvaluationTokens tokens_;
  Vocabulary vocabulary_;
  // Its own, so that what steps send and keep is counted by itself.
  std::unique_ptr<Communicator> ranks_;
  Pipeline pipeline_;
};

}  // namespace attnres
