// Tables for spreadsheets and programs, as RFC 4180 has them but with plain line breaks.
#pragma once

#include <string>
#include <vector>

#include "attnres/support/json.h"

namespace attnres {

// The values of a row, texts in quotes where they need them; null is an empty cell.
std::string csv_line(const std::vector<Json>& values);

}  // namespace attnres
