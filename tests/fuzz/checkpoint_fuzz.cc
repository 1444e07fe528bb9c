// A run's checkpoint, as training goes on from it. What keeps a state from being read at all, its
// checksum, is made for each.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/model/transformer.h"
#include "attnres/support/file.h"
#include "attnres/support/hex.h"
#include "attnres/support/random.h"
#include "attnres/text/ids.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "attnres/train/run_folder/run_logs.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::checkpoint_fuzz {
namespace {

using namespace testing;

const std::vector<std::string> kFiles = {"training_state.json", "config.json", "model.safetensors",
                                         "optimizer.safetensors", "metrics.jsonl"};
constexpr int64_t kVocabulary = 4;

ModelConfig small_model() {
  return read_model_config({{"layers", 1}, {"width", 4}, {"heads", 1}, {"ffn_width", 4}});
}

void put_state() {
  const auto path = fuzz_folder() / kFiles[0];
  Json state = read_json(path);
  if (!state.is_object()) return;
  state.erase("checksum");
  for (const char* other : {"model_checksum", "optimizer_checksum"}) state[other] = "";
  state["checksum"] = hex(hash_bytes(state.dump()));
  put_file(kFiles[0], state.dump());
}

void run(std::string_view input) {
  put_files(input, kFiles);
  attempt(put_state);
  attempt([] { RunLogs({fuzz_folder()}, read_training_state(fuzz_folder()), /*sublayers=*/2); });
  Training training =
      load_checkpoint(fuzz_folder(), small_model(), kVocabulary, TrainConfig{.context = 32});
  training.optimizer.step(0.1, 1);
}

std::vector<std::string> seeds() {
  Training training(std::make_unique<Transformer>(small_model(), kVocabulary, /*seed=*/1),
                    TrainConfig());
  training.state = {.step = 3, .tokens = 96, .seconds = 1.5, .best_loss = 2, .best_step = 3};
  const auto folder = fuzz_folder() / "seed";
  save_checkpoint(folder, training, IdsTokenizer(kVocabulary, /*end_of_document=*/0, {}),
                  /*context=*/32);
  const std::string whole = joined_files(folder, kFiles);
  // Half-written: moments are missing.
  const auto parts = parts_of(whole, kFiles.size());
  return {whole,
          joined_inputs({std::string(parts[0]), std::string(parts[1]), std::string(parts[2])})};
}

const ListedFuzzTarget kListed({"checkpoint", run, seeds});

}  // namespace
}  // namespace attnres::checkpoint_fuzz
