#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/inspect/inspection.h"
#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/study/study_figures.h"

namespace attnres {
namespace {

bool has_ranks(const InspectedMatrix& matrix) {
  return matrix.semiseparable_rank > 0 && matrix.semiseparable_rank_of_samples > 0;
}

// ", queries" where a mechanism has a matrix for each of several streams.
std::string stream_of(const InspectedMatrix& matrix) {
  return matrix.stream.empty() ? "" : ", " + matrix.stream;
}

std::string matrix_panel(const std::string& label, const InspectedMatrix& matrix,
                         const std::string& id) {
  HeatMap map{.alt = "Depth mixing matrix of " + label,
              .x_label = "source (0: embedding)",
              .y_label = "site that reads",
              .values = matrix.mean};
  size_t columns = 0;
  double low = 0, high = 0;
  for (const auto& row : map.values) {
    columns = std::max(columns, row.size());
    for (const double value : row) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  const bool fits = fits_heat_map(map.values.size(), columns);
  if (columns == 0 || (low == 0 && high == 0) || !fits) return "";
  for (auto& row : map.values) row.resize(columns, kNotMeasured);
  for (size_t i = 0; i < map.values.size(); ++i) map.row_names.push_back(std::to_string(i));
  for (size_t i = 0; i < columns; ++i) map.column_names.push_back(std::to_string(i));
  map.low = low < 0 ? -std::max(high, -low) : 0;
  map.high = std::max(high, -low);
  std::string title = "<bdi>" + escape_html(label) + "</bdi>";
  title += escape_html(stream_of(matrix));
  // That of one channel of one token; the mean over them has a higher one where weights differ.
  if (has_ranks(matrix)) {
    title += fmt::format(" <small>semiseparable rank {}, of the mean {}</small>",
                         matrix.semiseparable_rank_of_samples, matrix.semiseparable_rank);
  }
  return figure(title + "<br>" + heat_legend(map.low, map.high), draw(map, id));
}

}  // namespace

StudyFigure matrices_figure(const StudyData& data, const std::string& id) {
  std::string panels;
  std::vector<std::string> missing, findings;
  for (const size_t arm : data.shown_arms()) {
    const std::string& label = data.arms.arms[arm].label;
    const auto run = data.shown_run(arm);
    std::vector<InspectedMatrix> matrices;
    if (const auto& inspection = data.inspections[*run]) matrices = inspection->mixing_matrices;
    std::string of_arm;
    for (size_t i = 0; i < matrices.size(); ++i) {
      of_arm += matrix_panel(label, matrices[i], fmt::format("{}-{}-{}", id, arm, i));
      if (has_ranks(matrices[i])) {
        findings.push_back(fmt::format(
            "{}{}: the depth mixing matrix of one channel of one token has semiseparable rank {}.",
            label, stream_of(matrices[i]), matrices[i].semiseparable_rank_of_samples));
      }
    }
    if (of_arm.empty()) missing.push_back(label);
    panels += of_arm;
  }
  if (panels.empty()) return {nothing("No run has been inspected yet.")};
  return {
      of_shown_arms(data) + row_of(panels) +
          how_to_read(
              "Rows: sites, the last the output. Columns: the embedding and the outputs of "
              "sublayers. Each cell says how much of an output a site reads, the mean over "
              "tokens and channels of one run of each arm, with mixing weights and norms held "
              "fixed. Semiseparable ranks: of the matrix of one channel of one token, the median "
              "of those looked at, and of the mean that is drawn.") +
          left_out(missing, "not inspected"),
      findings};
}

}  // namespace attnres
