// Python's two ways to write values by a pattern.
#include <algorithm>
#include <cmath>
#include <string>

#include "attnres/chat/jinja/builtins.h"
#include "attnres/text/utf8.h"

namespace attnres::jinja {
namespace {

constexpr int64_t kWidest = 10'000, kMostDigits = 1000;

struct Conversion {
  std::string fill = " ";
  char align = '\0';  // < > ^, = between sign and digits, or what the kind has
  char sign = '-';    // of what is not negative: none, a plus or a blank
  int64_t width = 0;
  bool prefixed = false;  // 0x and the like
  char separator = '\0';  // between groups of digits
  int64_t precision = -1;
  char kind = '\0';
};

bool is_one_of(std::string_view kinds, char c) {
  return c != '\0' && kinds.find(c) != kinds.npos;
}

char byte_at(std::string_view text, size_t at) {
  return at < text.size() ? text[at] : '\0';
}

// Nothing where no digit follows.
int64_t take_count(std::string_view text, size_t* at, int64_t most) {
  int64_t count = 0;
  for (; is_one_of("0123456789", byte_at(text, *at)); ++*at) {
    count = 10 * count + (text[*at] - '0');
    require(count <= most, "format: expected a width or precision of at most {}", most);
  }
  return count;
}

void take_precision(std::string_view text, size_t* at, Conversion* conversion) {
  if (byte_at(text, *at) != '.') return;
  ++*at;
  conversion->precision = take_count(text, at, kMostDigits);
}

void add_separators(std::string& digits, char separator) {
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t at = whole; at > 3; at -= 3) digits.insert(at - 3, 1, separator);
}

// So many digits, as the kind g has them, but with one behind the point, and an exponent sooner.
std::string short_digits(double size, int64_t precision) {
  const int64_t count = std::max<int64_t>(precision, 1);
  std::string digits = fmt::format("{:.{}e}", size, count - 1);
  const size_t e = digits.find('e');
  if (e == digits.npos) return digits;  // inf and nan
  const int64_t exponent = std::stol(digits.substr(e + 1));
  const auto stripped_zeros = [](std::string text) {
    if (text.find('.') != text.npos) text.erase(text.find_last_not_of('0') + 1);
    return text.ends_with('.') ? text.substr(0, text.size() - 1) : text;
  };
  if (exponent < -4 || exponent >= count - 1) {
    return stripped_zeros(digits.substr(0, e)) + digits.substr(e);
  }
  digits = stripped_zeros(fmt::format("{:.{}f}", size, count - 1 - exponent));
  return digits.find('.') == digits.npos ? digits + ".0" : digits;
}

std::string real_digits(double size, const Conversion& conversion) {
  const int64_t precision = conversion.precision < 0 ? 6 : conversion.precision;
  const char kind = conversion.kind;
  if (is_one_of("fF", kind)) return fmt::format("{:.{}f}", size, precision);
  if (kind == '%') return fmt::format("{:.{}f}%", 100 * size, precision);
  if (is_one_of("eEgG", kind)) {
    const int64_t least = is_one_of("gG", kind) ? 1 : 0;
    return fmt::format(fmt::runtime(fmt::format("{{:.{{}}{}}}", kind)), size,
                       std::max(precision, least));
  }
  require(conversion.kind == '\0', "format: the conversion {} of a float is not supported",
          conversion.kind);
  return conversion.precision < 0 ? text_of(Value::number(size)).bytes()
                                  : short_digits(size, conversion.precision);
}

std::string whole_digits(int64_t value, const Conversion& conversion) {
  const uint64_t size = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const char kind = is_one_of("xXob", conversion.kind) ? conversion.kind : 'd';
  std::string digits = fmt::format(fmt::runtime(fmt::format("{{:{}}}", kind)), size);
  if (conversion.precision > std::ssize(digits)) {
    digits.insert(0, static_cast<size_t>(conversion.precision) - digits.size(), '0');
  }
  if (conversion.separator != '\0') add_separators(digits, conversion.separator);
  return conversion.prefixed && kind != 'd' ? fmt::format("0{}{}", kind, digits) : digits;
}

Text widened(std::string_view sign, const Text& body, const Conversion& conversion) {
  const int64_t size = length_of(Value::text(body)) + std::ssize(sign);
  const int64_t missing = std::max<int64_t>(conversion.width - size, 0);
  const char align = conversion.align;
  const int64_t before = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  const Value fill = Value::text(conversion.fill);
  Text out;
  if (align == '=') out.append(sign);
  out.append(*operate("*", fill, Value::integer(before)).as_text());
  if (align != '=') out.append(sign);
  out.append(body);
  out.append(*operate("*", fill, Value::integer(missing - before)).as_text());
  return out;
}

Text converted(const Value& value, const Conversion& conversion) {
  if (is_one_of("sr", conversion.kind)) {
    Text text = conversion.kind == 's' ? text_of(value) : repr_of(value);
    if (conversion.precision >= 0) {
      const Value end = Value::integer(conversion.precision);
      text = *slice_of(Value::text(std::move(text)), nullptr, &end, nullptr).as_text();
    }
    return widened("", text, conversion);
  }
  require(is_numeric(value), "format: expected a number, got a {}", value.type());
  bool negative = false;
  std::string digits;
  if (is_one_of("diuxXob", conversion.kind)) {
    const double* real = value.as_number();
    require(real == nullptr || std::abs(*real) < 9e18, "format: {} is no int", number_of(value));
    const int64_t whole = real ? static_cast<int64_t>(*real) : integer_of(value, "format");
    negative = whole < 0;
    digits = whole_digits(whole, conversion);
  } else {
    negative = std::signbit(number_of(value));
    digits = real_digits(std::abs(number_of(value)), conversion);
    if (conversion.separator != '\0') add_separators(digits, conversion.separator);
  }
  const std::string sign = negative                 ? "-"
                           : conversion.sign == '-' ? ""
                                                    : std::string(1, conversion.sign);
  return widened(sign, Text(digits), conversion);
}

// Behind the percent sign and a name in parentheses.
Conversion take_conversion(std::string_view text, size_t* at) {
  Conversion conversion{.align = '>'};
  bool zeros = false;
  for (; is_one_of("-+ 0#", byte_at(text, *at)); ++*at) {
    const char flag = text[*at];
    conversion.prefixed = conversion.prefixed || flag == '#';
    if (flag == '-') conversion.align = '<';
    if (flag == '+' || (flag == ' ' && conversion.sign == '-')) conversion.sign = flag;
    zeros = zeros || flag == '0';
  }
  conversion.width = take_count(text, at, kWidest);
  take_precision(text, at, &conversion);
  conversion.kind = byte_at(text, (*at)++);
  require(is_one_of("srdiuxXoeEfFgG%", conversion.kind),
          "format: the conversion %{} is not supported",
          conversion.kind == '\0' ? ' ' : conversion.kind);
  if (zeros && conversion.align == '>' && !is_one_of("sr", conversion.kind)) {
    conversion.align = '=';
    conversion.fill = "0";
  }
  return conversion;
}

}  // namespace

Text percent_format(const Text& format, const Value& values) {
  const std::string_view bytes = format.bytes();
  const ListNode* tuple = values.as_list() && values.as_list()->tuple ? values.as_list() : nullptr;
  const size_t count = tuple ? tuple->items.size() : 1;
  size_t used = 0;
  Text out;
  for (size_t at = 0;;) {
    const size_t percent = std::min(bytes.find('%', at), bytes.size());
    out.append(format.slice(at, percent - at));
    if (percent == bytes.size()) break;
    at = percent + 1;
    const Value* value = nullptr;
    if (byte_at(bytes, at) == '(') {
      const size_t end = bytes.find(')', at);
      require(end != bytes.npos && values.as_dict() != nullptr,
              "format: expected a name in parentheses, and a dict");
      value = values.as_dict()->find(bytes.substr(at + 1, end - at - 1));
      require(value != nullptr, "format: the dict has no {}",
              bytes.substr(at + 1, std::min<size_t>(end - at - 1, 100)));
      at = end + 1;
    }
    const Conversion conversion = take_conversion(bytes, &at);
    if (conversion.kind == '%') {
      out.append("%");
      continue;
    }
    if (value == nullptr) {
      require(used < count, "format: there are fewer values than conversions");
      value = tuple ? &tuple->items[used] : &values;
      ++used;
    }
    out.append(converted(*value, conversion));
  }
  const bool may_stay = values.as_dict() != nullptr || (values.as_list() && tuple == nullptr);
  require(used == count || may_stay, "format: there are more values than conversions");
  return out;
}

Text formatted(const Value& value, std::string_view spec) {
  if (spec.empty()) return text_of(value);
  const bool is_text = value.as_text() != nullptr;
  require(is_text || is_numeric(value), "format: a {} takes no format", value.type());
  Conversion conversion;
  size_t at = 0;
  if (const size_t bytes = utf8_step(spec).bytes; is_one_of("<>^=", byte_at(spec, bytes))) {
    conversion.fill = spec.substr(0, bytes);
    at = bytes;
  }
  if (is_one_of("<>^=", byte_at(spec, at))) conversion.align = spec[at++];
  if (is_one_of("+- ", byte_at(spec, at))) conversion.sign = spec[at++];
  if (byte_at(spec, at) == '#') conversion.prefixed = ++at > 0;
  if (byte_at(spec, at) == '0') {
    if (conversion.fill == " ") conversion.fill = "0";
    if (conversion.align == '\0') conversion.align = is_text ? '<' : '=';
  }
  conversion.width = take_count(spec, &at, kWidest);
  if (is_one_of(",_", byte_at(spec, at))) conversion.separator = spec[at++];
  take_precision(spec, &at, &conversion);
  if (is_one_of("sdxXobeEfFgG%", byte_at(spec, at))) conversion.kind = spec[at++];
  const bool precise_int = conversion.precision >= 0 && is_one_of("dxXob", conversion.kind);
  require(at == spec.size() && !precise_int, "format: {} is not supported", spec.substr(0, 100));
  if (conversion.align == '\0') conversion.align = is_text ? '<' : '>';
  if (conversion.kind == '\0' && value.as_number() == nullptr) {
    conversion.kind = is_text ? 's' : 'd';
  }
  require(is_text == (conversion.kind == 's') &&
              (value.as_number() == nullptr || !is_one_of("dxXob", conversion.kind)),
          "format: a {} takes no {}", value.type(), spec.substr(0, 100));
  return converted(value, conversion);
}

}  // namespace attnres::jinja
