// GGUF files: keys, tensors of every format, the tokenizer, the chat template, and the model.
#include <ATen/ops/full.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/formats/gguf_config.h"
#include "attnres/formats/gguf_load.h"
#include "attnres/formats/gguf_reader.h"
#include "attnres/model/transformer.h"
#include "attnres/pretrained/chat_template_files.h"
#include "attnres/pretrained/gguf_tokenizer.h"
#include "attnres/support/file.h"
#include "attnres/text/bytes.h"
#include "attnres/text/sentencepiece.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/use_tokenizer.h"

namespace attnres::gguf_fuzz {
namespace {

using namespace testing;

void run(std::string_view input) {
  const GgufFile file(put_file("model.gguf", input));
  for (const std::string& name : file.names()) {
    attempt([&] { file.require_finite(name); });
    file.numbers(name);
  }
  attempt([&] { use_tokenizer(*read_gguf_tokenizer(file)); });
  attempt([&] { read_chat_template(file).require_read(); });
  const GgufConfig config = read_gguf_config(file);
  load_gguf(file, config, config.stored.model,
            Precision(at::kFloat, at::kFloat, gguf_weight_formats(file, config)));
}

std::string written(const GgufMetadata& keys, const std::vector<GgufTensor>& tensors) {
  const auto path = fuzz_folder() / "seed.gguf";
  write_gguf(path, keys, tensors);
  return read_file(path);
}

// What its bytes say is finite in every format.
GgufTensor one_row(const GgufStorage& storage) {
  constexpr int64_t kNumbers = 256;
  const int64_t bytes = packed_row_bytes(storage.format, kNumbers);
  return {.name = std::to_string(static_cast<int>(storage.type)),
          .shape = {1, kNumbers},
          .type = storage.type,
          .values = [bytes] {
            return at::full({1, bytes}, 0x3c, at::kByte);
          }};
}

std::vector<std::string> seeds() {
  std::vector<GgufTensor> tensors;
  for (const GgufStorage& storage : kGgufStorages) tensors.push_back(one_row(storage));
  std::vector<std::string> seeds = {written({{"a", uint8_t{1}},
                                             {"b", std::vector<std::string>{"x", ""}},
                                             {"c", std::vector<float>{1, 2}},
                                             {"general.alignment", uint32_t{64}}},
                                            tensors),
                                    written(gguf_tokenizer(ByteTokenizer(), 256), {})};
  const std::string text = "the cat and the dog and the bird";
  const SentencePieceTokenizer pieces(train_sentencepiece({{"text", text}}, 280), "seed");
  seeds.push_back(written(gguf_tokenizer(pieces, 280), {}));
  for (const std::string& path : repository_files("tests/fixtures", ".gguf")) {
    seeds.push_back(repository_file(path));
  }
  return seeds;
}

const ListedFuzzTarget kListed({"gguf", run, seeds});

}  // namespace
}  // namespace attnres::gguf_fuzz
