// Tokens on disk: our folders, and other programs' files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "attnres/data/token_bin.h"
#include "attnres/data/token_file_writer.h"
#include "attnres/data/token_folder.h"
#include "attnres/data/verify_tokens.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/text/bytes.h"
#include "tests/text/test_files.h"

namespace attnres::token_files_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

template <class Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

TEST(TokenBin, IsNanoGpts) {
  const fs::path path = fresh_folder("bins") / "train.bin";
  write_text(path, bytes_of<uint16_t>({50256, 7, 65535, 1}));
  EXPECT_TRUE(is_token_bin(path));
  EXPECT_FALSE(is_token_bin(path.parent_path()));
  EXPECT_THAT(open_token_bin(path).read(0, 4, 65536), ElementsAre(50256, 7, 65535, 1));
  write_text(path, bytes_of<uint16_t>({1, 2}) + "x");
  EXPECT_THAT(message_of<Error>([&] { open_token_bin(path); }), HasSubstr("5 bytes"));
}

std::string llm_c_header(int32_t magic, int32_t tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = 1;
  header[2] = tokens;
  return bytes_of(header);
}

TEST(TokenBin, IsLlmCs) {
  const fs::path path = fresh_folder("bins") / "shard.bin";
  write_text(path, llm_c_header(20240520, 3) + bytes_of<uint16_t>({50256, 8, 9}));
  EXPECT_THAT(open_token_bin(path).read(0, 3, 65536), ElementsAre(50256, 8, 9));
  write_text(path, llm_c_header(20240801, 2) + bytes_of<uint32_t>({128000, 70000}));
  EXPECT_THAT(open_token_bin(path).read(0, 2, 200000), ElementsAre(128000, 70000));
  write_text(path, llm_c_header(20240520, 3) + bytes_of<uint16_t>({50256, 8}));
  EXPECT_THAT(message_of<Error>([&] { open_token_bin(path); }),
              AllOf(HasSubstr("counts 3 tokens"), HasSubstr("2 follow")));
}

TokenIndex write_folder_of(const fs::path& folder, const std::vector<std::vector<uint32_t>>& files,
                           int width = 2) {
  const ByteTokenizer tokenizer;
  TokenIndex index = {.tokenizer = "bytes",
                      .vocab_size = 256,
                      .tokenizer_hash = tokenizer.hash(),
                      .width = width,
                      .finished = true};
  for (const std::vector<uint32_t>& tokens : files) {
    TokenFileWriter writer(folder, index.files.size(), width);
    writer.add({tokens.data(), 2}, 1, true);
    writer.add({tokens.data() + 2, tokens.size() - 2}, 7, false);
    index.files.push_back(writer.finish());
  }
  index.source = {{"files", Json::array()}};
  write_token_index(folder, index);
  return index;
}

TEST(TokenFolder, IsReadBack) {
  for (const int width : {2, 4}) {
    const fs::path folder = fresh_folder("tokens");
    write_folder_of(folder, {{1, 2, 3}, {4, 5, 6, 7}}, width);
    EXPECT_TRUE(is_token_folder(folder));
    const TokenIndex index = read_token_index(folder);
    EXPECT_EQ(index.tokens(), 7);
    EXPECT_EQ(index.documents(), 2);
    EXPECT_EQ(index.text_bytes(), 16);
    const TrainingTokens tokens = open_token_folder(folder, index);
    EXPECT_THAT(tokens.read(0, 7, 256), ElementsAre(1, 2, 3, 4, 5, 6, 7));
    EXPECT_THAT(tokens.read(2, 3, 256), ElementsAre(3, 4, 5));
    EXPECT_THAT(tokens.pieces()[1].ends, ElementsAre(2));
    EXPECT_THAT(tokens.first(4).read(0, 4, 256), ElementsAre(1, 2, 3, 4));
    EXPECT_TRUE(tokens.first(4).pieces()[1].ends.empty());
    EXPECT_EQ(tokens.first(4).size(), 4);
    EXPECT_EQ(fs::file_size(folder / "tokens-00000.bin"), 3U * width);
    require_tokens_of(index, ByteTokenizer(), folder);
  }
}

TEST(TokenFolder, HasAHashOfItsTokens) {
  const fs::path folder = fresh_folder("tokens");
  const uint64_t hash = write_folder_of(folder, {{1, 2, 3}}).hash();
  EXPECT_EQ(write_folder_of(folder, {{1, 2, 3}}).hash(), hash);
  EXPECT_NE(write_folder_of(folder, {{1, 2, 4}}).hash(), hash);
  EXPECT_EQ(read_token_index(folder).hash(), write_folder_of(folder, {{1, 2, 4}}).hash());
}

TEST(TokenFolder, SaysWhatIsWrong) {
  const fs::path folder = fresh_folder("tokens");
  TokenIndex index = write_folder_of(folder, {{1, 2, 3}, {4, 5, 6, 7}});
  const auto opening = [&] {
    return message_of<Error>([&] { open_token_folder(folder, read_token_index(folder)); });
  };
  const std::string tokens = read_file(folder / "tokens-00001.bin");
  write_text(folder / "tokens-00001.bin", tokens.substr(0, 5));
  EXPECT_THAT(opening(), AllOf(HasSubstr("tokens-00001.bin"), HasSubstr("5 bytes"),
                               HasSubstr("4 numbers of 2")));
  fs::remove(folder / "tokens-00001.bin");
  EXPECT_THAT(opening(), HasSubstr("is gone"));
  write_text(folder / "tokens-00001.bin", tokens);
  write_text(folder / "tokens-00000.ends", "");
  EXPECT_THAT(opening(), HasSubstr("tokens-00000.ends"));

  index.finished = false;
  write_token_index(folder, index);
  EXPECT_THAT(opening(), AllOf(HasSubstr("not tokenized to its end"), HasSubstr("7 tokens")));

  const std::string text = read_file(token_index_path(folder));
  write_text(token_index_path(folder), text.substr(0, text.size() / 2));
  EXPECT_THAT(opening(), HasSubstr("tokens.json"));
  write_text(token_index_path(folder), R"({"format": "attnres tokens", "version": 1})");
  EXPECT_THAT(opening(), HasSubstr("damaged"));
  write_text(token_index_path(folder), R"({"format": "attnres tokens", "version": 7})");
  EXPECT_THAT(opening(), HasSubstr("version 7"));
  write_text(token_index_path(folder), "[]");
  EXPECT_THAT(opening(), HasSubstr("no index of tokens"));
}

// The folder's problems where the last byte of a file is another.
std::vector<std::string> problems_with(const fs::path& folder, const std::string& name,
                                       char last_byte) {
  const std::string before = read_file(folder / name);
  write_text(folder / name, before.substr(0, before.size() - 1) + last_byte);
  std::vector<std::string> problems = verify_token_folder(folder);
  write_text(folder / name, before);
  return problems;
}

TEST(TokenFolder, IsVerified) {
  const fs::path folder = fresh_folder("tokens");
  ByteTokenizer().save(folder);
  TokenIndex index = write_folder_of(folder, {{1, 0, 3}, {4, 0, 6, 7}});
  int64_t read = -1;
  EXPECT_THAT(verify_token_folder(folder,
                                  [&](int64_t done, int64_t total) {
                                    EXPECT_GT(done, read);
                                    EXPECT_EQ(total, 14);
                                    read = done;
                                  }),
              IsEmpty());
  EXPECT_EQ(read, 14);
  EXPECT_THAT(problems_with(folder, "tokens-00001.bin", '\x1'),
              ElementsAre(AllOf(HasSubstr("tokens-00001.bin"), HasSubstr("not those")),
                          HasSubstr("token 3 is 263, but the vocabulary has 256")));
  EXPECT_THAT(problems_with(folder, "tokens-00000.ends", '\x1'),
              ElementsAre(AllOf(HasSubstr("tokens-00000.bin"), HasSubstr("none does"))));
  fs::rename(folder / "tokens-00000.ends", folder / "elsewhere");
  EXPECT_THAT(verify_token_folder(folder), ElementsAre(HasSubstr("is gone")));
  fs::rename(folder / "elsewhere", folder / "tokens-00000.ends");
  index.finished = false;
  ++index.tokenizer_hash;
  write_token_index(folder, index);
  EXPECT_THAT(verify_token_folder(folder),
              ElementsAre(HasSubstr("not tokenized to its end"), HasSubstr("its tokenizer")));
}

TEST(TokenFolder, IsRefusedToAnotherTokenizer) {
  const fs::path folder = fresh_folder("tokens");
  TokenIndex index = write_folder_of(folder, {{1, 2, 3}});
  ++index.tokenizer_hash;
  EXPECT_THAT(message_of<Error>([&] { require_tokens_of(index, ByteTokenizer(), folder); }),
              AllOf(HasSubstr("another tokenizer"), HasSubstr("bytes, 256 tokens")));
}

}  // namespace
}  // namespace attnres::token_files_test
