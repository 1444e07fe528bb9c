// How an answer begins that calls a tool.
#pragma once

#include <string>

#include "attnres/chat/chat_template.h"
#include "attnres/chat/conversation.h"

namespace attnres {

// From its first mark to where the tool is named, as the template writes an answer to this
// conversation that calls it. Throws Error where it writes no calls in a form that is known, and as
// ChatTemplate::rendered.
std::string call_beginning(const ChatTemplate& chat_template, Conversation conversation,
                           const std::string& tool);

}  // namespace attnres
