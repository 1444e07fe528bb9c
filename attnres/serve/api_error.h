// What OpenAI's clients are told when something is wrong.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace attnres {

struct ApiError : std::runtime_error {
  ApiError(int status, std::string code, const std::string& message)
      : std::runtime_error(message), status(status), code(std::move(code)) {}

  int status;        // of HTTP
  std::string code;  // a word for programs, such as "queue_full"
};

// {"error": {"message", "type", "code", "param"}} as OpenAI has it: the type follows from the
// status.
std::string error_body(int status, const std::string& code, const std::string& message);

}  // namespace attnres
