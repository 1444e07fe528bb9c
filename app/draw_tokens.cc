// The inspect subcommand: depth weights token by token, drawn.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "app/inspect.h"
#include "attnres/plots/html.h"
#include "attnres/plots/plot.h"
#include "attnres/support/file.h"
#include "attnres/support/terminal.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

// Pixels.
constexpr int kCell = 14, kNames = 88, kHead = 22, kMargin = 16, kLegend = 40;
// Widths are those of the widest font, also of the names and of the legend's whole line.
constexpr int kScaleName = 112, kLegendWidth = 800;
constexpr size_t kLongestLabel = 8;  // characters of a token

// What stands below a token's column; a space is shown as one.
std::string label_of(const std::string& text) {
  std::string_view rest = text;
  size_t count = 0;
  for (; !rest.empty() && count < kLongestLabel; ++count) rest.remove_prefix(utf8_step(rest).bytes);
  std::string label = text.substr(0, text.size() - rest.size());
  for (size_t space = label.find(' '); space != std::string::npos; space = label.find(' ')) {
    label.replace(space, 1, "␣");
  }
  return rest.empty() ? label : label + "…";
}

class TokensDrawing {
 public:
  explicit TokensDrawing(const InspectedTokens& tokens) : tokens_(tokens) {
    size_t longest = 0;
    for (const std::string& text : tokens.texts) {
      labels_.push_back(label_of(text));
      longest = std::max(longest, characters(labels_.back()));
    }
    upright_ = longest == 1;
    label_height_ = static_cast<int>(longest) * 7 + 14;
    panel_width_ = kNames + kCell * std::max(static_cast<int>(labels_.size()), 10) + kMargin;
  }

  std::string draw() {
    std::map<int, std::vector<const TokenDepthWeights*>> layers;
    bool both = false;
    for (const TokenDepthWeights& site : tokens_.sites) {
      layers[site.site / 2].push_back(&site);
      both = both || layers[site.site / 2].size() > 1;
    }
    int y = kMargin + kLegend;
    std::string panels;
    for (const auto& [layer, sites] : layers) {
      int height = 0;
      for (size_t i = 0; i < sites.size(); ++i) {
        panels += panel(*sites[i], kMargin + static_cast<int>(i) * panel_width_, y);
        height = std::max(height, kHead + kCell * static_cast<int>(sites[i]->sources.size()));
      }
      y += height + label_height_ + kMargin;
    }
    const int width = std::max(2 * kMargin + (both ? 2 : 1) * panel_width_, kLegendWidth);
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
               "viewBox=\"0 0 {0} {1}\" font-family=\"Helvetica, Arial, sans-serif\" "
               "font-size=\"11\" fill=\"#1c1c1a\" role=\"img\" "
               "aria-label=\"depth weights token by token\">\n"
               "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
               width, y) +
           legend() + panels + "</svg>\n";
  }

 private:
  static std::string legend() {
    constexpr int kSteps = 50, kStep = 3, kGap = 6;
    constexpr int left = kMargin + kScaleName;
    std::string out =
        fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">depth weight: 0</text>\n",
                    left - kGap, kMargin + 11);
    for (int i = 0; i < kSteps; ++i) {
      out +=
          fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"12\" fill=\"#{:06x}\"/>\n",
                      left + i * kStep, kMargin + 1, kStep, heat_color((i + 0.5) / kSteps, 0, 1));
    }
    return out + fmt::format(
                     "<text x=\"{}\" y=\"{}\">1 &#160; across: tokens, each in its own column; "
                     "down: the sources that it reads</text>\n",
                     left + kSteps * kStep + kGap, kMargin + 11);
  }

  std::string panel(const TokenDepthWeights& site, int x, int y) const {
    const int left = x + kNames, top = y + kHead;
    const auto rows = static_cast<int>(site.sources.size());
    std::string out =
        fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"13\" font-weight=\"bold\">{}</text>\n",
                    left, y + 14, site.name);
    for (int row = 0; row < rows; ++row) {
      out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", left - 5,
                         top + row * kCell + 11, site.sources[row]);
    }
    for (const auto& [color, path] : cells_by_color(site, left, top)) {
      out += fmt::format("<path fill=\"#{:06x}\" d=\"{}\"/>\n", color, path);
    }
    const int bottom = top + rows * kCell + 5;
    for (size_t t = 0; t < labels_.size(); ++t) {
      const int column = left + static_cast<int>(t) * kCell;
      const std::string place =
          upright_ ? fmt::format("x=\"{}\" y=\"{}\" text-anchor=\"middle\"", column + kCell / 2,
                                 bottom + 6)
                   : fmt::format("transform=\"translate({} {}) rotate(-90)\" text-anchor=\"end\"",
                                 column + 11, bottom);
      out += fmt::format("<text {} font-family=\"monospace\">{}</text>\n", place,
                         escape_html(labels_[t]));
    }
    return out;
  }

  // One path for all cells of a colour, weights rounded to hundredths.
  static std::map<uint32_t, std::string> cells_by_color(const TokenDepthWeights& site, int left,
                                                        int top) {
    std::map<uint32_t, std::string> paths;
    for (size_t t = 0; t < site.weights.size(); ++t) {
      for (size_t i = 0; i < site.sources.size(); ++i) {
        const double weight = std::round(100 * site.weights[t][i]) / 100;
        paths[heat_color(weight, 0, 1)] +=
            fmt::format("M{} {}h{cell}v{cell}h-{cell}z", left + static_cast<int>(t) * kCell,
                        top + static_cast<int>(i) * kCell, fmt::arg("cell", kCell - 1));
      }
    }
    return paths;
  }

  const InspectedTokens& tokens_;
  std::vector<std::string> labels_;
  bool upright_ = false;  // one character each
  int label_height_ = 0, panel_width_ = 0;
};

}  // namespace

void draw_tokens(const InspectedTokens& tokens, const std::filesystem::path& file) {
  rewrite_file(file, TokensDrawing(tokens).draw());
}

}  // namespace attnres
