#include "attnres/report/settings.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace attnres {

void SettingsTable::add(size_t run, const std::string& prefix, const Json& part) {
  if (part.is_object() && !part.empty()) {
    for (const auto& [name, inner] : part.items()) {
      add(run, prefix.empty() ? name : fmt::format("{}.{}", prefix, name), inner);
    }
    return;
  }
  if (known_.insert(prefix).second) keys_.push_back(prefix);
  runs_.at(run)[prefix] = part.is_string() ? part.get<std::string>() : part.dump();
}

const std::string* SettingsTable::value(size_t run, const std::string& key) const {
  const auto found = runs_.at(run).find(key);
  return found == runs_[run].end() ? nullptr : &found->second;
}

bool SettingsTable::equal(const std::string& key) const {
  for (size_t run = 0; run < runs_.size(); ++run) {
    const std::string *first = value(0, key), *here = value(run, key);
    if (!first != !here || (first && *first != *here)) return false;
  }
  return true;
}

std::vector<std::string> SettingsTable::values(const std::string& key) const {
  std::vector<std::string> out;
  for (size_t run = 0; run < runs_.size(); ++run) {
    const std::string* here = value(run, key);
    if (here && std::find(out.begin(), out.end(), *here) == out.end()) out.push_back(*here);
  }
  return out;
}

}  // namespace attnres
