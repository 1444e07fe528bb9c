#include "attnres/text/hugging_face/tokenizer_json.h"

#include <algorithm>

#include "attnres/support/format.h"
#include "attnres/text/hugging_face/json_part.h"

namespace attnres {
namespace {

BpeModel::Vocabulary read_vocabulary(const JsonPart& part) {
  if (!part.json().is_object() || part.json().empty()) part.refuse("an object of tokens");
  BpeModel::Vocabulary vocabulary;
  vocabulary.reserve(part.json().size());
  for (const auto& [text, id] : part.json().items()) {
    const auto number = whole_number(id);
    if (!number || *number < 0 || *number > INT32_MAX) {
      fail("{}: token '{}': expected a number from 0 on, found {}", part.name(), one_line(text),
           shown(id));
    }
    vocabulary.emplace_back(text, static_cast<int32_t>(*number));
  }
  return vocabulary;
}

// "a b" or ["a", "b"]
BpeModel::Merges read_merges(const JsonPart& part) {
  if (!part.json().is_array()) part.refuse("a list of merges");
  BpeModel::Merges merges;
  merges.reserve(part.json().size());
  for (const Json& merge : part.json()) {
    if (merge.is_string()) {
      const auto& text = merge.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        fail("{}: merge {}: expected two tokens with a space between them, found '{}'", part.name(),
             merges.size(), one_line(text));
      }
      merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else {
      require(merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string(),
              "{}: merge {}: expected two tokens, found {}", part.name(), merges.size(),
              shown(merge));
      merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    }
  }
  return merges;
}

std::vector<AddedToken> read_added_tokens(const JsonPart& part) {
  std::vector<AddedToken> tokens;
  if (part.is_null()) return tokens;
  for (const JsonPart& token : part.list()) {
    const bool special = token.at("special").flag(false);
    const int64_t id = token.at("id").count();
    if (id > INT32_MAX) token.at("id").refuse("a smaller number");
    tokens.push_back({.id = static_cast<int32_t>(id),
                      .content = token.at("content").text(),
                      .single_word = token.at("single_word").flag(false),
                      .lstrip = token.at("lstrip").flag(false),
                      .rstrip = token.at("rstrip").flag(false),
                      .normalized = token.at("normalized").flag(!special),
                      .special = special});
  }
  return tokens;
}

void refuse_unless_empty(const JsonPart& part) {
  const Json& json = part.json();
  const bool empty = json.is_null() || (json.is_string() && json.get<std::string>().empty()) ||
                     (json.is_number() && json.get<double>() == 0);
  if (!empty) part.refuse("nothing");
}

}  // namespace

TokenizerJson byte_level_tokenizer(const std::string& pattern) {
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", false}};
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  TokenizerJson tokenizer;
  tokenizer.pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
  tokenizer.decoder = bytes;
  return tokenizer;
}

TokenizerJson read_tokenizer_json(std::string_view text, const std::string& what) {
  const Json json = parse_json(text, what);
  const JsonPart file(json, what);
  const JsonPart model = file.at("model");
  if (!model.json().is_object()) model.refuse("a model");
  // Files of old have no type, and BPE's only has merges.
  const JsonPart type = model.at("type");
  if (type.is_null() ? model.at("merges").is_null() : type.text() != "BPE") {
    type.refuse("a BPE model");
  }
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    refuse_unless_empty(model.at(key));
  }

  TokenizerJson tokenizer;
  tokenizer.vocabulary = read_vocabulary(model.at("vocab"));
  tokenizer.merges = read_merges(model.at("merges"));
  tokenizer.settings.ignore_merges = model.at("ignore_merges").flag(false);
  tokenizer.settings.byte_fallback = model.at("byte_fallback").flag(false);
  tokenizer.settings.fuse_unk = model.at("fuse_unk").flag(false);
  const JsonPart unknown = model.at("unk_token");
  if (!unknown.is_null()) tokenizer.settings.unk_token = unknown.text();
  tokenizer.added_tokens = read_added_tokens(file.at("added_tokens"));
  tokenizer.normalizer = file.at("normalizer").json();
  tokenizer.pre_tokenizer = file.at("pre_tokenizer").json();
  tokenizer.post_processor = file.at("post_processor").json();
  tokenizer.decoder = file.at("decoder").json();
  return tokenizer;
}

std::string named_token(const Json& config, const char* key) {
  if (!config.is_object() || !config.contains(key)) return "";
  const Json& token = config[key];
  const Json& name = token.is_object() && token.contains("content") ? token["content"] : token;
  return name.is_string() ? name.get<std::string>() : "";
}

bool named_flag(const Json& config, const char* key, bool otherwise) {
  if (!config.is_object()) return otherwise;
  const auto found = config.find(key);
  return found != config.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

std::string write_tokenizer_json(const TokenizerJson& tokenizer) {
  Json added = Json::array();
  for (const AddedToken& token : tokenizer.added_tokens) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  const BpeSettings& settings = tokenizer.settings;
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", settings.unk_token ? Json(*settings.unk_token) : Json()},
                      {"continuing_subword_prefix", nullptr},
                      {"end_of_word_suffix", nullptr},
                      {"fuse_unk", settings.fuse_unk},
                      {"byte_fallback", settings.byte_fallback},
                      {"ignore_merges", settings.ignore_merges}};
  const Json rest = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", tokenizer.normalizer},
                     {"pre_tokenizer", tokenizer.pre_tokenizer},
                     {"post_processor", tokenizer.post_processor},
                     {"decoder", tokenizer.decoder},
                     {"model", model}};
  // An object of Json looks through all its keys for each that is added: tokens are written by
  // themselves, where the model's braces end.
  std::string text = rest.dump(2);
  text.erase(text.rfind('}', text.rfind('}') - 1));
  text.erase(text.find_last_not_of(" \n") + 1);
  BpeModel::Vocabulary by_id = tokenizer.vocabulary;
  std::sort(by_id.begin(), by_id.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
  const char* separator = "";
  text += ",\n    \"vocab\": {";
  for (const auto& [token, id] : by_id) {
    text += fmt::format("{}\n      {}: {}", separator, Json(token).dump(), id);
    separator = ",";
  }
  text += "\n    },\n    \"merges\": [";
  separator = "";
  for (const auto& [left, right] : tokenizer.merges) {
    text += fmt::format("{}\n      [{}, {}]", separator, Json(left).dump(), Json(right).dump());
    separator = ",";
  }
  return text + "\n    ]\n  }\n}\n";
}

}  // namespace attnres
