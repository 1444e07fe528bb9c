// Who may ask: those who give the key, and pages of the origins that are named.
#pragma once

#include <map>
#include <string>

#include "attnres/serve/http_server.h"
#include "attnres/serve/settings.h"

namespace attnres {

// Throws ApiError 403: pages of others ask only where they may, also those that give this machine a
// name of theirs.
void check_origin(const ApiSettings& settings, const HttpRequest& request);

// Throws ApiError 401 without the key, where there is one.
void check_key(const ApiSettings& settings, const HttpRequest& request);

// By which a browser lets a page of a named origin read the reply.
std::map<std::string, std::string> cors_headers(const ApiSettings& settings,
                                                const HttpRequest& request);

}  // namespace attnres
