// The fields of a request's JSON object. null is as good as none, as OpenAI's clients send it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "attnres/support/json.h"

namespace attnres {

// All of these throw ApiError 400, "NAME: expected ..., got ...".
class JsonFields {
 public:
  explicit JsonFields(const std::string& body);

  // null where there is none.
  const Json& find(const std::string& name) const;
  bool flag(const std::string& name, bool otherwise) const;
  double number(const std::string& name, double otherwise) const;
  // Within [least, most].
  int64_t whole(const std::string& name, int64_t otherwise, int64_t least, int64_t most) const;
  std::string text(const std::string& name, const std::string& otherwise) const;
  // One text, or a list of them.
  std::vector<std::string> texts(const std::string& name) const;

  // Refuses what would change the answer and is not there.
  void require_none(const std::string& name) const;

 private:
  Json object_;
};

[[noreturn]] void refuse(const std::string& field, const std::string& expected, const Json& got);

// Token ids; empty optional where the list has something else in it.
std::optional<std::vector<int32_t>> as_ids(const Json& list);

}  // namespace attnres
