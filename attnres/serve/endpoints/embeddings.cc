#include <fmt/core.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "attnres/serve/base64.h"
#include "attnres/serve/endpoints/endpoints.h"
#include "attnres/serve/json_fields.h"

namespace attnres::endpoints {

HttpReply embeddings(Service& service, const CallPointer& call) {
  std::string format;
  std::vector<TextRequest> sequences;
  Json data = Json::array();
  int64_t tokens = 0;
  {
    const JsonFields fields(call->http.body);
    check_model_name(fields, service.backend);
    format = fields.text("encoding_format", "float");
    if (format != "float" && format != "base64") {
      refuse("encoding_format", "float or base64", Json(format));
    }
    const int64_t width = service.backend.model().width;
    if (fields.whole("dimensions", width, 1, INT64_MAX) != width) {
      refuse_unsupported("dimensions", fmt::format("this model's embeddings have {}", width));
    }
    for (std::vector<int32_t>& ids : read_prompts(
             "input", fields.find("input"), service.settings.limits.sequences, service.backend)) {
      tokens += std::ssize(ids);
      sequences.push_back(
          {.ids = std::move(ids), .generation = {.max_tokens = 0, .mean_hidden = true}});
      check_sequence("input", sequences.back(), service.backend);
    }
  }
  start(service, *call, sequences);
  std::vector<std::vector<float>> means(sequences.size());
  for (size_t left = sequences.size(); left > 0; --left) {
    Exchange::Heard heard = hear(service, *call);
    means[heard.sequence] = std::move(heard.update.mean_hidden);
  }
  for (size_t i = 0; i < means.size(); ++i) {
    data.push_back(
        {{"object", "embedding"},
         {"index", i},
         {"embedding", format == "float" ? Json(means[i])
                                         : Json(base64(means[i].data(), means[i].size() * 4))}});
  }
  return json_reply({{"object", "list"},
                     {"data", std::move(data)},
                     {"model", service.backend.model().name},
                     {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}});
}

}  // namespace attnres::endpoints
