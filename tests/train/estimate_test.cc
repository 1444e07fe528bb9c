#include "attnres/train/estimate/estimate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "attnres/formats/gguf_model.h"
#include "attnres/model/transformer.h"
#include "attnres/pretrained/gguf_tokenizer.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/error.h"
#include "attnres/support/machine.h"
#include "attnres/support/memory.h"
#include "attnres/train/estimate/training_cost.h"
#include "attnres/train/optimizers/optimizer.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "attnres/train/step/probe.h"
#include "attnres/train/step/training_step.h"
#include "tests/text/test_files.h"

namespace attnres::estimate_test {
namespace {

constexpr MachineSpeed kSpeed = {.matmul = 1e11, .copy = 3e10};
constexpr int64_t kGiB = int64_t{1} << 30;

Recipe recipe(const std::string& text) {
  return parse_recipe(Json::parse(text));
}

const char* const kResidual =
    R"({"model": {"width": 256, "layers": 6, "heads": 4},
        "train": {"batch_size": 8, "context": 256}})";
const char* const kBlocks =
    R"({"model": {"width": 256, "layers": 6, "heads": 4, "kv_heads": 2, "tie_embeddings": true,
                  "depth_mixing": {"type": "block_attn_res", "block_size": 4}},
        "train": {"batch_size": 16, "accumulate": 2, "context": 256}})";
const char* const kFull =
    R"({"model": {"width": 128, "layers": 8, "heads": 4, "depth_mixing": {"type": "attn_res"}},
        "train": {"batch_size": 16, "context": 256}})";
const char* const kRecomputed =
    R"({"model": {"width": 256, "layers": 8, "heads": 4, "depth_mixing": {"type": "attn_res"}},
        "train": {"batch_size": 16, "context": 256, "recompute": true}})";
const char* const kMuon =
    R"({"model": {"width": 768, "layers": 4, "heads": 4},
        "train": {"batch_size": 1, "context": 64, "optimizer": "muon"}})";
const char* const kLargeVocabulary =
    R"({"model": {"width": 256, "layers": 2, "heads": 4},
        "train": {"batch_size": 8, "context": 256}})";

const char* const kKimi =
    R"({"model": {"width": 128, "layers": 4, "heads": 4,
                  "attention": ["delta", "delta", "delta", "latent"],
                  "experts": {"count": 8, "chosen": 2, "width": 128},
                  "depth_mixing": {"type": "block_attn_res", "block_size": 4}},
        "train": {"batch_size": 8, "context": 256}})";

// What a process of its own holds at most during two steps of training: the kernel counts it when
// the process has ended, so that nothing of the test itself is in it. `from`: the model that it
// begins with; empty: none.
int64_t measured_bytes(const std::string& text, int64_t vocab_size, bool probes = false,
                       const std::string& from = "") {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("ATTNRES_TEST_RECIPE", text.c_str(), 1);
    ::setenv("ATTNRES_TEST_VOCABULARY", std::to_string(vocab_size).c_str(), 1);
    ::setenv("OMP_WAIT_POLICY", "passive", 1);
    if (probes) ::setenv("ATTNRES_TEST_PROBES", "1", 1);
    if (!from.empty()) ::setenv("ATTNRES_TEST_FROM", from.c_str(), 1);
    ::execl(program.c_str(), program.c_str(), "--gtest_filter=EstimateChild.*",
            "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr);
    ::_exit(127);
  }
  int status = 0;
  rusage usage;
  ::wait4(child, &status, 0, &usage);
  EXPECT_EQ(status, 0);
  return usage.ru_maxrss * 1024;
}

std::unique_ptr<Transformer> beginning(const Recipe& recipe, int64_t vocab_size) {
  const char* from = std::getenv("ATTNRES_TEST_FROM");
  if (from == nullptr) return std::make_unique<Transformer>(recipe.model, vocab_size, 1);
  const ModelDirectory model(from);
  const WeightFormats kept = base_weights(model, recipe.model, recipe.train).formats;
  return model.load_as(recipe.model, /*seed=*/1, {at::kFloat, at::kFloat, kept});
}

// The other half of measured_bytes; not a test.
TEST(EstimateChild, DISABLED_Trains) {
  const char* text = std::getenv("ATTNRES_TEST_RECIPE");
  if (text == nullptr) GTEST_SKIP() << "run by the memory tests";
  keep_freed_memory();  // as the program does
  const Recipe r = recipe(text);
  const int64_t vocab_size = std::stoll(std::getenv("ATTNRES_TEST_VOCABULARY"));
  const auto made = beginning(r, vocab_size);
  const Transformer& model = *made;
  Optimizer optimizer(model, r.train);
  TrainingStep step(model, optimizer, r.train);
  const int64_t rows = r.train.batch_size / r.train.accumulate;
  for (int i = 0; i < 2; ++i) {
    for (int64_t part = 0; part < r.train.accumulate; ++part) {
      const at::Tensor ids = at::randint(vocab_size, {rows, r.train.context}, at::kLong);
      step.forward_backward({ids, ids});
    }
    step.update(1e-3);
    if (std::getenv("ATTNRES_TEST_PROBES") == nullptr) continue;
    const at::Tensor ids = at::randint(vocab_size, {4, r.train.context - 1}, at::kLong);
    probe(model, {ids, ids}, r.train.recompute);
  }
}

TEST(Estimate, MemoryIsWithin30PercentOfSevenTrainingProcesses) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer has memory of its own";
#endif
  for (const auto& [text, vocab_size] :
       {std::pair(kResidual, 256), std::pair(kBlocks, 256), std::pair(kFull, 256),
        std::pair(kRecomputed, 256), std::pair(kLargeVocabulary, 32000), std::pair(kKimi, 256),
        std::pair(kMuon, 256)}) {
    const double estimated = static_cast<double>(estimate(recipe(text), vocab_size, kSpeed).bytes);
    const double measured = static_cast<double>(measured_bytes(text, vocab_size));
    EXPECT_GT(estimated, 0.7 * measured) << text;
    EXPECT_LT(estimated, 1.3 * measured) << text;
    std::printf("estimated / measured = %.2f (%.0f MiB)\n", estimated / measured,
                measured / (1 << 20));
  }
}

// Of two sizes: maps of low rank beside weights of 4 and 8 bits, and pseudo-queries alone.
TEST(Estimate, MemoryBesidePackedWeightsIsThatOfATrainingProcess) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer has memory of its own";
#endif
  constexpr int64_t kVocabulary = 4096;
  for (const int64_t width : {256, 768}) {
    Json model = {{"layers", 6}, {"width", width}, {"heads", 4}, {"ffn_width", 3 * width}};
    const std::filesystem::path file = fresh_folder("base") / "model.gguf";
    save_gguf(Transformer(read_model_config(model), kVocabulary, /*seed=*/1), file,
              /*context=*/512, gguf_without_tokenizer(),
              gguf_file_type(width == 256 ? "q8_0" : "q4_k_m"));
    const ModelDirectory base(file);
    Json low_rank = model, queries = model;
    low_rank["lora"] = {{"rank", 8}};
    queries["depth_mixing"] = {{"type", "block_attn_res"}, {"block_size", 4}};
    const Json train = {{"batch_size", 8}, {"context", 256}};
    Json rates = train;
    rates["rates"] = {{"*_res_*", 1.0}, {"*", 0.0}};
    for (const auto& [of_model, of_train] :
         {std::pair(low_rank, train), std::pair(queries, rates)}) {
      const std::string text = Json{{"model", of_model}, {"train", of_train}}.dump();
      const Recipe r = recipe(text);
      const WeightFormats kept = base_weights(base, r.model, r.train).formats;
      const double estimated =
          static_cast<double>(estimate(r, kVocabulary, kSpeed, at::kCPU, kept).bytes);
      const double measured =
          static_cast<double>(measured_bytes(text, kVocabulary, /*probes=*/false, file));
      std::printf("estimated / measured = %.2f (%.0f MiB)\n", estimated / measured,
                  measured / (1 << 20));
      EXPECT_GT(estimated, 0.87 * measured) << text;
      EXPECT_LT(estimated, 1.13 * measured) << text;
    }
  }
}

// Activations, and what their backward takes, of 2048 tokens: what is told of them, and what there
// is of them, beside a model's weights and the library.
TEST(Estimate, MemoryOfEveryMechanismIsThatOfATrainingProcess) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer has memory of its own";
#endif
  // What the library takes differs between processors: here, by a model that takes next to nothing.
  const std::string least = R"({"model": {"width": 64, "layers": 1, "heads": 4},
                                "train": {"batch_size": 1, "context": 16}})";
  const double library =
      static_cast<double>(measured_bytes(least, 256)) -
      (static_cast<double>(estimate(recipe(least), 256, kSpeed).bytes) - kLibraryBytes);
  std::printf("library: %.0f MiB, estimated %.0f\n", library / (1 << 20),
              static_cast<double>(kLibraryBytes) / (1 << 20));
  EXPECT_NEAR(library, kLibraryBytes, 0.35 * kLibraryBytes);
  for (const Mechanism& mechanism : mechanisms()) {
    const std::string text = Json{{"model",
                                   {{"width", 64},
                                    {"layers", 12},
                                    {"heads", 4},
                                    {"depth_mixing", {{"type", mechanism.text.name}}}}},
                                  {"train", {{"batch_size", 16}, {"context", 128}}}}
                                 .dump();
    const Estimate told = estimate(recipe(text), 256, kSpeed);
    const double weights = 16.0 * static_cast<double>(told.parameters);
    const double activations = static_cast<double>(told.bytes) - kLibraryBytes - weights,
                 measured = static_cast<double>(measured_bytes(text, 256)) - library - weights;
    std::printf("%s: estimated / measured activations = %.2f (%.0f MiB)\n",
                mechanism.text.name.c_str(), activations / measured, measured / (1 << 20));
    EXPECT_GT(activations, 0.75 * measured) << mechanism.text.name;
    EXPECT_LT(activations, 1.4 * measured) << mechanism.text.name;
  }
}

// A window at a time, and recomputed where steps are.
TEST(Estimate, ProbesTakeNoMoreThanAStep) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer has memory of its own";
#endif
  const char* const long_context =
      R"({"model": {"width": 64, "layers": 8, "heads": 4,
                    "depth_mixing": {"type": "block_attn_res", "block_size": 4}},
          "train": {"batch_size": 1, "context": 4096, "recompute": true}})";
  const double without = static_cast<double>(measured_bytes(long_context, 256)),
               with = static_cast<double>(measured_bytes(long_context, 256, /*probes=*/true));
  EXPECT_LT(with, 1.05 * without);
  // Control: one that is not recomputed would.
  Recipe kept = recipe(long_context);
  kept.train.recompute = false;
  EXPECT_GT(static_cast<double>(estimate(kept, 256, kSpeed).bytes), 1.2 * without);
}

// Four windows that are not recomputed would take 143 GiB.
TEST(Estimate, OfALongContextIsThatOfAStep) {
  Recipe r = recipe(R"({"model": {"width": 256, "layers": 12, "heads": 4},
                        "train": {"batch_size": 1, "context": 131072, "recompute": true}})");
  const double recomputed = static_cast<double>(estimate(r, 256, kSpeed).bytes);
  EXPECT_LT(recomputed, 12.0 * kGiB);
  // Peak memory is a step's, so that its settings move it.
  r.train.recompute = false;
  EXPECT_GT(static_cast<double>(estimate(r, 256, kSpeed).bytes), 2 * recomputed);
  r.train.recompute = true;
  r.train.batch_size = 2;
  EXPECT_GT(static_cast<double>(estimate(r, 256, kSpeed).bytes), 1.7 * recomputed);
  r.train.accumulate = 2;
  EXPECT_LT(static_cast<double>(estimate(r, 256, kSpeed).bytes), 1.1 * recomputed);
}

TEST(Estimate, ParametersAreExact) {
  for (const char* text : {kResidual, kBlocks, kFull, kKimi}) {
    const Recipe r = recipe(text);
    EXPECT_EQ(estimate(r, 300, kSpeed).parameters,
              Transformer(r.model, 300, 1).parameters().count());
  }
}

TEST(Estimate, ParametersOfEveryMechanismAreExact) {
  for (const Mechanism& mechanism : mechanisms()) {
    Recipe r = recipe(R"({"model": {"width": 32, "layers": 2, "heads": 2}})");
    r.model.depth_mixing = DepthMixing({{"type", mechanism.text.name}}, r.model.mixer_shape());
    EXPECT_EQ(estimate(r, 300, kSpeed).parameters,
              Transformer(r.model, 300, 1).parameters().count())
        << mechanism.text.name;
  }
}

TEST(Estimate, FollowsTheSettings) {
  const Recipe base = recipe(kFull);
  const Estimate before = estimate(base, 256, kSpeed);

  Recipe changed = base;
  changed.train.recompute = true;
  EXPECT_LT(estimate(changed, 256, kSpeed).bytes, before.bytes);
  EXPECT_GT(estimate(changed, 256, kSpeed).seconds_per_step, before.seconds_per_step);

  changed = base;
  changed.train.accumulate = 4;
  EXPECT_LT(estimate(changed, 256, kSpeed).bytes, before.bytes);
  EXPECT_DOUBLE_EQ(estimate(changed, 256, kSpeed).seconds_per_step, before.seconds_per_step);

  changed = base;
  changed.train.batch_size *= 2;
  EXPECT_GT(estimate(changed, 256, kSpeed).bytes, before.bytes);

  const MachineSpeed twice = {.matmul = 2 * kSpeed.matmul, .copy = 2 * kSpeed.copy};
  EXPECT_NEAR(estimate(base, 256, twice).seconds_per_step, before.seconds_per_step / 2, 1e-9);
}

// Steps over residual's, by what mixing moves: seconds a step as records/mechanisms.md measured
// them (tokens/s over residual), within a third; 6 layers of width 128, at the speeds of that
// machine.
TEST(Estimate, TellsMechanismsApart) {
  constexpr MachineSpeed kThere = {.matmul = 1e11, .copy = 3e10};
  const auto seconds = [&](const Json& depth_mixing) {
    Json json = Json::parse(R"({"model": {"width": 128, "layers": 6, "heads": 4, "kv_heads": 2,
                                          "ffn_width": 352},
                                "train": {"batch_size": 8, "context": 128}})");
    json["model"]["depth_mixing"] = depth_mixing;
    return estimate(parse_recipe(json), 256, kThere).seconds_per_step;
  };
  const double residual = seconds({{"type", "residual"}});
  const Json block = {{"type", "block_attn_res"}, {"block_size", 4}};
  for (const auto& [depth_mixing, speed] : {std::pair<Json, double>{block, 0.94},
                                            {{{"type", "attn_res"}}, 0.93},
                                            {{{"type", "post_norm"}}, 1.02},
                                            {{{"type", "highway"}}, 0.83},
                                            {{{"type", "siamese_norm"}}, 0.86},
                                            {{{"type", "hc_identity"}}, 0.71},
                                            {{{"type", "deep_delta"}}, 0.70},
                                            {{{"type", "mrla"}}, 0.72},
                                            {{{"type", "dca"}}, 0.72},
                                            {{{"type", "muddformer"}}, 0.80},
                                            {{{"type", "lime"}}, 0.86},
                                            {{{"type", "dense_former"}}, 0.88},
                                            {{{"type", "sknet"}}, 0.58}}) {
    const double estimated = seconds(depth_mixing) / residual;
    EXPECT_GT(estimated, 0.67 / speed) << depth_mixing;
    EXPECT_LT(estimated, 1.33 / speed) << depth_mixing;
    EXPECT_GE(estimated, 1) << depth_mixing;
    std::printf("%s: %.2f, measured %.2f\n", depth_mixing.dump().c_str(), estimated, 1 / speed);
  }
}

// Mixing that runs at a quarter of the speed takes four times as long, and nothing else does.
TEST(Estimate, GoesByTheMeasuredSpeedOfMixing) {
  const Recipe r = recipe(kBlocks);
  const auto seconds = [&](double mixing) {
    return estimate(r, 256, {.matmul = 1e11, .copy = 3e10, .mixing = mixing}).seconds_per_step;
  };
  const double mixed = (seconds(2e9) - seconds(8e9)) / 3;  // at 8e9
  EXPECT_GT(mixed, 0.005 * seconds(8e9));
  EXPECT_NEAR(seconds(4e9) - seconds(8e9), mixed, 1e-9 * mixed);
  EXPECT_LT(mixed, seconds(8e9));
}

TEST(Speeds, OfMixingAreMeasured) {
  const ModelConfig model = recipe(kBlocks).model;
  EXPECT_GT(measure_mixing(model, 1), 1e7);
}

// One moment instead of two for the matrices, and 5 steps of Newton-Schulz: for n x m, m >= n,
// X X^T and (b A + c A A) X take 2 n^2 m FLOPs each, A A takes 2 n^3.
TEST(Estimate, CountsMuon) {
  Recipe muon = recipe(kMuon);
  const Estimate with_muon = estimate(muon, 256, kSpeed);
  muon.train.optimizer = "adamw";
  const Estimate with_adamw = estimate(muon, 256, kSpeed);
  const double width = 768, hidden = static_cast<double>(muon.model.ffn_width);
  const double matrices = 4 * (4 * width * width + 3 * width * hidden);
  const double square = 6 * std::pow(width, 3);
  const double flops =
      5 * 4 * (4 * square + 3 * (4 * width * width * hidden + 2 * std::pow(width, 3)));
  EXPECT_NEAR(with_muon.seconds_per_step - with_adamw.seconds_per_step, flops / kSpeed.matmul,
              1e-9);
  EXPECT_LE(with_muon.bytes, with_adamw.bytes - 4 * matrices + 4 * 3.2 * width * hidden);
  EXPECT_GE(with_muon.bytes, with_adamw.bytes - 4 * matrices);
}

const Resources kPlenty = {.memory = 64 * kGiB, .free_memory = 64 * kGiB, .free_disk = kGiB};

std::string refusal(const std::string& text, const Resources& there) {
  try {
    check_resources(recipe(text), 256, there);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Resources, ThatSufficeAreNotMentioned) {
  EXPECT_THAT(check_resources(recipe(kLargeVocabulary), 256, kPlenty), ::testing::IsEmpty());
}

TEST(Resources, BeyondTheMachineAreRefused) {
  const char* const wide = R"({"model": {"width": 131072, "layers": 100, "heads": 16}})";
  EXPECT_THAT(
      refusal(R"({"model": {"width": 256}, "train": {"batch_size": 10000000}})", kPlenty),
      ::testing::AllOf(::testing::HasSubstr("Raise train.accumulate"),
                       ::testing::HasSubstr("has 64.0 GiB"), ::testing::HasSubstr("--force")));
  EXPECT_THAT(refusal(wide, kPlenty), ::testing::HasSubstr("Lower model.width"));
  EXPECT_THAT(check_resources(recipe(wide), 256, kPlenty, /*force=*/true),
              ::testing::Contains(::testing::HasSubstr("Lower model.width")));
}

// Those processes that are on this machine hold their parts alone: two of eight ranks a quarter.
TEST(Resources, OfSeveralProcessesAreSharedOut) {
  const char* const split = R"({"model": {"width": 4096, "layers": 32, "heads": 16},
                                "train": {"batch_size": 8, "accumulate": 8},
                                "parallel": {"pipeline": 8}})";
  Resources there = kPlenty;
  there.free_disk = 1024 * kGiB;
  there.processes = 2;
  EXPECT_EQ(refusal(split, there), "");
  there.processes = 8;
  EXPECT_THAT(refusal(split, there), ::testing::HasSubstr("Lower model.width"));
}

// What others hold at this moment they may have given back when it is needed.
TEST(Resources, ThatAreTakenNowAreWarnedOf) {
  Resources there = kPlenty;
  there.free_memory = kGiB / 8;
  const auto warnings = check_resources(recipe(kLargeVocabulary), 256, there);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], ::testing::HasSubstr("of 64.0 GiB only 128.0 MiB is free now"));
}

// Weights and two moments in the last checkpoint and in the one that replaces it, and the best
// model: 7 numbers of 4 bytes a parameter.
TEST(Resources, OfDiskHoldTheCheckpoints) {
  const Estimate made = estimate(recipe(kResidual), 256, kSpeed);
  EXPECT_EQ(made.disk_bytes, 7 * 4 * made.parameters);
  Resources there = kPlenty;
  there.free_disk = made.disk_bytes;
  EXPECT_EQ(refusal(kResidual, there), "");
  --there.free_disk;
  EXPECT_THAT(refusal(kResidual, there), ::testing::HasSubstr("of disk"));
  EXPECT_EQ(check_resources(recipe(kResidual), 256, there, /*force=*/true).size(), 1u);
}

TEST(Resources, OfThisMachineMakeSense) {
  const std::filesystem::path folder = fresh_folder("checkpoints");
  const Resources before = find_resources(folder / "not there yet");
  EXPECT_GT(before.free_memory, 0);
  EXPECT_LE(before.free_memory, before.memory + resident_bytes());
  EXPECT_GT(before.free_disk, 0);
}

// Every site reads all before it; that must not be measured with as many tokens as in a usual
// model.
TEST(Estimate, PlansTheDeepestModel) {
  const Estimate deep = estimate(recipe(R"({"model": {"width": 16, "heads": 2, "layers": 1024,
                           "depth_mixing": {"type": "attn_res"}},
                 "train": {"batch_size": 1, "context": 8}})"),
                                 256, kSpeed);
  EXPECT_GT(deep.bytes, 4 * 1024 * (16 * 16 * 4 + 3 * 16 * 48) * 4);
}

TEST(TimeSteps, AreInOrderAndTellOfEach) {
  int told = 0;
  const StepTimes times = time_steps(recipe(R"({"model": {"width": 16, "heads": 2, "layers": 1},
                                                "train": {"batch_size": 2, "context": 8}})"),
                                     16, /*seconds=*/10, [&] { ++told; });
  EXPECT_GT(times.least, 0);
  EXPECT_LE(times.least, times.median);
  EXPECT_LE(times.median, times.most);
  EXPECT_EQ(told, 8);
}

// However slow they are, two are counted.
TEST(TimeSteps, EndWhenTheTimeIsSpent) {
  int told = 0;
  time_steps(recipe(R"({"model": {"width": 16, "heads": 2, "layers": 1},
                        "train": {"batch_size": 2, "context": 8}})"),
             16, /*seconds=*/0, [&] { ++told; });
  EXPECT_EQ(told, 3);
}

}  // namespace
}  // namespace attnres::estimate_test
