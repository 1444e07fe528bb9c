#include "attnres/serve/api_error.h"

#include <nlohmann/json.hpp>

#include "attnres/support/json.h"

namespace attnres {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

std::string error_body(const ApiError& error) {
  const Json param = error.param.empty() ? Json() : Json(error.param);
  return one_line_of({{"error",
                       {{"message", error.what()},
                        {"type", type_of(error.status)},
                        {"param", param},
                        {"code", error.code}}}});
}

}  // namespace attnres
