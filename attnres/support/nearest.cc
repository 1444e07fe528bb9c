#include "attnres/support/nearest.h"

#include <algorithm>
#include <numeric>

namespace attnres {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substitute = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  const auto best = std::min_element(known.begin(), known.end(), [&](const auto& x, const auto& y) {
    return edit_distance(word, x) < edit_distance(word, y);
  });
  return best == known.end() ? std::string() : *best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  const int most = (static_cast<int>(word.size()) + 1) / 3;
  return near.empty() || edit_distance(word, near) > most ? "" : ": did you mean " + near + "?";
}

}  // namespace attnres
