/* Depth attention of plain arrays: the input of a site that attends to two sources, and gradients.
 */
#include <attnres_kernels.h>
#include <stdio.h>

enum { N = 2, D = 4 };

static int failed(attnres_status status) {
  if (status != ATTNRES_OK) fprintf(stderr, "attnres: %s\n", attnres_status_text(status));
  return status != ATTNRES_OK;
}

static void print(const char* name, const double* vector) {
  printf("%s %.7f %.7f %.7f %.7f\n", name, vector[0], vector[1], vector[2], vector[3]);
}

int main(void) {
  const double a[D] = {1, 0, 0, 0}, b[D] = {0, 1, 0, 0}, query[D] = {2, 0, 0, 0};
  const void* sources[N] = {a, b};
  double h[D], inverse_rms[N], scores[N], weights[N];
  void* outputs[1] = {h};
  const attnres_forward_args forward = {
      .inputs = {.dtype = ATTNRES_FLOAT64,
                 .mode = ATTNRES_WHOLE,
                 .num_sources = N,
                 .num_sites = 1,
                 .num_tokens = 1,
                 .width = D,
                 .sources = sources,
                 .queries = query},
      .eps = 1e-6,
      .outputs = outputs,
      .inverse_rms = inverse_rms,
      .scores = scores,
      .weights = weights,
  };
  if (failed(attnres_forward(&forward))) return 1;

  const double grad_h[D] = {1, 0, 0, 0};
  const void* grad_outputs[1] = {grad_h};
  void* grad_sources[N] = {NULL, NULL}; /* not wanted */
  double grad_query[D] = {0, 0, 0, 0};
  const attnres_backward_args backward = {
      .inputs = forward.inputs,
      .inverse_rms = inverse_rms,
      .scores = scores,
      .weights = weights,
      .grad_outputs = grad_outputs,
      .grad_sources = grad_sources,
      .grad_queries = grad_query,
  };
  if (failed(attnres_backward(&backward))) return 1;

  print("h", h);
  print("dh0/dw", grad_query);
  return 0;
}
