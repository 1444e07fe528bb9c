#include "attnres/support/config_key.h"

#include <fmt/core.h>

namespace attnres {
namespace {

std::string describe_choices(const std::vector<Choice>& choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += i + 1 == choices.size() ? " or " : ", ";
    text += choices[i].name;
    if (!choices[i].meaning.empty()) text += fmt::format(" ({})", choices[i].meaning);
  }
  return text;
}

}  // namespace

Limits one_of_names(const std::vector<std::string>& names) {
  Limits limits;
  for (const std::string& name : names) limits.choices.emplace_back(name.c_str());
  return limits;
}

std::string describe(const Limits& limits, bool is_whole) {
  const auto [least, most] = std::pair(limits.least, limits.most);
  const bool is_unbounded = std::isinf(least) && std::isinf(most);
  if (!limits.choices.empty()) {
    const std::string words = describe_choices(limits.choices);
    if (is_unbounded) return words;
    Limits numbers = limits;
    numbers.choices.clear();
    return fmt::format("{}, or {}", describe(numbers, is_whole), words);
  }
  if (is_unbounded) return "";
  if (std::isinf(least)) return fmt::format("{} {}", limits.below ? "below" : "at most", most);
  if (std::isinf(most)) {
    return limits.above ? fmt::format("more than {}", least) : fmt::format("{} or more", least);
  }
  if (!limits.above && !limits.below) {
    return fmt::format("{}{} to {}", is_whole ? "a whole number from " : "", least, most);
  }
  return fmt::format(
      "{} and {} {}",
      limits.above ? fmt::format("above {}", least) : fmt::format("{} or more", least),
      limits.below ? "below" : "at most", most);
}

std::string describe(KeyType type) {
  switch (type) {
    case KeyType::boolean:
      return "true or false";
    case KeyType::whole:
      return "whole number";
    case KeyType::number:
      return "number";
    case KeyType::text:
      return "text";
    case KeyType::number_or_word:
      return "number or word";
    case KeyType::texts:
      return "list of texts";
    case KeyType::numbers:
      return "list of numbers";
    case KeyType::named_numbers:
      return "object of numbers";
    case KeyType::any:
      return "anything";
    case KeyType::object:
      return "object";
    case KeyType::objects:
      return "list of objects";
    case KeyType::recipe_keys:
      return "object of recipe keys";
    case KeyType::file_or_recipe:
      return "a recipe's file, or a recipe";
  }
  return "";
}

}  // namespace attnres
