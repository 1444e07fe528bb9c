#include "attnres/support/error.h"

namespace attnres {

void throw_error(const std::string& message) {
  throw Error(message);
}
void throw_usage_error(const std::string& message) {
  throw UsageError(message);
}

}  // namespace attnres
