// Measures the parts of an inspection. Each is of a text's tokens, in windows of `context` tokens
// where it says nothing else, and leaves the model as it is.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "attnres/inspect/inspection.h"
#include "attnres/model/transformer.h"
#include "attnres/text/tokenizer.h"

namespace attnres {

// What the model alone tells: its configuration and the numbers in each of its parts. `context`:
// the tokens that it sees at once.
Inspection inspect_model(const Transformer& model, int64_t context);

// Adds `sites` and their means. Like the next two, throws Error on fewer than two tokens, of which
// the last is only predicted, and like all on one outside the vocabulary.
void measure_depth_weights(const Transformer& model, int64_t context,
                           const std::vector<int32_t>& tokens, Inspection& inspection);

// Adds `mixing_matrices`, of the first window, of at most 512 tokens; their ranks, which take long
// in deep models, where `ranks` asks for them.
void measure_matrices(const Transformer& model, int64_t context, const std::vector<int32_t>& tokens,
                      bool ranks, Inspection& inspection);

// Adds `effects` and all keys that follow it. on_progress as measure_drop_effects has it. Throws
// Error too where the loss, or that without a layer, is not finite.
void measure_effects(const Transformer& model, const Tokenizer& tokenizer, int64_t context,
                     const std::vector<int32_t>& tokens,
                     const std::function<void(int64_t done, int64_t total)>& on_progress,
                     Inspection& inspection);

// Adds `tokens`: the first `context` of them, of any number but none.
void measure_tokens(const Transformer& model, const Tokenizer& tokenizer, int64_t context,
                    std::vector<int32_t> ids, Inspection& inspection);

}  // namespace attnres
