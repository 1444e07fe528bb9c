// Gradients added up over the processes that hold the same parameter: the replicas of a model, each
// with a part of the batch; the processes of a tensor group, where a parameter is not cut, each
// with a part of the tokens, or of the heads; and the ranks of a pipeline that share a parameter,
// such as tied embeddings.
//
// The replicas' sums begin while the last micro-batch's backward still runs. Parameters lie in
// buckets in the order in which that backward passes their sites, from the last to the first; the
// sum of a bucket begins when the gradients of all its parameters are final, and those before it
// have begun, so that all replicas begin them in one order. It is the same sum as of one that
// begins after the backward, to the bit.
//
// A sublayer's weight gets its gradient of a micro-batch at once, which is final then. What several
// sites use, and what belongs to a mixer, which may read a site's parameter at an earlier one (all
// of a block's queries at its first site), gets it in parts: it is final, and comes in the order,
// when the backward has passed all of the stage that begins with it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "attnres/model/transformer.h"
#include "attnres/parallel/communicator.h"
#include "attnres/parallel/timeline.h"
#include "attnres/parameters/parameters.h"

namespace attnres {

// Bytes of gradients that are added up at once; a parameter with more has a bucket of its own.
inline constexpr int64_t kGradientBucketBytes = int64_t{4} << 20;
// Sums that are under way at one time, each with a copy of its gradients.
inline constexpr size_t kBucketsUnderWay = 8;

// Whose gradients are added up: a model, and the processes that hold parts of it.
struct GradientHolders {
  const Transformer& model;        // what this process holds of the whole
  const Transformer& whole;        // whose numbers are not looked at
  std::vector<SiteSet> sites;      // of each rank of the pipeline
  Communicator& pipeline;          // that this process is a rank of
  Communicator& replicas;          // the processes that hold the same as this one
  Communicator* tensor = nullptr;  // its tensor group, or none
  std::vector<int> owners = {};    // of the whole's parameters, the replicas; empty: all replicas
};

class GradientSums {
 public:
  // All ranks of all the processes make one. The model and the processes must outlive it.
  explicit GradientSums(const GradientHolders& holders,
                        int64_t bucket_bytes = kGradientBucketBytes);
  ~GradientSums();
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

  // Around a step's last backward through these sites, later sites first. Without them nothing
  // begins before add_up.
  void begin_last_backward(const SiteRange& sites);
  void end_last_backward(const SiteRange& sites);

  // After all backwards, in place. Afterwards all who hold a parameter and update it have its whole
  // gradient, the same bits, and those who don't have none. One that nobody has a gradient of stays
  // without.
  void add_up();
  // After the update: from the replicas that update them, parameters to all others.
  void share_parameters();

  // Bytes of gradients that this process has handed to be added up.
  int64_t bytes_sent() const;

  // Whether this rank counts the parameter, or its part of it, in a norm of all gradients: one rank
  // does of each replica that updates it.
  bool counts(const Parameter& parameter) const;

  // Writes when sums begin and end into a timeline, or into none.
  void show_in(Timeline* timeline) { timeline_ = timeline; }

 private:
  class Hook;
  // A parameter that replicas add up.
  struct Summed {
    const Parameter* parameter;
    std::optional<int> owner;  // the replica that updates it; none where all do
    int site;                  // which the last backward must reach
    bool comes_at_once;        // a micro-batch's gradient
    size_t bucket = 0;
    bool is_final = false;
    bool had_gradient = false;  // before the sum
  };
  struct Bucket {
    std::optional<int> owner = {};
    std::vector<size_t> members = {};  // of summed_
    int64_t numbers = 0;
    size_t awaited = 0;  // of the members, whose gradients are not final
    at::Tensor flat = {};
    std::unique_ptr<PendingMessage> sum = {};
    Timeline::Mark mark = {};
  };
  // Parameters that the same ranks of the pipeline share, and these ranks.
  struct Shared {
    std::unique_ptr<Communicator> holders = {};
    std::vector<at::Tensor> parameters = {};
  };

  void find_shared(const GradientHolders& holders);
  void find_summed(const GradientHolders& holders);
  void find_not_cut(const GradientHolders& holders);
  void make_buckets(int64_t bucket_bytes);
  std::vector<at::Tensor> tensors_of(const Bucket& bucket) const;
  bool is_here(const std::optional<int>& owner) const {
    return !owner || *owner == replicas_.rank();
  }
  void on_gradient(size_t i);  // of summed_
  void make_final(Summed& summed);
  void begin_what_is_final();
  void move_on();
  void begin(Bucket& bucket);
  void end(Bucket& bucket);
  void add_up_over_replicas();

  const Transformer& model_;
  Communicator& replicas_;
  Communicator* tensor_;
  std::vector<at::Tensor> not_cut_;  // parameters that the tensor group adds up, on this replica
  Timeline* timeline_ = nullptr;
  std::vector<Summed> summed_;  // in the order in which the last backward passes them
  std::vector<Bucket> buckets_;
  size_t begun_ = 0, ended_ = 0;  // of the buckets
  std::optional<SiteRange> in_last_backward_;
  std::vector<Shared> shared_;
  bool updates_shared_;  // whether this replica does
  std::set<const Parameter*> counted_elsewhere_;
};

}  // namespace attnres
