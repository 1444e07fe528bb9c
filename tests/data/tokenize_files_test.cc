#include "attnres/data/tokenize_files.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "attnres/data/token_folder.h"
#include "attnres/support/error.h"
#include "attnres/support/random.h"
#include "attnres/text/bytes.h"
#include "attnres/text/passage.h"
#include "tests/data/compressed.h"
#include "tests/text/test_files.h"

namespace attnres::tokenize_files_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string as_line(const std::string& text) {
  return Json{{"text", text}, {"id", 7}}.dump() + "\n";
}

std::string some_text(uint64_t number, size_t words) {
  const RandomStream random(number, "words");
  std::string text = std::to_string(number);
  for (size_t i = 0; i < words; ++i) {
    text += random.below(9, 2 * i) == 0 ? "\n" : " ";
    text += std::string(1 + random.below(7, 2 * i + 1), static_cast<char>('a' + i % 26));
  }
  return text;
}

class TokenizeFiles : public ::testing::Test {
 protected:
  TokenizeJob job(const fs::path& from, const std::string& out) {
    TokenizeJob job = {.files = find_document_files({from}), .out = base_ / out};
    job.on_message = [this](std::string_view line) { messages_ += fmt::format("{}\n", line); };
    return job;
  }
  // The stream of a folder, with the ends of its documents.
  std::vector<int32_t> tokens_in(const std::string& out) const {
    const fs::path folder = base_ / out;
    const TrainingTokens tokens = open_token_folder(folder, read_token_index(folder));
    return tokens.read(0, tokens.size(), tokenizer_.vocab_size());
  }
  std::vector<int32_t> stream_of(const std::vector<std::string>& documents) const {
    std::vector<int32_t> stream;
    for (const std::string& text : documents) {
      const std::vector<int32_t> ids = tokenizer_.encode(text);
      stream.insert(stream.end(), ids.begin(), ids.end());
      stream.push_back(tokenizer_.end_of_document());
    }
    return stream;
  }
  std::string refused(const TokenizeJob& job) const {
    return message_of<Error>([&] { tokenize_files(job, tokenizer_); });
  }

  const fs::path base_ = fresh_folder("tokenize"), data_ = base_ / "data";
  const ByteTokenizer tokenizer_ = {};
  std::string messages_;
};

TEST_F(TokenizeFiles, GivesTheDocumentsInTheirOrder) {
  write_text(data_ / "a.txt", "plain text");
  write_text(data_ / "b.jsonl", as_line("one") + as_line("") + as_line("two \u20ac"));
  write_text(data_ / "c.jsonl.gz", attnres::testing::gzipped(as_line("three")));
  write_text(data_ / "d.txt.zst", attnres::testing::zstd_compressed("four\n"));
  const TokenizeResult result = tokenize_files(job(data_, "tokens"), tokenizer_);
  EXPECT_EQ(tokens_in("tokens"), stream_of({"plain text", "one", "two \u20ac", "three", "four\n"}));
  EXPECT_EQ(result.documents, 5);
  EXPECT_EQ(result.tokens, std::ssize(tokens_in("tokens")));
  EXPECT_EQ(result.text_bytes, result.tokens - 5);
  EXPECT_FALSE(result.was_finished);
  // Its ends are where the documents end.
  const fs::path folder = base_ / "tokens";
  const TrainingTokens tokens = open_token_folder(folder, read_token_index(folder));
  EXPECT_THAT(tokens.pieces()[0].ends, ElementsAre(11, 15, 23, 29, 35));
  EXPECT_EQ(load_tokenizer(folder)->hash(), tokenizer_.hash());
  EXPECT_TRUE(tokenize_files(job(data_, "tokens"), tokenizer_).was_finished);
}

// As the in-memory text is tokenized, with a tokenizer whose words could be cut.
TEST_F(TokenizeFiles, GivesTheTokensOfAWholeTextFromItsPieces) {
  std::string text;
  for (uint64_t i = 0; i < 40; ++i) text += some_text(i, 300) + "\n\n  indented\n";
  write_text(data_ / "a.txt", text);
  write_text(data_ / "b.txt", some_text(1000, 10));
  const TokenizerConfig config = {"bpe", 400};
  const auto tokenizer = make_tokenizer(config, {{"a.txt", text}});
  TokenizeJob pieces = job(data_, "tokens");
  pieces.piece_bytes = 3000;
  tokenize_files(pieces, *tokenizer);
  const fs::path folder = base_ / "tokens";
  const TrainingTokens tokens = open_token_folder(folder, read_token_index(folder));
  std::vector<int32_t> expected = tokenizer->encode(text);
  const int64_t end = std::ssize(expected) + 1;
  expected.push_back(tokenizer->end_of_document());
  for (const int32_t id : tokenizer->encode(some_text(1000, 10))) expected.push_back(id);
  expected.push_back(tokenizer->end_of_document());
  EXPECT_EQ(tokens.read(0, tokens.size(), 400), expected);
  EXPECT_THAT(tokens.pieces()[0].ends, ElementsAre(end, expected.size()));
}

TEST_F(TokenizeFiles, LeavesOutDuplicatesWhateverFileTheyAreIn) {
  const std::string longer = some_text(1, 3000);
  write_text(data_ / "a.jsonl", as_line("one") + as_line("two") + as_line("one"));
  write_text(data_ / "b.txt", "two");
  write_text(data_ / "c.txt", longer);
  write_text(data_ / "d.txt", longer);
  write_text(data_ / "e.jsonl", as_line(longer) + as_line("three"));
  TokenizeJob pieces = job(data_, "tokens");
  pieces.piece_bytes = 1000;
  const TokenizeResult result = tokenize_files(pieces, tokenizer_);
  EXPECT_EQ(tokens_in("tokens"), stream_of({"one", "two", longer, "three"}));
  EXPECT_EQ(result.duplicates, 4);
}

// Stopped and killed anywhere, also within a text of several pieces, it goes on to the same tokens.
TEST_F(TokenizeFiles, GoesOnWhereItWasStopped) {
  std::vector<std::string> documents;
  std::string lines;
  for (uint64_t i = 0; i < 30; ++i) {
    documents.push_back(some_text(i, 40));
    lines += as_line(documents.back()) + as_line(documents[i / 2]);  // again
  }
  const std::string longer = some_text(100, 2000);
  write_text(data_ / "a.jsonl", lines);
  write_text(data_ / "b.txt", longer);
  write_text(data_ / "c.txt", longer);
  write_text(data_ / "d.txt", some_text(101, 300));
  documents.push_back(longer);
  documents.push_back(some_text(101, 300));
  const std::vector<int32_t> expected = stream_of(documents);
  const auto small = [&](const std::string& out) {
    TokenizeJob parts = job(data_, out);
    parts.tokens_a_file = 500;
    parts.piece_bytes = 400;
    parts.portion_bytes = 700;
    return parts;
  };
  tokenize_files(small("straight"), tokenizer_);
  EXPECT_EQ(tokens_in("straight"), expected);
  EXPECT_GT(read_token_index(base_ / "straight").files.size(), 10U);

  std::set<int64_t> stopped_at;
  TokenizeResult result = {.stopped = true};
  for (int times = 0; result.stopped; ++times) {
    ASSERT_LT(times, 1000);
    // Killed once for every two times that it is stopped.
    const bool killed = times % 3 == 2;
    TokenizeJob part = small("parts");
    int portions = 0;
    part.should_stop = [&] { return !killed && ++portions == 2; };
    part.on_progress = [&](const TokenizeProgress&) {
      if (killed && ++portions == 3) throw std::runtime_error("killed");
    };
    try {
      result = tokenize_files(part, tokenizer_);
      stopped_at.insert(result.tokens);
      if (result.stopped) {
        EXPECT_THAT(message_of<Error>([&] { tokens_in("parts"); }), HasSubstr("to its end"));
      }
    } catch (const std::runtime_error&) {
    }
  }
  EXPECT_GT(stopped_at.size(), 5U);
  EXPECT_EQ(tokens_in("parts"), expected);
  EXPECT_EQ(result.duplicates, 31);
  EXPECT_EQ(result.documents, 32);
  for (const auto& entry : fs::directory_iterator(base_ / "parts")) {
    EXPECT_NE(entry.path().extension(), ".hashes");
  }
}

TEST_F(TokenizeFiles, CountsWhatIsBrokenAndSaysWhere) {
  write_text(data_ / "a.jsonl", as_line("one") + "{\"text\": \"cut\n" + "[1]\n" +
                                    "{\"other\": \"x\"}\n" + "{\"text\": 5}\n" + as_line("two"));
  const TokenizeResult result = tokenize_files(job(data_, "tokens"), tokenizer_);
  EXPECT_EQ(tokens_in("tokens"), stream_of({"one", "two"}));
  EXPECT_EQ(result.broken, 4);
  for (const char* part : {"a.jsonl, line 2: its JSON", "line 3: no field \"text\"",
                           "line 4: no field \"text\"", "line 5: expected a text", "found 5"}) {
    EXPECT_THAT(messages_, HasSubstr(part));
  }
  TokenizeJob strict = job(data_, "strict");
  strict.strict = true;
  EXPECT_THAT(refused(strict), AllOf(HasSubstr("a.jsonl, line 2"), HasSubstr("its JSON")));
  write_text(data_ / "a.jsonl", "{\n{\n");
  EXPECT_THAT(refused(job(data_, "none")), HasSubstr("no text to tokenize"));
}

TEST_F(TokenizeFiles, WithoutTextLeaveNothingInTheWay) {
  write_text(data_ / "a.bin", std::string("GGUF\3\0\0\0", 8));
  EXPECT_EQ(refused(job(data_, "tokens")),
            "no text to tokenize in 1 file (1 binary file skipped); name files with text");
  write_text(base_ / "right.txt", "text");
  tokenize_files(job(base_ / "right.txt", "tokens"), tokenizer_);
  EXPECT_EQ(tokens_in("tokens"), stream_of({"text"}));
}

TEST_F(TokenizeFiles, LeavesOutTextThatIsNone) {
  write_text(data_ / "a.bin", std::string("\x7f"
                                          "ELF\0\0",
                                          6));
  write_text(data_ / "b.txt", "caf\xe9");
  write_text(data_ / "c.txt", "fine");
  const std::string sample = some_text(1, 500);
  const auto tokenizer = make_tokenizer({"bpe", 300}, {{"sample", sample}});
  const TokenizeResult result = tokenize_files(job(data_, "tokens"), *tokenizer);
  EXPECT_EQ(result.binary, 1);
  EXPECT_EQ(result.broken, 1);
  EXPECT_EQ(result.documents, 1);
  EXPECT_THAT(messages_, AllOf(HasSubstr("b.txt, piece 1"), HasSubstr("byte 3")));
}

TEST_F(TokenizeFiles, RefusesAFolderOfOtherTokens) {
  write_text(data_ / "a.jsonl", as_line("one"));
  tokenize_files(job(data_, "tokens"), tokenizer_);
  TokenizeJob other = job(data_, "tokens");
  other.field = "body";
  EXPECT_THAT(refused(other), AllOf(HasSubstr("field"), HasSubstr("\"text\", now \"body\"")));

  const auto bpe = make_tokenizer({"bpe", 300}, {{"sample", some_text(1, 500)}});
  EXPECT_THAT(message_of<Error>([&] { tokenize_files(job(data_, "tokens"), *bpe); }),
              HasSubstr("another tokenizer"));
  write_text(data_ / "b.jsonl", as_line("two"));
  EXPECT_THAT(refused(job(data_, "tokens")), HasSubstr("1 file, now there are 2"));
  fs::remove(data_ / "b.jsonl");
  write_text(data_ / "a.jsonl", as_line("more than one"));
  EXPECT_THAT(refused(job(data_, "tokens")), AllOf(HasSubstr("a.jsonl"), HasSubstr("has changed")));

  write_text(base_ / "full" / "something", "x");
  EXPECT_THAT(refused(job(data_, "full")), HasSubstr("holds something"));
  EXPECT_THROW(tokenize_files({.out = base_ / "empty"}, tokenizer_), UsageError);
}

TEST_F(TokenizeFiles, KeepsWhatItHasWhereAFileVanishes) {
  write_text(data_ / "a.jsonl", as_line("one"));
  write_text(data_ / "b.jsonl", as_line("two"));
  TokenizeJob two = job(data_, "tokens");
  two.portion_bytes = 1;
  fs::rename(data_ / "b.jsonl", data_ / "moved");
  EXPECT_THAT(refused(two), AllOf(HasSubstr("b.jsonl"), HasSubstr("no such file")));
  EXPECT_EQ(read_token_index(base_ / "tokens").tokens(), 4);
  fs::rename(data_ / "moved", data_ / "b.jsonl");
  tokenize_files(two, tokenizer_);
  EXPECT_EQ(tokens_in("tokens"), stream_of({"one", "two"}));
}

// The lines before the damage stand, and the other files; it is told and counted once, wherever
// reading is stopped.
TEST_F(TokenizeFiles, LeavesOutWhatFollowsInADamagedFile) {
  std::string lines;
  std::vector<std::string> texts;
  for (int i = 0; i < 3000; ++i) {
    texts.push_back(some_text(i, 60));
    lines += as_line(texts.back());
  }
  const std::string whole = attnres::testing::gzipped(lines);
  write_text(data_ / "a.jsonl.gz", whole.substr(0, whole.size() * 3 / 4));
  const std::string long_text = some_text(7, 20'000);
  const std::string compressed = attnres::testing::gzipped(long_text);
  write_text(data_ / "b.txt.gz", compressed.substr(0, compressed.size() - 20));
  write_text(data_ / "c.jsonl", as_line("two"));
  TokenizeJob all = job(data_, "tokens");
  all.piece_bytes = 2000;
  const TokenizeResult result = tokenize_files(all, tokenizer_);
  EXPECT_EQ(result.broken, 2);
  EXPECT_GT(result.documents, 1000);
  texts.resize(result.documents - 1);
  texts.emplace_back("two");
  EXPECT_EQ(tokens_in("tokens"), stream_of(texts));
  EXPECT_THAT(messages_,
              AllOf(HasSubstr(fmt::format("a.jsonl.gz, line {}: its compressed", texts.size())),
                    HasSubstr("b.txt.gz, piece 1: its compressed")));
  // Stopped after each portion.
  TokenizeJob in_pieces = job(data_, "pieces");
  in_pieces.piece_bytes = 2000;
  in_pieces.portion_bytes = 50'000;
  in_pieces.should_stop = [] { return true; };
  TokenizeResult last;
  int times = 0;
  do {
    last = tokenize_files(in_pieces, tokenizer_);
  } while (last.stopped && ++times < 100);
  EXPECT_GT(times, 2);
  EXPECT_EQ(last.broken, 2);
  EXPECT_EQ(tokens_in("pieces"), tokens_in("tokens"));
}

// With --strict one damaged file of several costs nothing but itself, once it is mended.
TEST_F(TokenizeFiles, GoesOnWithAFileThatWasMended) {
  const std::string whole = attnres::testing::gzipped(as_line(some_text(1, 5000)));
  write_text(data_ / "a.jsonl", as_line("one"));
  write_text(data_ / "b.jsonl.gz", whole.substr(0, whole.size() / 2));
  write_text(data_ / "c.bin.txt", std::string("\0", 1));
  write_text(data_ / "d.jsonl", as_line("two"));
  TokenizeJob strict = job(data_, "tokens");
  strict.strict = true;
  EXPECT_THAT(refused(strict), HasSubstr("b.jsonl.gz, line 1: its compressed bytes are damaged"));
  EXPECT_EQ(read_token_index(base_ / "tokens").tokens(), 4);
  write_text(data_ / "b.jsonl.gz", whole);
  const TokenizeResult result = tokenize_files(job(data_, "tokens"), tokenizer_);
  EXPECT_EQ(tokens_in("tokens"), stream_of({"one", some_text(1, 5000), "two"}));
  EXPECT_EQ(result.binary, 1);
}

TEST_F(TokenizeFiles, RefusesToReadWhatItWrites) {
  write_text(data_ / "a.jsonl", as_line("one"));
  tokenize_files(job(data_, "data/tokens"), tokenizer_);
  EXPECT_THAT(refused(job(data_, "data/tokens")), HasSubstr("not part of the data"));
}

TEST_F(TokenizeFiles, MarksWhatConversationsDoNotTeach) {
  const std::string text = R"({"messages": [{"role": "user", "content": "hi"}, )"
                           R"({"role": "assistant", "content": "ho"}]})";
  write_text(data_ / "a.jsonl", text + "\n{\"messages\": []}\n");
  const ChatTemplate plain;
  TokenizeJob chat = job(data_, "tokens");
  chat.field = "messages";
  chat.chat = &plain;
  const TokenizeResult result = tokenize_files(chat, tokenizer_);
  EXPECT_EQ(result.broken, 1);
  const fs::path folder = base_ / "tokens";
  const TrainingTokens tokens = open_token_folder(folder, read_token_index(folder));
  std::vector<uint32_t> raw(tokens.size());
  tokens.read(0, tokens.size(), 256, raw.data());
  std::string learned;
  for (const uint32_t token : raw) {
    if ((token & kNoTarget) == 0) learned += static_cast<char>(token);
  }
  EXPECT_EQ(learned, std::string(" ho\n\0", 5));
  write_text(data_ / "b.txt", "hi");
  chat.files = find_document_files({data_});
  EXPECT_THAT(refused(chat), AllOf(HasSubstr("b.txt"), HasSubstr("JSON lines")));
}

}  // namespace
}  // namespace attnres::tokenize_files_test
