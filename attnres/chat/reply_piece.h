// A piece of an answer to a conversation. No tensor library.
#pragma once

#include <cstdint>
#include <string>

namespace attnres {

struct ReplyPiece {
  enum class Kind {
    thought,
    answer,
    call,       // of a tool: `text` is the function's name
    arguments,  // of the call: the next part of their JSON
  };
  Kind kind = Kind::answer;
  std::string text = {};
  int64_t call = -1;    // which call of the answer, from 0 on
  std::string id = {};  // of a call, where the model gives it one

  bool operator==(const ReplyPiece&) const = default;
};

}  // namespace attnres
