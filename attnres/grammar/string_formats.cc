#include "attnres/grammar/string_formats.h"

#include <algorithm>

namespace attnres {
namespace {

// Years of four digits; every month as long as it always is.
const std::string kDate =
    "[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|"
    "(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
const std::string kTime =
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
const std::string kByte = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
// A part of a host's name.
const std::string kLabel = "[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?";
const std::string kHost = kLabel + "(\\." + kLabel + "){1,3}";
const std::string kPath = "(/[A-Za-z0-9._~-]{1,30}){0,8}/?(\\?[A-Za-z0-9._~=&-]{1,60})?";

std::string several(const std::string& pattern, const std::string& times) {
  return "(" + pattern + ")" + times;
}

StringFormat uuid(int version) {
  const std::string number = std::to_string(version), hexadecimal = "[0-9a-f]";
  return {"uuid" + number,
          hexadecimal + "{8}-" + hexadecimal + "{4}-" + number + hexadecimal + "{3}-[89ab]" +
              hexadecimal + "{3}-" + hexadecimal + "{12}",
          36, 36};
}

const std::vector<StringFormat>& formats() {
  static const std::vector<StringFormat> all = {
      {"date", kDate, 10, 10},
      {"time", kTime, 9, 21},
      {"date-time", kDate + "T" + kTime, 20, 32},
      {"duration", "P(([0-9]{1,4}D)(T[0-9]{1,2}H([0-9]{1,2}M([0-9]{1,2}S)?)?)?|T[0-9]{1,4}[HMS])",
       3, 16},
      {"email", "[A-Za-z0-9_+-]{1,20}(\\.[A-Za-z0-9_+-]{1,20}){0,2}@" + kHost, 5, 146},
      {"hostname", kHost, 3, 83},
      {"ipv4", several(kByte + "\\.", "{3}") + kByte, 7, 15},
      {"ipv6", several("[0-9a-f]{1,4}:", "{7}") + "[0-9a-f]{1,4}", 15, 39},
      {"uuid", uuid(4).pattern, 36, 36},
      uuid(1),
      uuid(3),
      uuid(4),
      uuid(5),
      {"uri", "https?://" + kHost + kPath, 10, 401},
      {"uri-reference", "(https?://" + kHost + ")?/[A-Za-z0-9._~-]{0,30}" + kPath, 1, 432},
  };
  return all;
}

}  // namespace

const StringFormat* string_format(const std::string& name) {
  const auto found = std::find_if(formats().begin(), formats().end(),
                                  [&](const StringFormat& format) { return format.name == name; });
  return found == formats().end() ? nullptr : &*found;
}

std::vector<std::string> string_format_names() {
  std::vector<std::string> names;
  for (const StringFormat& format : formats()) names.push_back(format.name);
  return names;
}

bool is_any_text(const std::string& format) {
  const std::vector<std::string> names = {"binary", "password", "path", "file-path",
                                          "directory-path"};
  return std::find(names.begin(), names.end(), format) != names.end();
}

}  // namespace attnres
