// How an answer begins that calls a tool.
#pragma once

#include <string>

#include "attnres/chat/chat_template.h"
#include "attnres/chat/conversation.h"

namespace attnres {

// From its first mark to where the tool is named, as the template writes a call of this one of the
// conversation's tools, with its arguments. Throws Error where it writes no calls in a form that is
// known, and as ChatTemplate::rendered.
std::string call_beginning(const ChatTemplate& chat_template, const Conversation& conversation,
                           const std::string& tool);

}  // namespace attnres
