// The report on one or more training runs: one HTML page that needs nothing else, no network, no
// script, no second file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "attnres/report/comparison.h"

namespace attnres {

struct ReportOptions {
  std::filesystem::path out = "report.html";  // replaced whole, or left as it was
  std::vector<std::string> cautions = {};     // sentences for its box "Read with care"
};

struct ReportSummary {
  std::filesystem::path page;
  Comparison comparison;
  std::vector<std::string> notes = {};  // "run: what is missing or was skipped"
};

// Reads the run folders (see run_data.h), compares them and writes the page. What a run lacks is
// left out of the page and named on it. Equal run folders give an equal page.
// Throws UsageError for no run or the same one twice, Error for a path that is not a run folder, if
// gnuplot is missing, or if the page cannot be written.
ReportSummary write_report(const std::vector<std::filesystem::path>& paths,
                           const ReportOptions& options = {});

}  // namespace attnres
