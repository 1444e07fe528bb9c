#include "attnres/serve/access.h"

#include <fmt/core.h>

#include "attnres/serve/api_error.h"
#include "attnres/serve/equal_keys.h"
#include "attnres/serve/http_head.h"

namespace attnres {
namespace {

// Without scheme and port, in lower case: of "http://[::1]:80" "::1".
std::string host_of(std::string address) {
  address = lower_case(address);
  if (const size_t scheme = address.find("://"); scheme != std::string::npos) {
    address.erase(0, scheme + 3);
  }
  if (address.starts_with('[')) return address.substr(1, address.find(']') - 1);
  return address.substr(0, address.find(':'));
}

// A name could be made to mean this machine by a page that wants to ask; an address cannot.
bool is_address(const std::string& host) {
  return host == "localhost" || host.find(':') != std::string::npos ||
         host.find_first_not_of("0123456789.") == std::string::npos;
}

}  // namespace

void check_origin(const ApiSettings& settings, const HttpRequest& request) {
  const std::string origin = request.header("origin"), host = request.header("host");
  bool is_named = false;
  for (const std::string& allowed : settings.origins) {
    if (origin == allowed) return;
    is_named = is_named || host_of(allowed) == host_of(host);
  }
  if (settings.api_key.empty() && !host.empty() && !is_named && !is_address(host_of(host))) {
    throw ApiError(403, "host_not_allowed",
                   fmt::format("this server has no API key and is asked as {}: name it with "
                               "--origin if that is right",
                               host));
  }
  if (!origin.empty() && host_of(origin) != host_of(host)) {
    throw ApiError(
        403, "origin_not_allowed",
        fmt::format("pages of {} may not ask this server; --origin allows them", origin));
  }
}

void check_key(const ApiSettings& settings, const HttpRequest& request) {
  if (settings.api_key.empty()) return;
  const std::string given = request.header("authorization"), scheme = "bearer ";
  if (lower_case(given.substr(0, scheme.size())) == scheme &&
      equal_keys(given.substr(scheme.size()), settings.api_key)) {
    return;
  }
  throw ApiError(401, "invalid_api_key",
                 "this server needs its API key, as the header Authorization: Bearer KEY");
}

std::map<std::string, std::string> cors_headers(const ApiSettings& settings,
                                                const HttpRequest& request) {
  const std::string origin = request.header("origin");
  for (const std::string& allowed : settings.origins) {
    if (origin != allowed) continue;
    return {{"Access-Control-Allow-Origin", origin},
            {"Vary", "Origin"},
            {"Access-Control-Allow-Methods", "GET, POST"},
            {"Access-Control-Allow-Headers", "Authorization, Content-Type"}};
  }
  return {};
}

}  // namespace attnres
