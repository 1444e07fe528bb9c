// Texts continued by a model, many at once: an engine with the model's tokenizer. No tensor
// library, so that a program which has none can be built on it (find_package(attnres COMPONENTS
// engine)).
//
//   attnres::TextEngine engine("models/tiny-shakespeare");
//   engine.submit({.text = "KING HENRY:"});
//   while (!engine.idle()) {
//     for (const attnres::TextUpdate& update : engine.step()) std::cout << update.text;
//   }
//
// What goes wrong is thrown as std::exception with a message for people.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attnres/infer/generation_settings.h"

namespace attnres {

struct TextEngineSettings {
  EngineSettings engine = {};  // a context of 0 is the model's, a larger one is refused
  // How weights are kept: f32, f16, bf16, q8_0 or q4_0; if empty, as a GGUF file has them, and f32
  // of a model directory.
  std::string weights = {};
  int threads = 0;  // of the process; 0 leaves them as they are
};

struct TextRequest {
  std::string text = {};
  std::vector<int32_t> ids = {};        // in place of a text
  GenerationSettings generation = {};   // ends and vocabulary are the model's
  std::vector<std::string> stops = {};  // the text ends before the first of these
};

// What a step gave a request.
struct TextUpdate {
  int64_t request = 0;
  std::string text = {};  // whole characters that are new; none of a model without a tokenizer
  std::optional<int32_t> token = {};
  std::optional<TokenLogprobs> logprobs = {};  // of the token, where they were asked for
  std::optional<StopReason> stopped = {};      // nothing comes after this
  std::string error = {};
};

class TextEngine {
 public:
  // Loads a model directory, a run's folder or a GGUF file.
  explicit TextEngine(const std::filesystem::path& model, const TextEngineSettings& settings = {});
  TextEngine(const TextEngine&) = delete;
  TextEngine& operator=(const TextEngine&) = delete;
  ~TextEngine();

  // Takes a request, and gives it a number. Throws, and takes nothing, as Engine::submit and
  // StopStrings do, and on a text where the model has no tokenizer that is read here.
  int64_t submit(const TextRequest& request);
  // Ends a request; nothing more comes of it. False if it has ended.
  bool cancel(int64_t request);
  // One pass of the model over what requests need next.
  std::vector<TextUpdate> step();
  bool idle() const;

  int64_t context() const;  // most tokens of a sequence, prompt and continuation

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace attnres
