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

// Filters by what they take or give.
const Builtins& sequence_filters();
const Builtins& text_filters();
const Builtins& number_filters();
Value wordwrap(const Arguments& arguments);
// An argument's truth.
Value flag(const Arguments& arguments, size_t index, std::string_view name, bool otherwise);

// Null where there is none of the name.
Builtin find_filter(std::string_view name);
Builtin find_test(std::string_view name);
// Throw Error where there is none.
Builtin need_filter(std::string_view name);
Builtin need_test(std::string_view name);

// Null where there is none of the name.
const Value* find_global(std::string_view name);
// Python's dict().
Value make_dict(const Arguments& arguments);
// In the place of an entry of the same key. Throws Error on what can be no key.
void set_entry(Entries& entries, const Value& key, const Value& value);

// What a method does with its object, the first argument. Null where its kind of value has no such
// method; what would change the object throws Error when it is called.
Builtin find_method(const Value& object, std::string_view name);
// A function that calls it. Throws Error on what is nested too deeply.
Value bound_method(const Value& object, const std::string& name);
// Methods of texts, which filters are made of; and those of them about letters.
Builtin find_text_method(std::string_view name);
Builtin find_letter_method(std::string_view name);

// An argument that has to be a text: throws Error where it is none.
const Text& text_at(const Arguments& arguments, size_t index, std::string_view name);
// The text whose method is called.
const Text& self(const Arguments& arguments);
// The code point of a text of one character, and whether Python shows it as it is.
int32_t character(std::string_view text);
bool is_printable(int32_t character);
bool is_blank(int32_t character);

// + - * / // % **. Throws Error on values that have no such operation.
Value operate(std::string_view symbol, const Value& a, const Value& b);
// == != < <= > >=, in, not in. Throws Error on values that cannot be compared.
bool compare(std::string_view word, const Value& a, const Value& b);
// object.name of what isn't a method, and object[key]; undefined where it has none. Throw Error on
// what is itself undefined.
Value attribute_of(const Value& object, const std::string& name);
Value item_of(const Value& object, const Value& key);
// a.b.0 of a value, or an item of it; what is undefined on the way is `otherwise` where there is
// one.
Value at_path(Value value, const Value& path, const Value& otherwise = {});
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
// As HTML has < > & ' ", but for markup.
Text escaped_markup(const Text& text);
Text upper_case(const Text& text);
Text lower_case(const Text& text);

}  // namespace attnres::jinja
