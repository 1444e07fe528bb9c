// The fields of a request's JSON object. null is as good as none, as OpenAI's clients send it.
#pragma once

#include <cstdint>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "attnres/support/json.h"

namespace attnres {

// All of these throw ApiError 400, "NAME: expected ..., got ...".
//
// Values take many times the memory of their text, so that of large bodies one is held at a time:
// it should be read and forgotten before anything is waited for.
class JsonFields {
 public:
  explicit JsonFields(const std::string& body);

  // null where there is none.
  const Json& find(const std::string& name) const;
  bool flag(const std::string& name, bool otherwise) const;
  double number(const std::string& name, double otherwise) const;
  // From -2^63 to 2^64 - 1, as the same 64 bits.
  uint64_t bits(const std::string& name, uint64_t otherwise) const;
  // Within [least, most].
  int64_t whole(const std::string& name, int64_t otherwise, int64_t least, int64_t most) const;
  std::string text(const std::string& name, const std::string& otherwise) const;
  // One text, or a list of them.
  std::vector<std::string> texts(const std::string& name) const;

  // Refuses what would change the answer and is not there.
  void require_none(const std::string& name) const;

 private:
  // Its turn, where the body is large. At its end the system gets back what the values took.
  class Turn {
   public:
    explicit Turn(const std::string& body);
    Turn(Turn&&) = default;
    Turn& operator=(Turn&&) = default;
    ~Turn();

   private:
    std::unique_lock<std::mutex> lock_;
  };
  // What is forgotten where memory is short.
  struct Parsed {
    ~Parsed() { take_apart(&json); }
    Json json = {};
  };

  Turn turn_;
  Parsed object_;
};

// null, an empty text, an empty list, an empty object.
bool means_nothing(const Json& value);

// `field` may say more after a colon: "messages: content".
[[noreturn]] void refuse(const std::string& field, const std::string& expected, const Json& got);

// What is wrong of a field: ApiError 400 with this code, "FIELD: WHY".
[[noreturn]] void refuse_as(const std::string& code, const std::string& field,
                            const std::string& why);
// What this server does not have: "unsupported".
[[noreturn]] void refuse_unsupported(const std::string& field, const std::string& why);

// Token ids; empty optional where the list has something else in it.
std::optional<std::vector<int32_t>> as_ids(const Json& list);

}  // namespace attnres
