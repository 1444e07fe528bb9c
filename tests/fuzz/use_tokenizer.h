// What every tokenizer that was read has to do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attnres/text/tokenizer.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::testing {

inline void use_tokenizer(const Tokenizer& tokenizer) {
  tokenizer.hash();
  attempt([&] { tokenizer.end_of_document(); });
  const int64_t most = std::min<int64_t>(tokenizer.vocab_size(), 300);
  StreamDecoder stream(tokenizer);
  for (int32_t id = 0; id < most; ++id) {
    attempt([&] {
      tokenizer.token_text(id);
      tokenizer.control_token_name(id);
      stream.add(id);
      tokenizer.decode({id, static_cast<int32_t>(most - 1 - id)});
    });
  }
  stream.finish();
  for (const char* text :
       {"", "the cat", "<s>The 123 cats'll\r\n  <|im_end|>\t \u00e9\u4f60\u2581!"}) {
    attempt([&] {
      tokenizer.decode(tokenizer.encode(text));
      prompt_ids(text, tokenizer);
      encode_framed(text, tokenizer);
    });
  }
  attempt([&] { tokenizer.encode("\xff\xc3("); });
}

}  // namespace attnres::testing
