#include "attnres/text/ids.h"

#include <fmt/ranges.h>

#include "attnres/support/file.h"

namespace attnres {

std::vector<int32_t> IdsTokenizer::encode(std::string_view /*text*/) const {
  fail(
      "this model has no tokenizer that is read here, so text cannot be tokenized; give token ids");
}

std::string IdsTokenizer::decode(const std::vector<int32_t>& ids) const {
  for (const int32_t id : ids) check_id(id);
  return fmt::format("{}", fmt::join(ids, " "));
}

std::string IdsTokenizer::token_text(int32_t id) const {
  check_id(id);
  return "";
}

void IdsTokenizer::save(const std::filesystem::path& folder) const {
  make_folder(folder);
  for (const auto& [name, text] : files_) write_file(folder / name, text);
}

}  // namespace attnres
