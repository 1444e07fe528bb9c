#include "attnres/support/config.h"

#include <algorithm>
#include <cmath>

#include "attnres/support/format.h"
#include "attnres/support/nearest.h"
#include "attnres/support/setting_words.h"

namespace attnres {
namespace {

Json value_of(const std::string& text, const std::string& key) {
  if (!Json::accept(text)) return text;
  try {
    return parse_json(text, "--set " + key);
  } catch (const Error& e) {
    fail_usage("{}", e.what());
  }
}

bool is_within(double value, const Limits& limits) {
  return std::isfinite(value) && (limits.above ? value > limits.least : value >= limits.least) &&
         (limits.below ? value < limits.most : value <= limits.most);
}

}  // namespace

namespace detail {

void wrong_type(const std::string& key, const char* expected, const Json& value) {
  fail_usage("{}: expected {}, got {}", key.empty() ? "configuration" : one_line(key), expected,
             shown(value));
}

void unknown_key(const std::string& path, const std::string& key,
                 const std::vector<std::string>& known) {
  const std::string prefix = path.empty() ? "" : path + ".";
  const std::string full = prefix + one_line(key);
  if (known.empty()) fail_usage("unknown key {}: this takes no settings", full);
  fail_usage("unknown key {}: the nearest known key is {}{}", full, prefix,
             nearest_setting(key, known));
}

void missing_key(const std::string& path, const char* key) {
  fail_usage("{}it has no \"{}\"", path.empty() ? "" : path + ": ", key);
}

void check_limits(const std::string& key, int64_t value, const Limits& limits) {
  const auto real = static_cast<double>(value);
  if (is_within(real, limits)) return;
  fail_usage("{}: expected {}, got {}", one_line(key), describe(limits, /*is_whole=*/true), value);
}

void check_limits(const std::string& key, double value, const Limits& limits) {
  if (is_within(value, limits)) return;
  const std::string expected = describe(limits, /*is_whole=*/false);
  fail_usage("{}: expected {}, got {}", one_line(key), expected.empty() ? "a number" : expected,
             value);
}

void check_limits(const std::string& key, const std::string& value, const Limits& limits) {
  if (limits.choices.empty()) return;
  std::vector<std::string> names;
  for (const Choice& choice : limits.choices) names.push_back(choice.name);
  if (std::find(names.begin(), names.end(), value) != names.end()) return;
  fail_usage("{}: expected {}, got {}{}", one_line(key), describe(limits, /*is_whole=*/false),
             one_line(value), did_you_mean(value, names));
}

void check_limits(const std::string& key, const NumberOrWord& value, const Limits& limits) {
  if (value.word.empty()) return check_limits(key, value.number, limits);
  check_limits(key, value.word, limits);
}

void check_limits(const std::string& key, const std::vector<std::string>& values,
                  const Limits& limits) {
  for (const std::string& value : values) check_limits(key, value, limits);
}

void check_limits(const std::string& key, const NamedNumbers& values, const Limits& limits) {
  for (const auto& [name, value] : values) check_limits(key + "." + name, value, limits);
}

}  // namespace detail

void apply_override(Json& config, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  require_usage(equals != std::string::npos && equals > 0,
                "--set {}: expected key=value, for example --set train.steps=200",
                one_line(assignment));
  const std::string path = assignment.substr(0, equals);
  const std::string text = assignment.substr(equals + 1);
  require_usage(std::count(path.begin(), path.end(), '.') < ptrdiff_t{kDeepestJson},
                "--set {}: more than {} keys in each other", one_line(assignment), kDeepestJson);
  Json value = value_of(text, path);

  Json* at = &config;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t dot = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, dot - begin);
    require_usage(!key.empty(), "--set {}: a key is missing beside a dot", one_line(assignment));
    require_usage(at->is_object() || at->is_null(), "--set {}: {} is not an object with keys",
                  one_line(assignment),
                  begin == 0 ? "the configuration" : one_line(path.substr(0, begin - 1)));
    at = &(*at)[key];
    begin = dot + 1;
  }
  *at = std::move(value);
}

}  // namespace attnres
