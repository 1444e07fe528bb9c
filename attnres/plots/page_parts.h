// Pieces of a page. Where it does not say "plain text", an argument is HTML already.
#pragma once

#include <string>
#include <vector>

#include "attnres/plots/plot.h"

namespace attnres {

// From <!DOCTYPE> to <main>; `head` goes into <head>, `under_title` into <header>. Plain title.
std::string page_start(const std::string& plain_title, const std::string& title,
                       const std::string& under_title, const std::string& head = "");
std::string page_end();

std::string section(const char* id, const char* title, const std::string& body);

// A box of plain texts; empty where there are none.
std::string boxed_list(const char* title, const std::vector<std::string>& items);

std::string figure(const std::string& title, const std::string& svg);
std::string row_of(const std::string& figures);  // side by side where they fit
std::string how_to_read(const std::string& text);
std::string nothing(const std::string& why);  // in place of what is missing

// "Not shown: a, b (reason)." of plain labels; empty where there are none.
std::string left_out(const std::vector<std::string>& labels, const char* reason);

struct LegendEntry {
  LineStyle style;
  std::string label;  // plain text
};
std::string legend(const std::vector<LegendEntry>& entries);

// The heading of a row, of plain text.
std::string row_heading(const std::string& label);

struct TableColumn {
  std::string name;
  std::vector<std::string> cells;  // one for each row
  bool is_words = false;           // left-aligned, as numbers are not
};

inline constexpr const char* kNoValue = "–";

// Each cell names its column, for narrow screens, on which a row becomes a card. Headings are whole
// <th>. `best` marks rows; empty: none.
std::string numbers_table(const char* what, const std::vector<std::string>& headings,
                          const std::vector<TableColumn>& columns,
                          const std::vector<bool>& best = {});

// Cells of plain text as HTML.
std::vector<TableColumn> escaped(std::vector<TableColumn> columns);

// "⁻³" of -3.
std::string superscript(int n);

}  // namespace attnres
