#include "attnres/data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "attnres/support/error.h"
#include "attnres/support/random.h"
#include "attnres/text/bytes.h"
#include "attnres/text/sentencepiece.h"
#include "attnres/text/utf8.h"
#include "tests/text/test_files.h"

namespace attnres::corpus_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

std::vector<std::string> texts_of(const Corpus& corpus) {
  std::vector<std::string> texts;
  for (const Document& document : corpus.documents) texts.push_back(document.text);
  return texts;
}

Corpus corpus_of(const std::vector<std::string>& texts) {
  Corpus corpus;
  for (const std::string& text : texts) corpus.documents.push_back({"doc", text});
  return corpus;
}

std::vector<std::string> many_texts(int count) {
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) texts.push_back("document " + std::to_string(i));
  return texts;
}

TEST(ReadCorpus, NamesWhatItMayNotRead) {
  const fs::path folder = fresh_folder("corpus"), locked = folder / "b/locked";
  write_text(folder / "a.txt", "text");
  write_text(locked / "c.txt", "text");
  const auto message = [](const fs::path& path) {
    const WithoutRootsRights user;
    return message_of<Error>([&] { read_corpus({path}); });
  };
  fs::permissions(locked, fs::perms::none);
  EXPECT_EQ(message(folder), locked.string() + ": cannot read this folder: Permission denied");
  EXPECT_EQ(message(locked / "c.txt"),
            (locked / "c.txt").string() + ": cannot be seen: Permission denied");
  fs::permissions(locked, fs::perms::all);
  fs::permissions(locked / "c.txt", fs::perms::none);
  EXPECT_EQ(message(folder), (locked / "c.txt").string() + ": cannot open: Permission denied");
  const WithoutRootsRights user;
  EXPECT_EQ(read_corpus({folder / "a.txt"}).documents.size(), 1u);
}

TEST(ReadCorpus, ReadsFoldersInTheOrderOfTheirPaths) {
  const fs::path folder = fresh_folder("corpus");
  write_text(folder / "b.txt", "2");
  write_text(folder / "a" / "z.txt", "1");
  write_text(folder / "c" / "d" / "e.txt", "3");
  write_text(folder / ".hidden.txt", "no");
  write_text(folder / ".git" / "objects.txt", "no");
  write_text(folder / "empty.txt", "");
  write_text(folder / "program", std::string("\x7f"
                                             "ELF\0\0",
                                             6));
  const Corpus corpus = read_corpus({folder});
  EXPECT_THAT(texts_of(corpus), ElementsAre("1", "2", "3"));
  EXPECT_EQ(corpus.bytes, 3);
  EXPECT_EQ(corpus.documents[0].path, (folder / "a" / "z.txt").string());
  EXPECT_THAT(corpus.description(), HasSubstr("3 files"));
  EXPECT_THAT(corpus.description(), HasSubstr("1 binary file skipped"));
}

TEST(ReadCorpus, ReadsNamedFilesThatAreHidden) {
  const fs::path folder = fresh_folder("corpus");
  write_text(folder / ".hidden", "hidden");
  write_text(folder / "plain", "text");
  EXPECT_THAT(texts_of(read_corpus({folder / "plain", folder / ".hidden"})),
              ElementsAre("text", "hidden"));
}

// Their names say nothing; what they hold does. In a folder they are left out.
TEST(ReadCorpus, IsOfTextOnly) {
  const std::string zeros(40, '\0'), letters(40, 'a');
  const std::vector<std::pair<std::string, std::string>> kinds = {
      {"PAR1" + letters, "is a Parquet file"},
      {"PK\x03\x04" + letters, "is a zip archive"},
      {"\x1f\x8b" + letters, "is compressed (gzip)"},
      {"\x28\xb5\x2f\xfd" + letters, "is compressed (zstd)"},
      {"\xff\xfe" + letters, "is UTF-16"},
      {"\xfe\xff" + letters, "is UTF-16"},
      {std::string("\xff\xfe\0\0", 4) + letters, "is UTF-32"},
      {"%PDF-1.7" + letters, "is a PDF"},
      {letters + zeros, "holds a zero byte at 40"}};
  const fs::path folder = fresh_folder("corpus");
  write_text(folder / "text", letters);
  // Text in another encoding is text, as a tokenizer of bytes takes it.
  write_text(folder / "latin", "na\xefve caf\xe9");
  for (size_t i = 0; i < kinds.size(); ++i) {
    const auto& [bytes, what] = kinds[i];
    const fs::path file = folder / std::to_string(i);
    write_text(file, bytes);
    EXPECT_THAT(message_of<Error>([&] {
                  read_corpus({folder / "text", file});
                }),
                HasSubstr(file.string() + ": " + what));
  }
  const Corpus corpus = read_corpus({folder});
  EXPECT_EQ(corpus.documents.size(), 2u);
  EXPECT_EQ(corpus.binary, std::ssize(kinds));
  EXPECT_EQ(read_corpus({folder / "latin"}).documents.size(), 1u);
}

TEST(ReadCorpus, HashIsOfTheTextsAndTheirOrder) {
  const auto hash_of = [](const std::string& name, const std::vector<std::string>& texts) {
    const fs::path folder = fresh_folder(name);
    for (size_t i = 0; i < texts.size(); ++i) write_text(folder / std::to_string(i), texts[i]);
    return read_corpus({folder}).hash;
  };
  const uint64_t hash = hash_of("here", {"one", "two"});
  EXPECT_EQ(hash_of("there", {"one", "two"}), hash);
  EXPECT_NE(hash_of("swapped", {"two", "one"}), hash);
  EXPECT_NE(hash_of("changed", {"one", "twp"}), hash);
  EXPECT_NE(hash_of("moved boundary", {"onet", "wo"}), hash);
  EXPECT_NE(hash_of("more", {"one", "two", "three"}), hash);
}

TEST(ReadCorpus, SaysWhatIsWrong) {
  const fs::path folder = fresh_folder("corpus");
  EXPECT_THAT(message_of<Error>([&] { read_corpus({folder / "nothing"}); }),
              HasSubstr("nothing: no such file or folder"));
  EXPECT_THAT(message_of<Error>([&] { read_corpus({folder}); }), HasSubstr("no text"));
  EXPECT_THAT(message_of<Error>([&] { read_corpus({}); }), HasSubstr("no text"));
  write_text(folder / "empty", "");
  EXPECT_EQ(message_of<Error>([&] { read_corpus({folder / "empty"}); }),
            "no text in " + (folder / "empty").string() + "; name files with text");
  for (const char* name : {"a.jsonl", "a.txt.gz", "a.zst"}) {
    write_text(folder / name, "text");
    EXPECT_THAT(message_of<Error>([&] { read_corpus({folder / name}); }),
                HasSubstr("attnres tokenize"));
  }
  write_text(folder / "tokens.json", "{}");
  EXPECT_THAT(message_of<Error>([&] { read_corpus({folder}); }), HasSubstr("holds tokens"));
}

TEST(ReadCorpus, IsNotOfWhatTrainingWrote) {
  const auto error_of = [](const fs::path& path) {
    return message_of<Error>([&] { read_corpus({path}); });
  };
  const auto folder_with = [](const std::vector<const char*>& files) {
    const fs::path folder = fresh_folder("written");
    for (const char* file : files) write_text(folder / file, "{}");
    return folder;
  };
  EXPECT_THAT(error_of(folder_with({"run.json", "metrics.jsonl"})), HasSubstr("holds a run"));
  EXPECT_THAT(error_of(folder_with({"study.json", "recipes/a.json"})), HasSubstr("holds a study"));
  const fs::path model = folder_with({"config.json", "model.safetensors"});
  EXPECT_THAT(error_of(model), HasSubstr("holds a model"));
  EXPECT_THAT(error_of(model / "model.safetensors"), HasSubstr("is a model's weights"));
  // A text of that name is one.
  for (const char* name : {"run.json", "study.json", "config.json"}) {
    EXPECT_EQ(read_corpus({folder_with({name})}).documents.size(), 1u) << name;
  }
}

TEST(DefaultCorpus, IsTheNewestCompiler) {
  const fs::path usr = fresh_folder("usr");
  EXPECT_THAT(message_of<Error>([&] { default_corpus_paths(usr); }), HasSubstr("install g++"));
  for (const char* version : {"9", "12", "13.2", "v14"}) {
    fs::create_directories(usr / "include/c++" / version);
    fs::create_directories(usr / "lib/gcc/x86_64-linux-gnu" / version / "include");
  }
  EXPECT_THAT(default_corpus_paths(usr),
              ElementsAre(usr / "include/c++/13.2", usr / "lib/gcc/x86_64-linux-gnu/13.2/include"));
}

TEST(WithoutDuplicates, KeepsTheFirstOfEqualTexts) {
  const fs::path folder = fresh_folder("corpus");
  write_text(folder / "a", "one");
  write_text(folder / "b", "two");
  const Corpus once = without_duplicates(read_corpus({folder}));
  EXPECT_THAT(once.description(), Not(HasSubstr("skipped")));
  write_text(folder / "c", "one");
  const Corpus all = read_corpus({folder, folder / "b"}), corpus = without_duplicates(all);
  EXPECT_THAT(texts_of(corpus), ElementsAre("one", "two"));
  EXPECT_EQ(corpus.documents[0].path, (folder / "a").string());
  EXPECT_EQ(corpus.bytes, 6);
  EXPECT_EQ(corpus.hash, once.hash);
  EXPECT_NE(corpus.hash, all.hash);
  EXPECT_THAT(corpus.description(), HasSubstr("2 files, 6 B (2 duplicates skipped)"));
}

TEST(WithoutDuplicates, DropsWhatIsHeldOut) {
  Corpus corpus = corpus_of({"one", "two", "one", "three", "three"});
  corpus.binary = 1;
  const Corpus rest = without_duplicates(corpus, corpus_of({"one", "four"}));
  EXPECT_THAT(texts_of(rest), ElementsAre("two", "three"));
  EXPECT_THAT(rest.description(),
              HasSubstr("(1 binary file, 1 duplicate, 2 files of the validation text skipped)"));
  EXPECT_THAT(message_of<Error>([&] {
                without_duplicates(corpus, corpus_of({"three", "two", "one"}));
              }),
              HasSubstr("5 files) is validation text as well"));
}

// Different for every number.
std::string text_of_length(int number, size_t length) {
  std::string text;
  while (text.size() < length) text += "document " + std::to_string(number) + "; ";
  return text.substr(0, length);
}

int64_t bytes_of(const std::vector<Passage>& passages) {
  int64_t bytes = 0;
  for (const Passage& passage : passages) bytes += std::ssize(passage.text);
  return bytes;
}

// Documents of 20 to 20 * 10^spread bytes.
Corpus corpus_of_lengths(int count, double spread) {
  const RandomStream random(static_cast<uint64_t>(count), "lengths");
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    texts.push_back(text_of_length(i, std::lround(20 * std::pow(10, spread * random.uniform(i)))));
  }
  return corpus_of(texts);
}

TEST(SplitBySize, HoldsOutAboutTheFractionOfAnyText) {
  for (const int count : {1, 2, 3, 10, 100, 1000}) {
    for (const double spread : {0.0, 2.0, 4.0}) {
      const Corpus corpus = corpus_of_lengths(count, spread);
      for (const double fraction : {0.05, 0.2, 0.5}) {
        SCOPED_TRACE(fmt::format("{} documents, spread {}, {}", count, spread, fraction));
        const DocumentSplit split = split_by_size(corpus, fraction, 1);
        const int64_t total = bytes_of(passages_of(corpus)), held = bytes_of(split.validation);
        EXPECT_GE(held, std::floor(0.5 * fraction * total));
        EXPECT_LE(held, std::ceil(1.5 * fraction * total));
        EXPECT_EQ(held + bytes_of(split.train), total);
        EXPECT_LE(split.train.size() + split.validation.size(), corpus.documents.size() + 1);
      }
    }
  }
}

TEST(SplitBySize, KeepsWholeDocumentsWhereTheyAreMany) {
  const Corpus corpus = corpus_of(many_texts(2000));
  const DocumentSplit split = split_by_size(corpus, 0.05, 1);
  EXPECT_EQ(split.train.size() + split.validation.size(), 2000U);
  for (const Passage& passage : split.validation) EXPECT_EQ(passage.offset, 0U);
}

TEST(SplitBySize, AShortFileBesideALongOneIsNotAllThatIsHeldOut) {
  for (const int number : {1, 2, 3, 4, 5, 6}) {  // whichever the lower draw is
    const Corpus corpus = corpus_of({text_of_length(number, 70000), text_of_length(number, 7)});
    EXPECT_NEAR(bytes_of(split_by_size(corpus, 0.05, 256).validation), 3500, 1);
  }
}

TEST(SplitBySize, DoesNotDependOnTheOrderOfTheDocuments) {
  for (const int count : {3, 300}) {
    const Corpus corpus = corpus_of_lengths(count, 2);
    Corpus reversed = corpus;
    std::reverse(reversed.documents.begin(), reversed.documents.end());
    const auto held_out = [](const Corpus& from) {
      std::set<std::string> texts;
      for (const Passage& passage : split_by_size(from, 0.05, 1).validation) {
        texts.emplace(passage.text);
      }
      return texts;
    };
    EXPECT_EQ(held_out(corpus), held_out(reversed));
  }
}

TEST(SplitBySize, AddingDocumentsMovesNoOther) {
  const Corpus few = corpus_of(many_texts(300)), many = corpus_of(many_texts(600));
  const DocumentSplit before = split_by_size(few, 0.05, 1), after = split_by_size(many, 0.05, 1);
  EXPECT_GT(before.validation.size(), 1U);
  std::set<std::string_view> validation;
  for (const Passage& passage : after.validation) validation.insert(passage.text);
  for (const Passage& passage : before.validation) EXPECT_TRUE(validation.contains(passage.text));
  for (const Passage& passage : before.train) EXPECT_FALSE(validation.contains(passage.text));
}

// The one of the lowest draw among a few documents is cut, and stays it until a lower one comes.
TEST(SplitBySize, AddingADocumentToAFewSeldomMovesTheCut) {
  int moved = 0;
  for (int added = 10; added < 50; ++added) {
    Corpus corpus;
    for (int i = 0; i < 10; ++i) corpus.documents.push_back({"doc", text_of_length(i, 1000)});
    const DocumentSplit before = split_by_size(corpus, 0.05, 1);
    ASSERT_EQ(before.validation.size(), 1U);
    const std::string held(before.validation[0].text);
    corpus.documents.push_back({"doc", text_of_length(added, 1000)});
    const DocumentSplit after = split_by_size(corpus, 0.05, 1);
    const bool is_held = std::any_of(
        after.validation.begin(), after.validation.end(),
        [&](const Passage& passage) { return passage.text.find(held) != std::string_view::npos; });
    if (!is_held) ++moved;
  }
  EXPECT_LE(moved, 8);  // one in eleven
}

TEST(SplitBySize, FillsAContextOrSaysWhatToDo) {
  const Corpus corpus = corpus_of({text_of_length(0, 600)});
  EXPECT_EQ(bytes_of(split_by_size(corpus, 0.05, 256).validation), 256);
  EXPECT_EQ(bytes_of(split_by_size(corpus, 0.05, 10).validation), 30);
  EXPECT_THAT(message_of<Error>([&] { split_by_size(corpus, 0.05, 301); }),
              AllOf(HasSubstr("600 bytes are too few"), HasSubstr("at least 301"),
                    HasSubstr("more text"), HasSubstr("--validation")));
  // Whole documents would leave too little to train on.
  const Corpus two = corpus_of({text_of_length(1, 300), text_of_length(2, 300)});
  EXPECT_EQ(bytes_of(split_by_size(two, 0.5, 290).validation), 300);
}

TEST(SplitBySize, CutsASingleFileBetweenCharacters) {
  for (const int filler : {0, 1, 2, 3}) {
    std::string text(filler, 'x');
    for (int i = 0; i < 100; ++i) text += "語";
    const Corpus corpus = corpus_of({text});
    const DocumentSplit split = split_by_size(corpus, 0.05, 1);
    ASSERT_EQ(split.train.size(), 1U);
    ASSERT_EQ(split.validation.size(), 1U);
    const auto head = split.train[0].text, tail = split.validation[0].text;
    EXPECT_EQ(std::string(head) + std::string(tail), text);
    EXPECT_EQ(split.validation[0].offset, head.size());
    EXPECT_EQ(first_invalid_utf8(head), head.size());
    EXPECT_EQ(first_invalid_utf8(tail), tail.size());
    EXPECT_NEAR(static_cast<double>(tail.size()), text.size() * 0.05, 3);
  }
}

TEST(SplitByFile, HoldsOutWholeDocumentsByTheirHash) {
  const std::vector<std::string> once = many_texts(200);
  std::vector<std::string> twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  const Corpus corpus = corpus_of(twice);
  const DocumentSplit split = split_by_file(corpus);
  EXPECT_EQ(split.train.size() + split.validation.size(), 400U);
  EXPECT_NEAR(static_cast<double>(split.validation.size()), 20, 12);
  std::set<std::string_view> train;
  for (const Passage& passage : split.train) train.insert(passage.text);
  for (const Passage& passage : split.validation) EXPECT_FALSE(train.contains(passage.text));
}

TEST(SplitByFile, LeavesNeitherSideEmpty) {
  for (int count = 2; count < 30; ++count) {
    const Corpus corpus = corpus_of(many_texts(count));
    const DocumentSplit split = split_by_file(corpus);
    EXPECT_FALSE(split.train.empty()) << count;
    EXPECT_FALSE(split.validation.empty()) << count;
  }
  const Corpus equal = corpus_of({"same", "same", "same"});
  EXPECT_EQ(split_by_file(equal).train.size(), 2U);
  EXPECT_EQ(split_by_file(equal).validation.size(), 1U);
  EXPECT_THAT(message_of<Error>([] { split_by_file(corpus_of({"x"})); }), HasSubstr("too few"));
}

TEST(SplitByFile, IsTheSameOfASingleFile) {
  const Corpus corpus = corpus_of({text_of_length(0, 12345)});
  EXPECT_EQ(split_by_file(corpus).validation[0].text,
            split_by_size(corpus, 0.05, 1).validation[0].text);
}

TEST(Tokenize, EndsEachDocument) {
  const ByteTokenizer bytes;
  const TokenStream stream = tokenize(std::vector<Passage>{{"1", "ab"}, {"2", "c"}}, bytes);
  EXPECT_THAT(stream.tokens, ElementsAre('a', 'b', 0, 'c', 0));
  EXPECT_EQ(stream.bytes, 3);
}

TEST(Tokenize, NamesTheFileThatIsNotUtf8) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += "some words ";
  const SentencePieceTokenizer tokenizer(train_sentencepiece({{"a", text}}, 270), "trained");
  EXPECT_THAT(message_of<Error>([&] {
                tokenize(std::vector<Passage>{{"bad.txt", "ok\xff", 7}}, tokenizer);
              }),
              AllOf(HasSubstr("bad.txt"), HasSubstr("byte 9")));
  EXPECT_EQ(tokenize(std::vector<Passage>{{"bad.txt", "ok\xff"}}, ByteTokenizer()).tokens.size(),
            4U);
}

}  // namespace
}  // namespace attnres::corpus_test
