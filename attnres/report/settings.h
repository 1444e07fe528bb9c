// What runs were given, side by side: one value per run under each dotted key.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "attnres/support/json.h"

namespace attnres {

class SettingsTable {
 public:
  explicit SettingsTable(size_t runs) : runs_(runs) {}

  // Adds the leaves of `part` under `prefix` ("data" and {"hash": ...} give data.hash; an empty
  // prefix adds none). Texts stand as they are, other values as JSON.
  void add(size_t run, const std::string& prefix, const Json& part);

  const std::vector<std::string>& keys() const { return keys_; }       // in the order first met
  const std::string* value(size_t run, const std::string& key) const;  // nullptr: has none
  bool equal(const std::string& key) const;                            // in every run alike

  // The distinct values of the runs that have the key, in their order.
  std::vector<std::string> values(const std::string& key) const;

 private:
  std::vector<std::string> keys_;
  std::set<std::string> known_;  // the same
  std::vector<std::map<std::string, std::string>> runs_;
};

}  // namespace attnres
