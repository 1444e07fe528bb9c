#include "attnres/support/config.h"

#include "attnres/support/nearest.h"

namespace attnres {
namespace detail {

void wrong_type(const std::string& key, const char* expected, const Json& value) {
  fail_usage("{}: expected {}, got {}", key.empty() ? "configuration" : key, expected,
             value.dump());
}

void unknown_key(const std::string& path, const std::string& key,
                 const std::vector<std::string>& known) {
  const std::string prefix = path.empty() ? "" : path + ".";
  if (known.empty()) fail_usage("unknown key {}{}: this takes no settings", prefix, key);
  fail_usage("unknown key {}{}: the nearest known key is {}{}", prefix, key, prefix,
             nearest(key, known));
}

}  // namespace detail

void apply_override(Json& config, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  require_usage(equals != std::string::npos && equals > 0,
                "--set {}: expected key=value, for example --set train.steps=200", assignment);
  const std::string path = assignment.substr(0, equals);
  const std::string text = assignment.substr(equals + 1);
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) value = text;

  Json* at = &config;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t dot = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, dot - begin);
    require_usage(!key.empty() && (at->is_object() || at->is_null()),
                  "--set {}: {} is not an object with keys", assignment, path.substr(0, begin));
    at = &(*at)[key];
    begin = dot + 1;
  }
  *at = std::move(value);
}

}  // namespace attnres
