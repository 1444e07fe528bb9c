// Filters about numbers.
#include <unicode/uchar.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>

#include "attnres/chat/jinja/builtins.h"

namespace attnres::jinja {
namespace {

Value absolute(const Arguments& arguments) {
  const Value& value = operand(arguments);
  if (value.as_number() != nullptr) return Value::number(std::abs(number_of(value)));
  const int64_t integer = integer_of(value, "abs");
  return integer < 0 ? operate("-", Value::integer(0), value) : Value::integer(integer);
}

// What Python's int() and float() take: a sign, and single underscores between digits, which are
// left out, as blanks around it are. Empty of anything else with those.
std::string plain_number(const Text& text) {
  std::string number;
  for (const Value& one : items_of(Value::text(stripped(text, Value::none(), true, true)))) {
    const int32_t digit = u_charDigitValue(character(one.as_text()->bytes()));
    number += digit < 0 ? one.as_text()->bytes() : std::to_string(digit);
  }
  const size_t sign = number.starts_with('+') || number.starts_with('-') ? 1 : 0;
  if (number.size() > sign && (number[sign] == '+' || number[sign] == '-')) return "";
  if (number.starts_with('+')) number.erase(0, 1);
  const auto digit_at = [&](size_t at) {
    return at < number.size() && std::isxdigit(static_cast<unsigned char>(number[at])) != 0;
  };
  for (size_t at = number.find('_'); at != number.npos; at = number.find('_', at + 1)) {
    const bool prefix = at > 0 && std::string_view("xXoObB").find(number[at - 1]) != number.npos;
    if ((!prefix && (at == 0 || !digit_at(at - 1))) || !digit_at(at + 1)) return "";
  }
  std::erase(number, '_');
  return number;
}

// Nothing where it isn't a number as a whole.
std::optional<double> read_real(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  const bool whole = read.ec == std::errc() && read.ptr == end && !text.ends_with(')');
  return whole ? std::optional(number) : std::nullopt;
}

// Base 0 is what the prefix says.
std::optional<int64_t> read_whole(std::string text, int64_t base) {
  const size_t sign = text.starts_with('-') ? 1 : 0;
  constexpr std::pair<std::string_view, int64_t> kPrefixes[] = {{"0x", 16}, {"0X", 16}, {"0o", 8},
                                                                {"0O", 8},  {"0b", 2},  {"0B", 2}};
  for (const auto& [prefix, of] : kPrefixes) {
    if ((base != 0 && base != of) || text.compare(sign, 2, prefix) != 0) continue;
    base = of;
    text.erase(sign, 2);
    break;
  }
  if (text.find('-', sign) != text.npos) return std::nullopt;
  if (base == 0) {
    base = 10;
    const size_t digit = text.find_first_not_of('0', sign);
    if (text.compare(sign, 1, "0") == 0 && digit != text.npos) return std::nullopt;
  }
  if (base < 2 || base > 36) return std::nullopt;
  int64_t whole = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, whole, static_cast<int>(base));
  return read.ec == std::errc() && read.ptr == end ? std::optional(whole) : std::nullopt;
}

Value to_int(const Arguments& arguments) {
  const Value& value = operand(arguments);
  Value otherwise = arguments.get(1, "default", Value::integer(0));
  if (value.is_undefined()) fail("{} is undefined", value.undefined_name());
  std::optional<double> real;
  if (value.as_number() != nullptr) {
    real = number_of(value);
  } else if (const Text* text = value.as_text()) {
    const std::string number = plain_number(*text);
    const int64_t base = integer_of(arguments.get(2, "base", Value::integer(10)), "base");
    if (const auto whole = read_whole(number, base)) return Value::integer(*whole);
    real = read_real(number);
  } else if (is_numeric(value)) {
    return Value::integer(integer_of(value, "int"));
  }
  if (!real || !std::isfinite(*real)) return otherwise;
  require(std::abs(*real) < 9e18, "int: {} is too large a number", *real);
  return Value::integer(static_cast<int64_t>(*real));
}

Value to_float(const Arguments& arguments) {
  const Value& value = operand(arguments);
  if (value.is_undefined()) fail("{} is undefined", value.undefined_name());
  if (is_numeric(value)) return Value::number(number_of(value));
  Value otherwise = arguments.get(1, "default", Value::number(0));
  if (value.as_text() == nullptr) return otherwise;
  const auto real = read_real(plain_number(*value.as_text()));
  return real ? Value::number(*real) : otherwise;
}

// Halves to the even digit, as Python's round(): of the exact value, which 1.115 is a little below.
double rounded_real(double value, int64_t places) {
  if (places > 323 || !std::isfinite(value)) return value;
  if (places < -308) return 0 * value;
  if (places < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-places));
    return std::nearbyint(value / unit) * unit;
  }
  double rounded = 0;
  char digits[1024];  // 309 before the point, 323 behind it at most
  const auto written = std::to_chars(digits, digits + sizeof digits, value,
                                     std::chars_format::fixed, static_cast<int>(places));
  std::from_chars(digits, written.ptr, rounded);
  return rounded;
}

// An int stays one.
int64_t rounded_whole(int64_t value, int64_t places) {
  if (places >= 0) return value;
  if (places < -18) return 0;
  int64_t unit = 1;
  for (int64_t i = 0; i < -places; ++i) unit *= 10;
  const int64_t rest = value % unit;
  const int64_t below = value - rest;
  const int64_t twice = std::abs(rest) - (unit - std::abs(rest));
  const bool away = twice > 0 || (twice == 0 && below / unit % 2 != 0);
  const Value moved = Value::integer(away ? (value < 0 ? -unit : unit) : 0);
  return *operate("+", Value::integer(below), moved).as_integer();
}

Value round(const Arguments& arguments) {
  const Value& value = operand(arguments);
  const int64_t places = integer_of(arguments.get(1, "precision", Value::integer(0)), "precision");
  const std::string method = text_of(arguments.get(2, "method", Value::text("common"))).bytes();
  if (method == "common") {
    if (value.as_number() != nullptr) return Value::number(rounded_real(number_of(value), places));
    return Value::integer(rounded_whole(integer_of(value, "round"), places));
  }
  require(method == "ceil" || method == "floor", "round: expected common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(std::clamp<int64_t>(places, -300, 300)));
  const double scaled = number_of(value) * scale;
  return Value::number((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

}  // namespace

const Builtins& number_filters() {
  static const Builtins filters = {
      {"abs", absolute}, {"float", to_float}, {"int", to_int}, {"round", round}};
  return filters;
}

}  // namespace attnres::jinja
