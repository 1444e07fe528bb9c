#include <nlohmann/json.hpp>
#include <string>

#include "attnres/serve/depth_reply.h"
#include "attnres/serve/endpoints/endpoints.h"

namespace attnres::endpoints {
namespace {

Json model_json(const Service& service) {
  const ModelDescription& model = service.backend.model();
  const Json description = {{"parameters", model.parameters},
                            {"layers", model.layers},
                            {"width", model.width},
                            {"context", service.backend.context()},
                            {"vocabulary", model.vocabulary},
                            {"mechanism", model.mechanism},
                            {"has_depth_weights", !model.sites.empty()},
                            {"sites", sites_json(model)},
                            {"tokenizer", model.tokenizer},
                            {"chat_template", model.chat_template}};
  return {{"id", model.name},
          {"object", "model"},
          {"created", service.created},
          {"owned_by", "attnres"},
          {"attnres", description}};
}

}  // namespace

HttpReply models(Service& service, const CallPointer& /*call*/) {
  return json_reply({{"object", "list"}, {"data", Json::array({model_json(service)})}});
}

HttpReply model(Service& service, const CallPointer& call) {
  const std::string name = call->http.path.substr(kBeforeModel.size());
  if (name != service.backend.model().name) refuse_model(name, service.backend);
  return json_reply(model_json(service));
}

}  // namespace attnres::endpoints
