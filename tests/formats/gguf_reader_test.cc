#include "attnres/formats/gguf_reader.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>

#include "attnres/ops/packed_weight/reference.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/text/test_files.h"

namespace attnres::testing::gguf_reader_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The bytes of a file, number by number.
class Bytes {
 public:
  template <class T>
  Bytes& add(T number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
    return *this;
  }
  Bytes& text(const std::string& text) {
    add<uint64_t>(text.size());
    bytes_ += text;
    return *this;
  }
  Bytes& raw(const std::string& bytes) {
    bytes_ += bytes;
    return *this;
  }
  Bytes& align(size_t to) {
    bytes_.resize((bytes_.size() + to - 1) / to * to, '\0');
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

Bytes header(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
  return Bytes().raw("GGUF").add(version).add(tensors).add(keys);
}

struct Info {
  std::string name = "t";
  std::vector<uint64_t> sizes = {4};
  uint32_t type = 0;
  uint64_t offset = 0;
};

Bytes& add_info(Bytes& to, const Info& info) {
  to.text(info.name).add(static_cast<uint32_t>(info.sizes.size()));
  for (const uint64_t size : info.sizes) to.add(size);
  return to.add(info.type).add(info.offset);
}

// A file of these tensors and 256 bytes of data.
std::string with_tensors(const std::vector<Info>& infos) {
  Bytes bytes = header(infos.size(), 0);
  for (const Info& info : infos) add_info(bytes, info);
  return bytes.align(32).raw(std::string(256, '\0')).bytes();
}

fs::path saved(const std::string& bytes) {
  const fs::path path = fresh_folder("gguf") / "file.gguf";
  write_text(path, bytes);
  return path;
}

std::string refusal(const std::string& bytes) {
  const fs::path path = saved(bytes);
  const std::string message = message_of<Error>([&] { GgufFile file(path); });
  EXPECT_THAT(message, HasSubstr("file.gguf: "));
  return message;
}

// A small file with every kind of thing in it, and where its header ends.
std::pair<std::string, size_t> whole_file() {
  Bytes bytes = header(3, 16);
  bytes.text("u8").add(uint32_t{0}).add(uint8_t{200});
  bytes.text("i8").add(uint32_t{1}).add(int8_t{-100});
  bytes.text("u16").add(uint32_t{2}).add(uint16_t{60000});
  bytes.text("i16").add(uint32_t{3}).add(int16_t{-30000});
  bytes.text("u32").add(uint32_t{4}).add(uint32_t{4'000'000'000});
  bytes.text("i32").add(uint32_t{5}).add(int32_t{-2'000'000'000});
  bytes.text("f32").add(uint32_t{6}).add(0.25f);
  bytes.text("bool").add(uint32_t{7}).add(uint8_t{1});
  bytes.text("text").add(uint32_t{8}).text("caf\u00e9");
  bytes.text("u64").add(uint32_t{10}).add(uint64_t{1} << 63);
  bytes.text("i64").add(uint32_t{11}).add(std::numeric_limits<int64_t>::min());
  bytes.text("f64").add(uint32_t{12}).add(1e300);
  bytes.text("texts").add(uint32_t{9}).add(uint32_t{8}).add(uint64_t{2}).text("a").text("");
  bytes.text("bools")
      .add(uint32_t{9})
      .add(uint32_t{7})
      .add(uint64_t{2})
      .raw(std::string("\0\1", 2));
  bytes.text("i64s").add(uint32_t{9}).add(uint32_t{11}).add(uint64_t{1}).add(int64_t{-5});
  bytes.text("none").add(uint32_t{9}).add(uint32_t{12}).add(uint64_t{0});
  add_info(bytes, {"a", {2, 3}, 0, 0});
  add_info(bytes, {"b", {4}, 1, 32});
  add_info(bytes, {"c", {32, 2}, 8, 64});
  const size_t end = bytes.bytes().size();
  bytes.align(32);
  for (int i = 0; i < 6; ++i) bytes.add(0.5f * static_cast<float>(i));
  bytes.align(32);
  for (int i = 0; i < 4; ++i) bytes.add(uint16_t{0x3c00});  // 1 in float16
  bytes.align(32);
  for (int block = 0; block < 2; ++block) {
    bytes.add(static_cast<uint16_t>(0x3800 >> block));  // 0.5, and a small number
    for (int i = 0; i < 32; ++i) bytes.add(static_cast<int8_t>(8 * i - 128));
  }
  return {bytes.bytes(), end};
}

TEST(GgufReader, ReadsEveryTypeOfValue) {
  const GgufFile file(saved(whole_file().first));
  const auto is = [&](const char* key, const auto& expected) {
    const GgufValue* value = file.find(key);
    return value != nullptr && *value == GgufValue(expected);
  };
  EXPECT_TRUE(is("u8", uint8_t{200}));
  EXPECT_TRUE(is("i8", int8_t{-100}));
  EXPECT_TRUE(is("u16", uint16_t{60000}));
  EXPECT_TRUE(is("i16", int16_t{-30000}));
  EXPECT_TRUE(is("u32", uint32_t{4'000'000'000}));
  EXPECT_TRUE(is("i32", int32_t{-2'000'000'000}));
  EXPECT_TRUE(is("f32", 0.25f));
  EXPECT_TRUE(is("bool", true));
  EXPECT_TRUE(is("text", std::string("caf\u00e9")));
  EXPECT_TRUE(is("u64", uint64_t{1} << 63));
  EXPECT_TRUE(is("i64", std::numeric_limits<int64_t>::min()));
  EXPECT_TRUE(is("f64", 1e300));
  EXPECT_TRUE(is("texts", std::vector<std::string>{"a", ""}));
  EXPECT_TRUE(is("bools", std::vector<bool>{false, true}));
  EXPECT_TRUE(is("i64s", std::vector<int64_t>{-5}));
  EXPECT_TRUE(is("none", std::vector<double>()));
  EXPECT_FALSE(is("u8", uint8_t{201}));
  EXPECT_EQ(file.metadata().size(), 16u);
  EXPECT_EQ(file.metadata()[3].first, "i16");
  EXPECT_EQ(file.text("text", ""), "caf\u00e9");
  EXPECT_EQ(file.text("other", "otherwise"), "otherwise");
  EXPECT_THAT(message_of<Error>([&] { file.flag("text", false); }),
              HasSubstr("text: expected true or false"));
}

TEST(GgufReader, ReadsWhatIsWritten) {
  const fs::path path = fresh_folder("gguf") / "file.gguf";
  const GgufMetadata metadata = {{"a", uint8_t{3}},
                                 {"b", int64_t{-4}},
                                 {"c", 0.1},
                                 {"d", std::vector<bool>{true, false}},
                                 {"e", std::vector<uint16_t>{1, 2}},
                                 {"f", std::vector<std::string>{"x", "y"}}};
  write_gguf(path, metadata, {});
  EXPECT_EQ(GgufFile(path).metadata(), metadata);
}

TEST(GgufReader, ReadsTensors) {
  const GgufFile file(saved(whole_file().first));
  EXPECT_THAT(file.names(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(file.info("a").shape, ElementsAre(3, 2));
  EXPECT_EQ(file.info("c").type, GgufType::q8_0);
  EXPECT_TRUE(at::equal(file.numbers("a"), 0.5 * at::arange(6).view({3, 2})));
  EXPECT_TRUE(at::equal(file.numbers("b"), at::ones({4})));
  const at::Tensor c = file.numbers("c");
  EXPECT_THAT(c.sizes(), ElementsAre(2, 32));
  EXPECT_EQ(c[0][3].item<float>(), 0.5f * -104);
  EXPECT_EQ(c[1][31].item<float>(),
            120 * reference::half_value(reinterpret_cast<const uint8_t*>("\x00\x1c")));
  EXPECT_THAT(message_of<Error>([&] { file.info("d"); }), HasSubstr("no tensor d"));
}

// Every type is read as its reference says.
TEST(GgufReader, ReadsWhatIsStored) {
  const fs::path path = fresh_folder("gguf") / "file.gguf";
  const at::Tensor values = at::linspace(-3, 5, 4 * 64).view({4, 64}).to(at::kFloat);
  std::vector<GgufTensor> tensors;
  for (const GgufType type :
       {GgufType::f32, GgufType::f16, GgufType::bf16, GgufType::q8_0, GgufType::q4_0}) {
    tensors.push_back({fmt::format("t{}", tensors.size()), {4, 64}, type, [=] { return values; }});
  }
  write_gguf(path, {}, tensors);
  const GgufFile file(path);
  for (const GgufTensor& tensor : tensors) {
    const PackedMatrix stored = file.stored(tensor.name);
    const at::Tensor numbers = file.numbers(tensor.name);
    EXPECT_EQ(stored.format, weight_format(tensor.type));
    for (int64_t row = 0; row < 4; ++row) {
      const auto* bytes = stored.bytes.const_data_ptr<uint8_t>() + row * stored.bytes.size(1);
      for (int64_t k = 0; k < 64; ++k) {
        const double expected = reference::packed_value(stored.format, bytes, k);
        ASSERT_EQ(numbers[row][k].item<float>(), static_cast<float>(expected));
        ASSERT_NEAR(expected, values[row][k].item<double>(), 0.7);
      }
    }
  }
}

TEST(GgufReader, KeepsTheFileMapped) {
  at::Tensor numbers;
  {
    const fs::path path = saved(whole_file().first);
    numbers = GgufFile(path).numbers("a");
    fs::remove(path);
  }
  EXPECT_EQ(numbers[2][1].item<float>(), 2.5f);
}

TEST(GgufReader, HonoursTheAlignment) {
  const auto aligned = [](uint32_t alignment) {
    Bytes bytes = header(1, 1);
    bytes.text("general.alignment").add(uint32_t{4}).add(alignment);
    add_info(bytes, {});
    return bytes.align(128).add(1.5f).raw(std::string(12, '\0')).bytes();
  };
  EXPECT_EQ(GgufFile(saved(aligned(128))).numbers("t")[0].item<float>(), 1.5f);
  EXPECT_NE(GgufFile(saved(aligned(8))).numbers("t")[0].item<float>(), 1.5f);
  EXPECT_THAT(refusal(aligned(0)), HasSubstr("general.alignment: expected a power of two"));
  EXPECT_THAT(refusal(aligned(48)), HasSubstr("general.alignment"));
}

TEST(GgufReader, TakesTheVersionBefore) {
  EXPECT_EQ(GgufFile(saved(header(0, 0, 2).bytes())).names().size(), 0u);
}

TEST(GgufReader, RefusesOtherFiles) {
  EXPECT_THAT(refusal(""), HasSubstr("is not a GGUF file"));
  EXPECT_THAT(refusal("GGU"), HasSubstr("is not a GGUF file"));
  EXPECT_THAT(refusal("lmgg and more"), HasSubstr("before GGUF"));
  EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1\n"), HasSubstr("git lfs pull"));
  EXPECT_THAT(refusal(header(0, 0, 1).bytes()), HasSubstr("version 1 of GGUF"));
  EXPECT_THAT(refusal(header(0, 0, 4).bytes()), HasSubstr("version 4 of GGUF"));
  EXPECT_THAT(refusal(header(0, 0, 3u << 24).bytes()), HasSubstr("big-endian"));
}

TEST(GgufReader, RefusesDamagedKeys) {
  EXPECT_THAT(refusal(header(0, uint64_t{1} << 60).bytes()),
              HasSubstr("says that it has 1152921504606846976 keys"));
  EXPECT_THAT(refusal(header(uint64_t{1} << 63, 0).bytes()),
              HasSubstr("tensors, which do not fit"));
  const auto with_key = [](const std::function<void(Bytes&)>& add) {
    Bytes bytes = header(0, 1);
    add(bytes);
    return bytes.align(64).bytes();
  };
  EXPECT_THAT(refusal(with_key([](Bytes& b) { b.add(uint64_t{1} << 62); })),
              HasSubstr("ends within its header"));
  EXPECT_THAT(refusal(with_key([](Bytes& b) { b.text("key").add(uint32_t{13}); })),
              HasSubstr("key: its value is of the unknown type 13"));
  EXPECT_THAT(refusal(with_key([](Bytes& b) { b.text("key").add(uint32_t{7}).add(uint8_t{2}); })),
              HasSubstr("expected 0 or 1"));
  EXPECT_THAT(refusal(with_key([](Bytes& b) {
                b.text("key").add(uint32_t{9}).add(uint32_t{4}).add(uint64_t{1} << 61);
              })),
              HasSubstr("2305843009213693952 values in an array, which do not fit"));
  EXPECT_THAT(refusal(with_key([](Bytes& b) {
                b.text("key").add(uint32_t{9}).add(uint32_t{9}).add(uint64_t{0});
              })),
              HasSubstr("arrays of arrays"));
  Bytes twice = header(0, 2);
  for (int i = 0; i < 2; ++i) twice.text("key").add(uint32_t{7}).add(uint8_t{1});
  EXPECT_THAT(refusal(twice.bytes()), HasSubstr("the key key is there twice"));
}

TEST(GgufReader, RefusesDamagedTensors) {
  constexpr uint64_t k40 = uint64_t{1} << 40;
  EXPECT_NO_THROW(GgufFile(saved(with_tensors({{}}))));
  EXPECT_THAT(refusal(with_tensors({{"t"}, {"t", {4}, 0, 32}})), HasSubstr("t is there twice"));
  EXPECT_THAT(refusal(with_tensors({{"t", {}}})), HasSubstr("has 0 dimensions"));
  EXPECT_THAT(refusal(with_tensors({{"t", {1, 1, 1, 1, 1}}})), HasSubstr("has 5 dimensions"));
  EXPECT_THAT(refusal(with_tensors({{"t", {4, 0}}})), HasSubstr("4 x 0 are zero, or larger"));
  EXPECT_THAT(refusal(with_tensors({{"t", {k40, k40}}})), HasSubstr("larger than any memory"));
  EXPECT_THAT(refusal(with_tensors({{"t", {33}, 8}})), HasSubstr("rows have 33 numbers"));
  EXPECT_THAT(refusal(with_tensors({{"t", {4}, 0, 16}})), HasSubstr("expected a multiple of 32"));
  EXPECT_THAT(refusal(with_tensors({{"t", {4}, 0, 256}})), HasSubstr("lie outside the data"));
  EXPECT_THAT(refusal(with_tensors({{"t", {4}, 0, ~uint64_t{31}}})), HasSubstr("lie outside"));
  EXPECT_THAT(refusal(with_tensors({{"t", {65}}})), HasSubstr("260 bytes from byte 0"));
  EXPECT_THAT(refusal(with_tensors({{"a", {9}}, {"b", {4}, 0, 32}})), HasSubstr("a and b overlap"));
  EXPECT_NO_THROW(GgufFile(saved(with_tensors({{"b", {8}, 0, 32}, {"a", {8}, 0, 0}}))));
}

TEST(GgufReader, RefusesOtherQuantizationsByName) {
  EXPECT_THAT(refusal(with_tensors({{"t", {256}, 16}})),
              HasSubstr("tensor t: is stored as IQ2_XXS, which attnres does not read"));
  EXPECT_THAT(refusal(with_tensors({{"t", {256}, 34}})), HasSubstr("TQ1_0"));
  EXPECT_THAT(refusal(with_tensors({{"t", {256}, 26}})), HasSubstr("I32"));
  EXPECT_THAT(refusal(with_tensors({{"t", {256}, 40}})), HasSubstr("NVFP4"));
  EXPECT_THAT(refusal(with_tensors({{"t", {256}, 41}})), HasSubstr("Q1_0"));
  EXPECT_THAT(refusal(with_tensors({{"t", {256}, 42}})), HasSubstr("Q2_0"));
  EXPECT_THAT(refusal(with_tensors({{"t", {256}, 31}})), HasSubstr("Q4_0_4_4"));
  EXPECT_THAT(refusal(with_tensors({{"t", {256}, 99}})), HasSubstr("type 99"));
  EXPECT_THAT(refusal(with_tensors({{"t", {256}, 16}})),
              HasSubstr("llama-quantize --allow-requantize"));
}

TEST(GgufReader, FindsNumbersThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const fs::path path = fresh_folder("gguf") / "file.gguf";
  const at::Tensor wrong = at::ones({64}), right = at::full({64}, 3e38f);
  wrong[40] = -infinity;
  write_gguf(path, {},
             {{"wrong", {64}, GgufType::f32, [=] { return wrong; }},
              {"right", {64}, GgufType::f32, [=] { return right; }},
              {"wrong bf16", {64}, GgufType::bf16, [=] { return wrong / 0 * 0; }},
              {"right q8_0", {64}, GgufType::q8_0, [=] { return right / 1e34; }}});
  const GgufFile file(path);
  for (const char* name : {"wrong", "wrong bf16"}) {
    EXPECT_THAT(message_of<Error>([&] { file.require_finite(name); }),
                HasSubstr(fmt::format("{} holds numbers that are not finite", name)));
  }
  for (const char* name : {"right", "right q8_0"}) EXPECT_NO_THROW(file.require_finite(name));
  // A scale of a block.
  std::string bytes = whole_file().first;
  bytes[bytes.size() - 33] = '\x7e';
  EXPECT_THAT(message_of<Error>([&] { GgufFile(saved(bytes)).require_finite("c"); }),
              HasSubstr("c holds numbers"));
}

// Reads all that there is.
void read_all(const std::string& bytes, const fs::path& path) {
  write_text(path, bytes);
  const GgufFile file(path);
  for (const std::string& name : file.names()) file.numbers(name).sum().item<float>();
}

TEST(GgufReader, RefusesTruncatedFiles) {
  const auto [bytes, header_end] = whole_file();
  const fs::path path = fresh_folder("gguf") / "file.gguf";
  EXPECT_NO_THROW(read_all(bytes, path));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(read_all(bytes.substr(0, size), path), Error) << size << " of " << bytes.size();
  }
}

TEST(GgufReader, SurvivesDamage) {
  const auto [bytes, header_end] = whole_file();
  const fs::path path = fresh_folder("gguf") / "file.gguf";
  int refused = 0;
  for (size_t at = 0; at < header_end; ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      try {
        read_all(damaged, path);
      } catch (const Error& e) {
        EXPECT_FALSE(std::string(e.what()).empty());
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100) << "much of what a header says cannot be otherwise";
}

TEST(GgufReader, KnowsItsFiles) {
  const fs::path folder = fresh_folder("gguf");
  write_text(folder / "model", header(0, 0).bytes());
  write_text(folder / "text", "text");
  fs::create_directories(folder / "folder.gguf");
  EXPECT_TRUE(is_gguf_file(folder / "model"));
  EXPECT_TRUE(is_gguf_file(folder / "none.gguf")) << "which is then missed as a file";
  EXPECT_FALSE(is_gguf_file(folder / "text"));
  EXPECT_FALSE(is_gguf_file(folder / "folder.gguf"));
  EXPECT_FALSE(is_gguf_file(folder / "none"));
}

}  // namespace
}  // namespace attnres::testing::gguf_reader_test
