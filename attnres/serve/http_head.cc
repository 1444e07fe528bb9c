#include "attnres/serve/http_head.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>

#include "attnres/support/format.h"
#include "attnres/support/trim.h"

namespace attnres {
namespace {

constexpr size_t kLongestMethod = 32, kLongestPath = 1024;
constexpr std::string_view kHttpBlanks = " \t";

[[noreturn]] void refuse_line(const std::string& what, std::string_view got) {
  throw HttpRefusal(400, "bad_request", fmt::format("{}, got {}", what, one_line(got)));
}

// RFC 9110, 5.6.2.
bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || (c != 0 && std::strchr("!#$%&'*+-.^_`|~", c) != nullptr);
  });
}

// Beside tabs.
bool has_controls(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char c) { return (c < ' ' && c != '\t') || c == 0x7F; });
}

// Digits only: no sign, nothing around them.
template <int base>
bool parse_size(std::string_view text, int64_t* size) {
  if (text.empty() || text[0] == '-') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *size, base);
  return error == std::errc() && end == text.data() + text.size();
}

// With %2F as /.
std::string decoded(std::string_view path) {
  std::string text;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] != '%') {
      text += path[i];
      continue;
    }
    int64_t byte = 0;
    const std::string_view digits = path.substr(i + 1, 2);
    if (digits.size() != 2 || !parse_size<16>(digits, &byte)) {
      refuse_line("the path: expected two hexadecimal digits after each %", path);
    }
    text += static_cast<char>(byte);
    i += 2;
  }
  return text;
}

// Without the query; of http://host:80/path the path, and the host and port.
std::string_view path_of(std::string_view target, std::string* authority) {
  target = target.substr(0, target.find('?'));
  const size_t scheme = target.find("://");
  if (scheme == std::string_view::npos) return target;
  const std::string name = lower_case(target.substr(0, scheme));
  if (name != "http" && name != "https") return target;
  const std::string_view rest = target.substr(scheme + 3);
  const size_t path = rest.find('/');
  *authority = rest.substr(0, path);
  if (authority->empty()) refuse_line("the request's target: expected a host", target);
  return path == std::string_view::npos ? "/" : rest.substr(path);
}

// Which server is asked (RFC 9112, 3.2): HTTP/1.1 has to say it.
void check_host(HttpHead* head) {
  const auto found = head->headers.find("host");
  const bool there = found != head->headers.end() && !found->second.empty();
  if (!there && !head->is_old) refuse_line("the header host: expected a host", "none");
  if (!head->authority.empty()) head->headers["host"] = head->authority;
  const std::string host = head->header("host");
  constexpr const char* kNone = " \t\"#,/<>?@\\^`{|}";
  if (host.find_first_of(kNone) != host.npos) {
    refuse_line("the host: expected a name or an address, and a port", host);
  }
}

// Whether a comma-separated list has this word.
bool has_word(const std::string& list, const std::string& word) {
  std::string_view rest = list;
  while (true) {
    const size_t comma = rest.find(',');
    if (lower_case(trimmed(rest.substr(0, comma), kHttpBlanks)) == word) return true;
    if (comma == std::string_view::npos) return false;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

HttpHead parse_request_line(std::string_view line) {
  const size_t method_end = line.find(' ');
  const size_t target_end = line.rfind(' ');
  if (method_end == std::string_view::npos || target_end == method_end) {
    refuse_line("expected a line such as GET /health HTTP/1.1", line);
  }
  const std::string_view method = line.substr(0, method_end);
  const std::string_view target = line.substr(method_end + 1, target_end - method_end - 1);
  const std::string_view version = line.substr(target_end + 1);
  if (!is_token(method) || method.size() > kLongestMethod) {
    refuse_line("the method: expected a word such as POST", method);
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    refuse_line("the protocol: expected HTTP/1.1", version);
  }
  if (!std::all_of(target.begin(), target.end(),
                   [](unsigned char c) { return c > ' ' && c < 0x7F; })) {
    refuse_line("the request's target: expected visible characters of ASCII", target);
  }
  HttpHead head{.method = std::string(method), .is_old = version == "HTTP/1.0"};
  const std::string_view path = path_of(target, &head.authority);
  if (path.size() > kLongestPath) {
    throw HttpRefusal(
        414, "path_too_long",
        fmt::format("the path: expected {} bytes at most, got {}", kLongestPath, path.size()));
  }
  const bool is_path = path.starts_with('/') || path == "*";  // of OPTIONS
  if (!is_path) refuse_line("the request's target: expected a path that begins with /", target);
  head.path = decoded(path);
  return head;
}

void add_header(std::string_view line, HttpHead* head) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !is_token(line.substr(0, colon))) {
    refuse_line("a header: expected NAME: VALUE", line);
  }
  const std::string name = lower_case(line.substr(0, colon));
  const std::string_view value = trimmed(line.substr(colon + 1), kHttpBlanks);
  if (has_controls(value)) {
    refuse_line(fmt::format("the header {}: expected no control characters", name), value);
  }
  const auto [found, is_new] = head->headers.emplace(name, value);
  if (is_new) return;
  if (name == "host" || (name == "content-length" && found->second != value)) {
    refuse_line(fmt::format("the header {}: expected it once, got {} and then", name,
                            one_line(found->second)),
                value);
  }
  if (name != "content-length") found->second += ", " + std::string(value);
}

void frame(HttpHead* head) {
  check_host(head);
  for (const char* name : {"expect", "content-encoding"}) {  // whose words have no case
    const auto found = head->headers.find(name);
    if (found != head->headers.end()) found->second = lower_case(found->second);
  }
  const auto encoding = head->headers.find("transfer-encoding");
  const auto length = head->headers.find("content-length");
  if (length != head->headers.end() && !parse_size<10>(length->second, &head->content_length)) {
    refuse_line("the header content-length: expected a number of bytes", length->second);
  }
  if (encoding != head->headers.end()) {
    if (length != head->headers.end() || head->is_old) {
      refuse_line(head->is_old
                      ? "the header transfer-encoding: expected none in HTTP/1.0"
                      : "the header transfer-encoding: expected none beside content-length",
                  encoding->second);
    }
    if (lower_case(encoding->second) != "chunked") {
      throw HttpRefusal(501, "unsupported_transfer_encoding",
                        fmt::format("the header transfer-encoding: expected chunked, got {}",
                                    one_line(encoding->second)));
    }
    head->is_chunked = true;
  }
  head->is_last = head->is_old || has_word(head->header("connection"), "close");
}

int64_t parse_chunk_size(std::string_view line) {
  int64_t size = 0;
  const std::string_view digits = line.substr(0, line.find(';'));
  const size_t end = digits.find_last_not_of(" \t") + 1;  // 0 of blanks alone
  if (has_controls(line) || !parse_size<16>(digits.substr(0, end), &size)) {
    refuse_line("the body: expected a chunk's size in hexadecimal digits", line);
  }
  return size;
}

const char* status_text(int status) {
  static const std::map<int, const char*> all = {
      {200, "OK"},
      {204, "No Content"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {413, "Content Too Large"},
      {414, "URI Too Long"},
      {415, "Unsupported Media Type"},
      {417, "Expectation Failed"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {499, "Client Closed Request"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
  };
  const auto found = all.find(status);
  return found == all.end() ? "Unknown" : found->second;
}

}  // namespace attnres
