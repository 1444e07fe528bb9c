// What is put around a text's tokens: the post_processor of a tokenizer.json.
#pragma once

#include <cstdint>

#include "attnres/text/hugging_face/json_part.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// The tokens that TemplateProcessing's `single` has before the text and after it, by the ids of its
// `special_tokens`; of a Sequence those of the first step that has any. ByteLevel adds none. Throws
// UnreadTokenizer on other steps, naming them, on a template without exactly one text, and on ids
// that are not below `vocab_size`.
TextFrame read_post_processor(const JsonPart& part, int64_t vocab_size);

// A post_processor that puts one token before a text, or after it, where there is a name for it.
struct FrameToken {
  std::string name;
  int32_t id = 0;
};
Json write_post_processor(const std::vector<FrameToken>& before,
                          const std::vector<FrameToken>& after);

}  // namespace attnres
