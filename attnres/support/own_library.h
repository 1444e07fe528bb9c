// Libraries of ours that are loaded when they are asked for.
#pragma once

#include <filesystem>
#include <string>

namespace attnres {

// Where such a library lies, if it was built: beside libattnres_ops.so.
std::filesystem::path own_library(const std::string& name);

}  // namespace attnres
