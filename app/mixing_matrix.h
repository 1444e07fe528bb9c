// Depth mixing matrices for people.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "attnres/depth/mixing_matrix.h"
#include "attnres/inspect/inspection.h"

namespace attnres {

// The matrix of a stream (MixingMatrix) into an SVG file, with `whose` in its title; those of
// streams beside the first into files of their own, with the stream's name before the ending.
// Returns the file. Throws Error if it cannot be written.
std::filesystem::path draw_matrix(const std::string& stream, const Matrix& mean,
                                  const std::string& whose, const std::filesystem::path& file);

// As tables, with their semiseparable ranks.
void print_matrices(const std::vector<InspectedMatrix>& matrices);

}  // namespace attnres
