// Numbers of what a file tells of work that was done: a step, a loss. Others than are meant are as
// if nothing was told.
#pragma once

#include <cstdint>
#include <optional>

#include "attnres/support/json.h"

namespace attnres {

// A count of steps, bytes and the like: a whole number from 0 to 2^53, up to which doubles hold
// every one.
std::optional<int64_t> count_in(const Json& value);
std::optional<int64_t> count_at(const Json* value);  // null: nothing was told
std::optional<int64_t> count_at(const Json& object, const char* key);

// A measured number, of at most 1e100, so that squares, sums and ratios of such are numbers too;
// NaN of anything else. What is closer to 0 than 1e-100 is 0.
double measured_in(const Json& value);
double measured_at(const Json* value);
double measured_at(const Json& object, const char* key);

}  // namespace attnres
