#include <fmt/core.h>

#include <cctype>
#include <cmath>
#include <string_view>

#include "attnres/plots/plot.h"

namespace attnres {

LineStyle line_style(size_t index) {
  static constexpr uint32_t kColors[] = {0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7,
                                         0x444444, 0xe69f00, 0x56b4e9};
  static const std::vector<int> kDashes[] = {{}, {8, 4}, {3, 3}, {10, 3, 2, 3}};
  return {kColors[index % 7], int(index % 6), kDashes[index % 4]};
}

std::string legend_swatch(const LineStyle& style) {
  // Around (21, 7).
  static constexpr const char* kMarkers[] = {"M17,7a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
                                             "M17.4,3.4h7.2v7.2h-7.2z",
                                             "M21,2.2l4.4,7.6h-8.8z",
                                             "M21,2l5,5l-5,5l-5,-5z",
                                             "M21,11.8l4.4,-7.6h-8.8z",
                                             "M21,2l4.8,3.5l-1.8,5.6h-6l-1.8,-5.6z"};
  std::string dash;
  for (int length : style.dash) dash += fmt::format("{}{}", dash.empty() ? "" : ",", length);
  return fmt::format(
      "<svg class=\"swatch\" width=\"42\" height=\"14\" viewBox=\"0 0 42 14\" aria-hidden=\"true\">"
      "<path d=\"M1,7H41\" stroke=\"#{0:06x}\" stroke-width=\"2\" stroke-dasharray=\"{1}\"/>"
      "<path d=\"{2}\" fill=\"#{0:06x}\"/></svg>",
      style.color, dash.empty() ? "none" : dash, kMarkers[style.marker]);
}

std::string plain_label(const std::string& name, size_t longest) {
  constexpr std::string_view kKept = " ._+-,:()%", kDot = " · ";
  std::string text = name, label;
  for (size_t at = 0; (at = text.find(kDot, at)) != std::string::npos;) {
    text.replace(at, kDot.size(), 1, ' ');
  }
  for (const char c : text.substr(0, longest)) {
    const bool kept = std::isalnum(static_cast<unsigned char>(c)) || kKept.find(c) != kKept.npos;
    label += kept ? c : '_';
  }
  return label;
}

uint32_t blend(uint32_t a, uint32_t b, double t) {
  uint32_t out = 0;
  for (int shift : {16, 8, 0}) {
    const double from = (a >> shift) & 0xFF, to = (b >> shift) & 0xFF;
    out |= uint32_t(std::lround(from + (to - from) * t)) << shift;
  }
  return out;
}

}  // namespace attnres
