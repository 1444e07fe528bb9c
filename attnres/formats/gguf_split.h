// A GGUF file that was split into parts, as llama-gguf-split and llama.cpp's converter write them:
//
//   NAME-00001-of-0000N.gguf ... NAME-0000N-of-0000N.gguf
//
// Each has tensors of its own and three keys: split.no (its number, from 0), split.count (N) and
// split.tensors.count (the tensors of all parts). All other keys are the first part's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace attnres {

class GgufFile;

// What the keys of one file say.
struct GgufSplit {
  int64_t number = 0;   // from 0
  int64_t count = 1;    // 1: a whole file
  int64_t tensors = 0;  // of all parts

  bool is_whole() const { return count <= 1; }
};

// Throws Error on numbers that are none, or beyond the format's.
GgufSplit read_gguf_split(const GgufFile& file);

// The files of all parts beside this one, the first one first. Throws Error naming all that are
// missing, and where the file is not called as its part is.
std::vector<std::filesystem::path> gguf_part_files(const std::filesystem::path& file,
                                                   const GgufSplit& split);

// Throws Error unless the file is part `number`, from 0 on, of that split.
void require_gguf_part(const GgufFile& file, int64_t number, const GgufSplit& split);

// The GGUF model that a folder holds: its file, or one of its parts; none where it holds none.
// Encoders of images (mmproj*.gguf) are no models. Throws Error naming them where there are
// several.
std::optional<std::filesystem::path> gguf_in_folder(const std::filesystem::path& folder);

}  // namespace attnres
