#include "attnres/conformance/diagnosis.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "attnres/conformance/decay_vectors.h"
#include "attnres/conformance/test_vectors.h"
#include "attnres/formats/safetensors.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"
#include "attnres/support/nearest.h"

namespace attnres {
namespace {

using Shape = std::vector<int64_t>;
using Results = std::map<std::string, at::Tensor>;  // by name, in the file's dtype

bool is_gradient(const std::string& name) {
  return name.starts_with("gradient.");
}

std::vector<std::string> names_of(const TestVectors& vectors) {
  std::vector<std::string> names;
  for (const NamedTensors* part : {&vectors.given, &vectors.results}) {
    for (const auto& [name, tensor] : *part) names.push_back(name);
  }
  return names;
}

bool is_start(const std::string& name) {
  return name.starts_with("start.");
}

const TestVectorEntry& find_entry(const std::string& file, const std::string& name) {
  std::vector<std::string> names;
  for (const TestVectorEntry& entry : test_vector_entries()) {
    if (entry.name == name) return entry;
    names.push_back(entry.name);
  }
  names.push_back(kDecayEntry);
  fail("{}: there are no test vectors '{}'; did you mean {}? attnres vectors writes them all", file,
       one_line(name), nearest(name, names));
}

// The file's tensors by entry, their names split at the slash.
std::map<std::string, Results> read_results(const std::string& path) {
  const SafetensorsFile file(path);
  std::map<std::string, Results> by_entry;
  for (const std::string& full_name : file.names()) {
    const size_t slash = full_name.find('/');
    require(slash != std::string::npos,
            "{}: tensor '{}': expected ENTRY/NAME as in the file of attnres vectors, for example "
            "block_attn_res/mixed.3",
            path, one_line(full_name));
    const at::ScalarType dtype = file.info(full_name).dtype;
    require(dtype == at::kDouble || dtype == at::kFloat || dtype == at::kBFloat16,
            "{}: tensor {} is {}: store float64, float32 or bfloat16", path, full_name,
            at::toString(dtype));
    by_entry[full_name.substr(0, slash)][full_name.substr(slash + 1)] = file.read(full_name);
  }
  require(!by_entry.empty(), "{}: has no tensors: put results in it, named ENTRY/NAME", path);
  return by_entry;
}

void check_names_and_shapes(const std::string& file, const std::string& entry,
                            const Results& results, const TestVectors& expected) {
  for (const auto& [name, tensor] : results) {
    const at::Tensor known = expected.find(name);
    if (!known.defined()) {
      fail("{}: {} has no tensor '{}'; did you mean {}?", file, entry, one_line(name),
           nearest(name, names_of(expected)));
    }
    const Shape shape = tensor.sizes().vec(), known_shape = known.sizes().vec();
    require(shape == known_shape, "{}: tensor {}/{}: expected shape [{}], got [{}]", file, entry,
            name, fmt::join(known_shape, ", "), fmt::join(shape, ", "));
  }
}

double largest_magnitude(const at::Tensor& tensor) {
  return tensor.detach().abs().max().item<double>();
}

// What errors are relative to. A single number has no scale of its own, as its gradient may be a
// sum whose terms cancel: its scale is that of its role at all sites.
double scale_of(const std::string& name, const at::Tensor& tensor, const NamedTensors& all) {
  double scale = largest_magnitude(tensor);
  if (tensor.numel() > 1) return scale;
  const std::string role = name.substr(0, name.find_last_not_of("0123456789") + 1);
  for (const auto& [other, value] : all) {
    if (value.numel() == 1 && other.starts_with(role)) {
      scale = std::max(scale, largest_magnitude(value));
    }
  }
  return scale;
}

VectorError compare(const std::string& name, const at::Tensor& result, const at::Tensor& expected,
                    double scale) {
  const at::Tensor exact = expected.detach();
  const double error = (result.to(at::kDouble) - exact).abs().max().item<double>();
  const at::ScalarType dtype = result.scalar_type();
  return {.name = name,
          .dtype = dtype,
          .error = std::isfinite(error) ? error / (scale > 0 ? scale : 1)
                                        : std::numeric_limits<double>::infinity(),
          .tolerance = vector_tolerance(dtype, is_gradient(name))};
}

// The errors of all that is in the file, in the order of the test vectors.
std::vector<VectorError> compare_all(const Results& results, const TestVectors& expected) {
  std::vector<VectorError> errors;
  for (const NamedTensors* part : {&expected.given, &expected.results}) {
    for (const auto& [name, tensor] : *part) {
      const auto result = results.find(name);
      if (result == results.end()) continue;
      errors.push_back(compare(name, result->second, tensor, scale_of(name, tensor, *part)));
    }
  }
  return errors;
}

VectorError worst_of(const std::vector<VectorError>& errors) {
  return *std::max_element(
      errors.begin(), errors.end(),
      [](const VectorError& a, const VectorError& b) { return a.part() < b.part(); });
}

double mean_part(const std::vector<VectorError>& errors) {
  double sum = 0;
  for (const VectorError& error : errors) sum += error.part();
  return sum / static_cast<double>(errors.size());
}

// The number of results before the first that is over its tolerance.
size_t agreeing(const std::vector<VectorError>& errors) {
  const auto departs = [](const VectorError& error) { return error.part() > 1; };
  return std::find_if(errors.begin(), errors.end(), departs) - errors.begin();
}

std::optional<VectorError> first_departure(const std::vector<VectorError>& errors) {
  const size_t first = agreeing(errors);
  return first == errors.size() ? std::nullopt : std::optional(errors[first]);
}

using Mistaken = std::function<TestVectors(Mistake)>;

void find_mistakes(std::span<const KnownMistake> all, const Mistaken& mistaken,
                   const Results& results, size_t agreeing_with_right, Diagnosis& diagnosis) {
  size_t most = agreeing_with_right;
  for (const KnownMistake& known : all) {
    const std::vector<VectorError> errors = compare_all(results, mistaken(known.mistake));
    const Diagnosis::Match match = {known, worst_of(errors), first_departure(errors),
                                    mean_part(errors)};
    if (!match.departure) {
      diagnosis.mistakes.push_back(match);
    } else if (agreeing(errors) > most) {
      most = agreeing(errors);
      diagnosis.partly = match;
    }
  }
  std::stable_sort(diagnosis.mistakes.begin(), diagnosis.mistakes.end(),
                   [](const auto& a, const auto& b) { return a.distance < b.distance; });
  if (!diagnosis.mistakes.empty()) diagnosis.partly.reset();
}

// Whether these are small numbers, as the weights of most linear maps start at.
bool looks_drawn(const at::Tensor& start) {
  const double rms = start.to(at::kDouble).square().mean().sqrt().item<double>();
  return rms > 2e-3 && rms < 0.1;
}

// What is wrong with starts shows nowhere else. Where all of them that are wrong are random
// queries, that is a mistake of its own beside those in other results, which are looked for alone.
Results without_random_queries(const Results& results, const TestVectors& expected,
                               Diagnosis& diagnosis) {
  std::vector<VectorError> wrong;
  for (const VectorError& error : compare_all(results, expected)) {
    if (is_start(error.name) && error.part() > 1) wrong.push_back(error);
  }
  const auto is_random_query = [&](const VectorError& error) {
    const bool is_query = error.name.starts_with("start.pseudo_query.") ||
                          error.name.starts_with("start.value_query.");
    return is_query && looks_drawn(results.at(error.name));
  };
  if (wrong.empty() || !std::all_of(wrong.begin(), wrong.end(), is_random_query)) return results;
  diagnosis.mistakes.push_back({random_queries(), worst_of(wrong), /*departure=*/{}});
  Results others = results;
  std::erase_if(others, [](const auto& result) { return is_start(result.first); });
  return others;
}

void find_mistakes_of_mixer(const TestVectorEntry& entry, const Results& results,
                            const TestVectors& expected, Diagnosis& diagnosis) {
  const Results others = without_random_queries(results, expected, diagnosis);
  const std::vector<VectorError> errors = compare_all(others, expected);
  if (!first_departure(errors) || !has_known_mistakes(entry.depth_mixing, entry.shape)) return;
  const auto mistaken = [&](Mistake mistake) {
    return make_test_vectors(entry, at::kDouble, mistaken_mixer(mistake));
  };
  find_mistakes(known_mistakes_of(entry.depth_mixing), mistaken, others, agreeing(errors),
                diagnosis);
}

// Beside the right numbers; mistakes are still to be found.
Diagnosis compare_entry(const std::string& entry, const Results& results,
                        const TestVectors& expected) {
  const std::vector<VectorError> errors = compare_all(results, expected);
  Diagnosis diagnosis;
  diagnosis.entry = entry;
  diagnosis.results = expected.results.size();
  for (const auto& [name, tensor] : expected.results) {
    if (!results.contains(name)) continue;
    ++diagnosis.found;
    diagnosis.has_gradients = diagnosis.has_gradients || is_gradient(name);
  }
  diagnosis.worst = worst_of(errors);
  diagnosis.departure = first_departure(errors);
  return diagnosis;
}

Diagnosis diagnose_decay(const std::string& path, const Results& results) {
  const TestVectors expected = make_decay_vectors();
  check_names_and_shapes(path, kDecayEntry, results, expected);
  Diagnosis diagnosis = compare_entry(kDecayEntry, results, expected);
  if (diagnosis.matches()) return diagnosis;
  const auto mistaken = [](Mistake mistake) { return make_decay_vectors(at::kDouble, mistake); };
  find_mistakes({&decay_read_whole(), 1}, mistaken, results,
                agreeing(compare_all(results, expected)), diagnosis);
  return diagnosis;
}

Diagnosis diagnose_mechanism(const std::string& path, const std::string& name,
                             const Results& results) {
  const TestVectorEntry& entry = find_entry(path, name);
  const TestVectors expected = make_test_vectors(entry);
  check_names_and_shapes(path, name, results, expected);
  Diagnosis diagnosis = compare_entry(name, results, expected);
  if (!diagnosis.matches()) find_mistakes_of_mixer(entry, results, expected, diagnosis);
  return diagnosis;
}

}  // namespace

double vector_tolerance(at::ScalarType dtype, bool is_gradient) {
  switch (dtype) {
    case at::kDouble:
      return is_gradient ? 1e-9 : 1e-10;
    case at::kFloat:
      return is_gradient ? 1e-4 : 1e-5;
    case at::kBFloat16:
      return is_gradient ? 0.4 : 0.06;
    default:
      fail("{} results have no tolerance: store float64, float32 or bfloat16", at::toString(dtype));
  }
}

std::vector<Diagnosis> diagnose(const std::filesystem::path& path) {
  std::vector<Diagnosis> diagnoses;
  for (const auto& [name, results] : read_results(path.string())) {
    diagnoses.push_back(name == kDecayEntry ? diagnose_decay(path.string(), results)
                                            : diagnose_mechanism(path.string(), name, results));
    require(diagnoses.back().found > 0,
            "{}: {} holds only what was given: add results, such as mixed.0 or input.0",
            path.string(), name);
  }
  return diagnoses;
}

}  // namespace attnres
