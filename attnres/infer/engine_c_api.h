/* Texts continued by a model, many at once, in C: open, submit, step, read, close. C99 and C++;
 * link attnres_engine.
 *
 *   attnres_engine* engine = attnres_engine_open("models/tiny-shakespeare", NULL);
 *   attnres_request request = attnres_request_default();
 *   request.text = "KING HENRY:";
 *   attnres_engine_submit(engine, &request);
 *   while (attnres_engine_step(engine) > 0) {
 *     const attnres_update* update;
 *     while ((update = attnres_engine_read(engine)) != NULL) fputs(update->text, stdout);
 *   }
 *   attnres_engine_close(engine);
 *
 * What fails returns NULL or a negative number and changes nothing; attnres_engine_error says why.
 * Strings are UTF-8 and end in a zero. An engine serves one thread at a time.
 */
#ifndef ATTNRES_ENGINE_H_
#define ATTNRES_ENGINE_H_

/* A C header: NOLINTBEGIN(modernize-deprecated-headers,modernize-use-using) */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attnres_engine attnres_engine;

/* Zero, and NULL, take what is in brackets. */
typedef struct {
  const char* weights; /* f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_K, q5_K or q6_K [a GGUF
                          file's; f32 of a model directory] */
  int64_t context;     /* most tokens of a sequence, prompt and continuation [the model's] */
  int64_t sequences;   /* that are computed at once; more requests wait [8] */
  int64_t step_tokens; /* computed in a step at most [512] */
  int threads;         /* of the process [as they are] */
  int deterministic;   /* no bit of a sequence depends on the others [rounding does] */
} attnres_engine_settings;

/* attnres_request_default gives what is in brackets. Pointers are read during the call only. */
typedef struct {
  const char* text;         /* the text to continue, after the tokenizer's begin-of-text token where
                               it adds one [NULL] */
  const int32_t* ids;       /* in its place, num_ids token ids, as they are [NULL] */
  size_t num_ids;           /* [0] */
  const char* const* stops; /* num_stops strings: the text ends before the first of them [NULL] */
  size_t num_stops;         /* [0] */
  int64_t max_tokens;       /* most tokens of the continuation [200] */
  double temperature;       /* 0 takes the most likely token [1] */
  int64_t top_k;            /* only the most likely tokens; 0 for all [0] */
  double top_p;             /* only the fewest that hold this probability [1] */
  double min_p;             /* only those at least this times as likely as the likeliest [0] */
  double repetition_penalty, presence_penalty, frequency_penalty; /* [1, 0, 0] */
  uint64_t seed;                                                  /* [1] */
} attnres_request;

typedef enum {
  ATTNRES_GOES_ON,
  ATTNRES_STOPPED_AT_END_OF_DOCUMENT,
  ATTNRES_STOPPED_AT_MAX_TOKENS,
  ATTNRES_STOPPED_AT_CONTEXT,
  ATTNRES_STOPPED_AT_STOP_STRING,
  ATTNRES_FAILED /* error says why */
} attnres_stop;

typedef struct {
  int64_t request;
  const char* text; /* whole characters that are new; empty of a model without a tokenizer */
  int32_t token;    /* -1 where there is none */
  double logprob;   /* of the token, in nats; 0 where there is none */
  int stop;         /* an attnres_stop; nothing comes after it but ATTNRES_GOES_ON */
  const char* error;
} attnres_update;

/* Loads a model directory, a run's folder or a GGUF file. Settings may be NULL. */
attnres_engine* attnres_engine_open(const char* model, const attnres_engine_settings* settings);

/* What of the model's files is not read, for people: a line each; NULL where there is nothing to
 * say. Valid until the engine is closed. */
const char* attnres_engine_notes(const attnres_engine* engine);

attnres_request attnres_request_default(void);

/* The request's number, 0 or more. */
int64_t attnres_engine_submit(attnres_engine* engine, const attnres_request* request);

/* Ends a request: 1, or 0 if it has ended. */
int attnres_engine_cancel(attnres_engine* engine, int64_t request);

/* One pass of the model over what requests need next. 1, or 0 where there is nothing to do and
 * nothing to read. */
int attnres_engine_step(attnres_engine* engine);

/* The next update of the steps so far, valid until the next call with this engine; NULL after the
 * last. */
const attnres_update* attnres_engine_read(attnres_engine* engine);

void attnres_engine_close(attnres_engine* engine);

/* What the last call of this thread that failed said; never NULL. */
const char* attnres_engine_error(void);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-deprecated-headers,modernize-use-using) */

#endif /* ATTNRES_ENGINE_H_ */
