// The figures of a study's page, by the "figures" of its study.json. Each is an HTML fragment; what
// runs are missing for is left out of it, and a figure that no run can fill is a sentence that says
// so. Trials of learning rates are in none.
#pragma once

#include <string>
#include <vector>

#include "attnres/study/study_data.h"

namespace attnres {

// "scaling_law", "curve", ...: the kinds that "figures" may ask for.
const std::vector<std::string>& figure_kinds();

struct StudyFigure {
  std::string html;
  // What it says about the study's claim beside the losses, in plain sentences: compute advantages,
  // the best shapes, ranks of matrices.
  std::vector<std::string> findings = {};
  std::vector<std::string> costs = {};  // the same of times and memory over the baseline's
};

// The figure of one entry of "figures", as a section with its title; `id` is its own on the page.
StudyFigure study_figure(const StudyData& data, const Json& figure, const std::string& id);

// The axis that one of its entries names as "x"; empty where it names none.
std::string axis_asked_for(const Json& figure);

// The line over a figure of single runs that says which they are.
std::string of_shown_arms(const StudyData& data);

// Final loss against FLOPs, log-log, as in Fig. 4 of arXiv 2603.15031: a point per run, and per arm
// a line L = A C^-alpha where there are three budgets or more; A, alpha and the compute advantage
// over the baseline at the largest budget, with bootstrap intervals (power_law.h). The budgets are
// the arms of the axis "x"; without it of the axis along which FLOPs vary most.
StudyFigure scaling_law_figure(const StudyData& data, const Json& options, const std::string& id);

// Mean final loss and its difference to the baseline's, with 95 % intervals, along the arms of the
// axis "x", a curve for each arm of the other axes. The baseline of that axis is a dotted line.
StudyFigure curve_figure(const StudyData& data, const Json& options, const std::string& id);

// What each arm of the axis "x" ends lower or higher than its baseline, as a forest plot: a row for
// each, with every seed's difference, their mean and its 95 % interval, and in it a mean for each
// arm of the other axes.
StudyFigure forest_figure(const StudyData& data, const Json& options, const std::string& id);

// Mean final loss over width and heads per Transformer layer, a map for each arm of the baseline's
// axis with its least outlined, as in Fig. 7, and a map of the differences to the baseline's.
StudyFigure ratio_figure(const StudyData& data, const std::string& id);

// As in Fig. 5, of shown_arms(): validation loss over training, mean over the seeds; and of one run
// of each RMS of outputs, of states and of gradients per Transformer layer at several moments of
// it.
StudyFigure dynamics_figure(const StudyData& data, const std::string& id);

// Of shown_arms(), mean over the seeds: entropy of depth weights over training, as a share of what
// uniform weights have, beside the difference of validation losses to the baseline's; and one
// against the other at the end.
StudyFigure entropy_figure(const StudyData& data, const std::string& id);

// As in Fig. 8, one run of each of shown_arms(): mean depth weights, where they lie in numbers, and
// how they form over training.
StudyFigure depth_weights_figure(const StudyData& data, const std::string& id);

// As in Fig. 9, one run of each of shown_arms(): depth mixing matrices, mean over tokens and
// channels.
StudyFigure matrices_figure(const StudyData& data, const std::string& id);

// One run of each of shown_arms(): what dropping a layer or a source costs, how alike sources are,
// depth weights by position and class of token.
StudyFigure probes_figure(const StudyData& data, const std::string& id);

// Time per token and memory of runs that are done, and over the baseline's of the same seeds, with
// 95 % intervals. Speeds that were not measured well (speed.h) are not compared, and a ratio whose
// interval has ends that differ by more than a factor of two is called unknown.
StudyFigure overhead_figure(const StudyData& data, const std::string& id);

// What quantized weights add to the loss of each arm's models, by format, and that beside what they
// add to the baseline's of the same seeds, with 95 % intervals.
StudyFigure quantization_figure(const StudyData& data, const std::string& id);

}  // namespace attnres
