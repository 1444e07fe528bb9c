// A tokenizer whose tokens a test lists.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnres/support/error.h"
#include "attnres/text/tokenizer.h"

namespace attnres::testing {

// One that is empty is a control token, called <N>.
class ListedTokens : public Tokenizer {
 public:
  explicit ListedTokens(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  std::string kind() const override { return "listed"; }
  int64_t vocab_size() const override { return std::ssize(texts_); }
  int32_t end_of_document() const override { return 0; }
  bool needs_utf8() const override { return false; }
  // The longest that comes next.
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      int32_t longest = -1;
      for (int32_t id = 0; id < vocab_size(); ++id) {
        const std::string& token = texts_[id];
        const size_t bytes = longest < 0 ? 0 : texts_[longest].size();
        if (token.size() > bytes && text.starts_with(token)) longest = id;
      }
      require(longest >= 0, "no token begins {}", text);
      ids.push_back(longest);
      text.remove_prefix(texts_[longest].size());
    }
    return ids;
  }
  std::optional<int32_t> control_token(std::string_view name) const override {
    for (int32_t id = 0; id < vocab_size(); ++id) {
      if (!name.empty() && control_token_name(id) == name) return id;
    }
    return {};
  }
  std::string token_text(int32_t id) const override { return texts_.at(id); }
  std::string control_token_name(int32_t id) const override {
    return texts_.at(id).empty() ? "<" + std::to_string(id) + ">" : "";
  }
  void save(const std::filesystem::path& /*folder*/) const override { fail("not here"); }

 protected:
  std::string definition() const override { return ""; }

 private:
  std::vector<std::string> texts_;
};

}  // namespace attnres::testing
