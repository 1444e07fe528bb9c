// Pipeline stages from model directories.

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "attnres/formats/tensor_files.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/model/stages.h"
#include "tests/text/test_files.h"

namespace attnres::testing::stage_directory_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

fs::path saved(const Transformer& model) {
  const fs::path folder = fresh_folder("saved");
  save_model(model, folder, /*context=*/64, /*document_ids=*/0);
  return folder;
}

Tensors read_tensors(const fs::path& folder) {
  const TensorFiles weights(folder);
  Tensors tensors;
  for (const std::string& name : weights.names()) tensors.emplace_back(name, weights.read(name));
  return tensors;
}

// Writes them again, into files of at most so many bytes.
void shard(const fs::path& folder, uint64_t shard_bytes) {
  const Tensors tensors = read_tensors(folder);
  fs::remove(folder / "model.safetensors");
  write_tensor_files(folder, kWeights, tensors, Numbers::finite, shard_bytes);
}

std::vector<std::vector<SiteRange>> ways_to_cut(const Transformer& model) {
  const int sites = model.sublayers() + 1;
  std::vector<int> each;
  for (int site = 0; site <= sites; ++site) each.push_back(site);
  return {ranges_between(each), ranges_between({0, 3, sites}), ranges_between({0, 4, 5, sites}),
          ranges_between({0, sites - 1, sites})};
}

// That each stage which is loaded has what it would have of the whole model, and no more.
void expect_stages_of(const Transformer& whole, const fs::path& folder) {
  for (const auto& ranges : ways_to_cut(whole)) {
    for (size_t i = 0; i < ranges.size(); ++i) {
      const auto stage = load_model(folder, at::kFloat, ranges[i]);
      size_t held = 0;
      for (const Parameter& p : whole.parameters().all()) {
        const std::vector<size_t> with = stages_with(p, {ranges.begin(), ranges.end()});
        if (std::find(with.begin(), with.end(), i) == with.end()) continue;
        ++held;
        const Parameter* own = stage->parameters().find(p.site, p.role);
        ASSERT_NE(own, nullptr) << p.role << " of site " << p.site;
        EXPECT_TRUE(own->tensor.equal(p.tensor)) << p.role << " of site " << p.site;
        EXPECT_EQ(own->tensor.requires_grad(), p.tensor.requires_grad());
      }
      EXPECT_EQ(stage->parameters().all().size(), held);
      EXPECT_LT(stage->parameters().count(), whole.parameters().count());
    }
  }
}

struct Model {
  std::string name;
  std::function<Transformer()> make;
};

std::vector<Model> models() {
  const auto small = [](const Json& mixing, bool tied) {
    return [=] { return small_model(mixing, {.tied = tied, .precision = at::kFloat}); };
  };
  const auto kimi = [](bool k3, const Json& mixing) {
    return [=] { return kimi_model(k3, mixing, at::kFloat); };
  };
  return {{"llama", small(residual(), false)},
          {"llama_tied", small(residual(), true)},
          {"block_attn_res", small(block_attn_res(), false)},
          {"block_attn_res_tied", small(block_attn_res(), true)},
          {"depth_attention", small({{"type", "depth_attention"}}, true)},
          {"kimi_linear", kimi(false, residual())},
          {"kimi_k3", kimi(true, block_attn_res())},
          {"kimi_of_no_other_program", kimi(true, attn_res())}};
}

class SavedStages : public ::testing::TestWithParam<Model> {};

INSTANTIATE_TEST_SUITE_P(Models, SavedStages, ::testing::ValuesIn(models()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SavedStages, AreThoseOfTheWholeModel) {
  const Transformer whole = GetParam().make();
  expect_stages_of(whole, saved(whole));
}

TEST_P(SavedStages, AreThoseOfTheWholeModelWhereItIsSharded) {
  const Transformer whole = GetParam().make();
  const fs::path folder = saved(whole);
  shard(folder, 10'000);
  ASSERT_TRUE(fs::exists(folder / "model.safetensors.index.json"));
  expect_stages_of(whole, folder);
}

// Every stage refuses what one of them would, so that none waits for another that ended.
class StagesOfAWrongFile : public ::testing::Test {
 protected:
  void expect_all_refuse(const std::string& name, const std::string& reason) {
    fs::remove(folder_ / "model.safetensors");
    write_tensor_files(folder_, kWeights, tensors_);
    for (const SiteRange& sites : ranges_between({0, 3, 5, 7})) {
      EXPECT_THAT(message_of<Error>([&] { load_model(folder_, at::kFloat, sites); }),
                  AllOf(HasSubstr(name), HasSubstr(reason)))
          << "from site " << sites.first;
    }
  }

  const fs::path folder_ = saved(small_model(block_attn_res(), {.precision = at::kFloat}));
  Tensors tensors_ = read_tensors(folder_);
};

TEST_F(StagesOfAWrongFile, RefuseATensorOfNoStage) {
  tensors_.emplace_back("model.layers.3.mlp.up_proj.weight", at::zeros({48, 32}));
  expect_all_refuse("model.layers.3.mlp.up_proj.weight", "is no tensor of this model");
}

TEST_F(StagesOfAWrongFile, RefuseOneWhereAnotherStageLacksATensor) {
  const std::string name = "model.layers.0.self_attn.o_proj.weight";
  std::erase_if(tensors_, [&](const auto& tensor) { return tensor.first == name; });
  expect_all_refuse(name, "is missing");
}

TEST_F(StagesOfAWrongFile, RefuseOneWhereATensorOfAnotherStageHasAnotherShape) {
  for (auto& [name, tensor] : tensors_) {
    if (name == "model.norm.weight") tensor = at::ones({33});
  }
  expect_all_refuse("model.norm.weight", "has the shape [33], expected [32]");
}

// A stage's own files are checked to the last number; others are not read.
TEST(SavedStage, ReadsTheFilesThatHoldItsTensors) {
  const fs::path folder = saved(small_model(block_attn_res(), {.precision = at::kFloat}));
  shard(folder, 1);
  const std::string file = read_json(
      folder / "model.safetensors.index.json")["weight_map"]["model.layers.1.mlp.up_proj.weight"];
  std::string bytes = read_file(folder / file);
  bytes.back() ^= 1;
  write_file(folder / file, bytes);
  EXPECT_NO_THROW(load_model(folder, at::kFloat, SiteRange{0, 3}));
  EXPECT_NO_THROW(load_model(folder, at::kFloat, SiteRange{4, 7}));
  for (const SiteRange& sites : {SiteRange{3, 4}, SiteRange{}}) {
    EXPECT_THAT(message_of<Error>([&] { load_model(folder, at::kFloat, sites); }),
                AllOf(HasSubstr(file), HasSubstr("damaged")));
  }
}

TEST(SavedStage, HasSitesOfTheModel) {
  const fs::path folder = saved(small_model(residual(), {.precision = at::kFloat}));
  EXPECT_THAT(message_of<Error>([&] {
                load_model(folder, at::kFloat, SiteRange{7, 9});
              }),
              HasSubstr("a stage has one site or more of 0 to 6"));
}

}  // namespace
}  // namespace attnres::testing::stage_directory_test
