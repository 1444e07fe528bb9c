// Depth mixing matrices for people.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "attnres/depth/mixing_matrix.h"

namespace attnres {

// Into an SVG file, with `whose` in its title; streams beside the first get files of their own,
// with the stream's name before the ending. Returns the files. Throws Error if one cannot be
// written.
std::vector<std::filesystem::path> draw_matrices(const std::vector<MixingMatrix>& matrices,
                                                 const std::string& whose,
                                                 const std::filesystem::path& file);

// As tables, with their semiseparable ranks.
void print_matrices(const std::vector<MixingMatrix>& matrices);

// Of the single channels and tokens: the median.
int rank_of_samples(const MixingMatrix& matrix);

}  // namespace attnres
