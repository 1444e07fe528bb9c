// What a key of a configuration means and may be, as its definition says it (support/config.h):
//
//   v("warmup", warmup, "steps of linear warm-up", at_least(0));
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace attnres {

// One of the texts that a key may be, and what it stands for; empty where the key's own line says
// it.
struct Choice {
  Choice(const char* text, const char* meaning = "") : name(text), meaning(meaning) {}
  std::string name, meaning;
};

// The largest width, number of heads or of experts, rank and the like that is taken for meant.
inline constexpr int64_t kLargestDimension = int64_t{1} << 20;
// The same of what something is multiplied or divided by.
inline constexpr double kLargestFactor = 1e6;

// Of a number, of each of several numbers, or of a text or each of several.
struct Limits {
  double least = -INFINITY, most = INFINITY;
  bool above = false, below = false;  // `least`, or `most`, itself is refused
  std::vector<Choice> choices = {};   // any text where there are none; of a NumberOrWord, its words
  bool required = false;
  // In words, what holds where the key is left out; empty where its default says it.
  std::string otherwise = {};

  Limits or_else(std::string words) const {
    Limits limits = *this;
    limits.otherwise = std::move(words);
    return limits;
  }
  // Of a NumberOrWord whose numbers have these limits.
  Limits or_one_of(std::initializer_list<Choice> words) const {
    Limits limits = *this;
    limits.choices = words;
    return limits;
  }
};

inline Limits at_least(double least) {
  return {.least = least};
}
inline Limits more_than(double least) {
  return {.least = least, .above = true};
}
inline Limits at_most(double most) {
  return {.most = most};
}
inline Limits from_to(double least, double most) {
  return {.least = least, .most = most};
}
// A width, a number of heads and the like.
inline Limits dimension(double least) {
  return from_to(least, kLargestDimension);
}
inline Limits above_to(double least, double most) {
  return {.least = least, .most = most, .above = true};
}
inline Limits factor_from(double least) {
  return from_to(least, kLargestFactor);
}
inline Limits positive_factor() {
  return above_to(0, kLargestFactor);
}
inline Limits fraction_below_one() {
  return {.least = 0, .most = 1, .below = true};
}
inline Limits one_of(std::initializer_list<Choice> choices) {
  return {.choices = choices};
}
Limits one_of_names(const std::vector<std::string>& names);
inline Limits required() {
  return {.required = true};
}

enum class KeyType {
  boolean,
  whole,
  number,
  text,
  number_or_word,
  texts,          // a list of texts
  numbers,        // a list of numbers
  named_numbers,  // an object with free keys
  any,
  object,          // of `keys`
  objects,         // a list of objects of `keys`
  recipe_keys,     // of a study: an object of dotted keys of recipes
  file_or_recipe,  // of a study: a recipe's file, or a recipe itself
};

struct ConfigKey;

// The keys of an object where its key `type` is this.
struct ConfigVariant {
  std::string type, meaning;
  std::vector<ConfigKey> keys;
};

struct ConfigKey {
  std::string name;  // <axis> where names are free, and this stands for any
  KeyType type = KeyType::object;
  std::string meaning = {};
  Limits limits = {};
  std::string standard = {};  // the default, as JSON; empty where there is none
  std::vector<ConfigKey> keys = {};
  std::vector<ConfigVariant> variants = {};  // further keys, as `type` chooses

  bool is_free() const { return name.starts_with('<'); }
};

// "a whole number from 1 to 1024", "more than 0", "epochs (each row once) or drawn": what a key may
// be; empty where it may be anything of its type.
std::string describe(const Limits& limits, bool is_whole);
// "whole number", "list of texts".
std::string describe(KeyType type);

}  // namespace attnres
