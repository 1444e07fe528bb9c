// The learned tensors of a model: what each is, where it sits, and how it starts. The kind decides
// weight decay and which optimizer serves it; the starting value depends only on the seed, the site
// and the role, so that models which differ in one part start equal in all others.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attnres/parameters/packed_matrix.h"
#include "attnres/parameters/precision.h"
#include "attnres/parameters/tensor_group.h"
#include "attnres/support/random.h"

namespace attnres {

enum class ParameterKind {
  matrix,        // a linear map of a hidden layer; of experts [E, out, in]
  embedding,     // token embedding
  head,          // output projection
  norm_gain,     // gain of a norm
  bias,          // added to the outputs of a linear map
  pseudo_query,  // query over depth
  mixing,        // any other scalar, vector or table by which layers are combined
  convolution,   // kernels of a depthwise convolution
  decay,         // how fast a recurrent state decays
  router_bias,   // moved by the experts' load, not by a gradient
};

// Weight decay applies to linear maps only.
bool has_weight_decay(ParameterKind kind);
// Whether it may be stored in a format (ParameterRegistry::add_weight), if it is a layer's map.
bool has_weight_format(ParameterKind kind);
// Whether gradients move it.
bool is_differentiated(ParameterKind kind);

// How a parameter starts: the value of its i-th number, row by row.
struct Init {
  std::function<double(const RandomStream& random, int64_t i)> value;

  static Init constant(double value);
  static Init zeros() { return constant(0); }
  static Init ones() { return constant(1); }
  static Init normal(double standard_deviation);
  static Init uniform(double bound);  // from -bound to bound
  static Init by_index(std::function<double(int64_t i)> value);
};

// What each of the processes holds that compute a layer together (tensor_group.h).
enum class Shard {
  none,     // all of it
  outputs,  // some of its outputs: rows of a matrix [out, in], channels or heads of what follows it
  inputs,   // some of its inputs: columns of a matrix, whose products are added up
};

// Sublayers are sites 0 .. L-1, the output is site L; the token embedding, and what all sites
// share, comes before them all.
inline constexpr int kEmbeddingSite = -1;

// The sites from `first` up to, not including, `last`: those of a pipeline stage. All, if nothing
// else is said.
struct SiteRange {
  int first = 0;
  int last = std::numeric_limits<int>::max();

  bool has(int site) const { return first <= site && site < last; }
};

// The sites of a process: of one stage, or of several that lie apart.
class SiteSet {
 public:
  SiteSet(SiteRange range = {}) : ranges_{range} {}
  explicit SiteSet(std::vector<SiteRange> ranges) : ranges_(std::move(ranges)) {}

  bool has(int site) const;
  // Whether all of these lie in one of its ranges.
  bool has_all(const SiteRange& range) const;
  const std::vector<SiteRange>& ranges() const { return ranges_; }

 private:
  std::vector<SiteRange> ranges_;
};

struct Parameter {
  int site = kEmbeddingSite;
  std::string role;  // "q_proj", "input_norm", "pseudo_query", ...
  ParameterKind kind = ParameterKind::matrix;
  at::Tensor tensor;  // a leaf that requires a gradient, if its kind has one; on `meta` if packed
  Shard shard = Shard::none;
  std::vector<int> used_at = {};  // the sites that compute with it, ascending
  PackedMatrix packed = {};       // in the place of the tensor's numbers, if it is defined

  // What holds its numbers: the tensor, or the packed bytes.
  const at::Tensor& held() const { return packed.defined() ? packed.bytes : tensor; }
};

// The dimension along which a parameter is cut into equal parts, or -1 where every process of a
// group holds all of it. A part's gradient is whole where it is held; of what all hold each has a
// part of the gradient, of its tokens or heads, and the sum of these is the gradient.
int64_t cut_dimension(const Parameter& parameter);
// The sizes of the whole of which a process holds a part.
std::vector<int64_t> whole_sizes(const TensorPart& part, const Parameter& parameter);
// A process's part of a whole parameter, or of what is shaped like it (gradient, moment): a view.
at::Tensor part_of_parameter(const TensorPart& part, const Parameter& parameter,
                             const at::Tensor& whole);
// And the whole of the parts, or the part itself where it is whole. All of the group call it.
at::Tensor whole_of_parameter(const TensorGroup& group, const Parameter& parameter,
                              const at::Tensor& part);

// The weight [outputs, inputs] of a linear map.
struct MatrixRole {
  std::string role;
  int64_t outputs = 0;
  Init init = Init::zeros();
  Shard shard = Shard::none;
};

// Which maps of a model have low-rank ones beside them (layers/low_rank_map.h).
struct LowRank {
  int64_t rank = 0;  // 0: none has
  double scale = 1;
  std::function<bool(int site, const std::string& role)> is_beside = {};
};
// What a role is called beside that of its map: "q_proj.lora_A".
inline constexpr const char *kLowRankIn = ".lora_A", *kLowRankOut = ".lora_B";
bool is_low_rank(const Parameter& parameter);

// The numbers of the stages, or of processes, that hold a parameter, in their order: those that
// have a site which uses it. Where there are several, their tensors are copies of one parameter:
// its gradient is the sum of theirs, and it counts once in a norm of all gradients, at the first.
std::vector<size_t> stages_with(const Parameter& parameter, const std::vector<SiteSet>& stages);

class ParameterRegistry {
 public:
  // Without a seed parameters have shapes but no values, which whoever asked for them must fill in:
  // loading writes every number once. On the device `meta` they have no memory either: for
  // planning. What none of `sites` uses is not kept. Of a group's process, which must not outlive
  // the group, it keeps parts, while shapes and starting values are given of the whole.
  ParameterRegistry(Precision precision, std::optional<uint64_t> seed, at::Device device = at::kCPU,
                    SiteSet sites = {}, const TensorGroup* group = nullptr, LowRank low_rank = {})
      : precision_(std::move(precision)),
        seed_(seed),
        device_(device),
        sites_(std::move(sites)),
        group_(group),
        low_rank_(std::move(low_rank)) {}

  // Makes and keeps a parameter, which starts as `init` says where there is a seed; `used_at` are
  // the sites that compute with it, its own alone if there are none. Undefined, and nothing is
  // kept, where these are all out of range. Throws Error if (site, role) is taken or cannot be cut
  // into equal parts, and UsageError when all together would have more numbers than any machine
  // holds (10^15).
  at::Tensor add(int site, const std::string& role, ParameterKind kind, at::IntArrayRef shape,
                 const Init& init, Shard shard = Shard::none, std::vector<int> used_at = {});
  // The same of a weight [..., outputs, inputs] that linear maps multiply by and nobody else reads:
  // packed, where the precision says so. What has rows that a format's blocks do not fit is f16;
  // throws UsageError where only a part's do not.
  const Parameter* add_weight(int site, const std::string& role, ParameterKind kind,
                              at::IntArrayRef shape, const Init& init, Shard shard = Shard::none,
                              std::vector<int> used_at = {});

  // Weights of kind matrix, each [outputs, inputs], one below the other in one storage. Undefined,
  // and each is a weight of its own, where one of them is packed.
  at::Tensor add_joined(int site, int64_t inputs, const std::vector<MatrixRole>& roles);

  // Gives one of these the starting value that it would have had with this seed; it is not packed.
  void start(const Parameter& parameter, uint64_t seed) const;

  const std::deque<Parameter>& all() const { return parameters_; }
  // The parameter at a site with a role, or nullptr.
  const Parameter* find(int site, const std::string& role) const;
  int64_t count() const { return count_; }  // numbers in all tensors
  at::Device device() const { return device_; }
  Precision precision() const { return precision_; }   // of them, and of what layers exchange
  const TensorGroup* group() const { return group_; }  // null: parameters are whole
  TensorPart part() const { return group_ == nullptr ? TensorPart() : group_->part(); }
  const LowRank& low_rank() const { return low_rank_; }

 private:
  at::Tensor allocate(int site, const std::string& role, at::IntArrayRef shape,
                      at::Device device) const;
  // Where a weight is packed, memory for its rows; undefined else. `inputs`: of the whole.
  PackedMatrix allocate_packed(int site, const std::string& role, at::IntArrayRef shape,
                               int64_t inputs) const;
  bool is_packed(int site, const std::string& role) const;
  // What is kept here of a parameter whose whole shape this is.
  std::vector<int64_t> part_sizes(int site, const std::string& role, ParameterKind kind,
                                  at::IntArrayRef whole, Shard shard) const;
  void keep(Parameter parameter, const Init& init);

  Precision precision_;
  std::optional<uint64_t> seed_;
  at::Device device_;
  SiteSet sites_;
  const TensorGroup* group_;
  LowRank low_rank_;
  std::deque<Parameter> parameters_;
  std::vector<Init> inits_;                               // of these
  std::map<std::pair<int, std::string>, size_t> places_;  // in parameters_, by site and role
  int64_t count_ = 0;
};

}  // namespace attnres
