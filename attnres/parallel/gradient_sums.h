// Gradients added up over the processes that hold the same parameter: the replicas of a model, each
// with a part of the batch; the processes of a tensor group, where a parameter is not cut, each
// with a part of the tokens, or of the heads; and the ranks of a pipeline that share a parameter,
// such as tied embeddings. Between the backward of all micro-batches and the update, once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attnres/model/transformer.h"
#include "attnres/parallel/communicator.h"
#include "attnres/support/parameters.h"

namespace attnres {

// Of gradients that are added up at once.
inline constexpr int64_t kGradientBucketBytes = int64_t{32} << 20;

class GradientSums {
 public:
  // `model` is what this process holds; `sites` what each rank of its pipeline does; `replicas` are
  // the processes that hold the same as this one; `tensor` its tensor group, or null. All ranks of
  // all of them make one. What replicas add up goes in buckets of this many bytes, so that few
  // messages are sent and little is copied at once.
  GradientSums(const Transformer& model, const std::vector<SiteSet>& sites, Communicator& pipeline,
               Communicator& replicas, Communicator* tensor = nullptr,
               int64_t bucket_bytes = kGradientBucketBytes);

  // In place. Afterwards all who hold a parameter have its whole gradient, the same bits. One that
  // nobody has a gradient of stays without.
  void add_up();

  // Bytes of gradients that this process has handed to be added up.
  int64_t bytes_sent() const;

  // Whether this rank is the one of its replica that counts the parameter, or its part of it, in a
  // norm of all gradients.
  bool counts(const Parameter& parameter) const;

 private:
  void add_up(const std::vector<at::Tensor>& parameters, Communicator& communicator) const;

  const Transformer& model_;
  Communicator& replicas_;
  Communicator* tensor_;
  int64_t bucket_bytes_;
  // Parameters that the same ranks of the pipeline share, and these ranks.
  struct Shared {
    std::unique_ptr<Communicator> holders = {};
    std::vector<at::Tensor> parameters = {};
  };
  std::vector<Shared> shared_;
  std::vector<const Parameter*> counted_elsewhere_;
};

}  // namespace attnres
