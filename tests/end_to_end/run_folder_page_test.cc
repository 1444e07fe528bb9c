// docs/run-folder.md against what runs and studies write: every file and every key, both ways.
#include <gmock/gmock.h>

#include <regex>
#include <set>
#include <sstream>

#include "attnres/parallel/mpi_communicator.h"
#include "attnres/study/study_folder.h"
#include "tests/end_to_end/runs.h"
#include "tests/parallel/mpirun.h"
#include "tests/study/tiny_study.h"

namespace attnres::testing::run_folder_page_test {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

std::vector<std::string> cells_of(const std::string& row) {
  std::vector<std::string> cells;
  std::istringstream in(row.substr(1));
  for (std::string cell; std::getline(in, cell, '|');) {
    const size_t begin = cell.find_first_not_of(' '), end = cell.find_last_not_of(' ');
    cells.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
  }
  return cells;
}

// The first cells of a page's tables, by section and by what heads their column; with each the
// second cell of its row.
class Page {
 public:
  using Rows = std::map<std::string, std::string>;

  explicit Page(const std::string& text) {
    std::istringstream in(text);
    std::string section, head;
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with("## ")) section = line.substr(3);
      if (!line.starts_with("|")) {
        head.clear();
        continue;
      }
      const std::vector<std::string> cells = cells_of(line);
      if (head.empty()) {
        head = cells[0];
      } else if (cells[0].starts_with("`")) {
        tables_[fmt::format("{}: {}", section, head)][cells[0].substr(1, cells[0].size() - 2)] =
            cells[1];
      }
    }
  }

  const Rows& rows(const std::string& section, const std::string& head) const {
    return tables_.at(section + ": " + head);
  }

 private:
  std::map<std::string, Rows> tables_;
};

// "integer", "list of text", "number or null".
bool is_of_type(const Json& value, const std::string& type) {
  if (const size_t at = type.find(" or "); at != std::string::npos) {
    return is_of_type(value, type.substr(0, at)) || is_of_type(value, type.substr(at + 4));
  }
  if (type.starts_with("list of ")) {
    return value.is_array() && std::all_of(value.begin(), value.end(), [&](const Json& item) {
             return is_of_type(item, type.substr(8));
           });
  }
  return (type == "integer" && value.is_number_integer()) ||
         (type == "number" && value.is_number()) || (type == "text" && value.is_string()) ||
         (type == "boolean" && value.is_boolean()) || (type == "object" && value.is_object()) ||
         (type == "null" && value.is_null());
}

// The keys that a section describes, and those that were written.
class Keys {
 public:
  Keys(const Page& page, const std::string& section) : described_(page.rows(section, "key")) {}

  void see(const Json& object) { see_below("", object); }
  std::set<std::string> never_written() const {
    std::set<std::string> missing;
    for (const auto& [key, type] : described_) {
      if (!written_.contains(key)) missing.insert(key);
    }
    return missing;
  }
  const std::set<std::string>& wrong() const { return wrong_; }

 private:
  bool describes_below(const std::string& key) const {
    const auto next = described_.lower_bound(key);
    return next != described_.end() && next->first.starts_with(key);
  }
  void see_below(const std::string& above, const Json& object) {
    for (const auto& [name, value] : object.items()) {
      const std::string key = above + name;
      const auto found = described_.find(key);
      if (found == described_.end()) {
        wrong_.insert(key + ": the page does not have it");
        continue;
      }
      written_.insert(key);
      if (!is_of_type(value, found->second)) {
        wrong_.insert(fmt::format("{}: expected {}, got {}", key, found->second, shown(value)));
      }
      if (value.is_object() && describes_below(key + ".")) see_below(key + ".", value);
      if (!value.is_array() || !describes_below(key + "[].")) continue;
      for (const Json& item : value) see_below(key + "[].", item);
    }
  }

  const Page::Rows& described_;
  std::set<std::string> written_, wrong_;
};

// The files that a section describes, in which a word in capitals stands for any, and those that
// are there. What ends with a slash is a folder with all that is in it.
class Files {
 public:
  Files(const Page& page, const std::string& section) {
    for (const auto& [name, text] : page.rows(section, "file")) {
      std::string pattern = std::regex_replace(name, std::regex(R"(\.)"), R"(\.)");
      pattern = std::regex_replace(pattern, std::regex("[A-Z]+"), "[^/]+");
      described_[name] = std::regex(name.ends_with("/") ? pattern + ".*" : pattern);
    }
  }

  void see(const fs::path& folder) {
    for (const auto& [name, text] : contents(folder)) {
      const bool is_prose = fs::path(name).filename().string().starts_with("tokenizer") ||
                            name.ends_with("/modeling_attnres.py");
      if (fs::is_directory(folder / name) || is_prose) continue;
      bool is_known = false;
      for (const auto& [described, pattern] : described_) {
        if (!std::regex_match(name, pattern)) continue;
        is_known = true;
        there_.insert(described);
      }
      if (!is_known) unknown_.insert(name);
    }
  }
  std::set<std::string> never_there() const {
    std::set<std::string> missing;
    for (const auto& [name, pattern] : described_) {
      if (!there_.contains(name)) missing.insert(name);
    }
    return missing;
  }
  const std::set<std::string>& unknown() const { return unknown_; }

 private:
  std::map<std::string, std::regex> described_;
  std::set<std::string> there_, unknown_;
};

std::set<std::string> names_of(const Page::Rows& rows) {
  std::set<std::string> names;
  for (const auto& [name, text] : rows) names.insert(name);
  return names;
}

std::set<std::string> columns_of(const fs::path& csv) {
  std::istringstream in(read_file(csv));
  std::string line;
  std::getline(in, line);
  in = std::istringstream(line);
  std::set<std::string> names;
  for (std::string name; std::getline(in, name, ',');) names.insert(name);
  return names;
}

void expect_success(const Result& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

class RunFolderPage : public ::testing::Test {
 protected:
  const Page page_ = Page(read_file(fs::path(ATTNRES_SOURCE_DIR) / "docs/run-folder.md"));
};

Json short_recipe(Json recipe) {
  recipe["train"].update(
      Json{{"steps", 4}, {"eval_every", 2}, {"checkpoint_every", 4}, {"warmup", 1}});
  return recipe;
}

// A run, and the same one made longer with everything changed that may be.
std::vector<RunPaths> plain_runs(const Workshop& workshop) {
  const RunPaths plain = workshop.trained("plain");
  const RunPaths changed = workshop.trained("changed");
  expect_success(workshop.resume("changed",
                                 "--set train.steps=6 train.eval_every=3 train.checkpoint_every=3 "
                                 "train.sample_tokens=5 parallel.timeout=300 --restarts 1"));
  const RunPaths from{workshop.folder("from")};
  expect_success(run_program(fmt::format("train --threads 1 --from {} --out {} --set train.steps=2",
                                         quoted(plain.last()), quoted(from.folder))));
  const RunPaths adapter{workshop.folder("adapter")};
  expect_success(run_program(
      fmt::format("train --threads 1 --from {} --out {} --set train.steps=2 model.lora.rank=1",
                  quoted(plain.last()), quoted(adapter.folder))));
  return {plain, changed, from, adapter};
}

// Experts, depth weights, Muon; tokenized text with text of its own to validate on, of which one
// document is trained on too.
RunPaths run_with_everything() {
  const fs::path base = fresh_folder("everything");
  const std::string text = real_text(40000);
  write_text(base / "data" / "a", text.substr(0, 20000));
  write_text(base / "data" / "b", text.substr(20000, 5000));
  write_text(base / "own" / "b", text.substr(20000, 5000));
  write_text(base / "own" / "c", text.substr(25000));
  write_text(base / "recipe.json", short_recipe(kimi_recipe()).dump());
  ByteTokenizer().save(base / "bytes");
  expect_success(
      run_program(fmt::format("tokenize --model {} --data {} --out {}", quoted(base / "bytes"),
                              quoted(base / "data"), quoted(base / "tokens"))));
  expect_success(run_program(
      fmt::format("train --threads 1 --recipe {} --data {} --validation {} --tokenizer {} --out {}",
                  quoted(base / "recipe.json"), quoted(base / "tokens"), quoted(base / "own"),
                  quoted(base / "bytes"), quoted(base / "run"))));
  return {base / "run"};
}

RunPaths diverged_run(const Workshop& workshop) {
  const Result result = workshop.train(
      "diverged",
      "--set train.learning_rate=10 train.weight_decay=10 train.clip=0 train.warmup=0 "
      "train.checkpoint_every=1 train.steps=40");
  EXPECT_EQ(result.exit_code, 3) << result.err;
  return {workshop.folder("diverged")};
}

RunPaths run_of_two(const Workshop& workshop) {
  expect_success(run_shell(mpirun(
      2, "'" ATTNRES_PROGRAM "' " + workshop.arguments("two", "--set parallel.pipeline=2"))));
  return {workshop.folder("two")};
}

// Retrofitted runs that are looked into, and one that cannot be trained.
StudyPaths chained_study() {
  const fs::path base = fresh_folder("chained");
  Json study = tiny_study();
  study["seeds"] = 1;
  study["inspect"] = true;
  study["weights"] = {"bf16"};
  const Json block = {{"type", "block_attn_res"}, {"block_size", 2}};
  study["axes"]["mixing"] = {
      {"first", {{"model.depth_mixing", {{"type", "residual"}}}}},
      {"block", {{"from", "first"}, {"model.depth_mixing", block}}},
      {"wild", {{"train.learning_rate", 10}, {"train.weight_decay", 10}, {"train.steps", 60}}}};
  write_text(base / "text.txt", real_text(20000));
  write_study(base / "chained.json", study);
  EXPECT_EQ(run_program(fmt::format("study {} --data {} --out {}", quoted(base / "chained.json"),
                                    quoted(base / "text.txt"), quoted(base / "out")))
                .exit_code,
            1);
  return {base / "out"};
}

StudyPaths comparison() {
  const fs::path base = fresh_folder("comparison");
  write_text(base / "text.txt", real_text(400000));
  expect_success(
      run_program(fmt::format("compare --tune --smoke --mechanisms residual --data {} --out {}",
                              quoted(base / "text.txt"), quoted(base / "out"))));
  return {base / "out"};
}

TEST_F(RunFolderPage, HasTheFilesAndKeysOfRuns) {
  if (!has_mpi()) GTEST_SKIP() << "this build has no MPI";
  const Workshop workshop(short_recipe(tiny_recipe({{"type", "residual"}})));
  std::vector<RunPaths> runs = plain_runs(workshop);
  for (const RunPaths& run : {run_with_everything(), diverged_run(workshop), run_of_two(workshop),
                              chained_study().run("block-seed1")}) {
    runs.push_back(run);
  }
  Files files(page_, "Files of a run");
  std::map<std::string, Keys> keys;
  for (const char* name :
       {"run.json", "metrics.jsonl", "probes.jsonl", "samples.jsonl", "training_state.json"}) {
    keys.emplace(name, Keys(page_, name));
  }
  std::set<std::string> probes;
  for (const RunPaths& run : runs) {
    SCOPED_TRACE(run.folder);
    files.see(run.folder);
    keys.at("run.json").see(read_json(run.run_json()));
    keys.at("training_state.json").see(read_json(run.last() / "training_state.json"));
    for (const Json& line : read_lines(run.metrics())) keys.at("metrics.jsonl").see(line);
    for (const Json& line : read_lines(run.samples())) keys.at("samples.jsonl").see(line);
    for (const Json& line : read_lines(run.probes())) {
      keys.at("probes.jsonl").see(line);
      probes.insert(line.at("name"));
    }
  }
  EXPECT_THAT(files.unknown(), IsEmpty());
  EXPECT_THAT(files.never_there(), IsEmpty());
  for (const auto& [name, of_file] : keys) {
    EXPECT_THAT(of_file.wrong(), IsEmpty()) << name;
    EXPECT_THAT(of_file.never_written(), IsEmpty()) << name;
  }
  EXPECT_EQ(names_of(page_.rows("probes.jsonl", "name")), probes);
}

TEST_F(RunFolderPage, HasTheFilesAndKeysOfStudies) {
  const StudyPaths chained = chained_study(), compared = comparison();
  Files files(page_, "Files of a study");
  Keys study(page_, "study.json"), compare(page_, "compare.json");
  for (const StudyPaths& paths : {chained, compared}) {
    SCOPED_TRACE(paths.folder);
    files.see(paths.folder);
    const Json json = read_json(paths.study_json());
    study.see(json);
    std::set<std::string> run_columns, arm_columns = names_of(page_.rows("arms.csv", "column"));
    for (const auto& [key, type] : page_.rows("study.json", "key")) {
      if (key.starts_with("runs[].")) run_columns.insert(key.substr(7));
    }
    run_columns.erase("arms");
    for (const std::string axis : json.at("axes")) {
      run_columns.insert(axis);
      arm_columns.insert(axis);
    }
    EXPECT_EQ(columns_of(paths.runs_csv()), run_columns);
    EXPECT_EQ(columns_of(paths.arms_csv()), arm_columns);
  }
  compare.see(read_json(compared.folder / "compare.json"));
  EXPECT_THAT(files.unknown(), IsEmpty());
  EXPECT_THAT(files.never_there(), IsEmpty());
  EXPECT_THAT(study.wrong(), IsEmpty());
  EXPECT_THAT(study.never_written(), IsEmpty());
  EXPECT_THAT(compare.wrong(), IsEmpty());
  EXPECT_THAT(compare.never_written(), IsEmpty());
}

// A key too many, one too few, and one of another type are told.
TEST(PageOfKeys, IsHeldToWhatIsWritten) {
  const Page page(
      "## a.json\n\n| key | type |\n| --- | --- |\n| `x` | integer |\n| `y[].z` | text |\n");
  Keys keys(page, "a.json");
  keys.see({{"x", 1.5}, {"w", 1}});
  EXPECT_EQ(keys.wrong(), (std::set<std::string>{"w: the page does not have it",
                                                 "x: expected integer, got 1.5"}));
  EXPECT_EQ(keys.never_written(), (std::set<std::string>{"y[].z"}));
}

}  // namespace
}  // namespace attnres::testing::run_folder_page_test
