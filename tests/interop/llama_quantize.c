// Quantizes a GGUF file as llama-quantize does, by llama.cpp's C interface.
//
// usage: llama_quantize FILE OUT NUMBER       (NUMBER: of the file's type, as llama.h has it)
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>

static void be_quiet(enum ggml_log_level level, const char* text, void* data) {
  (void)data;
  if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  llama_log_set(be_quiet, NULL);
  struct llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = (enum llama_ftype)atoi(argv[3]);
  params.nthread = 1;
  return llama_model_quantize(argv[1], argv[2], &params) == 0 ? 0 : 1;
}
