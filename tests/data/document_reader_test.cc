#include "attnres/data/document_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attnres/support/error.h"
#include "attnres/support/random.h"
#include "tests/data/compressed.h"
#include "tests/text/test_files.h"

namespace attnres::document_reader_test {
namespace {

namespace fs = std::filesystem;
using attnres::testing::gzipped;
using attnres::testing::zstd_compressed;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<RawDocument> read_all(const fs::path& path,
                                  size_t piece_bytes = DocumentReader::kPieceBytes) {
  DocumentReader reader(path, piece_bytes);
  std::vector<RawDocument> all;
  for (RawDocument document; reader.next(document);) all.push_back(document);
  EXPECT_EQ(reader.consumed(), static_cast<int64_t>(fs::file_size(path)));
  return all;
}

std::vector<std::string> texts_of(const std::vector<RawDocument>& documents) {
  std::vector<std::string> texts;
  for (const RawDocument& document : documents) texts.push_back(document.text);
  return texts;
}

// Larger than a buffer, so that lines and compressed blocks cross its end.
std::string many_lines() {
  const RandomStream random(1, "lines");
  std::string text;
  for (uint64_t i = 0; text.size() < (size_t{5} << 19); ++i) {
    text += std::string(random.below(400, i), static_cast<char>('a' + i % 26)) + "\n";
  }
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    if (end > begin) lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

TEST(DocumentReader, ReadsLinesHoweverTheyAreCompressed) {
  const fs::path folder = fresh_folder("files");
  const std::string text = many_lines() + "no end";
  write_text(folder / "a.jsonl", text);
  write_text(folder / "a.jsonl.gz", gzipped(text));
  write_text(folder / "a.ndjson.zst", zstd_compressed(text));
  // Two of them in one file, as cat makes them.
  const std::string half = text.substr(0, 1'000'000), rest = text.substr(1'000'000);
  write_text(folder / "b.json.gz", gzipped(half) + gzipped(rest));
  write_text(folder / "b.jsonl.zst", zstd_compressed(half) + zstd_compressed(rest));
  for (const char* name : {"a.jsonl", "a.jsonl.gz", "a.ndjson.zst", "b.json.gz", "b.jsonl.zst"}) {
    const std::vector<RawDocument> documents = read_all(folder / name);
    EXPECT_EQ(texts_of(documents), lines_of(text)) << name;
    EXPECT_TRUE(documents[0].is_line);
  }
}

TEST(DocumentReader, CountsLinesWithThoseItLeavesOut) {
  const fs::path path = fresh_folder("files") / "a.jsonl";
  write_text(path, "one\n\n  \r\nfour\n");
  const std::vector<RawDocument> documents = read_all(path);
  EXPECT_THAT(texts_of(documents), ElementsAre("one", "four"));
  EXPECT_EQ(documents[1].number, 4);
  write_text(path, "");
  EXPECT_TRUE(read_all(path).empty());
}

TEST(DocumentReader, GivesPlainTextInPieces) {
  const fs::path folder = fresh_folder("files");
  const std::string text = many_lines();
  write_text(folder / "a.txt", text);
  write_text(folder / "a.txt.gz", gzipped(text));
  for (const char* name : {"a.txt", "a.txt.gz"}) {
    const std::vector<RawDocument> pieces = read_all(folder / name, 10'000);
    ASSERT_GT(pieces.size(), 100U);
    std::string whole;
    for (size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_EQ(pieces[i].begins, i == 0);
      EXPECT_EQ(pieces[i].ends, i + 1 == pieces.size());
      EXPECT_LE(pieces[i].text.size(), 10'000U);
      EXPECT_TRUE(pieces[i].ends || pieces[i].text.back() == '\n');
      EXPECT_TRUE(pieces[i].begins || pieces[i].text.front() != '\n');
      whole += pieces[i].text;
    }
    EXPECT_EQ(whole, text);
  }
  EXPECT_EQ(texts_of(read_all(folder / "a.txt")), std::vector<std::string>{text});
}

TEST(DocumentReader, CutsBetweenCharactersWhereThereAreNoLines) {
  const fs::path path = fresh_folder("files") / "a.txt";
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "\u20ac";  // three bytes
  write_text(path, text);
  std::string whole;
  for (const RawDocument& piece : read_all(path, 100)) {
    EXPECT_EQ(piece.text.size() % 3, 0U);
    whole += piece.text;
  }
  EXPECT_EQ(whole, text);
}

TEST(DocumentReader, SaysThatCompressedBytesAreDamaged) {
  const fs::path folder = fresh_folder("files");
  const std::string text = many_lines();
  for (const bool is_zstd : {false, true}) {
    const std::string bytes = is_zstd ? zstd_compressed(text) : gzipped(text);
    write_text(folder / "cut.jsonl", bytes.substr(0, bytes.size() / 2));
    std::string damaged = bytes;
    for (size_t i = damaged.size() / 2; i < damaged.size() / 2 + 50; ++i) damaged[i] ^= 0x5a;
    write_text(folder / "bad.jsonl", damaged);
    for (const char* name : {"cut.jsonl", "bad.jsonl"}) {
      EXPECT_THAT(message_of<Error>([&] { read_all(folder / name); }),
                  AllOf(HasSubstr(name), HasSubstr("damaged, or end too early")))
          << is_zstd;
    }
  }
}

TEST(DocumentReader, ReadsWhatTheirToolsRead) {
  const fs::path folder = fresh_folder("files");
  write_text(folder / "padded.txt.gz", gzipped("text") + std::string(512, '\0'));
  EXPECT_THAT(texts_of(read_all(folder / "padded.txt.gz")), ElementsAre("text"));
}

// As zstd --long=LOG writes: of a length that is not known at the beginning.
std::string long_zstd(const std::string& text, int log) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, log);
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, 1);
  std::string bytes(2 * ZSTD_compressBound(text.size()), '\0');
  ZSTD_inBuffer from = {text.data(), text.size() / 2, 0};
  ZSTD_outBuffer to = {bytes.data(), bytes.size(), 0};
  EXPECT_EQ(ZSTD_compressStream2(context, &to, &from, ZSTD_e_flush), 0U);
  from.size = text.size();
  EXPECT_EQ(ZSTD_compressStream2(context, &to, &from, ZSTD_e_end), 0U);
  ZSTD_freeCCtx(context);
  return bytes.substr(0, to.pos);
}

TEST(DocumentReader, TakesMemoryForZstdAsTheFileIsLong) {
  const fs::path file = fresh_folder("files") / "long.txt.zst";
  write_text(file, long_zstd(many_lines(), 27));
  EXPECT_THAT(texts_of(read_all(file)), ElementsAre(many_lines()));
  write_text(file, long_zstd(many_lines(), 28));
  EXPECT_THAT(message_of<Error>([&] { read_all(file); }),
              AllOf(HasSubstr("long.txt.zst"), HasSubstr("more than 128 MiB of memory")));
  // Letters that hardly pack, 2^25 bytes of file and more.
  std::string text(size_t{48} << 20, 'a');
  uint64_t state = 1;
  for (char& c : text) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    c = static_cast<char>('!' + (state >> 58));
  }
  write_text(file, long_zstd(text, 28));
  ASSERT_GE(fs::file_size(file), uint64_t{1} << 25);
  std::string whole;
  for (const std::string& piece : texts_of(read_all(file))) whole += piece;
  EXPECT_TRUE(whole == text);
}

TEST(FindDocumentFiles, TakesFilesFoldersAndPatterns) {
  const fs::path folder = fresh_folder("files");
  for (const char* name : {"b.jsonl", "a.jsonl", "deep/c.txt", ".hidden"}) {
    write_text(folder / name, "x");
  }
  const auto names = [&](const fs::path& path) {
    std::vector<std::string> names;
    for (const DocumentFile& file : find_document_files({path})) {
      names.push_back(fs::path(file.path).lexically_relative(folder).string());
      EXPECT_EQ(file.bytes, 1);
    }
    return names;
  };
  EXPECT_THAT(names(folder), ElementsAre("a.jsonl", "b.jsonl", "deep/c.txt"));
  EXPECT_THAT(names(folder / "*.jsonl"), ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_THAT(names(folder / "deep"), ElementsAre("deep/c.txt"));
  EXPECT_THAT(message_of<Error>([&] { names(folder / "*.gz"); }), HasSubstr("no file has such"));
  EXPECT_THAT(message_of<Error>([&] { names(folder / "none"); }), HasSubstr("no such file"));
}

}  // namespace
}  // namespace attnres::document_reader_test
