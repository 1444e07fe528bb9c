#include <fmt/core.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "attnres/serve/api_error.h"
#include "attnres/serve/depth_reply.h"
#include "attnres/serve/endpoints/endpoints.h"
#include "attnres/serve/json_fields.h"

namespace attnres::endpoints {
namespace {

// The text that is asked about, or that of a finished request.
TextRequest sequence_for_depth(const Service& service, const HttpRequest& request) {
  const JsonFields fields(request.body);
  check_model_name(fields, service.backend);
  std::string field = "request";
  std::vector<int32_t> ids;
  if (const std::string id = fields.text(field, ""); !id.empty()) {
    const auto found = service.finished.find(id);
    if (!found) {
      throw ApiError(404, "request_not_found",
                     fmt::format("request: {} is none of the last {} that were finished",
                                 shown(Json(id)), FinishedRequests::kMost),
                     field);
    }
    ids = *found;
  } else {
    field = fields.find("ids").is_null() ? "prompt" : "ids";
    auto prompts =
        read_prompts(field, fields.find(field), service.settings.limits.sequences, service.backend);
    if (prompts.size() != 1) refuse(field, "one text", fields.find(field));
    ids = std::move(prompts[0]);
  }
  check_depth_tokens(field, std::ssize(ids), service.settings.limits);
  TextRequest sequence = {.ids = std::move(ids),
                          .generation = {.max_tokens = 0, .depth_weights = true}};
  check_sequence(field, sequence, service.backend);
  return sequence;
}

}  // namespace

HttpReply depth(Service& service, const CallPointer& call) {
  const ModelDescription& model = service.backend.model();
  if (model.sites.empty()) {
    throw ApiError(400, "no_depth_weights",
                   fmt::format("this model mixes over depth by {}, which has no depth weights",
                               model.mechanism));
  }
  const TextRequest sequence = sequence_for_depth(service, call->http);
  start(service, *call, {sequence});
  const TextUpdate update = hear(service, *call).update;
  Json depth = depth_json(update.depth, sequence.ids, service.backend);
  return json_reply({{"object", "depth"},
                     {"model", model.name},
                     {"tokens", std::move(depth["tokens"])},
                     {"sites", sites_json(model)},
                     {"weights", std::move(depth["weights"])},
                     {"entropy", entropies_json(update.depth)},
                     {"shares", shares_json(model, update.depth)}});
}

}  // namespace attnres::endpoints
