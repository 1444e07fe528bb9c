// Errors that a user can act on. Every message says which operation or setting, what was expected,
// what came, and what to do about it.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace attnres {

// Something failed: a file, a size, a device. The program ends with exit code 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller asked for something that makes no sense: the program ends with exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Ctrl-C, after the work done so far was saved: exit code 130.
class Interrupted : public Error {
 public:
  using Error::Error;
};

[[noreturn]] void throw_error(const std::string& message);
[[noreturn]] void throw_usage_error(const std::string& message);

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw_error(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw_usage_error(fmt::format(format, std::forward<Args>(args)...));
}

// Throws Error unless the condition holds.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw_error(fmt::format(format, std::forward<Args>(args)...));
}

// Throws UsageError unless the condition holds.
template <class... Args>
void require_usage(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw_usage_error(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace attnres
