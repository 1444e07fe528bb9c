// tokenizer.model, as the tokenizer and as the programs that read its pieces alone.
#include <string>
#include <string_view>
#include <vector>

#include "attnres/text/passage.h"
#include "attnres/text/sentencepiece.h"
#include "attnres/text/sentencepiece_model.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/use_tokenizer.h"

namespace attnres::sentencepiece_fuzz {
namespace {

using namespace testing;

void run(std::string_view input) {
  attempt([&] { write_sentencepiece_model(read_sentencepiece_model(input, "tokenizer.model")); });
  use_tokenizer(SentencePieceTokenizer(std::string(input), "tokenizer.model", {.begin = true}));
}

std::vector<std::string> seeds() {
  const std::string text = "the cat and the dog and the bird";
  SentencePieceModel few;
  for (const char* piece : {"\u2581", "t", "h", "e", "\u2581the", "th"}) {
    few.pieces.push_back({.text = piece, .score = -1});
  }
  few.pieces.insert(few.pieces.begin(), {{"<unk>", 0, SentencePieceModel::Type::unknown},
                                         {"<s>", 0, SentencePieceModel::Type::control},
                                         {"</s>", 0, SentencePieceModel::Type::control}});
  std::vector<std::string> seeds = {train_sentencepiece({{"text", text}}, 280)};
  for (const auto algorithm :
       {SentencePieceModel::Algorithm::unigram, SentencePieceModel::Algorithm::byte_pairs,
        SentencePieceModel::Algorithm::word, SentencePieceModel::Algorithm::character}) {
    few.algorithm = algorithm;
    seeds.push_back(write_sentencepiece_model(few));
  }
  return seeds;
}

const ListedFuzzTarget kListed({"sentencepiece", run, seeds});

}  // namespace
}  // namespace attnres::sentencepiece_fuzz
