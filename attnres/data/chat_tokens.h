// Conversations as tokens to train on, of which only the answers count.
#pragma once

#include <cstdint>
#include <vector>

#include "attnres/chat/chat_template.h"
#include "attnres/support/json.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// Takes a list of {"role", "content"}, as OpenAI's and Hugging Face's data have it. Throws Error
// where it is none, or a content is not a text.
std::vector<ChatMessage> read_conversation(const Json& messages);

// The tokens of a conversation and its end of document, rendered by the template as the server
// renders it: each answer is tokenized by itself, after what it was asked for. All tokens but those
// of the assistant's messages, with what the template ends these with, have kNoTarget; so has the
// end of document where the last word is not the assistant's. Throws Error where no message is the
// assistant's, as ChatTemplate does, and where the template changes what came before an answer once
// there is more: then it cannot be told what the model would be asked.
std::vector<uint32_t> chat_tokens(const std::vector<ChatMessage>& messages,
                                  const ChatTemplate& chat_template, const Tokenizer& tokenizer);

}  // namespace attnres
