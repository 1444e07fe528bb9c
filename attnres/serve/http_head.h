// The head of an HTTP/1.1 request (RFC 9112): its line and its headers. It is read strictly: what a
// proxy before this server could take for another request is refused.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace attnres {

// A request that is not read any further: it is answered so, and its connection ends.
struct HttpRefusal : std::runtime_error {
  HttpRefusal(int status, std::string code, const std::string& message)
      : std::runtime_error(message), status(status), code(std::move(code)) {}

  int status;
  std::string code;  // a word for programs, such as "body_too_large"
};

struct HttpHead {
  std::string method = {}, path = {};               // the path without what follows a question mark
  std::string authority = {};                       // of a whole address
  std::map<std::string, std::string> headers = {};  // by their names in lower case
  bool is_old = false;                              // of HTTP/1.0, which has no chunks
  bool is_last = false;                             // the client wants no other on the connection
  bool is_chunked = false;
  int64_t content_length = 0;

  bool has_body() const { return is_chunked || content_length > 0; }
  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

// For words that have no case, such as names of headers and of hosts.
std::string lower_case(std::string_view text);

// Lines are without their ends. These throw HttpRefusal 400, 414 and 501. The line may name the
// whole address, http://host/path, whose host then comes before the header's.
HttpHead parse_request_line(std::string_view line);
void add_header(std::string_view line, HttpHead* head);
// After the last header: whose server is asked, how long the body is, and whether another request
// may follow.
void frame(HttpHead* head);

// What the line before a chunk says, whose extensions mean nothing here.
int64_t parse_chunk_size(std::string_view line);

// Such as "Not Found".
const char* status_text(int status);

}  // namespace attnres
