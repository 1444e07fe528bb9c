#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "attnres/inspect/inspection.h"
#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"
#include "attnres/study/study_figures.h"

namespace attnres {
namespace {

// An arm whose run was inspected.
struct InspectedArm {
  std::string label;
  std::shared_ptr<const Inspection> inspection;
};

std::string layer_effects(const std::vector<InspectedArm>& arms, const std::string& id) {
  LinePlot plot{.alt = "Change of the loss without a Transformer layer",
                .x_label = "Transformer layer left out",
                .y_label = "change (nats per token)",
                .whole_x = true};
  for (size_t i = 0; i < arms.size(); ++i) {
    if (!arms[i].inspection->effects) continue;
    Curve curve{.style = line_style(i)};
    for (const DropEffects::Layer& layer : arms[i].inspection->effects->layers) {
      curve.x.push_back(layer.layer);
      curve.y.push_back(layer.change);
    }
    const bool any = std::any_of(curve.y.begin(), curve.y.end(),
                                 [](double change) { return std::isfinite(change); });
    if (any) plot.curves.push_back(std::move(curve));
  }
  if (plot.curves.empty()) return "";
  return figure("Loss without a layer", draw(plot, id + "-layers"));
}

// A panel for each arm, since sources have other names in each.
std::string source_effects(const std::vector<InspectedArm>& arms, const std::string& id) {
  std::string panels;
  for (size_t i = 0; i < arms.size(); ++i) {
    if (!arms[i].inspection->effects) continue;
    LinePlot plot{.alt = "Change of the loss without a source, " + arms[i].label,
                  .x_label = "source left out",
                  .y_label = "change (nats per token)"};
    Curve curve{.style = line_style(i)};
    for (const DropEffects::Source& source : arms[i].inspection->effects->sources) {
      if (!std::isfinite(source.change)) continue;
      curve.x.push_back(static_cast<double>(plot.x_names.size()));
      curve.y.push_back(source.change);
      plot.x_names.push_back(plain_label(source.name));
    }
    if (curve.x.empty()) continue;
    plot.curves.push_back(std::move(curve));
    panels += figure("Loss without a source: <bdi>" + escape_html(arms[i].label) + "</bdi>",
                     draw(plot, fmt::format("{}-sources-{}", id, i)));
  }
  return panels;
}

std::string similarity_map(const InspectedArm& arm, const std::string& id) {
  if (!arm.inspection->similarity) return "";
  const SourceSimilarity& similarity = *arm.inspection->similarity;
  if (!fits_heat_map(similarity.cosine.size(), similarity.sources.size())) return "";
  HeatMap map{.alt = "Cosine similarity of sources, " + arm.label,
              .x_label = "source",
              .values = similarity.cosine,
              .low = -1,
              .high = 1};
  for (const std::string& source : similarity.sources) {
    map.row_names.push_back(plain_label(source));
    map.column_names.push_back(std::to_string(map.column_names.size()));
  }
  if (map.values.empty() || map.values.size() != map.row_names.size()) return "";
  for (auto& row : map.values) row.resize(map.column_names.size(), kNotMeasured);
  return figure("Cosine of sources: <bdi>" + escape_html(arm.label) + "</bdi>", draw(map, id));
}

std::string similarities(const std::vector<InspectedArm>& arms, const std::string& id) {
  std::string panels;
  for (size_t i = 0; i < arms.size(); ++i) {
    panels += similarity_map(arms[i], fmt::format("{}-cosine-{}", id, i));
  }
  if (panels.empty()) return "";
  return row_of(panels) + how_to_read("Cosine, mean over tokens " + heat_legend(-1, 1) +
                                      "Columns are the sources of the rows, from 0.");
}

// Means over the sites with two sources or more.
struct GroupWeights {
  double embedding = 0, newest = 0, entropy = 0;
  int64_t sites = 0;
};

GroupWeights group_weights(const DepthWeightGroup& group) {
  GroupWeights sums;
  for (const SiteDepthWeights& site : group.sites) {
    const std::vector<double>& weights = site.weights;
    if (weights.size() < 2 || !std::isfinite(weights.front() + weights.back() + site.entropy))
      continue;
    ++sums.sites;
    sums.embedding += weights.front();
    sums.newest += weights.back();
    sums.entropy += site.entropy;
  }
  return sums;
}

// Rows are arms and groups of tokens.
std::string group_table(const std::vector<InspectedArm>& arms,
                        std::vector<DepthWeightGroup> Inspection::*groups, const char* title) {
  std::vector<std::string> headings;
  std::vector<TableColumn> columns = {
      {"tokens", {}}, {"embedding", {}}, {"newest source", {}}, {"entropy (nats)", {}}};
  for (const InspectedArm& arm : arms) {
    for (const DepthWeightGroup& group : (*arm.inspection).*groups) {
      const GroupWeights sums = group_weights(group);
      if (sums.sites == 0) continue;
      headings.push_back(row_heading(arm.label));
      columns[0].cells.push_back(escape_html(group.name));
      for (const auto& [column, sum] :
           {std::pair(1, sums.embedding), std::pair(2, sums.newest), std::pair(3, sums.entropy)}) {
        columns[static_cast<size_t>(column)].cells.push_back(
            fmt::format("{:.3f}", sum / static_cast<double>(sums.sites)));
      }
    }
  }
  if (headings.empty()) return "";
  return fmt::format("<h3>{}</h3>\n", title) + numbers_table("arm", headings, columns);
}

std::string depth_table(const std::vector<InspectedArm>& arms) {
  std::vector<std::string> headings;
  std::vector<TableColumn> columns = {{"loss", {}}, {"effective depth", {}}};
  for (const InspectedArm& arm : arms) {
    const auto& effects = arm.inspection->effects;
    const double loss = effects ? effects->loss : kNotMeasured;
    const double depth = arm.inspection->effective_depth.value_or(kNotMeasured);
    if (std::isnan(depth)) continue;
    headings.push_back(row_heading(arm.label));
    columns[0].cells.push_back(std::isnan(loss) ? kNoValue : format_loss(loss));
    columns[1].cells.push_back(fmt::format("{:.2f}", depth));
  }
  return headings.empty() ? "" : numbers_table("arm", headings, columns);
}

}  // namespace

StudyFigure probes_figure(const StudyData& data, const std::string& id) {
  std::vector<InspectedArm> arms;
  std::vector<LegendEntry> entries;
  std::vector<std::string> missing;
  for (const size_t arm : data.shown_arms()) {
    const std::string& label = data.arms.arms[arm].label;
    const auto run = data.shown_run(arm);
    if (!data.inspections[*run]) {
      missing.push_back(label);
      continue;
    }
    entries.push_back({line_style(arms.size()), label});
    arms.push_back({label, data.inspections[*run]});
  }
  if (arms.empty()) return {nothing("No run has been inspected yet.")};
  const std::string effects = layer_effects(arms, id) + source_effects(arms, id);
  const std::string groups =
      group_table(arms, &Inspection::by_position, "Depth weights by position") +
      group_table(arms, &Inspection::by_token_class, "Depth weights by class of token");
  std::string out = of_shown_arms(data) + depth_table(arms);
  if (!effects.empty()) {
    out += legend(entries) + row_of(effects) +
           how_to_read(
               "How much the validation loss of one run of each arm rises where a layer "
               "gives nothing, or a source gets no weight and the others share it.");
  }
  out += similarities(arms, id) + groups;
  if (!groups.empty()) out += how_to_read("Means over the sites with two sources or more.");
  if (out.empty()) out = nothing("The inspections hold nothing to show.");
  return {out + left_out(missing, "not inspected")};
}

}  // namespace attnres
