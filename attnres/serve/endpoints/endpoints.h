// The endpoints: OpenAI's, and /v1/depth. docs/serving.md has every field of each.
//
// They throw ApiError where they refuse a request.
#pragma once

#include <string>

#include "attnres/serve/endpoints/call.h"

namespace attnres::endpoints {

using Endpoint = HttpReply (*)(Service& service, const CallPointer& call);

// completions.cc
HttpReply completions(Service& service, const CallPointer& call);
HttpReply chat_completions(Service& service, const CallPointer& call);

// models.cc; of one model, whose name follows kBeforeModel.
inline const std::string kBeforeModel = "/v1/models/";
HttpReply models(Service& service, const CallPointer& call);
HttpReply model(Service& service, const CallPointer& call);

HttpReply embeddings(Service& service, const CallPointer& call);
HttpReply depth(Service& service, const CallPointer& call);

// tokens.cc
HttpReply tokenize(Service& service, const CallPointer& call);
HttpReply detokenize(Service& service, const CallPointer& call);
HttpReply tokenizer_info(Service& service, const CallPointer& call);

// server.cc: the page, openapi.json, and how the server is.
HttpReply show_page(Service& service, const CallPointer& call);
HttpReply describe(Service& service, const CallPointer& call);
HttpReply health(Service& service, const CallPointer& call);
HttpReply metrics(Service& service, const CallPointer& call);

}  // namespace attnres::endpoints
