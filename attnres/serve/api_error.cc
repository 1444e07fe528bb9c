#include "attnres/serve/api_error.h"

#include <map>
#include <nlohmann/json.hpp>

#include "attnres/support/json.h"

namespace attnres {
namespace {

const char* type_of(int status) {
  static const std::map<int, const char*> all = {{401, "authentication_error"},
                                                 {403, "permission_error"},
                                                 {404, "not_found_error"},
                                                 {429, "rate_limit_error"},
                                                 {503, "service_unavailable_error"}};
  if (const auto found = all.find(status); found != all.end()) return found->second;
  return status >= 500 ? "server_error" : "invalid_request_error";
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
