// Results of many things, a line of JSON each, in a file that a command which was interrupted goes
// on with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "attnres/support/file.h"
#include "attnres/support/json.h"

namespace attnres {

// Until all are there they lie in FILE.part, in the order in which they came: its first line says
// what they are of. A line that was cut off is dropped.
class ResumableLines {
 public:
  // Throws Error where FILE is there already, or FILE.part is of something else.
  ResumableLines(const std::filesystem::path& file, const Json& of);
  ~ResumableLines();
  ResumableLines(const ResumableLines&) = delete;
  ResumableLines& operator=(const ResumableLines&) = delete;

  bool has(int64_t number) const { return lines_.contains(number); }
  int64_t count() const { return static_cast<int64_t>(lines_.size()); }
  // Throws Error when it cannot be written.
  void add(int64_t number, const std::string& line);
  // FILE, by number.
  void finish();

 private:
  void read_part(const std::string& first_line);
  void append(const std::string& line);

  std::filesystem::path file_, part_;
  PathLock lock_;
  std::map<int64_t, std::string> lines_;
  int descriptor_ = -1;
};

}  // namespace attnres
