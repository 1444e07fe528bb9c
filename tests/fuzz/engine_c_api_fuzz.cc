// Arguments of the engine's C interface: settings, requests, and calls in any order.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/infer/engine_c_api.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::engine_c_api_fuzz {
namespace {

using namespace testing;

const char* const kModel = ATTNRES_SOURCE_DIR "/tests/fixtures/llama3_gguf_tiny/model.gguf";

// Small ones mostly, or any.
int64_t whole(InputNumbers& numbers) {
  const auto small = numbers.small();
  return small == 127 ? numbers.next<int64_t>() : small;
}
double real(InputNumbers& numbers) {
  const auto small = numbers.small();
  return small == 127 ? numbers.next<double>() : small / 8.0;
}

attnres_engine* opened(InputNumbers& numbers) {
  attnres_engine_settings settings = {};
  const std::string weights = numbers.text();
  if (!weights.empty()) settings.weights = weights.c_str();
  settings.context = whole(numbers);
  settings.sequences = whole(numbers);
  settings.step_tokens = whole(numbers);
  settings.deterministic = numbers.next<uint8_t>();
  return attnres_engine_open(kModel, &settings);
}

void submit(attnres_engine* engine, InputNumbers& numbers) {
  attnres_request request = attnres_request_default();
  const auto given = numbers.next<uint8_t>();
  const std::string text = numbers.text(), stop = numbers.text();
  std::vector<int32_t> ids(numbers.next<uint8_t>() % 8);
  for (int32_t& id : ids) id = static_cast<int32_t>(whole(numbers));
  const std::array<const char*, 2> stops = {stop.c_str(), (given & 8) != 0 ? nullptr : "x"};
  if ((given & 1) != 0) request.text = text.c_str();
  if ((given & 2) != 0) request.ids = ids.data();
  request.num_ids = ids.size();
  if ((given & 4) != 0) request.stops = stops.data();
  request.num_stops = numbers.next<uint8_t>() % 3;
  request.max_tokens = whole(numbers);
  request.temperature = real(numbers);
  request.top_k = whole(numbers);
  request.top_p = real(numbers);
  request.min_p = real(numbers);
  request.repetition_penalty = real(numbers);
  request.presence_penalty = real(numbers);
  request.frequency_penalty = real(numbers);
  request.seed = numbers.next<uint64_t>();
  attnres_engine_submit(engine, &request);
}

void run(std::string_view input) {
  InputNumbers numbers(input);
  attnres_engine* engine = opened(numbers);
  attnres_engine_notes(engine);
  for (int call = 0; call < 16; ++call) {
    switch (numbers.next<uint8_t>()) {
      case 1:
        submit(engine, numbers);
        break;
      case 2:
        attnres_engine_cancel(engine, whole(numbers));
        break;
      case 3:
        attnres_engine_step(engine);
        break;
      case 4:
        attnres_engine_read(engine);
        break;
      case 5:
        attnres_engine_submit(engine, nullptr);
        break;
      default:
        break;
    }
  }
  attnres_engine_error();
  attnres_engine_close(engine);
}

std::vector<std::string> seeds() {
  const std::string open = {0, 0, 0, 0, 0};
  // Ids 1 and 2, one stop string "x", two tokens, at temperature 0.
  const std::string of_ids = {1, 6, 0, 1, 'x', 2, 1, 2, 1, 2, 0, 0, 8,
                              0, 8, 0, 0, 0,   0, 0, 0, 0, 0, 0, 0};
  const std::string of_text = {1, 1, 2, 'a', 'b', 0, 0, 0, 2, 8, 0, 8,
                               0, 8, 0, 0,   0,   0, 0, 0, 0, 0, 0, 0};
  return {open + of_ids + "\3\4\3\4\4", open + of_text + "\3\4\3\4",
          open + of_ids + std::string{2, 0, 3, 4, 5},
          std::string{4, 'q', '8', '_', '0', 16, 2, 4, 1} + of_ids + of_ids + "\3\3\4\4"};
}

const ListedFuzzTarget kListed({"engine_c_api", run, seeds});

}  // namespace
}  // namespace attnres::engine_c_api_fuzz
