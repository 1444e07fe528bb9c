/* Continues three prompts at once: in_c MODEL. */
#include <attnres_engine.h>
#include <stdio.h>
#include <string.h>

enum { PROMPTS = 3, LONGEST = 1000 };

static int failed(const char* error) {
  fprintf(stderr, "%s\n", error);
  return 1;
}

int main(int argc, char** argv) {
  const char* prompts[PROMPTS] = {"KING", "QUEEN", "FOOL"};
  const char* stops[] = {"\n\n"};
  char texts[PROMPTS][LONGEST] = {"", "", ""};
  const attnres_engine_settings settings = {.sequences = PROMPTS};
  attnres_engine* engine;
  int i, runs;

  if (argc != 2) return failed("usage: in_c MODEL");
  engine = attnres_engine_open(argv[1], &settings);
  if (engine == NULL) return failed(attnres_engine_error());
  for (i = 0; i < PROMPTS; ++i) {
    attnres_request request = attnres_request_default();
    request.text = prompts[i];
    request.temperature = 0;
    request.max_tokens = 20;
    request.stops = stops;
    request.num_stops = 1;
    strcpy(texts[i], prompts[i]);
    if (attnres_engine_submit(engine, &request) != i) return failed(attnres_engine_error());
  }
  while ((runs = attnres_engine_step(engine)) > 0) {
    const attnres_update* update;
    while ((update = attnres_engine_read(engine)) != NULL) {
      char* text = texts[update->request];
      if (update->stop == ATTNRES_FAILED) return failed(update->error);
      strncat(text, update->text, LONGEST - 1 - strlen(text));
    }
  }
  if (runs < 0) return failed(attnres_engine_error());
  attnres_engine_close(engine);
  for (i = 0; i < PROMPTS; ++i) printf("[%s]\n", texts[i]);
  return 0;
}
