// What a server is told. Times in seconds, sizes in bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attnres {

// Each with an error of its own where it is exceeded (docs/serving.md).
struct HttpLimits {
  int64_t connections = 64;         // at once; more take the place of those that wait, or get 503
  double grace_seconds = 1;         // that a connection may wait before it gives way to another
  int64_t body_bytes = 8 << 20;     // as it is sent: 413
  int64_t bodies_bytes = 64 << 20;  // of all bodies at once, beyond 64 KiB of each: 503
  int64_t header_bytes = 32 << 10;  // of request line and headers: 431
  double read_seconds = 20;         // from a request's first byte to its last: 408
  double write_seconds = 20;        // that a client may take to accept what is sent to it
  double idle_seconds = 30;         // between two requests of a connection
};

struct ApiLimits {
  int64_t queue = 256;           // sequences that wait for a slot: 429
  int64_t prompt_tokens = 0;     // of one sequence: 400; 0: what the context holds
  int64_t new_tokens = 0;        // asked for: 400; 0: what the context holds
  int64_t sequences = 128;       // of one request, prompts times n: 400
  int64_t depth_tokens = 4096;   // of a sequence whose depth weights are asked for: 400
  double request_seconds = 600;  // of one request, waiting included: 504, or the stream's end
  double comment_seconds = 15;   // of a stream that says nothing, until a comment keeps it open
};

struct ApiSettings {
  std::string api_key = {};               // none: nobody is asked for one
  std::vector<std::string> origins = {};  // of pages of others that may ask: CORS
  bool log_prompts = false;
  ApiLimits limits = {};
};

}  // namespace attnres
