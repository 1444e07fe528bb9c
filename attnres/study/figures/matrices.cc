#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/study/study_figures.h"

namespace attnres {
namespace {

// The "mean" of a matrix in inspection.json, where null is no number. Empty where it is no matrix.
std::vector<std::vector<double>> matrix_rows(const Json& matrix) {
  std::vector<std::vector<double>> rows;
  const Json* mean = matrix.is_object() ? find(matrix, "/mean") : nullptr;
  if (mean == nullptr || !mean->is_array()) return rows;
  for (const Json& row : *mean) {
    if (!row.is_array()) return {};
    std::vector<double>& values = rows.emplace_back();
    for (const Json& value : row) {
      values.push_back(value.is_number() ? value.get<double>() : kNotMeasured);
    }
  }
  return rows;
}

// Of one channel of one token, and of the mean over them, which has a higher one where weights
// differ.
struct Ranks {
  int64_t of_one = 0, of_mean = 0;
};

std::optional<Ranks> semiseparable_ranks(const Json& matrix) {
  const Json* of_one = find(matrix, "/semiseparable_rank_of_samples");
  const Json* of_mean = find(matrix, "/semiseparable_rank");
  if (!of_one || !of_one->is_number_integer() || !of_mean || !of_mean->is_number_integer()) {
    return std::nullopt;
  }
  return Ranks{*of_one, *of_mean};
}

// ", queries" where a mechanism has a matrix for each of several streams.
std::string stream_of(const Json& matrix) {
  const Json* stream = find(matrix, "/stream");
  const std::string name = stream && stream->is_string() ? stream->get<std::string>() : "";
  return name.empty() ? "" : ", " + name;
}

std::string matrix_panel(const std::string& label, const Json& matrix, const std::string& id) {
  HeatMap map{.alt = "Depth mixing matrix of " + label,
              .x_label = "source (0: embedding)",
              .y_label = "site that reads",
              .values = matrix_rows(matrix)};
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
  if (columns == 0 || (low == 0 && high == 0)) return "";
  for (auto& row : map.values) row.resize(columns, kNotMeasured);
  for (size_t i = 0; i < map.values.size(); ++i) map.row_names.push_back(std::to_string(i));
  for (size_t i = 0; i < columns; ++i) map.column_names.push_back(std::to_string(i));
  map.low = low < 0 ? -std::max(high, -low) : 0;
  map.high = std::max(high, -low);
  std::string title = "<bdi>" + escape_html(label) + "</bdi>";
  title += escape_html(stream_of(matrix));
  if (const std::optional<Ranks> ranks = semiseparable_ranks(matrix)) {
    title += fmt::format(" <small>semiseparable rank {}, of the mean {}</small>", ranks->of_one,
                         ranks->of_mean);
  }
  return figure(title + "<br>" + heat_legend(map.low, map.high), draw(map, id));
}

const Json* matrices_in(const Json& inspection) {
  if (!inspection.is_object()) return nullptr;
  const Json* list = find(inspection, "/mixing_matrices");
  if (list == nullptr) list = find(inspection, "/matrices");
  return list && list->is_array() ? list : nullptr;
}

}  // namespace

StudyFigure matrices_figure(const StudyData& data, const std::string& id) {
  std::string panels;
  std::vector<std::string> missing, findings;
  for (const size_t arm : data.shown_arms()) {
    const std::string& label = data.arms.arms[arm].label;
    const auto run = data.shown_run(arm);
    const Json* list = matrices_in(data.inspections[*run]);
    std::string of_arm;
    for (size_t i = 0; list && i < list->size(); ++i) {
      of_arm += matrix_panel(label, (*list)[i], fmt::format("{}-{}-{}", id, arm, i));
      if (const std::optional<Ranks> ranks = semiseparable_ranks((*list)[i])) {
        findings.push_back(fmt::format(
            "{}{}: the depth mixing matrix of one channel of one token has semiseparable rank {}.",
            label, stream_of((*list)[i]), ranks->of_one));
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
