// Text and numbers as a page shows them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attnres {

// `text` as HTML content or attribute value: & < > " ' become entities; control characters that
// HTML forbids (all below U+0020 but tab and newline, and U+007F) and bytes that are not UTF-8
// become U+FFFD. Whatever comes in, no markup comes out.
std::string escape_html(std::string_view text);

// 1234567 -> "1,234,567".
std::string format_whole(int64_t n);

// A value with four decimals or as many as asked for, a true minus sign, and its sign if `sign`:
// "1.4321", "+0.0120".
std::string format_loss(double loss, bool sign = false, int decimals = 4);

// "0.012", "< 0.001".
std::string format_p_value(double p);

// Four decimals tell nothing apart below this.
inline constexpr double kLossResolution = 5e-5;

}  // namespace attnres
