#include "attnres/support/nearest.h"

#include <algorithm>
#include <numeric>
#include <utility>

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

namespace {

// What stands between the characters that join the parts of a name.
std::vector<std::string_view> parts_of(std::string_view name) {
  constexpr std::string_view kJoints = "_.- ";
  std::vector<std::string_view> parts;
  while (!name.empty()) {
    const size_t end = std::min(name.find_first_of(kJoints), name.size());
    if (end > 0) parts.push_back(name.substr(0, end));
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return parts;
}

std::string initials_of(const std::vector<std::string_view>& parts) {
  std::string initials;
  for (const std::string_view part : parts) initials += part.front();
  return initials;
}

// Whether all of `some` are there, one after another: rms_eps of rms_norm_eps.
bool has_in_order(const std::vector<std::string_view>& parts,
                  const std::vector<std::string_view>& some) {
  size_t found = 0;
  for (const std::string_view part : parts) {
    if (found < some.size() && part == some[found]) ++found;
  }
  return found == some.size();
}

struct Nearness {
  int rank = 0;         // the smaller, the nearer
  bool is_near = true;  // at most a third of what is compared is wrong
};

// Its rank is twice the edits, and one more where a part is compared.
Nearness nearness(std::string_view word, const std::string& known) {
  constexpr size_t kShortestPart = 3;
  const auto compared = [](std::string_view typed, std::string_view name, int more) {
    const int edits = edit_distance(typed, name);
    return Nearness{2 * edits + more, edits <= (static_cast<int>(typed.size()) + 1) / 3};
  };
  Nearness best = compared(word, known, 0);
  const auto take = [&](const Nearness& other) {
    if (other.rank < best.rank) best = other;
  };
  if (word.size() >= kShortestPart && known.starts_with(word)) take({1, true});
  const std::vector<std::string_view> parts = parts_of(known), typed = parts_of(word);
  if (parts.size() > 1) {
    if (initials_of(parts) == word) take({1, true});
    for (const std::string_view part : parts) {
      if (part.size() >= kShortestPart) take(compared(word, part, 1));
    }
  }
  if (typed.size() > 1) {
    if (has_in_order(parts, typed)) take({1, true});
    for (const std::string_view part : typed) {
      if (part.size() >= kShortestPart) take(compared(part, known, 1));
    }
  }
  return best;
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  std::pair<int, int> least;
  const std::string* best = nullptr;
  for (const std::string& name : known) {
    const std::pair rank = {nearness(word, name).rank, edit_distance(word, name)};
    if (best != nullptr && rank >= least) continue;
    least = rank;
    best = &name;
  }
  return best == nullptr ? "" : *best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  return near.empty() || !nearness(word, near).is_near ? "" : ": did you mean " + near + "?";
}

}  // namespace attnres
