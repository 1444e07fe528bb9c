// A part of large data, to train a tokenizer on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/data/document_reader.h"

namespace attnres {

// Documents of these files, each of which gives as many bytes of its beginning, `most_bytes` in all
// or a little more: whole texts of `field` of JSON lines, and pieces of plain text. What cannot be
// read is left out. Throws Error where nothing remains.
std::vector<std::string> sample_text(const std::vector<DocumentFile>& files,
                                     const std::string& field, int64_t most_bytes);

}  // namespace attnres
