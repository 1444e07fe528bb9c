#include "attnres/plots/page_parts.h"

#include <fmt/core.h>

#include <cstdlib>

#include "attnres/plots/html.h"
#include "attnres/plots/style.h"

namespace attnres {

std::string page_start(const std::string& plain_title, const std::string& title,
                       const std::string& under_title, const std::string& head) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n{}"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n"
      "<header>\n<h1>{}</h1>\n{}</header>\n<main>\n",
      head, escape_html(plain_title), kStyle, title, under_title);
}

std::string page_end() {
  return "</main>\n</body>\n</html>\n";
}

std::string section(const char* id, const char* title, const std::string& body) {
  return fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", id, title, body);
}

std::string boxed_list(const char* title, const std::vector<std::string>& items) {
  if (items.empty()) return "";
  std::string out = fmt::format("<aside><h2>{}</h2><ul>", title);
  for (const std::string& item : items) out += "<li>" + escape_html(item) + "</li>";
  return out + "</ul></aside>\n";
}

std::string figure(const std::string& title, const std::string& svg) {
  return fmt::format("<figure class=\"plot\"><figcaption>{}</figcaption>{}</figure>\n", title, svg);
}

std::string row_of(const std::string& figures) {
  return "<div class=\"pair\">\n" + figures + "</div>\n";
}

std::string how_to_read(const std::string& text) {
  return "<p class=\"key\">" + text + "</p>\n";
}

std::string nothing(const std::string& why) {
  return "<p class=\"missing\">" + why + "</p>\n";
}

std::string left_out(const std::vector<std::string>& labels, const char* reason) {
  if (labels.empty()) return "";
  std::string names;
  for (const std::string& label : labels) {
    names += (names.empty() ? "" : ", ") + escape_html(label);
  }
  return nothing(fmt::format("Not shown: {} ({}).", names, reason));
}

std::string legend(const std::vector<LegendEntry>& entries) {
  std::string out = "<ul class=\"legend\">";
  for (const LegendEntry& entry : entries) {
    out += fmt::format("<li>{}<bdi>{}</bdi></li>", legend_swatch(entry.style),
                       escape_html(entry.label));
  }
  return out + "</ul>\n";
}

std::string row_heading(const std::string& label) {
  return "<th scope=\"row\"><bdi>" + escape_html(label) + "</bdi></th>";
}

std::string numbers_table(const char* what, const std::vector<std::string>& headings,
                          const std::vector<TableColumn>& columns, const std::vector<bool>& best) {
  std::string out =
      fmt::format("<div class=\"wide\"><table class=\"numbers\">\n<thead><tr><th>{}</th>", what);
  const auto class_of = [](const TableColumn& column, bool is_none = false) {
    if (is_none) return column.is_words ? " class=\"none words\"" : " class=\"none\"";
    return column.is_words ? " class=\"words\"" : "";
  };
  for (const TableColumn& column : columns) {
    out += fmt::format("<th{}>{}</th>", class_of(column), column.name);
  }
  out += "</tr></thead>\n<tbody>\n";
  for (size_t i = 0; i < headings.size(); ++i) {
    out += (!best.empty() && best[i] ? "<tr class=\"best\">" : "<tr>") + headings[i];
    for (const TableColumn& column : columns) {
      out +=
          fmt::format("<td{} data-name=\"{}\">{}</td>",
                      class_of(column, column.cells[i] == kNoValue), column.name, column.cells[i]);
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::vector<TableColumn> escaped(std::vector<TableColumn> columns) {
  for (TableColumn& column : columns) {
    column.name = escape_html(column.name);
    for (std::string& cell : column.cells) cell = escape_html(cell);
  }
  return columns;
}

std::string superscript(int n) {
  static constexpr const char* kDigits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string out = n < 0 ? "⁻" : "";
  for (char digit : std::to_string(std::abs(n))) out += kDigits[digit - '0'];
  return out;
}

}  // namespace attnres
