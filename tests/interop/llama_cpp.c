// Asks llama.cpp about a GGUF file, by its C interface.
//
// usage: llama_cpp FILE [--vocabulary] < questions, each on a line, answered on a line:
//   score ID ID ...       the log-probability of each token after the first
//   generate N ID ID ...  the N most likely next tokens, one at a time
//   tokenize HEX          the tokens of a text, given as its bytes in hexadecimal digits
//   encode HEX            the same without those that a file adds around a text
//
// With --vocabulary only the tokenizer is read, of files without weights too.
// All in float32, without flash attention.
#include <llama.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kLongestLine = 1 << 20, kMostTokens = 4096 };

static struct llama_model* model;
static const struct llama_vocab* vocab;
static struct llama_context* context;

static void die(const char* what) {
  fprintf(stderr, "llama_cpp: %s\n", what);
  exit(1);
}

static void be_quiet(enum ggml_log_level level, const char* text, void* data) {
  (void)data;
  if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static void open_model(const char* path, bool only_vocabulary) {
  llama_log_set(be_quiet, NULL);
  struct llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  model_params.vocab_only = only_vocabulary;
  model = llama_model_load_from_file(path, model_params);
  if (!model) die("cannot load the model");
  vocab = llama_model_get_vocab(model);
  if (only_vocabulary) return;
  struct llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = kMostTokens;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.n_threads = params.n_threads_batch = 1;
  context = llama_init_from_model(model, params);
  if (!context) die("cannot make a context");
}

// Runs tokens after those before; logits of all of them can be asked for.
static void run(llama_token* ids, int count) {
  struct llama_batch batch = llama_batch_get_one(ids, count);
  int8_t every[kMostTokens];
  memset(every, 1, sizeof(every));
  batch.logits = every;
  if (llama_decode(context, batch) != 0) die("cannot decode");
}

static double log_probability(int position, llama_token id) {
  const float* logits = llama_get_logits_ith(context, position);
  const int count = llama_vocab_n_tokens(vocab);
  double largest = -INFINITY, sum = 0;
  for (int i = 0; i < count; ++i) largest = fmax(largest, logits[i]);
  for (int i = 0; i < count; ++i) sum += exp(logits[i] - largest);
  return logits[id] - largest - log(sum);
}

static llama_token most_likely(int position) {
  const float* logits = llama_get_logits_ith(context, position);
  llama_token best = 0;
  for (llama_token id = 1; id < llama_vocab_n_tokens(vocab); ++id) {
    if (logits[id] > logits[best]) best = id;
  }
  return best;
}

static int read_ids(char* text, llama_token* ids) {
  int count = 0;
  for (char* word = strtok(text, " \n"); word; word = strtok(NULL, " \n")) {
    if (count == kMostTokens) die("too many tokens");
    ids[count++] = atoi(word);
  }
  return count;
}

static void score(char* text) {
  static llama_token ids[kMostTokens];
  const int count = read_ids(text, ids);
  run(ids, count);
  for (int i = 1; i < count; ++i) printf("%.9g ", log_probability(i - 1, ids[i]));
}

static void generate(char* text) {
  static llama_token ids[kMostTokens];
  int wanted = (int)strtol(text, &text, 10);
  int count = read_ids(text, ids);
  for (; wanted > 0; --wanted, count = 1) {
    run(ids, count);
    ids[0] = most_likely(count - 1);
    printf("%d ", ids[0]);
  }
}

static void tokenize(const char* hex, bool add_around) {
  static char text[kLongestLine];
  static llama_token ids[kLongestLine];
  int bytes = 0;
  for (unsigned byte; sscanf(hex, "%2x", &byte) == 1; hex += 2) text[bytes++] = (char)byte;
  const int count = llama_tokenize(vocab, text, bytes, ids, kLongestLine, add_around,
                                   /*parse_special=*/false);
  if (count < 0) die("cannot tokenize");
  for (int i = 0; i < count; ++i) printf("%d ", ids[i]);
}

int main(int count, char** arguments) {
  const bool only_vocabulary = count == 3 && strcmp(arguments[2], "--vocabulary") == 0;
  if (count != 2 && !only_vocabulary) die("usage: llama_cpp FILE [--vocabulary] < questions");
  open_model(arguments[1], only_vocabulary);
  static char line[2 * kLongestLine];
  while (fgets(line, sizeof(line), stdin)) {
    if (context) llama_memory_clear(llama_get_memory(context), true);
    if (strncmp(line, "tokenize ", 9) == 0) {
      tokenize(line + 9, /*add_around=*/true);
    } else if (strncmp(line, "encode ", 7) == 0) {
      tokenize(line + 7, /*add_around=*/false);
    } else if (!context) {
      die("questions about weights need them");
    } else if (strncmp(line, "score ", 6) == 0) {
      score(line + 6);
    } else if (strncmp(line, "generate ", 9) == 0) {
      generate(line + 9);
    } else {
      die("unknown question");
    }
    putchar('\n');
    fflush(stdout);
  }
  if (context) llama_free(context);
  llama_model_free(model);
}
