// What the runs of an arm measured while they trained: each seed, and their mean.
#pragma once

#include <string>
#include <vector>

#include "attnres/plots/plot.h"
#include "attnres/report/loss_axes.h"
#include "attnres/study/study_data.h"

namespace attnres {

// What a curve goes along: tokens, time, steps.
using Along = double (*)(const Metric& metric);
double along_steps(const Metric& metric);

struct SeedCurves {
  std::vector<Points> seeds;
  // Over the runs that are done, or where none is, all that have begun, at the steps at which all
  // of these were measured; of y, and of x.
  Points mean;
};

// Validation losses of an arm's runs. Empty where none has one.
SeedCurves validation_curves(const StudyData& data, size_t arm, Along along);

// The same minus those of the baseline's runs of the same seeds at the same steps. Empty of an arm
// that is a baseline, or has none.
SeedCurves difference_curves(const StudyData& data, size_t arm, Along along);

// Entropy of depth weights over training, by step, as a share of what uniform weights have: mean
// over the sites that choose among two sources or more. Empty of an arm without depth weights.
SeedCurves entropy_curves(const StudyData& data, size_t arm);

// Adds a pale line for each seed, where they are several, and a marked one for their mean.
void add_curves(LinePlot& plot, const SeedCurves& curves, const LineStyle& style);

// A thin line where an arm is as its baseline.
Curve zero_line(double first_x, double last_x);

// Validation losses of `arms` over training, a pale line for each seed and a marked one for their
// mean: against tokens and time, and minus the baseline's.
std::string seed_loss_figures(const StudyData& data, const std::vector<size_t>& arms);
// Against steps alone, without a legend.
std::string seed_loss_figure(const StudyData& data, const std::vector<size_t>& arms,
                             const std::string& id);

}  // namespace attnres
