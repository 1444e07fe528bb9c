#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/serve/absent_fields.h"
#include "attnres/serve/conversation_request.h"
#include "attnres/serve/endpoints/endpoints.h"
#include "attnres/serve/json_fields.h"

namespace attnres::endpoints {

HttpReply tokenize(Service& service, const CallPointer& call) {
  const JsonFields fields(call->http.body);
  check_model_name(fields, service.backend);
  refuse_absent_of_tokenize(fields);
  const auto reply = [&](const std::vector<int32_t>& ids) {
    return json_reply(
        {{"tokens", ids}, {"count", ids.size()}, {"max_model_len", service.backend.context()}});
  };
  if (!fields.find("messages").is_null()) {
    refuse_special_tokens(fields);
    return reply(read_conversation(fields, service.backend).ids);
  }
  check_template_fields(fields, service.backend);
  const std::string prompt = fields.text("prompt", "");
  const bool framed = fields.flag("add_special_tokens", true);
  try {
    return reply(framed ? service.backend.encode_framed(prompt) : service.backend.encode(prompt));
  } catch (const std::exception& e) {
    refuse_as("invalid_value", "prompt", e.what());
  }
}

HttpReply detokenize(Service& service, const CallPointer& call) {
  const JsonFields fields(call->http.body);
  check_model_name(fields, service.backend);
  const auto ids = as_ids(fields.find("tokens"));
  if (!ids) refuse("tokens", "a list of token ids", fields.find("tokens"));
  try {
    return json_reply({{"prompt", service.backend.decode(*ids)}});
  } catch (const std::exception& e) {
    refuse_as("invalid_value", "tokens", e.what());
  }
}

HttpReply tokenizer_info(Service& service, const CallPointer& /*call*/) {
  const ModelDescription& model = service.backend.model();
  const Json begin = model.begin_of_text.empty() ? Json() : Json(model.begin_of_text);
  return json_reply({{"tokenizer_class", model.tokenizer},
                     {"vocab_size", model.vocabulary},
                     {"eos_token", model.end_of_document},
                     {"bos_token", begin},
                     {"pad_token", nullptr},
                     {"chat_template", nullptr},
                     {"model_max_length", service.backend.context()}});
}

}  // namespace attnres::endpoints
