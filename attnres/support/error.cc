#include "attnres/support/error.h"

namespace attnres {

void throw_error(std::string message) { throw Error(std::move(message)); }
void throw_usage_error(std::string message) { throw UsageError(std::move(message)); }

}  // namespace attnres
