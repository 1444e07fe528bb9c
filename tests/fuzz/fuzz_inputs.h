// Inputs of several files, the files themselves, and where they are put.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace attnres::testing {

// Inputs that are several files, or texts, have a line with the byte 1E between them.
std::string joined_inputs(const std::vector<std::string>& parts);
// As many as are asked for; those that the input lacks are empty.
std::vector<std::string_view> parts_of(std::string_view input, size_t count);

// A folder of this process in TMPDIR, which is gone at its end. The same one for every input.
const std::filesystem::path& fuzz_folder();
void clear_fuzz_folder();
// A file in it, in place of an earlier one; an empty one is not there.
std::filesystem::path put_file(const std::string& name, std::string_view bytes);

// Empties the folder, and puts each part of an input in it under its name, which may have folders.
void put_files(std::string_view input, const std::vector<std::string>& names);
// Files of a folder as such an input; those that are not there are empty.
std::string joined_files(const std::filesystem::path& folder,
                         const std::vector<std::string>& names);

// A file of the repository, and all of a kind.
std::string repository_file(const std::string& path);
std::vector<std::string> repository_files(const std::string& folder, const std::string& name_end);

// Numbers of an input, one after another; zeros after its end.
class InputNumbers {
 public:
  explicit InputNumbers(std::string_view input) : left_(input) {}

  template <class T>
  T next() {
    T value = {};
    const std::string_view bytes = take(sizeof(T));
    bytes.copy(reinterpret_cast<char*>(&value), sizeof(T));
    return value;
  }
  // -128 to 127, of a byte.
  int small() {
    const int byte = next<unsigned char>();
    return byte < 128 ? byte : byte - 256;
  }
  // As many bytes as the next one says.
  std::string text() { return std::string(take(next<unsigned char>())); }

 private:
  std::string_view take(size_t count) {
    const std::string_view taken = left_.substr(0, count);
    left_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view left_;
};

}  // namespace attnres::testing
