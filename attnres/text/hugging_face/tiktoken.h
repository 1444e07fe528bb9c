// tiktoken.model: the tokens of Moonshot AI's models (Kimi K2, Kimi Linear, Moonlight) as
// github.com/openai/tiktoken keeps them, a line for each: its bytes in base64, a space, its rank.
#pragma once

#include <string>
#include <string_view>

#include "attnres/support/json.h"
#include "attnres/text/hugging_face/tokenizer_json.h"

namespace attnres {

// How Kimi's tokenizers split text.
extern const char* const kKimiPattern;

// The tokenizer that such a file and the tokenizer_config.json beside it say: the ranks are ids,
// and the 258 ids that follow are control tokens, which the configuration names under
// "added_tokens_decoder" or are <|reserved_token_ID|>. The expression by which text is split is in
// neither file but in the models' code: throws UnreadTokenizer where the configuration's
// "tokenizer_class" is not theirs, TikTokenTokenizer, and Error on lines that are none, naming
// them.
//
// Kimi's code cuts runs of more than 25,000 characters with or without spaces, and texts every
// 400,000 characters, before they are split; here they are not cut.
TokenizerJson read_tiktoken(std::string_view text, const Json& config, const std::string& what);

}  // namespace attnres
