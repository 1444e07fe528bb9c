#include <nlohmann/json.hpp>
#include <string>

#include "attnres/serve/documents.h"
#include "attnres/serve/endpoints/endpoints.h"

namespace attnres::endpoints {

HttpReply show_page(Service& /*service*/, const CallPointer& /*call*/) {
  return {.type = "text/html; charset=utf-8",
          .body = std::string(page()),
          .headers = {{"Content-Security-Policy",
                       "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                       "connect-src 'self'; img-src data:"}}};
}

HttpReply describe(Service& /*service*/, const CallPointer& /*call*/) {
  return {.body = std::string(openapi())};
}

HttpReply health(Service& service, const CallPointer& /*call*/) {
  const LoopStatus status = service.backend.status();
  return json_reply({{"status", "ok"},
                     {"running", status.running},
                     {"waiting", status.waiting},
                     {"slots", status.slots}});
}

HttpReply metrics(Service& service, const CallPointer& /*call*/) {
  return {.type = "text/plain; version=0.0.4",
          .body = service.metrics.text(service.backend.status())};
}

}  // namespace attnres::endpoints
