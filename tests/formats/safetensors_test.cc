#include "attnres/formats/safetensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres::safetensors_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

fs::path test_path(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / "safetensors_test";
  fs::create_directories(folder);
  return folder / name;
}

void write_text(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, 'd');
}

std::string error_of(const fs::path& path) {
  try {
    const SafetensorsFile file(path);
    file.verify_checksum();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr(path.string()));
    return e.what();
  }
  return "";
}

std::vector<std::pair<std::string, at::Tensor>> samples() {
  const at::Tensor x = at::arange(15).view({3, 5}) - 7;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong,
                          at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    tensors.emplace_back(std::string("of.") + c10::toString(type), x.to(type));
  }
  tensors.emplace_back("scalar", at::scalar_tensor(2.5));
  tensors.emplace_back("empty", at::empty({0, 4}));
  tensors.emplace_back("transposed", x.to(at::kFloat).t());
  tensors.emplace_back("grad", x.to(at::kFloat).requires_grad_());
  tensors.emplace_back("special", at::tensor({-0.0F, INFINITY, -INFINITY, 1e-42F}));
  tensors.emplace_back("größe \"quoted\"\n", at::ones({1}));
  return tensors;
}

TEST(Safetensors, ReadsBackWhatWasWritten) {
  const fs::path path = test_path("samples.safetensors");
  write_safetensors(path, samples(), {{"format", "pt"}, {"note", "grün"}});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.names().size(), samples().size());
  for (const auto& [name, tensor] : samples()) {
    ASSERT_TRUE(file.contains(name)) << name;
    const at::Tensor read = file.read(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(file.info(name).shape, tensor.sizes().vec()) << name;
    EXPECT_TRUE(read.equal(tensor)) << name;
  }
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("note"), "grün");
  EXPECT_TRUE(file.verify_checksum());
  EXPECT_FALSE(fs::exists(path.string() + ".new"));
}

TEST(Safetensors, FillsATensorOfAnotherTypeOrLayout) {
  const fs::path path = test_path("filled.safetensors");
  const at::Tensor stored = at::randn({3, 5}).to(at::kBFloat16);
  write_safetensors(path, {{"x", stored}, {"none", at::empty({0, 4})}});
  const SafetensorsFile file(path);
  const at::Tensor joined = at::zeros({10, 6}, at::kDouble);
  const at::Tensor part = joined.narrow(0, 2, 3).narrow(1, 1, 5);
  file.read_into("x", part);
  EXPECT_TRUE(part.equal(stored.to(at::kDouble)));
  EXPECT_EQ(joined.abs().sum().item<double>(), part.abs().sum().item<double>());
  file.read_into("none", at::empty({0}));
  EXPECT_THROW(file.read_into("x", at::empty({3, 4})), Error);
}

// As other programs may write it: the format asks for no alignment.
TEST(Safetensors, ReadsTensorsThatAreNotAligned) {
  const fs::path path = test_path("unaligned.safetensors");
  const float numbers[] = {1.5F, -2};
  for (const size_t before : {0, 1, 2, 3}) {
    std::string text =
        file_of(fmt::format(R"({{"a":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}},)"
                            R"("x":{{"dtype":"F32","shape":[2],"data_offsets":[{0},{1}]}}}})",
                            before, before + sizeof(numbers)),
                before);
    text.append(reinterpret_cast<const char*>(numbers), sizeof(numbers));
    write_text(path, text);
    EXPECT_TRUE(SafetensorsFile(path).read("x").equal(at::tensor({1.5F, -2.0F})));
  }
}

TEST(Safetensors, DataIsAlignedAndLargestElementsFirst) {
  const fs::path path = test_path("aligned.safetensors");
  write_safetensors(path, {{"b", at::ones({3}, at::kByte)},
                           {"f", at::ones({1})},
                           {"d", at::ones({1}, at::kDouble)},
                           {"g", at::zeros({1})}});
  const std::string bytes = read_file(path);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0U);
  EXPECT_EQ(bytes[8], '{');
  EXPECT_THAT(SafetensorsFile(path).names(), ElementsAre("d", "f", "g", "b"));
}

TEST(Safetensors, ChecksumIsTheOneDocumented) {
  const fs::path path = test_path("checksum.safetensors");
  write_safetensors(
      path, {{"x", at::tensor({int64_t{1}, int64_t{2}})}, {"y", at::tensor({3}, at::kByte)}});
  uint64_t h = 0;
  for (const uint64_t word : {1, 2, 3}) {
    h = (h ^ word) * 0x9e3779b97f4a7c15ULL;
    h ^= h >> 32;
  }
  EXPECT_EQ(SafetensorsFile(path).metadata().at(kSafetensorsChecksum), fmt::format("{:016x}", h));
}

TEST(Safetensors, FilesOfOthersHaveNoChecksum) {
  const fs::path path = test_path("foreign.safetensors");
  write_text(path, file_of(R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}   )", 3));
  const SafetensorsFile file(path);
  EXPECT_FALSE(file.verify_checksum());
  EXPECT_EQ(file.read("x").sum().item<int64_t>(), 3 * 'd');
  write_text(path, file_of("{}", 0));
  EXPECT_TRUE(SafetensorsFile(path).names().empty());
}

TEST(Safetensors, FindsEveryFlippedBitOfTheData) {
  const fs::path path = test_path("flipped.safetensors");
  write_safetensors(path, {{"a", at::randn({5, 3})}, {"b", at::ones({3}, at::kByte)}});
  const std::string good = read_file(path);
  EXPECT_EQ(error_of(path), "");
  uint64_t length = 0;
  std::memcpy(&length, good.data(), 8);
  for (size_t byte = 8 + length; byte < good.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[byte] = static_cast<char>(bad[byte] ^ (1 << bit));
      write_text(path, bad);
      EXPECT_THAT(error_of(path), HasSubstr("damaged")) << byte << " " << bit;
    }
  }
}

// At every place of a word, beside the largest numbers.
TEST(Safetensors, FindsNumbersThatAreNotFinite) {
  const auto refused = [](const at::Tensor& tensor) {
    const fs::path path = test_path("not_finite.safetensors");
    write_safetensors(path, {{"good", at::zeros({3})}, {"x", tensor}});
    const SafetensorsFile file(path);
    EXPECT_TRUE(file.verify_checksum());
    try {
      EXPECT_TRUE(file.verify_checksum(Numbers::finite));
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(path.string() + ": x holds numbers that are not finite"));
      EXPECT_THROW(write_safetensors(path, {{"x", tensor}}, {}, Numbers::finite), Error);
      return true;
    }
    write_safetensors(path, {{"x", tensor}}, {}, Numbers::finite);
    return false;
  };
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const double largest = type == at::kHalf       ? 65504
                           : type == at::kBFloat16 ? 3.3895313892515355e38
                           : type == at::kFloat    ? 3.4028234663852886e38
                                                   : 1.7976931348623157e308;
    const at::Tensor good =
        at::tensor({largest, -largest, 0.0, -0.0, 1.0, 1e-7, -1e-7, 5.0, -largest}, at::kDouble)
            .to(type);
    ASSERT_TRUE(good.isfinite().all().item<bool>());
    EXPECT_FALSE(refused(good)) << type;
    for (int64_t place = 0; place < good.numel(); ++place) {
      for (const double value : {INFINITY, -INFINITY, NAN, -NAN}) {
        at::Tensor bad = good.clone();
        bad[place] = value;
        EXPECT_TRUE(refused(bad)) << type << " " << place << " " << value;
      }
    }
  }
  // The same bits are ordinary numbers of other types.
  EXPECT_FALSE(refused(at::full({5}, -1, at::kLong)));
  EXPECT_FALSE(refused(at::full({5}, 255, at::kByte)));
}

// All 65536 of each type.
TEST(Safetensors, JudgesEveryShortNumberAsTorchDoes) {
  const fs::path path = test_path("short.safetensors");
  const at::Tensor bits = at::arange(-32768, 32768, at::kShort);
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const at::Tensor finite = bits.view(type).isfinite();
    EXPECT_GT(finite.sum().item<int64_t>(), 60000);
    for (int64_t i = 0; i < bits.numel(); ++i) {
      if (finite[i].item<bool>()) continue;
      const SafetensorsMetadata none;
      EXPECT_THROW(write_safetensors(path, {{"x", bits.view(type)[i]}}, none, Numbers::finite),
                   Error);
    }
    write_safetensors(path, {{"x", bits.view(type).masked_select(finite)}}, {}, Numbers::finite);
  }
}

// Damage is told from numbers that were written so, and files of others are checked too.
TEST(Safetensors, TellsDamageFromDivergence) {
  const fs::path path = test_path("both.safetensors");
  write_safetensors(path, {{"x", at::full({4}, NAN)}});
  std::string bytes = read_file(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text(path, bytes);
  EXPECT_THAT(error_of(path), HasSubstr("damaged"));
  const std::string header = R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  write_text(path, file_of(header, 0) + std::string("\x00\x00\xc0\x7f", 4));
  EXPECT_FALSE(SafetensorsFile(path).verify_checksum());
  EXPECT_THROW(SafetensorsFile(path).verify_checksum(Numbers::finite), Error);
  write_text(path, file_of(header, 0) + std::string("\x00\x00\x40\x7f", 4));
  EXPECT_FALSE(SafetensorsFile(path).verify_checksum(Numbers::finite));
}

// Whatever is cut off or flipped in the header: an Error or a file that reads, never a crash.
TEST(Safetensors, SurvivesAnyDamageToTheHeader) {
  const fs::path path = test_path("damaged.safetensors");
  write_safetensors(path, {{"a", at::randn({2, 3})}, {"b", at::ones({3}, at::kByte)}});
  const std::string good = read_file(path);
  for (size_t size = 0; size < good.size(); ++size) {
    write_text(path, good.substr(0, size));
    EXPECT_NE(error_of(path), "") << size;
  }
  for (size_t byte = 0; byte < good.size(); ++byte) {
    for (const int bit : {0, 3, 6}) {
      std::string bad = good;
      bad[byte] = static_cast<char>(bad[byte] ^ (1 << bit));
      write_text(path, bad);
      try {
        const SafetensorsFile file(path);
        for (const std::string& name : file.names()) file.read(name);
      } catch (const Error&) {
      }
    }
  }
}

struct Corruption {
  std::string name, file, message;
};

std::string one(const std::string& entry, size_t data_bytes) {
  return file_of("{\"x\":" + entry + "}", data_bytes);
}

class BadFile : public ::testing::TestWithParam<Corruption> {};

TEST_P(BadFile, IsRefused) {
  const fs::path path = test_path(GetParam().name);
  write_text(path, GetParam().file);
  EXPECT_THAT(error_of(path), HasSubstr(GetParam().message));
}

const std::string kTwoTensors = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[%]},)"
                                R"("b":{"dtype":"U8","shape":[4],"data_offsets":[%]}})";
std::string two(const std::string& a, const std::string& b, size_t data_bytes) {
  std::string header = kTwoTensors;
  header.replace(header.find('%'), 1, a);
  header.replace(header.find('%'), 1, b);
  return file_of(header, data_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Safetensors, BadFile,
    ::testing::Values(
        Corruption{"empty", "", "0 bytes, too short"},
        Corruption{"short", "1234567", "7 bytes, too short"},
        Corruption{"length", std::string(8, '\xff') + "{}", "truncated or not safetensors"},
        Corruption{"length_by_one", file_of("{}", 0).substr(0, 9), "only 1 follow"},
        Corruption{"not_json", file_of("{\"x\":", 0), "the header: not valid JSON"},
        Corruption{"not_utf8", file_of("{\"\xff\":1}", 0), "the header: not valid JSON"},
        Corruption{"no_header", file_of("", 0), "the header: not valid JSON"},
        Corruption{"array", file_of("[1,2]", 0), "not a JSON object"},
        Corruption{"deep", file_of("{\"x\":" + std::string(100'000, '['), 0),
                   "more than 100 lists"},
        Corruption{"twice",
                   file_of(R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                           R"("x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                           1),
                   "the header: x is there twice"},
        Corruption{"key_twice",
                   one(R"({"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]})", 1),
                   "the header: x.dtype is there twice"},
        Corruption{"metadata_list", file_of(R"({"__metadata__":[]})", 0), "__metadata__"},
        Corruption{"metadata_number", file_of(R"({"__metadata__":{"n":1}})", 0), "n is not text"},
        Corruption{"entry", one("3", 0), "not a JSON object"},
        Corruption{"no_dtype", one(R"({"shape":[1],"data_offsets":[0,1]})", 1), "no dtype"},
        Corruption{"dtype", one(R"({"dtype":"F8_X","shape":[1],"data_offsets":[0,1]})", 1),
                   "unknown dtype F8_X"},
        Corruption{"no_shape", one(R"({"dtype":"U8","data_offsets":[0,1]})", 1), "shape"},
        Corruption{"negative", one(R"({"dtype":"U8","shape":[-1],"data_offsets":[0,1]})", 1),
                   "shape is not"},
        Corruption{"fraction", one(R"({"dtype":"U8","shape":[1.0],"data_offsets":[0,1]})", 1),
                   "shape is not"},
        Corruption{"huge_number",
                   one(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]})", 1),
                   "shape is not"},
        Corruption{
            "overflow",
            one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})", 0),
            "larger than any memory"},
        Corruption{"one_offset", one(R"({"dtype":"U8","shape":[1],"data_offsets":[0]})", 1),
                   "data_offsets"},
        Corruption{"negative_offset", one(R"({"dtype":"U8","shape":[1],"data_offsets":[-1,0]})", 1),
                   "data_offsets"},
        Corruption{"backwards", one(R"({"dtype":"U8","shape":[1],"data_offsets":[1,0]})", 1),
                   "outside the data"},
        Corruption{"mismatch", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4]})", 4),
                   "F32 [2] takes 8 bytes, but 4"},
        Corruption{"outside", one(R"({"dtype":"U8","shape":[9],"data_offsets":[0,9]})", 8),
                   "outside the data, which has 8"},
        Corruption{"trailing", one(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})", 5),
                   "1 bytes after the last tensor"},
        Corruption{"only_trailing", file_of("{}", 3), "3 bytes after the last tensor"},
        Corruption{"overlap", two("0,4", "2,6", 6), "inside the one before"},
        Corruption{"shared", two("0,4", "0,4", 4), "inside the one before"},
        Corruption{"gap", two("0,4", "5,9", 9), "1 bytes before tensor b"},
        Corruption{"late_start", two("1,5", "5,9", 9), "1 bytes before tensor a"},
        Corruption{"zip", "PK\x03\x04 and so on and on", "convert it with"},
        Corruption{"pickle", std::string("\x80\x02}q\x00.", 6), "convert it with"},
        Corruption{"lfs", "version https://git-lfs.github.com/spec/v1\n", "git lfs pull"},
        Corruption{"gguf", "GGUF\x03 and so on and on", "GGUF"}),
    [](const auto& info) { return info.param.name; });

TEST(Safetensors, ErrorsWhenOpening) {
  EXPECT_THAT(error_of(test_path("missing")), HasSubstr("no such file"));
  EXPECT_THAT(error_of(test_path("").parent_path()), HasSubstr("is a folder"));
}

TEST(Safetensors, NamesTheNearestTensor) {
  const fs::path path = test_path("nearest.safetensors");
  write_safetensors(path, {{"model.norm.weight", at::ones({1})}, {"lm_head", at::ones({1})}});
  const SafetensorsFile file(path);
  try {
    file.read("model.norm.weights");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("'model.norm.weight'"));
  }
}

TEST(Safetensors, RefusesToWriteWhatCannotBeRead) {
  const fs::path path = test_path("refused.safetensors");
  const at::Tensor x = at::ones({1});
  EXPECT_THROW(write_safetensors(path, {{"x", x}, {"x", x}}), Error);
  EXPECT_THROW(write_safetensors(path, {{"__metadata__", x}}), Error);
  EXPECT_THROW(write_safetensors(path, {{"x", x.to(at::kComplexFloat)}}), Error);
  EXPECT_THROW(write_safetensors(path, {{"x", at::Tensor()}}), Error);
  EXPECT_THROW(write_safetensors(test_path("no/such/folder"), {{"x", x}}), Error);
  EXPECT_FALSE(fs::exists(path));
}

// The file that is written aside leads to the device that is always full.
TEST(Safetensors, AFullDiskKeepsTheOldFile) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const fs::path path = test_path("full.safetensors");
  write_safetensors(path, {{"x", at::ones({1})}});
  fs::remove(path.string() + ".new");
  fs::create_symlink("/dev/full", path.string() + ".new");
  try {
    write_safetensors(path, {{"x", at::zeros({1})}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("No space left on device; free some space"));
  }
  EXPECT_FALSE(fs::is_symlink(path.string() + ".new"));
  EXPECT_EQ(SafetensorsFile(path).read("x").item<float>(), 1);
}

TEST(Safetensors, AFileInUseMayBeReplaced) {
  const fs::path path = test_path("replaced.safetensors");
  write_safetensors(path, {{"x", at::ones({1})}});
  SafetensorsFile old(path);
  write_safetensors(path, {{"x", at::zeros({1})}});
  const SafetensorsFile moved = std::move(old);
  EXPECT_EQ(moved.read("x").item<float>(), 1);
  EXPECT_EQ(SafetensorsFile(path).read("x").item<float>(), 0);
}

}  // namespace
}  // namespace attnres::safetensors_test
