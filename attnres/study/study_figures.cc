#include "attnres/study/study_figures.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attnres/study/html.h"
#include "attnres/study/page_parts.h"

namespace attnres {
namespace {

struct FigureKind {
  const char* name;
  const char* title;
  std::string (*make)(const StudyData& data, const Json& options, const std::string& id);
  std::vector<std::string> (*findings)(const StudyData& data, const Json& options) = nullptr;
};

// Of a figure that has no options.
template <std::string (*make)(const StudyData&, const std::string&)>
std::string without_options(const StudyData& data, const Json&, const std::string& id) {
  return make(data, id);
}

template <std::vector<std::string> (*find)(const StudyData&)>
std::vector<std::string> without_options(const StudyData& data, const Json&) {
  return find(data);
}

const std::vector<FigureKind>& figure_list() {
  static const std::vector<FigureKind> kinds = {
      {"scaling_law", "Scaling law", scaling_law_figure, scaling_law_findings},
      {"curve", "Loss along an axis", curve_figure},
      {"heatmap", "Shapes", without_options<ratio_figure>, without_options<ratio_findings>},
      {"dynamics", "Training dynamics", without_options<dynamics_figure>},
      {"depth_weights", "Depth weights", without_options<depth_weights_figure>},
      {"matrices", "Depth mixing matrices", without_options<matrices_figure>,
       without_options<matrices_findings>},
      {"probes", "What layers and sources do", without_options<probes_figure>},
      {"overhead", "Overhead", without_options<overhead_figure>,
       without_options<overhead_findings>},
  };
  return kinds;
}

std::string kind_asked_for(const Json& figure) {
  const Json* kind = find(figure, "/kind");
  return kind && kind->is_string() ? kind->get<std::string>() : "";
}

// Null where this version does not know it.
const FigureKind* find_kind(const std::string& name) {
  const auto kind = std::find_if(figure_list().begin(), figure_list().end(),
                                 [&](const FigureKind& known) { return name == known.name; });
  return kind == figure_list().end() ? nullptr : &*kind;
}

}  // namespace

const std::vector<std::string>& figure_kinds() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const FigureKind& kind : figure_list()) all.emplace_back(kind.name);
    return all;
  }();
  return names;
}

std::string of_shown_arms(const StudyData& data) {
  const std::vector<size_t> shown = data.shown_arms();
  std::string only;
  if (!shown.empty() && shown.size() < data.arms.arms.size()) {
    for (size_t axis = 0; axis < data.study.axes.size(); ++axis) {
      const std::string& name = data.study.axes[axis];
      if (name == data.arms.baseline_axis || data.arms_of(axis).size() < 2) continue;
      only += fmt::format("{}{} {}", only.empty() ? "" : ", ", escape_html(name),
                          escape_html(data.arms.names[shown.back()][axis]));
    }
    if (!only.empty()) only = fmt::format(" ({} only)", only);
  }
  return how_to_read(fmt::format("One run of each arm{}, of the first seed that is done.", only));
}

std::string study_figure(const StudyData& data, const Json& figure, const std::string& id) {
  const std::string name = kind_asked_for(figure);
  const FigureKind* kind = find_kind(name);
  if (kind == nullptr) {
    return nothing(fmt::format(
        "study.json asks for a figure “{}”, which this version does not know.", escape_html(name)));
  }
  std::string title = kind->title;
  if (const Json* x = find(figure, "/x"); name == "curve" && x && x->is_string()) {
    title = "Loss along " + escape_html(x->get<std::string>());
  }
  return section(id.c_str(), title.c_str(), kind->make(data, figure, id));
}

std::vector<std::string> figure_findings(const StudyData& data) {
  std::vector<std::string> all;
  for (const Json& figure : data.study.figures) {
    const FigureKind* kind = find_kind(kind_asked_for(figure));
    if (kind == nullptr || kind->findings == nullptr) continue;
    for (std::string& finding : kind->findings(data, figure)) all.push_back(std::move(finding));
  }
  return all;
}

}  // namespace attnres
