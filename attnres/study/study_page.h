// The page of a study: report.html in its folder, one HTML file that needs nothing else. While runs
// are missing or unfinished it asks the browser to load it again every minute.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "attnres/report/arms.h"

namespace attnres {

// A terminal shows so many sentences; of more arms a table says more.
inline constexpr size_t kMostSentences = 6;

struct StudyPage {
  std::filesystem::path page;
  std::string progress;                // "5 of 9 runs are done, 1 failed."
  std::vector<std::string> findings;   // what the figures say of the study's claim
  std::vector<std::string> sentences;  // what was seen, one for each arm that is compared
  std::vector<std::string> costs;      // what arms take of the baseline's time and memory
  std::vector<Arm> arms;
  std::vector<std::string> notes;  // what could not be read
};

// Reads study.json and the run folders, and writes `out`, or report.html in the folder where it is
// empty, whole or not at all. Equal folders give an equal page.
// Throws Error where the folder has no study.json or one that is none, where gnuplot is missing, or
// where the page cannot be written.
StudyPage write_study_page(const std::filesystem::path& folder,
                           const std::filesystem::path& out = {});

}  // namespace attnres
