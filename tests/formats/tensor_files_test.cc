#include "attnres/formats/tensor_files.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/text/test_files.h"

namespace attnres::testing::tensor_files_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

// Two shards of others, whose index says where a tensor counts.
class IndexOfOthers : public ::testing::Test {
 protected:
  void SetUp() override {
    write_safetensors(folder_ / kFirst, {{"a", at::full({2}, 1.0)}, {"b", at::full({2}, 2.0)}});
    write_safetensors(folder_ / kSecond, {{"c", at::full({2}, 3.0)}});
    write_index({{"a", kFirst}, {"b", kFirst}, {"c", kSecond}});
  }
  void write_index(const Json& map, const Json& metadata = Json::object()) const {
    write_text(index_, Json{{"metadata", metadata}, {"weight_map", map}}.dump());
  }
  std::string refusal() const {
    return message_of<Error>([&] { TensorFiles files(folder_); });
  }

  const fs::path folder_ = fresh_folder("model"), index_ = folder_ / "model.safetensors.index.json";
};

TEST_F(IndexOfOthers, DecidesWhatIsRead) {
  EXPECT_THAT(TensorFiles(folder_).notes(), IsEmpty());
  // b in both, and d in none of the index.
  write_safetensors(folder_ / kSecond, {{"b", at::full({3}, 4.0)},
                                        {"c", at::full({2}, 3.0)},
                                        {"d", at::full({2}, 5.0)},
                                        {"e", at::full({2}, 5.0)}});
  const TensorFiles files(folder_);
  EXPECT_THAT(files.names(), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(at::equal(files.read("b"), at::full({2}, 2.0)));
  EXPECT_FALSE(files.contains("d"));
  EXPECT_NO_THROW(files.verify(files.names()));
  EXPECT_THAT(files.notes(), ElementsAre(AllOf(HasSubstr("index.json: 3 tensors"),
                                               HasSubstr("2 that it does not list"),
                                               HasSubstr("1 that it lists in another file"))));
  write_index({{"a", kFirst}, {"b", kSecond}, {"c", kSecond}});
  EXPECT_TRUE(at::equal(TensorFiles(folder_).read("b"), at::full({3}, 4.0)));
}

// Which say that all of it was written together.
TEST_F(IndexOfOthers, IsNotBelievedAboveChecksums) {
  const auto checksum = [&](const char* file) {
    return SafetensorsFile(folder_ / file).metadata().at(kSafetensorsChecksum);
  };
  const auto with_checksums = [&](const Json& map) {
    const Json checksums = {{kFirst, checksum(kFirst)}, {kSecond, checksum(kSecond)}};
    write_index(map, {{"attnres_checksums", checksums}});
  };
  const Json map = {{"a", kFirst}, {"b", kFirst}, {"c", kSecond}};
  with_checksums(map);
  EXPECT_THAT(TensorFiles(folder_).notes(), IsEmpty());
  with_checksums({{"a", kFirst}, {"c", kSecond}});
  EXPECT_THAT(refusal(), HasSubstr("holds b, which the index does not list"));
  write_safetensors(folder_ / kSecond, {{"b", at::ones({2})}, {"c", at::ones({2})}});
  with_checksums(map);
  EXPECT_THAT(refusal(), HasSubstr("b is there twice, in model-00002"));
}

TEST_F(IndexOfOthers, IsRefusedWhereItIsWrong) {
  write_index({{"a", kFirst}, {"b", kSecond}, {"c", kSecond}});
  EXPECT_THAT(refusal(), HasSubstr(std::string("says that ") + kSecond + " holds b"));
  write_index({{"a", kFirst}, {"c", "model-3.safetensors"}});
  EXPECT_THAT(refusal(), HasSubstr("lists model-3.safetensors, which is missing"));
  for (const Json& file : {Json("../model.safetensors"), Json("/etc/passwd"), Json(""), Json(3),
                           Json(std::string(kFirst) + std::string(1, '\0')), Json(nullptr)}) {
    write_index({{"a", file}});
    EXPECT_THAT(refusal(), HasSubstr("a: expected the name of a file beside it")) << file;
  }
  for (const char* folder : {".", ".."}) {
    write_index({{"a", folder}});
    EXPECT_THROW(TensorFiles{folder_}, Error) << folder;
  }
  for (const char* index : {"[]", "{}", R"({"weight_map": []})", R"({"weight_map": 3})"}) {
    write_text(index_, index);
    EXPECT_THAT(refusal(), HasSubstr("expected an object weight_map"));
  }
}

TEST_F(IndexOfOthers, ShowsTheBeginningOfLongNames) {
  const std::string longest(5000, 'x'), file = std::string(200, 'y') + ".safetensors";
  const auto expect_short = [&](const std::string& message) {
    EXPECT_LT(message.size(), 500 + folder_.string().size());
    EXPECT_THAT(message, HasSubstr("..."));
  };
  write_index({{"a", longest}});
  expect_short(refusal());
  write_index({{longest, kFirst}});
  expect_short(refusal());
  write_index({{longest, longest}});
  expect_short(refusal());
  write_safetensors(folder_ / file, {{longest, at::full({2}, INFINITY)}}, {}, Numbers::any);
  write_index({{"a", file}});
  expect_short(refusal());
  write_index({{longest, file}});
  const TensorFiles files(folder_);
  expect_short(message_of<Error>([&] { files.verify({longest}); }));
  expect_short(message_of<Error>([&] { files.read(longest + "z"); }));
}

// Links, as in a cache of downloads, lead wherever they lead.
TEST_F(IndexOfOthers, MayListLinks) {
  const fs::path blobs = fresh_folder("blobs");
  fs::rename(folder_ / kSecond, blobs / "0123");
  fs::create_symlink(blobs / "0123", folder_ / kSecond);
  EXPECT_TRUE(at::equal(TensorFiles(folder_).read("c"), at::full({2}, 3.0)));
  fs::remove(folder_ / kSecond);
  fs::create_symlink(folder_ / kSecond, folder_ / kSecond);
  EXPECT_THAT(refusal(), HasSubstr(kSecond));
}

TEST_F(IndexOfOthers, OfAMillionTensorsIsReadOnce) {
  std::string text = R"({"weight_map": {"a": ")" + std::string(kFirst) + "\"";
  for (int i = 0; i < 1'000'000; ++i) text += fmt::format(",\"{}\":\"{}\"", i, kFirst);
  write_text(index_, text + "}}");
  EXPECT_THAT(refusal(), HasSubstr("holds 0, which it does not"));
}

// As transformers takes them.
TEST_F(IndexOfOthers, CountsBehindTheOneFile) {
  write_safetensors(folder_ / "model.safetensors", {{"a", at::full({2}, 7.0)}});
  const TensorFiles files(folder_);
  EXPECT_THAT(files.names(), ElementsAre("a"));
  EXPECT_TRUE(at::equal(files.read("a"), at::full({2}, 7.0)));
  EXPECT_THAT(files.notes(), ElementsAre(AllOf(HasSubstr("model.safetensors is read"),
                                               HasSubstr("index.json beside it are not"))));
  write_text(index_, "broken");
  EXPECT_EQ(TensorFiles(folder_).notes().size(), 1U);
  // What mlx-lm writes of one file.
  write_index({{"a", "model.safetensors"}});
  EXPECT_THAT(TensorFiles(folder_).notes(), IsEmpty());
}

}  // namespace
}  // namespace attnres::testing::tensor_files_test
