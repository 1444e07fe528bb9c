// Continues three prompts at once: in_cpp MODEL.
#include <attnres/infer/text_engine.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: in_cpp MODEL\n");
    return 2;
  }
  try {
    attnres::TextEngine engine(argv[1], {.engine = {.sequences = 3}});
    std::vector<std::string> texts = {"KING", "QUEEN", "FOOL"};
    for (const std::string& text : texts) {
      engine.submit({.text = text,
                     .generation = {.sampling = {.temperature = 0}, .max_tokens = 20},
                     .stops = {"\n\n"}});
    }
    while (!engine.idle()) {
      for (const attnres::TextUpdate& update : engine.step()) {
        texts[static_cast<size_t>(update.request)] += update.text;
        if (update.stopped == attnres::StopReason::failed) {
          std::fprintf(stderr, "%s\n", update.error.c_str());
          return 1;
        }
      }
    }
    for (const std::string& text : texts) std::printf("[%s]\n", text.c_str());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
