#include "attnres/report/metrics_table.h"

#include <map>
#include <nlohmann/json.hpp>

#include "attnres/report/run_data.h"
#include "attnres/support/csv.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "attnres/train/run_folder/run_folder.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMostColumns = 10'000;

// Rows and columns in the order in which they came.
class Table {
 public:
  Table() {
    for (const char* name : {"run", "step"}) column_of(name);
  }

  void begin_row(const std::string& run) {
    rows_.emplace_back();
    set("run", run);
  }
  void set(const std::string& column, const Json& value) {
    rows_.back()[column_of(column)] = value;
  }

  std::string csv() const {
    std::string text = csv_line({columns_.begin(), columns_.end()});
    for (const auto& row : rows_) {
      std::vector<Json> cells(columns_.size());
      for (const auto& [column, value] : row) cells[column] = value;
      text += csv_line(cells);
    }
    return text;
  }

 private:
  size_t column_of(const std::string& name) {
    const auto [found, is_new] = places_.emplace(name, columns_.size());
    if (is_new) columns_.push_back(name);
    require(columns_.size() <= kMostColumns,
            "--csv: these runs measured more than {} things, too many for the columns of a table",
            kMostColumns);
    return found->second;
  }

  std::vector<std::string> columns_;
  std::map<std::string, size_t> places_;
  std::vector<std::map<size_t, Json>> rows_;
};

std::string probe_column(const Json& probe) {
  const auto name = probe.find("name"), site = probe.find("site");
  if (name == probe.end() || !name->is_string() || site == probe.end()) return "";
  return fmt::format("{}/{}", name->get<std::string>(), site->dump());
}

void add_run(const RunPaths& run, Table& table, std::vector<std::string>& notes) {
  std::map<int64_t, std::vector<Json>> probes;
  for (Json& line : read_run_log(run.probes(), notes)) {
    const auto step = line.at("step").get<int64_t>();
    probes[step].push_back(std::move(line));
  }
  for (const Json& line : read_run_log(run.metrics(), notes)) {
    table.begin_row(run.folder.string());
    for (const auto& [key, value] : line.items()) table.set(key, value);
    for (const Json& probe : probes[line.at("step").get<int64_t>()]) {
      const auto value = probe.find("value");
      const std::string column = probe_column(probe);
      if (column.empty() || value == probe.end() || !value->is_number()) continue;
      table.set(column, *value);
    }
  }
}

}  // namespace

MetricsTable metrics_table(const std::vector<fs::path>& runs) {
  MetricsTable result;
  Table table;
  for (const fs::path& folder : runs) {
    const RunPaths run{folder};
    require(path_exists(run.run_json()), "{}: not a run folder: it has no run.json",
            folder.string());
    std::vector<std::string> notes;
    add_run(run, table, notes);
    for (const std::string& note : notes) {
      result.notes.push_back(fmt::format("{}: {}", folder.string(), note));
    }
  }
  result.csv = table.csv();
  return result;
}

}  // namespace attnres
