// The terminal's size, and text that keeps to it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace attnres {

// The size of the terminal that this descriptor is; none where it is none.
std::optional<size_t> terminal_columns(int descriptor);
std::optional<size_t> terminal_lines(int descriptor);

// The width to print text in: COLUMNS if it is set, else the terminal's, else 100; 40 at least.
size_t text_columns();

// Whether text for this descriptor may have colours: it is a terminal, not TERM=dumb, and NO_COLOR
// is unset or empty (no-color.org).
bool shows_color(int descriptor);

// UTF-8 text's characters, each taken to be one column wide.
size_t characters(std::string_view text);

// `text` in lines of at most `columns` characters, for a place that begins at column `indent`: that
// is what its further lines are indented by. Line breaks are spaces, but an empty line, and a line
// that begins with a space, stand as they are. A word that is longer than a line is not broken.
std::string wrapped(std::string_view text, size_t columns, size_t indent = 0);

// On standard output, wrapped to text_columns(), with a line break at the end.
void print_wrapped(std::string_view text);

}  // namespace attnres
