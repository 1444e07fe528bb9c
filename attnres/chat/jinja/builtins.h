// What comes with Jinja: filters, tests, methods of values and operators.
#pragma once

#include <map>
#include <string_view>

#include "attnres/chat/jinja/value.h"

namespace attnres::jinja {

// The first argument of a filter or test is the operand. Each throws Error on what it doesn't take,
// as Python would.
using Builtin = Value (*)(const Arguments& arguments);
using Builtins = std::map<std::string_view, Builtin>;

inline const Value& operand(const Arguments& arguments) {
  return arguments.need(0, "the operand");
}

// Null where there is none of the name.
Builtin find_filter(std::string_view name);
Builtin find_test(std::string_view name);
// Throw Error where there is none.
Builtin need_filter(std::string_view name);
Builtin need_test(std::string_view name);

// What a method does with its object, the first argument. Null where its kind of value has no such
// method; what would change the object throws Error when it is called.
Builtin find_method(const Value& object, std::string_view name);
// Methods of texts, which filters are made of; and those of them about letters.
Builtin find_text_method(std::string_view name);
Builtin find_letter_method(std::string_view name);

// An argument that has to be a text: throws Error where it is none.
const Text& text_at(const Arguments& arguments, size_t index, std::string_view name);
// The text whose method is called.
const Text& self(const Arguments& arguments);
// The code point of a text of one character.
int32_t character(std::string_view text);

// + - * / // % **. Throws Error on values that have no such operation.
Value operate(std::string_view symbol, const Value& a, const Value& b);
// == != < <= > >=, in, not in. Throws Error on values that cannot be compared.
bool compare(std::string_view word, const Value& a, const Value& b);
// object.name of what isn't a method, and object[key]; undefined where it has none. Throw Error on
// what is itself undefined.
Value attribute_of(const Value& object, const std::string& name);
Value item_of(const Value& object, const Value& key);
// Null bounds are those that are left out.
Value slice_of(const Value& object, const Value* begin, const Value* end, const Value* step);

// Texts, with what is written kept.
// As Python has `format % values`: of a tuple each, of a dict by their names, else one. Throws
// Error on conversions that there are not, and on as many digits as no text needs.
Text percent_format(const Text& format, const Value& values);
// What stands behind the colon of "{:.2f}".format(value): fill, alignment, sign, 0, width, a comma,
// precision and kind. Throws Error on anything else.
Text formatted(const Value& value, std::string_view spec);
size_t find_bytes(std::string_view text, std::string_view part, size_t from = 0);
Text replaced(const Text& text, std::string_view old, const Text& other, int64_t count);
Text stripped(const Text& text, const Value& characters, bool left, bool right);
Values split_lines(const Text& text, bool keeps_ends = false);
Text upper_case(const Text& text);
Text lower_case(const Text& text);

}  // namespace attnres::jinja
