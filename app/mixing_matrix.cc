#include "app/mixing_matrix.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/model/depth_weights.h"
#include "attnres/plots/plot.h"
#include "attnres/support/file.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace {

std::string source_name(size_t i) {
  return i == 0 ? "e" : fmt::format("{}", i);
}

std::string of_stream(const std::string& stream) {
  return stream.empty() ? "" : fmt::format(" of the {} stream", stream);
}

}  // namespace

std::filesystem::path draw_matrix(const std::string& stream, const Matrix& mean,
                                  const std::string& whose, const std::filesystem::path& file) {
  HeatMap map = {.alt = "depth mixing matrix" + of_stream(stream),
                 .x_label = "source (e: the embedding)",
                 .y_label = "site",
                 .values = mean};
  const int L = static_cast<int>(mean.size()) - 1;
  double low = 0, high = 0;
  for (int l = 0; l <= L; ++l) {
    map.row_names.push_back(site_name(l, L));
    map.column_names.push_back(source_name(l));
    for (const double value : mean[l]) {
      if (std::isnan(value)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  map.low = low < 0 ? -std::max(-low, high) : 0;
  map.high = low < 0 ? std::max(-low, high) : high;
  std::filesystem::path path = file;
  if (!stream.empty()) path.replace_extension(stream + file.extension().string());
  rewrite_file(path, draw_file(map, "Depth mixing matrix" + of_stream(stream) + " of " + whose));
  return path;
}

void print_matrices(const std::vector<InspectedMatrix>& matrices) {
  for (const InspectedMatrix& matrix : matrices) {
    print_wrapped(fmt::format(
        "depth mixing matrix{} (rows: sites; columns: e, the embedding, and sublayers' outputs)",
        of_stream(matrix.stream)));
    fmt::print("\n");
    const int L = static_cast<int>(matrix.mean.size()) - 1;
    fmt::print("{:16}", "");
    for (int i = 0; i <= L; ++i) fmt::print("{:>7}", source_name(i));
    fmt::print("\n");
    for (int l = 0; l <= L; ++l) {
      if (std::isnan(matrix.mean[l][0])) continue;
      fmt::print("{:16}", site_name(l, L));
      for (int i = 0; i <= l; ++i) fmt::print("{:>7.3f}", matrix.mean[l][i]);
      fmt::print("\n");
    }
    fmt::print("\n");
    print_wrapped(fmt::format(
        "semiseparable rank {} of the mean over tokens and channels; {} of one channel of one "
        "token (median of {})",
        matrix.semiseparable_rank, matrix.semiseparable_rank_of_samples, kMixingMatrixSamples));
    fmt::print("\n");
  }
}

}  // namespace attnres
