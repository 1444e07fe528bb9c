// The figures of a report, each an HTML fragment. A run that lacks what a figure shows is left out
// of it and named below; a figure that no run can fill is a sentence that says so.
#pragma once

#include <string>
#include <vector>

#include "attnres/report/comparison.h"
#include "attnres/report/run_data.h"

namespace attnres {

// Training and validation loss against tokens and against training time, and how far each run's
// validation loss lies from that of its baseline.
std::string loss_figures(const std::vector<RunData>& runs, const Comparison& comparison);

// Mean depth weights alpha_{i->l} at the last probed step, as in Figure 8 of arXiv 2603.15031: a
// row for each Transformer layer, a column for each source, attention and feed-forward inputs
// apart, and the output site.
std::string depth_weight_figures(const std::vector<RunData>& runs);

// RMS of the state after each Transformer layer, and of the loss gradient at its feed-forward
// output, at the last probed step, as in Figure 5 (b, c) of arXiv 2603.15031.
std::string magnitude_figures(const std::vector<RunData>& runs);

// Entropy of the depth weights, mean over sites, against training step.
std::string entropy_figure(const std::vector<RunData>& runs);

// Load of each expert over the mean load of its site, at the last probed step: a row for each
// Transformer layer with experts. Empty when no run has experts.
std::string expert_load_figures(const std::vector<RunData>& runs);

// For runs of several processes: when each computed what in the last traced step, as in Figure 3 of
// arXiv 2603.15031, a row a rank, and below it the sealed tensors that its stages hold already and
// receive. Empty when no run has a trace.
std::string schedule_figures(const std::vector<RunData>& runs);

}  // namespace attnres
