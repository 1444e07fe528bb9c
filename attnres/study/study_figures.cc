#include "attnres/study/study_figures.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "attnres/plots/html.h"
#include "attnres/plots/page_parts.h"

namespace attnres {
namespace {

struct FigureKind {
  const char* name;
  const char* title;
  StudyFigure (*make)(const StudyData& data, const Json& options, const std::string& id);
};

// Makes a figure that has no options.
template <StudyFigure (*make)(const StudyData&, const std::string&)>
StudyFigure without_options(const StudyData& data, const Json&, const std::string& id) {
  return make(data, id);
}

const std::vector<FigureKind>& figure_list() {
  static const std::vector<FigureKind> kinds = {
      {"scaling_law", "Scaling law", scaling_law_figure},
      {"curve", "Loss along an axis", curve_figure},
      {"forest", "Differences", forest_figure},
      {"heatmap", "Shapes", without_options<ratio_figure>},
      {"dynamics", "Training dynamics", without_options<dynamics_figure>},
      {"entropy", "Entropy of depth weights", without_options<entropy_figure>},
      {"depth_weights", "Depth weights", without_options<depth_weights_figure>},
      {"matrices", "Depth mixing matrices", without_options<matrices_figure>},
      {"probes", "What layers and sources do", without_options<probes_figure>},
      {"overhead", "Overhead", without_options<overhead_figure>},
      {"quantization", "Quantized weights", without_options<quantization_figure>},
  };
  return kinds;
}

// Empty where it says none.
std::string text_at(const Json& figure, std::string_view pointer) {
  const Json* text = find(figure, pointer);
  return text && text->is_string() ? text->get<std::string>() : "";
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

std::string axis_asked_for(const Json& figure) {
  return text_at(figure, "/x");
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

StudyFigure study_figure(const StudyData& data, const Json& figure, const std::string& id) {
  const std::string name = text_at(figure, "/kind");
  const FigureKind* kind = find_kind(name);
  if (kind == nullptr) {
    return {
        nothing(fmt::format("study.json asks for a figure “{}”, which this version does not know.",
                            escape_html(name)))};
  }
  std::string title = kind->title;
  if (const std::string x = axis_asked_for(figure); name == "curve" && !x.empty()) {
    title = "Loss along " + escape_html(x);
  }
  StudyFigure made = kind->make(data, figure, id);
  made.html = section(id.c_str(), title.c_str(), made.html);
  return made;
}

}  // namespace attnres
