#include "attnres/parameters/parameters.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>

#include "attnres/parameters/mixer_parameters.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr double kMostNumbers = 1e15;

int64_t cut_dimension_of(ParameterKind kind, Shard shard, int64_t dimensions) {
  if (shard == Shard::none) return -1;
  const int64_t rows = kind == ParameterKind::matrix ? dimensions - 2
                       : kind == ParameterKind::bias ? dimensions - 1
                                                     : 0;
  return shard == Shard::outputs ? rows : rows + 1;
}

// Where the numbers of a part, cut along one dimension, lie in the whole.
class PartIndex {
 public:
  PartIndex(const TensorPart& part, int64_t dimension, at::IntArrayRef part_sizes) {
    if (dimension < 0) return;
    const auto inner_sizes = part_sizes.slice(dimension + 1);
    const int64_t inner =
        std::accumulate(inner_sizes.begin(), inner_sizes.end(), int64_t{1}, std::multiplies<>());
    own_ = part_sizes[dimension] * inner;
    whole_ = own_ * part.size;
    first_ = own_ * part.rank;
  }
  int64_t operator()(int64_t i) const {
    return own_ == 0 ? i : i / own_ * whole_ + first_ + i % own_;
  }

 private:
  int64_t own_ = 0, whole_ = 0, first_ = 0;  // numbers side by side; none where nothing is cut
};

// Draws on all threads, and rounds from float64 piece by piece; what is another device's, in the
// host's memory first.
void initialise(const at::Tensor& tensor, const Init& init, const RandomStream& random,
                const PartIndex& index) {
  constexpr int64_t kPiece = 1 << 12;
  const at::Tensor on_host = tensor.is_cpu() ? tensor : at::empty_like(tensor, at::kCPU);
  const at::Tensor flat = on_host.view(-1);
  at::parallel_for(0, tensor.numel(), kPiece, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard not_recording;
    const at::Tensor values = at::empty({kPiece}, at::kDouble);
    for (int64_t first = begin; first < end; first += kPiece) {
      const int64_t count = std::min(kPiece, end - first);
      double* drawn = values.mutable_data_ptr<double>();
      for (int64_t i = 0; i < count; ++i) drawn[i] = init.value(random, index(first + i));
      flat.narrow(0, first, count).copy_(values.narrow(0, 0, count));
    }
  });
  if (!tensor.is_cpu()) tensor.copy_(on_host);
}

// The registry that a mixer adds to at this time.
thread_local const ParameterRegistry* of_mixer = nullptr;

bool uses_any(const SiteSet& process, const std::vector<int>& sites) {
  return std::any_of(sites.begin(), sites.end(), [&](int site) { return process.has(site); });
}

}  // namespace

Init Init::constant(double value) {
  return {[value](const RandomStream&, int64_t) { return value; }};
}

Init Init::normal(double standard_deviation) {
  return {[standard_deviation](const RandomStream& random, int64_t i) {
    return standard_deviation * random.normal(i);
  }};
}

Init Init::uniform(double bound) {
  return {[bound](const RandomStream& random, int64_t i) {
    return bound * (2 * random.uniform(i) - 1);
  }};
}

Init Init::by_index(std::function<double(int64_t i)> value) {
  return {[value = std::move(value)](const RandomStream&, int64_t i) { return value(i); }};
}

bool has_weight_decay(ParameterKind kind) {
  return kind == ParameterKind::matrix || kind == ParameterKind::head;
}

bool has_weight_format(ParameterKind kind) {
  return has_weight_decay(kind) || kind == ParameterKind::embedding;
}

bool is_differentiated(ParameterKind kind) {
  return kind != ParameterKind::router_bias;
}

bool is_low_rank(const Parameter& parameter) {
  return parameter.role.ends_with(kLowRankIn) || parameter.role.ends_with(kLowRankOut);
}

bool SiteSet::has(int site) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const SiteRange& range) { return range.has(site); });
}

bool SiteSet::has_all(const SiteRange& range) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const SiteRange& own) {
    return own.first <= range.first && range.last <= own.last;
  });
}

std::vector<size_t> stages_with(const Parameter& parameter, const std::vector<SiteSet>& stages) {
  std::vector<size_t> with;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (uses_any(stages[i], parameter.used_at)) with.push_back(i);
  }
  return with;
}

int64_t cut_dimension(const Parameter& parameter) {
  return cut_dimension_of(parameter.kind, parameter.shard, parameter.tensor.dim());
}

std::vector<int64_t> whole_sizes(const TensorPart& part, const Parameter& parameter) {
  std::vector<int64_t> sizes = parameter.tensor.sizes().vec();
  const int64_t dimension = cut_dimension(parameter);
  if (dimension >= 0) sizes[dimension] *= part.size;
  return sizes;
}

at::Tensor part_of_parameter(const TensorPart& part, const Parameter& parameter,
                             const at::Tensor& whole) {
  const int64_t dimension = cut_dimension(parameter);
  if (part.is_whole() || dimension < 0) return whole;
  return part_of_rows(part, whole.movedim(dimension, 0)).movedim(0, dimension);
}

at::Tensor whole_of_parameter(const TensorGroup& group, const Parameter& parameter,
                              const at::Tensor& part) {
  const int64_t dimension = cut_dimension(parameter);
  if (dimension < 0) return part;
  const int64_t rows = part.size(dimension) * group.part().size;
  return group.all_gather(part.movedim(dimension, 0), rows).movedim(0, dimension).contiguous();
}

at::Tensor ParameterRegistry::add(int site, const std::string& role, ParameterKind kind,
                                  at::IntArrayRef shape, const Init& init, Shard shard,
                                  std::vector<int> used_at) {
  if (used_at.empty()) used_at = {site};
  if (!uses_any(sites_, used_at)) return {};
  const at::Tensor tensor =
      allocate(site, role, part_sizes(site, role, kind, shape, shard), device_);
  keep({site, role, kind, tensor, shard, std::move(used_at)}, init);
  return tensor;
}

const Parameter* ParameterRegistry::add_weight(int site, const std::string& role,
                                               ParameterKind kind, at::IntArrayRef shape,
                                               const Init& init, Shard shard,
                                               std::vector<int> used_at) {
  if (used_at.empty()) used_at = {site};
  if (!uses_any(sites_, used_at)) return nullptr;
  const std::vector<int64_t> sizes = part_sizes(site, role, kind, shape, shard);
  const PackedMatrix packed = allocate_packed(site, role, sizes, shape.back());
  const at::Tensor tensor =
      allocate(site, role, sizes, packed.defined() ? at::Device(at::kMeta) : device_);
  keep({site, role, kind, tensor, shard, std::move(used_at), packed}, init);
  return &parameters_.back();
}

at::Tensor ParameterRegistry::add_joined(int site, int64_t inputs,
                                         const std::vector<MatrixRole>& roles) {
  if (!uses_any(sites_, {site})) return {};
  constexpr ParameterKind kKind = ParameterKind::matrix;
  if (std::any_of(roles.begin(), roles.end(),
                  [&](const MatrixRole& role) { return is_packed(site, role.role); })) {
    for (const MatrixRole& role : roles) {
      add_weight(site, role.role, kKind, {role.outputs, inputs}, role.init, role.shard);
    }
    return {};
  }
  std::vector<int64_t> outputs;
  for (const MatrixRole& role : roles) {
    outputs.push_back(
        part_sizes(site, role.role, kKind, {role.outputs, inputs}, role.shard).front());
  }
  const int64_t all = std::accumulate(outputs.begin(), outputs.end(), int64_t{0});
  const at::Tensor joined = allocate(site, roles.front().role, {all, inputs}, device_);
  int64_t first = 0;
  for (size_t i = 0; i < roles.size(); ++i) {
    const at::Tensor rows = joined.narrow(0, first, outputs[i]).detach();
    keep({site, roles[i].role, kKind, rows, roles[i].shard, {site}}, roles[i].init);
    first += outputs[i];
  }
  return joined;
}

std::vector<int64_t> ParameterRegistry::part_sizes(int site, const std::string& role,
                                                   ParameterKind kind, at::IntArrayRef whole,
                                                   Shard shard) const {
  std::vector<int64_t> sizes = whole.vec();
  const int64_t dimension = cut_dimension_of(kind, shard, static_cast<int64_t>(sizes.size()));
  if (dimension < 0) return sizes;
  const int64_t parts = part().size;
  require(sizes[dimension] % parts == 0,
          "parameter {} of site {}: {} {} cannot be cut into {} equal parts", role, site,
          sizes[dimension], shard == Shard::outputs ? "outputs" : "inputs", parts);
  sizes[dimension] /= parts;
  return sizes;
}

at::Tensor ParameterRegistry::allocate(int site, const std::string& role, at::IntArrayRef shape,
                                       at::Device device) const {
  double total = static_cast<double>(count_), numbers = 1;
  for (const int64_t size : shape) numbers *= static_cast<double>(size);
  total += numbers;
  require_usage(
      total <= kMostNumbers,
      "a model of {:.1e} parameters and more ({} of site {} alone has {:.1e}) is beyond any "
      "machine; at most {:.0e} are possible",
      total, role, site, numbers, kMostNumbers);
  return at::empty(shape, at::TensorOptions(device).dtype(precision_.parameters));
}

bool ParameterRegistry::is_packed(int site, const std::string& role) const {
  return precision_.weights.of(site, role) != WeightFormat::f32 && !device_.is_meta();
}

PackedMatrix ParameterRegistry::allocate_packed(int site, const std::string& role,
                                                at::IntArrayRef shape, int64_t inputs) const {
  if (!is_packed(site, role)) return {};
  const WeightFormat wanted = precision_.weights.of(site, role);
  const WeightFormat format = fits(wanted, inputs) ? wanted : WeightFormat::f16;
  const int64_t columns = shape.back();
  require_usage(fits(format, columns),
                "weights: {} stores inputs in blocks of {}, but each of {} processes has {} of {} "
                "(site {}); take f16 or bf16, or another number of processes",
                blocks_of(format).name, blocks_of(format).numbers, part().size, columns, role,
                site);
  std::vector<int64_t> stored = shape.vec();
  stored.back() = packed_row_bytes(format, columns);
  return {at::empty(stored, at::TensorOptions(device_).dtype(at::kByte)), format, columns};
}

// A mixer's is found by kMixersRole + role too: so a layer's that has this role finds out whose it
// is, and takes it.
void ParameterRegistry::keep(Parameter parameter, const Init& init) {
  const auto& [site, role, kind, tensor, shard, used_at, packed] = parameter;
  const bool is_mixers = of_mixer == this;
  const auto there = places_.find({site, role}),
             of_a_mixer = places_.find({site, kMixersRole + role});
  const bool takes = !is_mixers && there != places_.end() && of_a_mixer != places_.end() &&
                     there->second == of_a_mixer->second;
  require(there == places_.end() || takes, "parameter {} of site {} is defined twice", role, site);
  if (takes) parameters_[there->second].role = kMixersRole + role;
  inits_.push_back(init);
  if (seed_.has_value() && !device_.is_meta()) start(parameter, *seed_);
  tensor.set_requires_grad(is_differentiated(kind) && !packed.defined());
  count_ += tensor.numel();
  places_[{site, role}] = parameters_.size();
  if (is_mixers) places_[{site, kMixersRole + role}] = parameters_.size();
  parameters_.push_back(std::move(parameter));
}

void ParameterRegistry::start(const Parameter& parameter, uint64_t seed) const {
  const auto& [site, role, kind, tensor, shard, used_at, packed] = parameter;
  require(!packed.defined(), "packed weights are read: parameter {} of site {} cannot start anew",
          role, site);
  const auto place = places_.find({site, role});
  const size_t index = place == places_.end() ? parameters_.size() : place->second;
  initialise(tensor, inits_.at(index),
             RandomStream(seed, fmt::format("parameter.{}.{}", site, role)),
             PartIndex(part(), cut_dimension(parameter), tensor.sizes()));
}

const Parameter* ParameterRegistry::find(int site, const std::string& role) const {
  const auto place = places_.find({site, role});
  return place == places_.end() ? nullptr : &parameters_[place->second];
}

AddingOfMixer::AddingOfMixer(const ParameterRegistry& parameters) {
  of_mixer = &parameters;
}

AddingOfMixer::~AddingOfMixer() {
  of_mixer = nullptr;
}

bool is_of_mixer(const ParameterRegistry& parameters, const Parameter& parameter) {
  return parameter.role.starts_with(kMixersRole) ||
         parameters.find(parameter.site, kMixersRole + parameter.role) == &parameter;
}

}  // namespace attnres
