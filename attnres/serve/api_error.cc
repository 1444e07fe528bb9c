#include "attnres/serve/api_error.h"

#include <map>
#include <nlohmann/json.hpp>

#include "attnres/support/json.h"
#include "attnres/support/memory.h"

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

ApiError failure_of(const std::exception& error) {
  if (!is_out_of_memory(error)) return {500, "internal_error", error.what()};
  return {503, "out_of_memory",
          "this server has no memory for the request now; ask for less, or try again later"};
}

void pass_on_shortage(const std::exception& error) {
  if (is_out_of_memory(error)) throw failure_of(error);
}

std::string error_body(const ApiError& error) {
  const Json param = error.param.empty() ? Json() : Json(error.param);
  return one_line_of({{"error",
                       {{"message", error.what()},
                        {"type", type_of(error.status)},
                        {"param", param},
                        {"code", error.code}}}});
}

}  // namespace attnres
