#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnres/serve/absent_fields.h"
#include "attnres/serve/api_error.h"
#include "attnres/serve/conversation_request.h"
#include "attnres/serve/endpoints/endpoints.h"
#include "attnres/serve/json_fields.h"

namespace attnres::endpoints {
namespace {

// Two bytes of a request may name a token of a hundred.
constexpr int64_t kMostDecoded = 1 << 16;

}  // namespace

HttpReply tokenize(Service& service, const CallPointer& call) {
  const JsonFields fields(call->http.body);
  check_model_name(fields, service.backend);
  refuse_absent_of_tokenize(fields);
  // Written as it is read, since a list of JSON takes several times its memory.
  const auto reply = [&](const std::vector<int32_t>& ids) {
    return HttpReply{.body =
                         fmt::format(R"({{"tokens":[{}],"count":{},"max_model_len":{}}})",
                                     fmt::join(ids, ","), ids.size(), service.backend.context())};
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
    pass_on_shortage(e);
    refuse_as("invalid_value", "prompt", e.what());
  }
}

HttpReply detokenize(Service& service, const CallPointer& call) {
  const JsonFields fields(call->http.body);
  check_model_name(fields, service.backend);
  const auto ids = as_ids(fields.find("tokens"));
  if (!ids) refuse("tokens", "a list of token ids", fields.find("tokens"));
  const int64_t most = std::max(kMostDecoded, service.backend.context());
  if (std::ssize(*ids) > most) {
    refuse_as("invalid_value", "tokens",
              fmt::format("expected {} tokens at most, got {}", most, ids->size()));
  }
  try {
    return json_reply({{"prompt", service.backend.decode(*ids)}});
  } catch (const std::exception& e) {
    pass_on_shortage(e);
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
