// gnuplot (5.2 or newer) as a child process, and the text of its scripts: what the plots of plot.h
// are drawn with.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace attnres::gnuplot {

using Files = std::map<std::string, std::string>;  // name -> contents

// Runs gnuplot in a temporary folder that holds `files`, with `script` on its standard input, and
// gives what it printed. Throws Error if gnuplot is missing or refuses.
std::string run(const std::string& script, const Files& files);

// The <svg> element that a script prints, made fit to stand among others in one HTML page: ids with
// the prefix `id`, no namespaces (HTML needs none), no titles that a browser would show as
// tooltips.
std::string inline_svg(const std::string& script, const Files& files, const std::string& id,
                       const std::string& alt);

constexpr uint32_t kInk = 0x333333, kWhite = 0xffffff;
constexpr uint32_t kFrame = 0x999999;  // of axes

// As wide as a phone, so that text keeps its size there, and half a page holds a plot too.
constexpr int kWidth = 420;

// The first lines of a script.
std::string terminal(int height);

// In single quotes, which keep backquotes, macros and escapes from being interpreted.
std::string quote(std::string text);
std::string rgb(uint32_t color);
std::string dash_type(const std::vector<int>& dash);

// The point type of a LineStyle's marker.
int point_type(int marker);

// Ticks with names at 0, 1, ..: every n-th of them, so that at most `most` are drawn.
std::string ticks(const std::vector<std::string>& names, size_t most);

}  // namespace attnres::gnuplot
