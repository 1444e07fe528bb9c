#include "attnres/train/run_folder/sharded_folder.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <limits>
#include <map>
#include <numeric>

#include "attnres/parallel/together.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/support/file.h"
#include "attnres/text/bytes.h"
#include "tests/parallel/thread_communicator.h"
#include "tests/text/test_files.h"
#include "tests/train/parts.h"
#include "tests/train/tensor_bytes.h"
#include "tests/train/tiny_runs.h"

namespace attnres::testing::sharded_folder_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

uint64_t sum(const TensorBytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0},
                         [](uint64_t all, const auto& entry) { return all + entry.second; });
}

// Two replicas of two stages, which share the embedding.
TEST(ShareOutWriting, IsEvenAmongThoseWhoHold) {
  const TensorBytes first = {{"embedding", 900}, {"a", 400}, {"b", 300}, {"c", 100}},
                    second = {{"embedding", 900}, {"d", 500}, {"e", 500}, {"f", 20}};
  const std::vector<TensorBytes> held = {first, second, first, second};
  const std::vector<TensorBytes> written = share_out_writing(held);
  TensorBytes all;
  uint64_t most = 0;
  for (size_t rank = 0; rank < held.size(); ++rank) {
    for (const auto& [name, bytes] : written[rank]) {
      EXPECT_TRUE(held[rank].contains(name)) << rank;
      EXPECT_TRUE(all.emplace(name, bytes).second) << name << " is written twice";
    }
    most = std::max(most, sum(written[rank]));
  }
  EXPECT_EQ(all.size(), 7u);
  EXPECT_EQ(most, 900u);  // no less is possible
  // Nobody else has them: no choice.
  const std::vector<TensorBytes> alone = share_out_writing({first, {{"d", 1}}});
  EXPECT_EQ(alone[0], first);
}

Recipe recipe_in(const Json& json, const Json& parallel) {
  Json recipe = json;
  recipe["train"]["accumulate"] = 4;
  recipe["parallel"] = parallel;
  return parse_recipe(recipe);
}
Json tied_recipe() {
  Json recipe = block_recipe();
  recipe["model"]["tie_embeddings"] = true;
  return recipe;
}

const Json kOne = Json::object();
const Json kBoth = {{"data", 2}, {"pipeline", 2}};
const Json kStages = {{"pipeline", 2}, {"virtual", 2}};
const Json kThree = {{"pipeline", 3}};
const Json kTensor = {{"pipeline", 2}, {"tensor", 2}};
const Json kSharded = {{"data", 2}, {"tensor", 2}, {"shard_optimizer", true}};

class SharedCheckpoint : public ::testing::Test {
 protected:
  SharedCheckpoint() { at::set_num_threads(1); }
  ~SharedCheckpoint() override { at::set_num_threads(threads_); }

  // By all processes of this layout.
  void on_ranks(const Json& recipe, const Json& parallel,
                const std::function<void(const ParallelPlace&)>& work) const {
    const Recipe parsed = recipe_in(recipe, parallel);
    run_on_threads(static_cast<int>(parsed.parallel.processes()), [&](Communicator& world) {
      at::set_num_threads(1);
      work(ParallelPlace(parsed, kPartsVocabulary, world));
    });
  }
  void save(const Json& recipe, const Json& parallel, int number) const {
    if (parallel.empty()) {
      save_checkpoint(folder_, filled(recipe_in(recipe, parallel), number), ByteTokenizer(), 32);
      return;
    }
    on_ranks(recipe, parallel, [&](const ParallelPlace& place) {
      const ByteTokenizer tokenizer;
      save_checkpoint(folder_, filled(place.recipe, number, &place),
                      place.world.rank() == 0 ? &tokenizer : nullptr, 32, place.world);
    });
  }
  static Training load_part(const fs::path& folder, const ParallelPlace& place) {
    return load_checkpoint(folder, place.recipe.model, kPartsVocabulary, place.recipe.train,
                           place.part());
  }
  Training load_whole(const Json& recipe) const {
    const Recipe parsed = recipe_in(recipe, kOne);
    return load_checkpoint(folder_, parsed.model, kPartsVocabulary, parsed.train);
  }
  // That the folder holds this save, for one process and for others.
  void expect_holds(const Json& recipe, int number) const {
    EXPECT_GT(tensors_of_save(load_whole(recipe), number), 0) << number;
    on_ranks(recipe, kStages, [&](const ParallelPlace& place) {
      EXPECT_GT(tensors_of_save(load_part(folder_, place), number), 0) << number;
    });
  }

  const fs::path folder_ = fresh_folder("checkpoints") / "last";

 private:
  const int threads_ = at::get_num_threads();
};

// AdamW and Muon, experts, tied embeddings.
TEST_F(SharedCheckpoint, OfAnyLayoutLoadsIntoAnyOther) {
  int number = 1;
  for (const Json& recipe : {kimi_recipe(), tied_recipe()}) {
    const int tensors = tensors_of_save(filled(recipe_in(recipe, kOne), 1), 1);
    for (const Json& from : {kBoth, kStages, kThree, kOne, kTensor, kSharded}) {
      save(recipe, from, ++number);
      const Training whole = load_whole(recipe);
      EXPECT_EQ(tensors_of_save(whole, number), tensors) << from;
      EXPECT_EQ(tensors_of_save(whole, number - 1), -1);
      for (const Json& to : {kBoth, kStages, kThree, kTensor, kSharded}) {
        on_ranks(recipe, to, [&](const ParallelPlace& place) {
          const Training part = load_part(folder_, place);
          EXPECT_GT(tensors_of_save(part, number), 0) << from << " " << to;
          EXPECT_LT(part.model->parameters().count(), whole.model->parameters().count());
        });
      }
    }
  }
}

TEST_F(SharedCheckpoint, IsAModelDirectory) {
  save(tied_recipe(), kBoth, 1);
  for (const char* name : {"model", "optimizer"}) {
    EXPECT_TRUE(fs::exists(folder_ / fmt::format("{}.safetensors.index.json", name)));
    EXPECT_TRUE(fs::exists(folder_ / fmt::format("{}-00004-of-00004.safetensors", name)));
    EXPECT_FALSE(fs::exists(folder_ / fmt::format("{}.safetensors", name)));
  }
  // Written evenly: what replicas share, each half of.
  const auto size = [&](int number) {
    return static_cast<double>(
        fs::file_size(folder_ / fmt::format("optimizer-0000{}-of-00004.safetensors", number)));
  };
  for (const int number : {1, 2}) EXPECT_NEAR(size(number) / size(number + 2), 1, 0.2) << number;
  const auto model = load_model(folder_);
  EXPECT_TRUE(model->config().tie_embeddings);
  EXPECT_EQ(ModelDirectory(folder_).context(), 32);
  EXPECT_EQ(ModelDirectory(folder_).tokenizer()->kind(), "bytes");
  // One process then writes one file again.
  save(tied_recipe(), kOne, 2);
  EXPECT_TRUE(fs::exists(folder_ / "optimizer.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "model.safetensors.index.json"));
}

TEST_F(SharedCheckpoint, CutsLargeShares) {
  on_ranks(block_recipe(), kBoth, [&](const ParallelPlace& place) {
    const Training part = filled(place.recipe, 1, &place);
    write_sharded_folder(
        folder_, {{"optimizer", part.optimizer.state(), Numbers::any}}, [](const fs::path&) {},
        place.world, /*shard_bytes=*/20'000);
  });
  const TensorFiles files(folder_, "optimizer");
  const Training whole = filled(recipe_in(block_recipe(), kOne), 1);
  EXPECT_EQ(files.names().size(), whole.optimizer.state().size());
  for (const auto& [name, moment] : whole.optimizer.state()) {
    EXPECT_TRUE(files.read(name).equal(moment)) << name;
  }
  EXPECT_GT(contents(folder_).size(), 9u);
}

// No rank has more at once than its part, but for what is smaller than a tensor.
TEST_F(SharedCheckpoint, TakesNoMemoryBesideTheParts) {
  Json recipe = block_recipe();
  recipe["model"].update({{"layers", 4}, {"width", 64}, {"ffn_width", 256}});
  const auto bytes_of = [](const Training& training) {
    int64_t bytes = 0;
    for_each_tensor(training, [&](const std::string&, const at::Tensor& tensor, const Parameter&) {
      bytes += static_cast<int64_t>(tensor.nbytes());
    });
    return bytes;
  };
  const int64_t largest = 256 * 64 * 4;
  const int64_t whole = bytes_of(filled(recipe_in(recipe, kOne), 1));
  save(recipe, kOne, 1);
  on_ranks(recipe, {{"pipeline", 4}}, [&](const ParallelPlace& place) {
    const TensorBytesOfThread counted;
    const Training part = load_part(folder_, place);
    const int64_t own = bytes_of(part);
    EXPECT_LT(own, whole / 2);
    EXPECT_LT(counted.peak(), own + largest) << place.world.rank();
    EXPECT_GE(counted.peak(), own);
    place.world.barrier();
    const ByteTokenizer tokenizer;
    save_checkpoint(folder_, part, &tokenizer, 32, place.world);
    EXPECT_LT(counted.peak(), own + largest) << place.world.rank();
  });
  // Negative control: one process is seen to have all.
  const TensorBytesOfThread counted;
  const Training all = load_whole(recipe);
  EXPECT_GE(counted.peak(), whole);
}

// In a process of its own, whose files may not grow past `limit` bytes: what all its ranks say, or
// by which signal it was ended.
struct Attempt {
  int exit_code = 0;
  std::string message;
};

class DisturbedSave : public SharedCheckpoint {
 protected:
  Attempt save_within(rlim_t limit, bool is_killed) const {
    const fs::path said = folder_.parent_path() / "said";
    const pid_t child = ::fork();
    if (child == 0) {
      // After a fork libtorch makes its pool of threads anew, which several must not do at once.
      at::set_num_threads(1);
      if (!is_killed) std::signal(SIGXFSZ, SIG_IGN);
      std::atomic<int> failures = 0;
      std::string message;
      const auto attempt = [&](const ParallelPlace& place) {
        const ByteTokenizer tokenizer;
        const Training part = filled(place.recipe, 2, &place);
        place.world.barrier();
        const rlimit of_files = {limit, RLIM_INFINITY};
        ::setrlimit(RLIMIT_FSIZE, &of_files);
        try {
          save_checkpoint(folder_, part, &tokenizer, 32, place.world);
        } catch (const CommonFailure& failure) {
          ++failures;
          if (place.world.rank() == 0) message = failure.what();
        }
      };
      try {
        on_ranks(tied_recipe(), kBoth, attempt);
      } catch (const std::exception& other) {
        message = other.what();
        failures = 100;
      }
      const rlimit free = {RLIM_INFINITY, RLIM_INFINITY};
      ::setrlimit(RLIMIT_FSIZE, &free);
      write_text(said, message);
      ::_exit(failures);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) return {-WTERMSIG(status), ""};
    return {WEXITSTATUS(status), read_file(said)};
  }
};

// Less than any shard, than one of the weights, and than one of the moments.
constexpr rlim_t kLimits[] = {500, 20'000, 50'000};

TEST_F(DisturbedSave, ThatCannotWriteLeavesTheLastOne) {
  save(tied_recipe(), kStages, 1);
  const auto before = contents(folder_);
  for (const rlim_t limit : kLimits) {
    const Attempt attempt = save_within(limit, /*is_killed=*/false);
    EXPECT_EQ(attempt.exit_code, 4) << limit;  // every rank
    EXPECT_THAT(attempt.message, AllOf(HasSubstr("cannot write"), HasSubstr("ulimit -f"))) << limit;
    EXPECT_EQ(contents(folder_), before) << limit;
    EXPECT_FALSE(fs::exists(folder_.parent_path() / "last.part")) << limit;
  }
  // Negative control.
  const Attempt unlimited = save_within(RLIM_INFINITY, /*is_killed=*/false);
  EXPECT_EQ(unlimited.exit_code, 0) << unlimited.message;
  expect_holds(tied_recipe(), 2);
}

TEST_F(DisturbedSave, ThatIsKilledLeavesTheLastOne) {
  save(tied_recipe(), kStages, 1);
  for (const rlim_t limit : kLimits) {
    EXPECT_EQ(save_within(limit, /*is_killed=*/true).exit_code, -SIGXFSZ) << limit;
    recover_folder(folder_);
    expect_holds(tied_recipe(), 1);
  }
}

// What rank 0 adds at the end, and what only one rank finds.
TEST_F(DisturbedSave, EndsOnEveryRankWhereOneFails) {
  save(tied_recipe(), kBoth, 1);
  const auto save_with = [&](const Tokenizer& tokenizer, int rank_of_nan) {
    std::atomic<int> told = 0;
    const std::string message = message_of<CommonFailure>([&] {
      on_ranks(tied_recipe(), kStages, [&](const ParallelPlace& place) {
        const Training part = filled(place.recipe, 2, &place);
        if (place.world.rank() == rank_of_nan) {
          part.model->parameters().all().back().tensor.detach().fill_(
              std::numeric_limits<double>::quiet_NaN());
        }
        try {
          save_checkpoint(folder_, part, &tokenizer, 32, place.world);
        } catch (const CommonFailure&) {
          ++told;
          throw;
        }
      });
    });
    EXPECT_EQ(told, 2);
    expect_holds(tied_recipe(), 1);
    return message;
  };
  struct Broken : ByteTokenizer {
    void save(const fs::path&) const override { fail("no tokenizer today"); }
  };
  EXPECT_EQ(save_with(Broken(), -1), "no tokenizer today");
  EXPECT_THAT(save_with(ByteTokenizer(), 1), AllOf(HasSubstr("rank 1: "), HasSubstr("not finite")));
}

class MixedCheckpoint : public SharedCheckpoint {
 protected:
  MixedCheckpoint() {
    save(block_recipe(), kBoth, 1);
    first_ = contents(folder_);
  }

  std::string refusal() const {
    const std::string whole = message_of<Error>([&] { load_whole(block_recipe()); });
    on_ranks(block_recipe(), kStages, [&](const ParallelPlace& place) {
      EXPECT_EQ(message_of<Error>([&] { load_part(folder_, place); }), whole);
    });
    return whole;
  }
  // Brings a file of the next save into the folder.
  void mix(const std::vector<std::string>& files) {
    save(block_recipe(), kBoth, 2);
    const auto after = contents(folder_);
    for (const auto& [name, bytes] : first_) write_text(folder_ / name, bytes);
    for (const std::string& name : files) write_text(folder_ / name, after.at(name));
  }

 private:
  std::map<std::string, std::string> first_;  // files of the first save
};

TEST_F(MixedCheckpoint, OfShardsOfTwoSavesIsRefused) {
  for (const std::string name : {"model", "optimizer"}) {
    const std::string shard = name + "-00002-of-00004.safetensors";
    mix({shard});
    EXPECT_THAT(refusal(), AllOf(HasSubstr(shard), HasSubstr("of another save"))) << name;
  }
}

TEST_F(MixedCheckpoint, OfModelAndMomentsOfTwoSavesIsRefused) {
  for (const std::string name : {"model", "optimizer"}) {
    std::vector<std::string> files = {name + ".safetensors.index.json"};
    for (int i = 1; i <= 4; ++i) {
      files.push_back(fmt::format("{}-0000{}-of-00004.safetensors", name, i));
    }
    mix(files);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(files[0]), HasSubstr("another checkpoint"))) << name;
  }
  // Negative control: all files of the second save.
  std::vector<std::string> all;
  for (const auto& [name, bytes] : contents(folder_)) all.push_back(name);
  mix(all);
  expect_holds(block_recipe(), 2);
}

TEST_F(MixedCheckpoint, WithoutAShardIsRefused) {
  for (const std::string name : {"model", "optimizer"}) {
    const std::string shard = name + "-00003-of-00004.safetensors";
    const std::string bytes = read_file(folder_ / shard);
    fs::remove(folder_ / shard);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(shard), HasSubstr("missing")));
    write_text(folder_ / shard, bytes.substr(0, bytes.size() - 3));
    EXPECT_THAT(refusal(), AllOf(HasSubstr(shard), HasSubstr("truncated")));
    write_text(folder_ / shard, bytes);
  }
  expect_holds(block_recipe(), 1);
}

// A number that changed is found by whoever reads its shard.
TEST_F(MixedCheckpoint, ThatIsDamagedIsRefused) {
  for (const std::string name : {"model", "optimizer"}) {
    const fs::path shard = folder_ / (name + "-00001-of-00004.safetensors");
    const std::string bytes = read_file(shard);
    std::string bad = bytes;
    bad.back() ^= 1;
    write_text(shard, bad);
    EXPECT_THAT(message_of<Error>([&] { load_whole(block_recipe()); }),
                AllOf(HasSubstr(shard.string()), HasSubstr("damaged")));
    write_text(shard, bytes);
  }
}

}  // namespace
}  // namespace attnres::testing::sharded_folder_test
