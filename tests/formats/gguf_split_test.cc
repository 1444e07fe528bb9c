#include "attnres/formats/gguf_split.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/formats/gguf_models.h"
#include "tests/formats/split_gguf.h"

namespace attnres::testing::gguf_split_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string refusal(const fs::path& path) {
  return message_of<Error>([&] { GgufFile file(path); });
}

class SplitGguf : public ::testing::Test {
 protected:
  std::vector<fs::path> split(size_t tensors_a_part, bool first_is_empty = false) const {
    return split_gguf(whole_, stem_, tensors_a_part, first_is_empty);
  }
  // A part of three with these keys and one tensor.
  fs::path part(const SplitKeys& keys, const std::string& tensor, size_t number) const {
    fs::path path = part_name(stem_, number, 3);
    write_gguf(path, split_metadata(keys),
               {{tensor, {8}, GgufType::f32, [] { return at::ones({8}); }}});
    return path;
  }

  const Transformer model_ = perturbed_model(gguf_llama());
  const fs::path whole_ = saved_gguf(model_);
  const fs::path folder_ = fresh_folder("split"), stem_ = folder_ / "model-Q8_0";
};

TEST_F(SplitGguf, IsOpenedByAnyOfItsParts) {
  const GgufFile whole(whole_);
  for (const bool first_is_empty : {false, true}) {
    const std::vector<fs::path> parts = split(5, first_is_empty);
    ASSERT_GT(parts.size(), 3U);
    for (const fs::path& given : parts) {
      const GgufFile file(given);
      EXPECT_EQ(file.path(), parts[0].string());
      EXPECT_EQ(file.parts(), parts.size());
      EXPECT_EQ(file.names(), whole.names());
      for (const std::string& name : whole.names()) {
        EXPECT_EQ(file.info(name).shape, whole.info(name).shape);
        EXPECT_TRUE(at::equal(file.numbers(name), whole.numbers(name))) << name;
      }
      EXPECT_EQ(difference(*loaded_gguf(given), *loaded_gguf(whole_)), 0);
    }
  }
}

TEST_F(SplitGguf, IsOpenedByALinkToAPart) {
  const std::vector<fs::path> parts = split(5);
  const fs::path links = fresh_folder("links");
  fs::create_symlink(parts[1], links / "model.gguf");
  EXPECT_EQ(GgufFile(links / "model.gguf").names(), GgufFile(whole_).names());
  // As a cache of downloads has them: links with the parts' names to files with others.
  for (size_t i = 0; i < parts.size(); ++i) {
    fs::rename(parts[i], folder_ / std::to_string(i));
    fs::create_symlink(folder_ / std::to_string(i), links / parts[i].filename());
  }
  EXPECT_EQ(GgufFile(links / parts[1].filename()).names(), GgufFile(whole_).names());
}

// Numbers stay while what they are of is gone.
TEST_F(SplitGguf, StaysMappedWhileItsNumbersLive) {
  const at::Tensor numbers = GgufFile(split(5)[2]).numbers("output.weight");
  EXPECT_TRUE(at::equal(numbers, GgufFile(whole_).numbers("output.weight")));
}

TEST_F(SplitGguf, SaysWhichPartsAreMissing) {
  const std::vector<fs::path> parts = split(2);
  ASSERT_GE(parts.size(), 9U);
  for (const size_t i : {1, 4, 5, 6, 8}) fs::remove(parts[i]);
  const auto name = [&](size_t i) { return parts[i].filename().string(); };
  EXPECT_THAT(
      refusal(parts[3]),
      AllOf(HasSubstr(fmt::format("is part 4 of {}", parts.size())),
            HasSubstr("5 are missing in " + folder_.string()),
            HasSubstr(fmt::format("{}, {} to {}, {};", name(1), name(4), name(6), name(8)))));
  fs::remove(parts[0]);
  EXPECT_THAT(refusal(parts[2]), HasSubstr(name(0) + ", " + name(1)));
}

TEST_F(SplitGguf, TakesTheNamesThatThePartsHad) {
  const std::vector<fs::path> parts = split(5);
  fs::rename(parts[1], folder_ / "second.gguf");
  EXPECT_THAT(refusal(folder_ / "second.gguf"),
              AllOf(HasSubstr("is part 2 of"), HasSubstr("NAME-00002-of-0000")));
}

TEST_F(SplitGguf, RefusesPartsThatDoNotBelongTogether) {
  const fs::path first = part({0, 3, 3}, "a", 0), second = part({1, 3, 3}, "b", 1);
  part({2, 3, 3}, "c", 2);
  EXPECT_NO_THROW(GgufFile{first});
  for (const auto& [keys, said] : std::vector<std::pair<SplitKeys, std::string>>{
           {{1, 3, 3}, "says that it is part 2 of 3, but is called part 3 of 3"},
           {{2, 4, 3}, "says that it is part 3 of 4, but is called part 3 of 3"},
           {{2, 3, 4}, "a split with 4 tensors, another part of one with 3"},
           {{0, 1, 3}, "is called part 3 of 3 of a split GGUF file, but is a whole one"},
           {{3, 3, 3}, "says that it is part 4 of 3"}}) {
    part(keys, "c", 2);
    for (const fs::path& given : {first, second}) EXPECT_THAT(refusal(given), HasSubstr(said));
  }
  part({2, 3, 3}, "a", 2);
  EXPECT_THAT(refusal(second), AllOf(HasSubstr("00003-of-00003.gguf: the tensor a is in"),
                                     HasSubstr("00001-of-00003.gguf too")));
  for (const int32_t tensors : {2, 4}) {
    part({0, 3, tensors}, "a", 0);
    part({1, 3, tensors}, "b", 1);
    part({2, 3, tensors}, "c", 2);
    EXPECT_THAT(refusal(first), HasSubstr(fmt::format("3 parts have 3 tensors, but the model was "
                                                      "split with {}",
                                                      tensors)));
  }
  // The same file under all names.
  fs::remove(second);
  fs::create_symlink(first, second);
  EXPECT_THAT(refusal(second), HasSubstr("says that it is part 1 of 3"));
}

TEST_F(SplitGguf, TakesNumbersOfAnyIntegerTypeAndNoOthers) {
  const auto with = [&](const GgufValue& number, const GgufValue& count, const GgufValue& tensors) {
    const fs::path path = part_name(stem_, 0, 1);
    write_gguf(
        path, {{"split.no", number}, {"split.count", count}, {"split.tensors.count", tensors}}, {});
    return path;
  };
  EXPECT_NO_THROW(GgufFile{with(uint64_t{0}, int8_t{1}, int64_t{0})});
  EXPECT_NO_THROW(GgufFile{with(uint16_t{0}, uint16_t{0}, int32_t{0})}) << "joined again";
  EXPECT_THAT(refusal(with(int32_t{-1}, int32_t{3}, int32_t{0})), HasSubstr("split.no"));
  EXPECT_THAT(refusal(with(uint16_t{0}, std::string("3"), int32_t{0})), HasSubstr("split.count"));
  EXPECT_THAT(refusal(with(uint16_t{0}, 3.0f, int32_t{0})), HasSubstr("split.count"));
  EXPECT_THAT(refusal(with(uint16_t{0}, true, int32_t{0})), HasSubstr("split.count"));
  EXPECT_THAT(refusal(with(uint16_t{0}, uint32_t{65536}, int32_t{0})), HasSubstr("0 to 65535"));
  EXPECT_THAT(refusal(with(uint16_t{0}, uint16_t{3}, ~uint64_t{0})),
              HasSubstr("split.tensors.count"));
}

TEST_F(SplitGguf, IsCheckedForAHandfulOfBytes) {
  const fs::path path = part_name(stem_, 7, UINT16_MAX);
  write_gguf(path, split_metadata({7, UINT16_MAX, INT32_MAX}), {});
  const std::string message = refusal(path);
  EXPECT_LT(message.size(), 1000U);
  EXPECT_THAT(message, AllOf(HasSubstr("65534 are missing"),
                             HasSubstr("-00009-of-65535.gguf to model-Q8_0-65535-of-65535.gguf")));
  write_gguf(part_name(stem_, 0, 2), split_metadata({0, 2, 0}), {});
  fs::create_directories(part_name(stem_, 1, 2));
  EXPECT_THAT(refusal(part_name(stem_, 0, 2)), HasSubstr("00002-of-00002.gguf"));
  fs::remove(part_name(stem_, 1, 2));
  fs::create_symlink(part_name(stem_, 1, 2), part_name(stem_, 1, 2));  // to itself
  EXPECT_THAT(refusal(part_name(stem_, 0, 2)), HasSubstr("00002-of-00002.gguf"));
}

TEST_F(SplitGguf, SurvivesDamage) {
  const fs::path first = part({0, 3, 3}, "a", 0), second = part({1, 3, 3}, "b", 1);
  part({2, 3, 3}, "c", 2);
  for (const fs::path& damaged : {first, second}) {
    const std::string bytes = read_file(damaged);
    int refused = 0;
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (const int flip : {0x01, 0x80, 0xff}) {
        std::string other = bytes;
        other[at] = static_cast<char>(other[at] ^ flip);
        write_text(damaged, other);
        try {
          const GgufFile file(second);
          for (const std::string& name : file.names()) file.numbers(name).sum().item<float>();
        } catch (const Error&) {
          ++refused;
        }
      }
      write_text(damaged, bytes.substr(0, at));
      EXPECT_THROW(GgufFile{second}, Error) << at;
    }
    EXPECT_GT(refused, 200);
    write_text(damaged, bytes);
  }
  EXPECT_NO_THROW(GgufFile{second});
}

TEST_F(SplitGguf, IsFoundInAFolder) {
  EXPECT_FALSE(gguf_in_folder(folder_).has_value());
  fs::create_directories(folder_ / "folder.gguf");
  write_text(folder_ / "mmproj-model.gguf", "images");
  EXPECT_FALSE(gguf_in_folder(folder_).has_value());
  const std::vector<fs::path> parts = split(5);
  EXPECT_EQ(gguf_in_folder(folder_), parts[0]);
  fs::remove(parts[0]);
  EXPECT_EQ(gguf_in_folder(folder_), parts[1]) << "which then says what is missing";
  write_text(folder_ / "other-00001-of-00002.gguf", "");
  const std::string message = message_of<Error>([&] { gguf_in_folder(folder_); });
  EXPECT_THAT(message, AllOf(HasSubstr("holds 2 GGUF models"), HasSubstr("other-00001-of-00002"),
                             HasSubstr(parts[1].filename().string()), Not(HasSubstr("mmproj"))));
}

}  // namespace
}  // namespace attnres::testing::gguf_split_test
