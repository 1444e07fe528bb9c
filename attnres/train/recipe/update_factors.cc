#include "attnres/train/recipe/update_factors.h"

#include <fnmatch.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "attnres/model/parameter_names.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// Single-character changes that make a name of a pattern, whose * stands for anything.
int distance(const std::string& pattern, const std::string& name) {
  std::vector<int> row(name.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (const char wanted : pattern) {
    int diagonal = row[0];
    if (wanted != '*') ++row[0];
    for (size_t j = 1; j <= name.size(); ++j) {
      const int substitute = diagonal + (wanted != '?' && wanted != name[j - 1]);
      diagonal = row[j];
      row[j] = wanted == '*' ? std::min(row[j], row[j - 1])
                             : std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

// The names of a parameter: one, or of stacked experts one an expert.
std::vector<std::string> names_of(const Parameter& parameter, int sublayers) {
  std::vector<std::string> names;
  for (const StoredTensor& stored : stored_tensors(parameter, sublayers)) {
    names.push_back(stored.name);
  }
  return names;
}

// Names of each parameter; none of what no gradient moves.
using Names = std::vector<std::vector<std::string>>;

Names moved_names(const ParameterRegistry& parameters, int sublayers) {
  Names names;
  for (const Parameter& p : parameters.all()) {
    names.push_back(is_differentiated(p.kind) ? names_of(p, sublayers)
                                              : std::vector<std::string>());
  }
  return names;
}

// Patterns with their factors: the value of the recipe's key.
struct Patterns {
  const char* key;
  const NamedNumbers& factors;
};

// Whether the pattern is a parameter's, by all its names.
bool is_meant(const char* key, const std::string& pattern, const std::vector<std::string>& names) {
  const auto matched = std::count_if(
      names.begin(), names.end(), [&](const std::string& name) { return matches(pattern, name); });
  require_usage(matched == 0 || matched == std::ssize(names),
                "{}: {} matches {} of {}, but experts share one factor; match all of them", key,
                one_line(pattern), counted(matched, "expert"), names.size());
  return matched > 0;
}

[[noreturn]] void refuse(const char* key, const std::string& pattern, const Names& names) {
  const std::string* nearest = nullptr;
  for (const std::vector<std::string>& of_one : names) {
    for (const std::string& name : of_one) {
      if (nearest == nullptr || distance(pattern, name) < distance(pattern, *nearest)) {
        nearest = &name;
      }
    }
  }
  fail_usage("{}: {} matches no parameter of this model; the nearest is {}", key, one_line(pattern),
             nearest == nullptr ? "none" : *nearest);
}

// Of each parameter, where a pattern is its.
std::vector<std::optional<double>> matched_factors(const Patterns& patterns, const Names& names) {
  std::vector<std::optional<double>> factors(names.size());
  for (const auto& [pattern, factor] : patterns.factors) {
    bool is_used = false;
    for (size_t i = 0; i < factors.size(); ++i) {
      if (!is_meant(patterns.key, pattern, names[i])) continue;
      is_used = true;
      if (!factors[i]) factors[i] = factor;
    }
    if (!is_used) refuse(patterns.key, pattern, names);
  }
  return factors;
}

}  // namespace

std::vector<UpdateFactors> update_factors(const ParameterRegistry& parameters, int sublayers,
                                          const TrainConfig& train) {
  const bool has_patterns = !train.rates.empty() || !train.decays.empty();
  const Names names = has_patterns ? moved_names(parameters, sublayers) : Names();
  const auto rates = matched_factors({"train.rates", train.rates}, names);
  const auto decays = matched_factors({"train.decays", train.decays}, names);
  const bool has_low_rank =
      std::any_of(parameters.all().begin(), parameters.all().end(), is_low_rank);
  std::vector<UpdateFactors> factors;
  for (const Parameter& p : parameters.all()) {
    const size_t i = factors.size();
    UpdateFactors& of = factors.emplace_back();
    of.rate = !has_low_rank || is_low_rank(p) ? 1 : 0;
    of.decay = has_weight_decay(p.kind) ? 1 : 0;
    if (!has_patterns) continue;
    of.rate = rates[i].value_or(of.rate);
    of.decay = decays[i].value_or(of.decay);
  }
  return factors;
}

}  // namespace attnres
