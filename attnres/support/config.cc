#include "attnres/support/config.h"

#include <algorithm>

#include "attnres/support/format.h"
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

}  // namespace detail

void check_whole(const std::string& path, const char* key, int64_t value, int64_t least,
                 int64_t most) {
  if (value >= least && value <= most) return;
  if (most == INT64_MAX) fail_usage("{}.{}: expected {} or more, got {}", path, key, least, value);
  fail_usage("{}.{}: expected a whole number from {} to {}, got {}", path, key, least, most, value);
}

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
