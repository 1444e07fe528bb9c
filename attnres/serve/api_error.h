// What OpenAI's clients are told when something is wrong.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace attnres {

struct ApiError : std::runtime_error {
  ApiError(int status, std::string code, const std::string& message, std::string param = {})
      : std::runtime_error(message),
        status(status),
        code(std::move(code)),
        param(std::move(param)) {}

  int status;         // of HTTP
  std::string code;   // a word for programs, such as "queue_full"
  std::string param;  // the field of the request that is wrong; empty where it is none's fault
};

// What a request fails with that nothing is wrong of: 503 where memory ran out, else 500.
ApiError failure_of(const std::exception& error);
// Throws ApiError 503 where memory ran out: that is no mistake of who asks.
void pass_on_shortage(const std::exception& error);

// {"error": {"message", "type", "code", "param"}} as OpenAI has it: the type follows from the
// status.
std::string error_body(const ApiError& error);

}  // namespace attnres
