// A folder that replaces another one in one step, filled by whoever likes to.
#pragma once

#include <filesystem>

namespace attnres {

// A fresh folder beside `path` while it lives, whose files finish() flushes before it renames the
// folder to `path`, replacing what was there. Without finish(), or when the process dies at any
// moment, the old folder stands (see recover_folder). write_folder is one of these and a function
// that fills it.
class FolderWriter {
 public:
  explicit FolderWriter(const std::filesystem::path& path);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  // The folder to fill.
  static std::filesystem::path filling(const std::filesystem::path& path);
  void finish();

 private:
  std::filesystem::path path_;
  bool finished_ = false;
};

}  // namespace attnres
