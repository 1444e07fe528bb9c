#include "attnres/layers/sublayer.h"

#include "attnres/support/error.h"

namespace attnres {

std::shared_ptr<const Spans> spans_of(const SequenceContext& context, int64_t tokens) {
  if (context.spans == nullptr) return std::make_shared<Spans>(Spans::whole(1, tokens));
  require(context.spans->tokens() == tokens,
          "sequences: the spans of this call have {} tokens, but it was given {}",
          context.spans->tokens(), tokens);
  return context.spans;
}

}  // namespace attnres
