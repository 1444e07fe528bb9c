// Errors that a user can act on. Every message says which operation or setting, what was expected,
// what came, and what to do about it.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace attnres {

// What the program ends with where an error ends it.
inline constexpr int kFailedCode = 1, kMisusedCode = 2, kDivergedCode = 3, kInterruptedCode = 130;

// Something failed: a file, a size, a device.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual int exit_code() const { return kFailedCode; }
};

// The caller asked for something that makes no sense.
class UsageError : public Error {
 public:
  using Error::Error;
  int exit_code() const override { return kMisusedCode; }
};

// Ctrl-C, after the work done so far was saved.
class Interrupted : public Error {
 public:
  using Error::Error;
  int exit_code() const override { return kInterruptedCode; }
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
