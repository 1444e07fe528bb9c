#include "attnres/train/recipe/learning_rates.h"

#include <fnmatch.h>

#include <algorithm>
#include <numeric>
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

// Whether the pattern is a parameter's, by all its names.
bool is_meant(const std::string& pattern, const std::vector<std::string>& names) {
  const auto matched = std::count_if(
      names.begin(), names.end(), [&](const std::string& name) { return matches(pattern, name); });
  require_usage(matched == 0 || matched == std::ssize(names),
                "train.rates: {} matches {} of {}, but experts share one rate; match all of them",
                one_line(pattern), counted(matched, "expert"), names.size());
  return matched > 0;
}

[[noreturn]] void refuse(const std::string& pattern,
                         const std::vector<std::vector<std::string>>& names) {
  const std::string* nearest = nullptr;
  for (const std::vector<std::string>& of_one : names) {
    for (const std::string& name : of_one) {
      if (nearest == nullptr || distance(pattern, name) < distance(pattern, *nearest)) {
        nearest = &name;
      }
    }
  }
  fail_usage("train.rates: {} matches no parameter of this model; the nearest is {}",
             one_line(pattern), nearest == nullptr ? "none" : *nearest);
}

}  // namespace

std::vector<double> rate_factors(const ParameterRegistry& parameters, int sublayers,
                                 const NamedNumbers& rates) {
  std::vector<double> factors(parameters.all().size(), 1.0);
  if (rates.empty()) return factors;
  std::vector<std::vector<std::string>> names;  // none of what no gradient moves
  for (const Parameter& p : parameters.all()) {
    names.push_back(is_differentiated(p.kind) ? names_of(p, sublayers)
                                              : std::vector<std::string>());
  }
  std::vector<bool> is_set(factors.size());
  for (const auto& [pattern, factor] : rates) {
    bool is_used = false;
    for (size_t i = 0; i < factors.size(); ++i) {
      if (!is_meant(pattern, names[i])) continue;
      is_used = true;
      if (!is_set[i]) factors[i] = factor;
      is_set[i] = true;
    }
    if (!is_used) refuse(pattern, names);
  }
  return factors;
}

}  // namespace attnres
