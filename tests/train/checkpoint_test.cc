#include "attnres/train/run_folder/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/support/hex.h"
#include "attnres/support/random.h"
#include "attnres/text/bytes.h"
#include "tests/text/test_files.h"

namespace attnres::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

ModelConfig small_config(const Json& changes = Json::object()) {
  Json json = {
      {"layers", 1}, {"width", 16}, {"heads", 2}, {"depth_mixing", {{"type", "attn_res"}}}};
  json.update(changes);
  return read_model_config(json);
}

const TrainConfig kAdamW, kMuon = {.optimizer = "muon"};
constexpr int64_t kVocabulary = 256;

// Filled with numbers of its own.
Training trained(uint64_t seed, const TrainConfig& config = kAdamW, const TrainingState& state = {},
                 const Json& changes = Json::object()) {
  Training training(std::make_unique<Transformer>(small_config(changes), kVocabulary, seed),
                    config);
  const at::NoGradGuard not_recording;
  double value = static_cast<double>(seed);
  for (const Parameter& p : training.model->parameters().all()) p.tensor.add_(value += 0.1);
  for (const auto& [name, moment] : training.optimizer.state()) moment.fill_(value += 0.1);
  training.optimizer.updates = static_cast<int64_t>(10 * seed);
  training.state = state;
  return training;
}

bool equal(const TrainingState& a, const TrainingState& b) {
  return a.step == b.step && a.tokens == b.tokens && a.seconds == b.seconds &&
         a.best_loss == b.best_loss && a.best_step == b.best_step &&
         a.validation_loss == b.validation_loss && a.metrics_bytes == b.metrics_bytes &&
         a.probes_bytes == b.probes_bytes && a.samples_bytes == b.samples_bytes;
}

bool equal(const Training& a, const Training& b) {
  const auto &parameters = a.model->parameters().all(), &others = b.model->parameters().all();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!at::equal(parameters[i].tensor, others.at(i).tensor)) return false;
  }
  const auto moments = a.optimizer.state(), other_moments = b.optimizer.state();
  for (size_t i = 0; i < moments.size(); ++i) {
    if (!at::equal(moments[i].second, other_moments.at(i).second)) return false;
  }
  return a.optimizer.updates == b.optimizer.updates && equal(a.state, b.state);
}

class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() { save(saved_); }

  void save(const Training& training) const {
    save_checkpoint(folder_, training, ByteTokenizer(), 32);
  }
  Training load(const TrainConfig& config = kAdamW) const {
    return load_checkpoint(folder_, small_config(), kVocabulary, config);
  }
  // The refusal to load it as a model that differs in these keys.
  std::string refusal(const Json& changes, int64_t vocab_size = kVocabulary) const {
    return message_of<Error>(
        [&] { load_checkpoint(folder_, small_config(changes), vocab_size, kAdamW); });
  }

  const fs::path folder_ = fresh_folder("checkpoints") / "last";
  const TrainingState state_ = {.step = 20,
                                .tokens = 2560,
                                .seconds = 1.0 / 3,
                                .best_loss = 0.1,
                                .best_step = 14,
                                .validation_loss = 0.7,
                                .metrics_bytes = 1,
                                .probes_bytes = 2,
                                .samples_bytes = 3};
  const Training saved_ = trained(1, kAdamW, state_);
};

TEST_F(Checkpoint, GivesEverythingBack) {
  const Training loaded = load();
  EXPECT_TRUE(equal(loaded, saved_));
  EXPECT_FALSE(equal(loaded, trained(2, kAdamW, state_)));
  EXPECT_FALSE(equal(loaded, trained(1)));
  EXPECT_TRUE(equal(read_training_state(folder_), state_));
  for (const Parameter& p : loaded.model->parameters().all()) {
    EXPECT_TRUE(p.tensor.requires_grad());
  }
}

TEST_F(Checkpoint, OfMuonGivesEverythingBack) {
  const Training muon = trained(1, kMuon);
  save(muon);
  EXPECT_TRUE(equal(load(kMuon), muon));
  EXPECT_FALSE(equal(load(kMuon), trained(2, kMuon)));
}

TEST_F(Checkpoint, RefusesAStateThatNoRunReaches) {
  const fs::path file = folder_ / "training_state.json";
  const Json saved = Json::parse(read_file(file));
  const auto change = [&](const char* key, const Json& value) {
    Json state = saved;
    state.erase("checksum");
    state[key] = value;
    state["checksum"] = hex(hash_bytes(state.dump()));
    write_file(file, state.dump());
  };
  const auto refusal = [&](const char* key, const Json& value) {
    change(key, value);
    return message_of<Error>([&] { load(); });
  };
  change("step", 21);
  EXPECT_EQ(load().state.step, 21);
  for (const char* key : {"step", "updates", "tokens", "metrics_bytes"}) {
    EXPECT_THAT(refusal(key, -1), HasSubstr(key));
    EXPECT_THAT(refusal(key, INT64_MAX), HasSubstr(key));
    EXPECT_THAT(refusal(key, "1"), HasSubstr(key));
  }
}

// Whose mixer and whose experts call a parameter alike.
TEST_F(Checkpoint, OfDeepDeltaWithExpertsGivesEverythingBack) {
  const Json changes = {{"depth_mixing", {{"type", "deep_delta"}}},
                        {"experts", {{"count", 4}, {"chosen", 2}, {"width", 8}}}};
  for (const TrainConfig& config : {kAdamW, kMuon}) {
    const Training training = trained(1, config, {}, changes);
    save(training);
    const auto load = [&] {
      return load_checkpoint(folder_, small_config(changes), kVocabulary, config);
    };
    EXPECT_TRUE(equal(load(), training));
    EXPECT_FALSE(equal(load(), trained(2, config, {}, changes)));
  }
}

TEST_F(Checkpoint, OfAnotherOptimizerIsRefused) {
  EXPECT_THAT(message_of<Error>([&] { load(kMuon); }), HasSubstr("momentum"));
}

TEST_F(Checkpoint, IsReplacedAsAWhole) {
  save(trained(3, kAdamW, {.step = 40}));
  EXPECT_TRUE(equal(load(), trained(3, kAdamW, {.step = 40})));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.parent_path()), {}), 1);
}

TEST_F(Checkpoint, StandsWhenTheNextCannotBeWritten) {
  struct Broken : ByteTokenizer {
    void save(const fs::path&) const override { fail("no space left"); }
  };
  EXPECT_THROW(save_checkpoint(folder_, trained(3), Broken(), 32), Error);
  EXPECT_TRUE(equal(load(), saved_));
}

TEST_F(Checkpoint, OfAnotherModelIsRefused) {
  EXPECT_THAT(refusal({{"width", 32}}), HasSubstr("does not have the shape"));
  EXPECT_THAT(refusal({{"layers", 2}}), HasSubstr("does not have the shape"));
  EXPECT_THAT(refusal(Json::object(), 300), HasSubstr("does not have the shape"));
  // What has no shape.
  EXPECT_THAT(refusal({{"rope_theta", 500.0}}), HasSubstr("rope_theta: 10000.0 -> 500.0"));
  EXPECT_THAT(refusal({{"depth_mixing", {{"type", "attn_res"}, {"window", 1}}}}),
              HasSubstr("depth_mixing.window"));
}

// A file leaves out what has no effect, and the model is the same.
TEST_F(Checkpoint, OfTheSameModelSaidInOtherWordsIsLoaded) {
  const Json residual = {{"layers", 2}, {"depth_mixing", {{"type", "residual"}}}};
  save_checkpoint(
      folder_,
      Training(std::make_unique<Transformer>(small_config(residual), kVocabulary, 1), kAdamW),
      ByteTokenizer(), 32);
  Json wordy = residual;
  wordy["attention"] = {"grouped_query", "grouped_query"};
  EXPECT_NO_THROW(load_checkpoint(folder_, small_config(wordy), kVocabulary, kAdamW));
}

TEST_F(Checkpoint, WithAFileMissingIsRefused) {
  for (const char* name :
       {"config.json", "model.safetensors", "optimizer.safetensors", "training_state.json"}) {
    save(saved_);
    fs::remove(folder_ / name);
    EXPECT_THAT(message_of<Error>([&] { load(); }), HasSubstr(name));
  }
}

// Any single bit: it is refused, or it did not matter.
TEST_F(Checkpoint, ThatIsDamagedIsRefused) {
  const RandomStream random(1, "bits");
  for (const char* name :
       {"config.json", "model.safetensors", "optimizer.safetensors", "training_state.json"}) {
    const std::string good = read_file(folder_ / name);
    int refused = 0;
    for (uint64_t i = 0; i < 200; ++i) {
      std::string bad = good;
      // Half of the places in the first kilobyte: headers.
      const uint64_t range = i % 2 == 0 ? bad.size() : std::min<size_t>(bad.size(), 1024);
      bad[random.below(range, 2 * i)] ^= static_cast<char>(1 << random.below(8, 2 * i + 1));
      write_text(folder_ / name, bad);
      try {
        EXPECT_TRUE(equal(load(), saved_)) << name << " " << i;
      } catch (const Error& e) {
        EXPECT_THAT(e.what(), HasSubstr(folder_.string()));
        ++refused;
      }
    }
    EXPECT_GT(refused, 20) << name;
    for (const size_t length : {size_t{0}, good.size() / 2, good.size() - 2}) {
      write_text(folder_ / name, good.substr(0, length));
      EXPECT_THROW(load(), Error) << name << " " << length;
    }
    write_text(folder_ / name, good);
  }
}

}  // namespace
}  // namespace attnres::checkpoint_test
