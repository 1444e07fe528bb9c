// The numbers of a report: what each run reached, and which is ahead.
//
// Runs are compared by their final validation loss. The lowest over all steps, or over all seeds,
// would favour whatever was measured more often. Runs that differ in nothing but their seed are one
// arm; two arms are compared over the seeds that both have, each seed with its own difference, and
// told apart where a t test of these does, corrected for the number of arms.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attnres/report/arms.h"
#include "attnres/report/run_data.h"
#include "attnres/report/run_summary.h"

namespace attnres {

struct Comparison {
  std::vector<RunSummary> runs;    // in the order given
  std::vector<Arm> arms;           // of all runs, in the order of their first
  std::optional<size_t> best;      // the arm that ends lowest; none where losses do not compare
  std::optional<size_t> residual;  // the first residual arm that has a loss
  // What the other arms are compared with: the residual one, or else the first that has a loss.
  // None where losses do not compare or only one arm has one.
  std::optional<size_t> baseline;
  std::vector<std::string> incomparable;  // why the losses do not compare; empty: they do
  // A few sentences: what holds, and what keeps it from holding.
  std::string verdict;
  std::vector<std::string> cautions;  // each a sentence: which speeds do not count, and why
};

Comparison compare(const std::vector<RunData>& runs);

}  // namespace attnres
