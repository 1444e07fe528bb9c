/* Depth attention for those who have their own tensors: the operation of Attention Residuals
 * (arXiv 2603.15031), forward and backward, on raw pointers. C99 and C++; link attnres_kernels.
 *
 * For every token, over N sources v_i of width D, with q = w * g the pseudo-query times the key
 * gain (equations 2 to 4):
 *
 *   s_i = q . v_i / sqrt(mean(v_i^2) + eps),   alpha = softmax_i(s),   h = sum_i alpha_i v_i
 *
 * There is no 1/sqrt(D), and the values are the sources as they are, not normalised. The gradient
 * dq of q gives dw = dq * g and dg = dq * w. S sites, each with its q, may share one pass over the
 * sources.
 *
 * Phase 1 of the two-phase schedule (Algorithm 1) leaves the sums undivided, to be merged with what
 * other sources gave: m = max s_i, ell = sum e^(s_i - m), o = sum e^(s_i - m) v_i. Two parts make
 *
 *   h = (e^(m1 - m') o1 + e^(m2 - m') o2) / (e^(m1 - m') ell1 + e^(m2 - m') ell2),
 *   m' = max(m1, m2).
 *
 * Their gradients are those of o and ell at a fixed m: with k1 = e^(m1 - m') / the denominator,
 * do1 = k1 dh and dell1 = -k1 (h . dh).
 *
 * Types. Tensors of width D have the dtype of the call; all other numbers have its compute type:
 * double for ATTNRES_FLOAT64, float otherwise. [N, T] stands for contiguous rows of T; rows need no
 * alignment beyond their numbers'. Bfloat16 is the upper half of a float, rounded to nearest even.
 *
 * Ownership. The caller owns all memory; nothing is kept after a call. Outputs may not overlap
 * inputs or each other.
 *
 * Errors. Arguments are checked before anything is written, memory excepted: a call that returns
 * other than ATTNRES_OK or ATTNRES_OUT_OF_MEMORY has written nothing. Pointers are only compared
 * with NULL. Set structs to zero before filling them.
 *
 * Threads. Every function may be called from several threads at a time. Those with a range work on
 * tokens [first, last) with the calling thread alone: the caller spreads ranges over threads. The
 * others use OpenMP's threads, and their results do not depend on how many there are.
 *
 * Largest error of h and of the sources' gradients, relative to their largest magnitude, for scores
 * of standard deviation up to 4 and up to 2,000 channels: float 5e-6, double 1e-14, bfloat16 4e-3.
 */
#ifndef ATTNRES_KERNELS_H_
#define ATTNRES_KERNELS_H_

/* A C header: NOLINTBEGIN(modernize-deprecated-headers,modernize-use-using) */
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  ATTNRES_OK = 0,
  ATTNRES_NULL_POINTER,  /* a pointer that must be given is NULL */
  ATTNRES_WRONG_POINTER, /* a pointer that has no use in this mode is given */
  ATTNRES_WRONG_DTYPE,   /* no attnres_dtype */
  ATTNRES_WRONG_MODE,    /* no attnres_mode */
  ATTNRES_WRONG_SIZE,    /* N, S or D below 1, T below 0, or more numbers than memory holds */
  ATTNRES_WRONG_RANGE,   /* not 0 <= first <= last <= T */
  ATTNRES_WRONG_EPS,     /* eps not positive */
  ATTNRES_OUT_OF_MEMORY  /* for the call's own small buffers */
} attnres_status;

typedef enum { ATTNRES_FLOAT32, ATTNRES_FLOAT64, ATTNRES_BFLOAT16 } attnres_dtype;

typedef enum {
  ATTNRES_WHOLE,    /* outputs are h */
  ATTNRES_PHASE_ONE /* outputs are o, with m and ell */
} attnres_mode;

typedef struct {
  int dtype;                  /* an attnres_dtype */
  int mode;                   /* an attnres_mode */
  int64_t num_sources;        /* N >= 1 */
  int64_t num_sites;          /* S >= 1 */
  int64_t num_tokens;         /* T >= 0 */
  int64_t width;              /* D >= 1 */
  const void* const* sources; /* N pointers to [T, D] */
  const void* queries;        /* q of every site, [S, D], compute type */
} attnres_inputs;

/* All of these are written. */
typedef struct {
  attnres_inputs inputs;
  double eps;           /* > 0 */
  void* const* outputs; /* S pointers to [T, D] */
  void* max;            /* m, [S, T]; NULL unless ATTNRES_PHASE_ONE */
  void* sum;            /* ell, [S, T]; NULL unless ATTNRES_PHASE_ONE */
  void* inverse_rms;    /* 1 / sqrt(mean(v_i^2) + eps), [N, T] */
  void* scores;         /* s, [S, N, T] */
  void* weights;        /* what sources are multiplied by, alpha or e^(s - m), [S, N, T] */
} attnres_forward_args;

/* inputs, inverse_rms, scores and weights are those of the forward. */
typedef struct {
  attnres_inputs inputs;
  const void* inverse_rms;
  const void* scores;
  const void* weights;
  const void* const* grad_outputs; /* S pointers to [T, D], of h or o */
  const void* grad_sum;            /* of ell, [S, T]; NULL unless ATTNRES_PHASE_ONE */
  void* const* grad_sources;       /* N pointers to [T, D], NULL where not wanted */
  int accumulate;                  /* 0: grad_sources are overwritten; else added to */
  void* grad_queries;              /* of q, [S, D], compute type; always added to */
} attnres_backward_args;

/* Tokens [first, last) of every [T]. grad_queries receives these tokens' part: ranges that run at
 * the same time need one each. */
attnres_status attnres_forward_range(const attnres_forward_args* args, int64_t first, int64_t last);
attnres_status attnres_backward_range(const attnres_backward_args* args, int64_t first,
                                      int64_t last);

/* All tokens, with all threads. */
attnres_status attnres_forward(const attnres_forward_args* args);
attnres_status attnres_backward(const attnres_backward_args* args);

/* What an attnres_status means, in English; never NULL. */
const char* attnres_status_text(int status);

/* The version of the library, such as "0.1.0". */
const char* attnres_version(void);

#ifdef __cplusplus
}
#endif

/* NOLINTEND(modernize-deprecated-headers,modernize-use-using) */

#endif /* ATTNRES_KERNELS_H_ */
