#include "attnres/support/told_numbers.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace attnres {
namespace {

const Json* member(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

}  // namespace

std::optional<int64_t> count_in(const Json& value) {
  constexpr int64_t kMost = int64_t{1} << 53;
  const std::optional<int64_t> count = whole_number(value);
  return count && *count >= 0 && *count <= kMost ? count : std::nullopt;
}

double measured_in(const Json& value) {
  constexpr double kMost = 1e100, kNone = std::numeric_limits<double>::quiet_NaN();
  const double number = value.is_number() ? value.get<double>() : kNone;
  if (!(std::abs(number) <= kMost)) return kNone;
  const bool is_tiny = number != 0 && std::abs(number) < 1 / kMost;
  return is_tiny ? 0 : number;
}

std::optional<int64_t> count_at(const Json* value) {
  return value == nullptr ? std::nullopt : count_in(*value);
}
double measured_at(const Json* value) {
  return measured_in(value == nullptr ? Json() : *value);
}

std::optional<int64_t> count_at(const Json& object, const char* key) {
  return count_at(member(object, key));
}
double measured_at(const Json& object, const char* key) {
  return measured_at(member(object, key));
}

}  // namespace attnres
