// The library's only symbols that others see.
#pragma GCC visibility push(default)
#include "attnres/ops/depth_attention/kernel_c_api.h"
#pragma GCC visibility pop

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <new>
#include <valarray>
#include <vector>

#include "attnres/ops/depth_attention/kernel.h"

namespace attnres::kernel {
namespace {

// Tokens a thread takes at a time. Independent of the number of threads, since the queries'
// gradients are summed chunk by chunk.
constexpr int64_t kSmallestChunk = 32, kMostChunks = 64;

bool fits_in_memory(int64_t a, int64_t b) {
  return b == 0 || a <= std::numeric_limits<int64_t>::max() / int64_t{sizeof(double)} / b;
}

bool has_null(const void* const* pointers, int64_t count) {
  return std::any_of(pointers, pointers + count, [](const void* p) { return p == nullptr; });
}

attnres_status check_inputs(const attnres_inputs& in) {
  switch (in.dtype) {
    case ATTNRES_FLOAT32:
    case ATTNRES_FLOAT64:
    case ATTNRES_BFLOAT16:
      break;
    default:
      return ATTNRES_WRONG_DTYPE;
  }
  if (in.mode != ATTNRES_WHOLE && in.mode != ATTNRES_PHASE_ONE) return ATTNRES_WRONG_MODE;
  const int64_t N = in.num_sources, S = in.num_sites, T = in.num_tokens, D = in.width;
  if (N < 1 || S < 1 || T < 0 || D < 1) return ATTNRES_WRONG_SIZE;
  if (!fits_in_memory(T, D) || !fits_in_memory(S, D) || !fits_in_memory(S, N) ||
      !fits_in_memory(S * N, T)) {
    return ATTNRES_WRONG_SIZE;
  }
  if (!in.sources || !in.queries || has_null(in.sources, N)) return ATTNRES_NULL_POINTER;
  return ATTNRES_OK;
}

// What exists in phase 1 only must be given then, and only then.
attnres_status check_of_phase_one(const attnres_inputs& in, const void* pointer) {
  if (in.mode == ATTNRES_PHASE_ONE) return pointer ? ATTNRES_OK : ATTNRES_NULL_POINTER;
  return pointer ? ATTNRES_WRONG_POINTER : ATTNRES_OK;
}

attnres_status check(const attnres_forward_args* args) {
  if (!args) return ATTNRES_NULL_POINTER;
  if (const auto status = check_inputs(args->inputs)) return status;
  if (!(args->eps > 0 && std::isfinite(args->eps))) return ATTNRES_WRONG_EPS;
  if (!args->outputs || has_null(args->outputs, args->inputs.num_sites) || !args->inverse_rms ||
      !args->scores || !args->weights) {
    return ATTNRES_NULL_POINTER;
  }
  if (const auto status = check_of_phase_one(args->inputs, args->max)) return status;
  return check_of_phase_one(args->inputs, args->sum);
}

attnres_status check(const attnres_backward_args* args) {
  if (!args) return ATTNRES_NULL_POINTER;
  if (const auto status = check_inputs(args->inputs)) return status;
  if (!args->inverse_rms || !args->scores || !args->weights || !args->grad_outputs ||
      has_null(args->grad_outputs, args->inputs.num_sites) || !args->grad_sources ||
      !args->grad_queries) {
    return ATTNRES_NULL_POINTER;
  }
  return check_of_phase_one(args->inputs, args->grad_sum);
}

template <class To, class From>
std::vector<To*> typed(From* const* pointers, int64_t count) {
  std::vector<To*> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(static_cast<To*>(pointers[i]));
  return result;
}

// Pointers to the rows of [N, T].
template <class T>
std::vector<T*> rows(T* first, int64_t num_rows, int64_t length) {
  std::vector<T*> result;
  for (int64_t n = 0; n < num_rows; ++n) result.push_back(first + n * length);
  return result;
}

template <class Storage>
DepthAttentionInputs<Storage> typed_inputs(const attnres_inputs& in,
                                           const std::vector<const Storage*>& sources) {
  return {sources.data(), static_cast<const Compute<Storage>*>(in.queries),
          in.num_sources, in.num_sites,
          in.num_tokens,  in.width};
}

// The kernel's arguments, and the arrays that they point to.
template <class Storage>
class Forward {
 public:
  using T = Compute<Storage>;
  explicit Forward(const attnres_forward_args& args)
      : sources_(typed<const Storage>(args.inputs.sources, args.inputs.num_sources)),
        outputs_(typed<Storage>(args.outputs, args.inputs.num_sites)),
        inverse_rms_(rows(static_cast<T*>(args.inverse_rms), args.inputs.num_sources,
                          args.inputs.num_tokens)),
        rms_known_(false, args.inputs.num_sources),
        op_{.inputs = typed_inputs(args.inputs, sources_),
            .eps = args.eps,
            .complete = args.inputs.mode == ATTNRES_WHOLE,
            .inverse_rms_N = inverse_rms_.data(),
            .rms_known_N = std::begin(rms_known_),
            .outputs_S = outputs_.data(),
            .max_ST = static_cast<T*>(args.max),
            .sum_ST = static_cast<T*>(args.sum),
            .scores_SNT = static_cast<T*>(args.scores),
            .weights_SNT = static_cast<T*>(args.weights)} {}

  void run(int64_t first, int64_t last) const { depth_attention_forward(op_, first, last); }

 private:
  std::vector<const Storage*> sources_;
  std::vector<Storage*> outputs_;
  std::vector<T*> inverse_rms_;
  std::valarray<bool> rms_known_;
  DepthAttentionForward<Storage> op_;
};

template <class Storage>
class Backward {
 public:
  using T = Compute<Storage>;
  explicit Backward(const attnres_backward_args& args)
      : sources_(typed<const Storage>(args.inputs.sources, args.inputs.num_sources)),
        grad_outputs_(typed<const Storage>(args.grad_outputs, args.inputs.num_sites)),
        grad_sources_(typed<Storage>(args.grad_sources, args.inputs.num_sources)),
        inverse_rms_(rows(static_cast<const T*>(args.inverse_rms), args.inputs.num_sources,
                          args.inputs.num_tokens)),
        accumulate_(args.accumulate != 0, args.inputs.num_sources),
        op_{.inputs = typed_inputs(args.inputs, sources_),
            .inverse_rms_N = inverse_rms_.data(),
            .scores_SNT = static_cast<const T*>(args.scores),
            .weights_SNT = static_cast<const T*>(args.weights),
            .grad_outputs_S = grad_outputs_.data(),
            .grad_sum_ST = static_cast<const T*>(args.grad_sum),
            .grad_weights_SNT = nullptr,
            .grad_sources_N = grad_sources_.data(),
            .accumulate_N = std::begin(accumulate_)} {}

  void run(int64_t first, int64_t last, T* grad_queries) const {
    depth_attention_backward(op_, first, last, grad_queries);
  }

 private:
  std::vector<const Storage*> sources_, grad_outputs_;
  std::vector<Storage*> grad_sources_;
  std::vector<const T*> inverse_rms_;
  std::valarray<bool> accumulate_;
  DepthAttentionBackward<Storage> op_;
};

// Calls f with a value of the dtype's storage type; what f allocates may be refused.
template <class F>
attnres_status with_storage_type(int dtype, const F& f) {
  try {
    switch (dtype) {
      case ATTNRES_FLOAT32:
        f(float{});
        break;
      case ATTNRES_FLOAT64:
        f(double{});
        break;
      case ATTNRES_BFLOAT16:
        f(BFloat16{});
        break;
    }
    return ATTNRES_OK;
  } catch (const std::bad_alloc&) {
    return ATTNRES_OUT_OF_MEMORY;
  }
}

// Runs f(chunk, first, last) for every chunk of tokens, on all threads. No exception may leave a
// parallel loop; the only one there is, is thrown again after it.
template <class F>
void parallel_over_chunks(int64_t num_tokens, int64_t chunk_tokens, const F& f) {
  const int64_t num_chunks = (num_tokens + chunk_tokens - 1) / chunk_tokens;
  std::atomic<bool> out_of_memory = false;
#pragma omp parallel for schedule(dynamic)
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    const int64_t first = chunk * chunk_tokens;
    try {
      f(chunk, first, std::min(num_tokens, first + chunk_tokens));
    } catch (const std::bad_alloc&) {
      out_of_memory = true;
    }
  }
  if (out_of_memory) throw std::bad_alloc();
}

int64_t chunk_tokens(int64_t num_tokens) {
  return std::max(kSmallestChunk, (num_tokens + kMostChunks - 1) / kMostChunks);
}

bool is_range(int64_t first, int64_t last, int64_t num_tokens) {
  return 0 <= first && first <= last && last <= num_tokens;
}

}  // namespace
}  // namespace attnres::kernel

using namespace attnres::kernel;  // NOLINT: C has no namespace of its own

attnres_status attnres_forward_range(const attnres_forward_args* args, int64_t first,
                                     int64_t last) {
  if (const auto status = check(args)) return status;
  if (!is_range(first, last, args->inputs.num_tokens)) return ATTNRES_WRONG_RANGE;
  return with_storage_type(args->inputs.dtype, [&](auto storage) {
    Forward<decltype(storage)>(*args).run(first, last);
  });
}

attnres_status attnres_backward_range(const attnres_backward_args* args, int64_t first,
                                      int64_t last) {
  if (const auto status = check(args)) return status;
  if (!is_range(first, last, args->inputs.num_tokens)) return ATTNRES_WRONG_RANGE;
  return with_storage_type(args->inputs.dtype, [&](auto storage) {
    using T = Compute<decltype(storage)>;
    Backward<decltype(storage)>(*args).run(first, last, static_cast<T*>(args->grad_queries));
  });
}

attnres_status attnres_forward(const attnres_forward_args* args) {
  if (const auto status = check(args)) return status;
  return with_storage_type(args->inputs.dtype, [&](auto storage) {
    const Forward<decltype(storage)> forward(*args);
    const int64_t tokens = args->inputs.num_tokens;
    parallel_over_chunks(tokens, chunk_tokens(tokens),
                         [&](int64_t, int64_t first, int64_t last) { forward.run(first, last); });
  });
}

attnres_status attnres_backward(const attnres_backward_args* args) {
  if (const auto status = check(args)) return status;
  return with_storage_type(args->inputs.dtype, [&](auto storage) {
    using T = Compute<decltype(storage)>;
    const Backward<decltype(storage)> backward(*args);
    const int64_t tokens = args->inputs.num_tokens, each = chunk_tokens(tokens);
    const int64_t sums = args->inputs.num_sites * args->inputs.width;
    std::vector<T> partials((tokens + each - 1) / each * sums);
    parallel_over_chunks(tokens, each, [&](int64_t chunk, int64_t first, int64_t last) {
      backward.run(first, last, partials.data() + chunk * sums);
    });
    T* total = static_cast<T*>(args->grad_queries);
    for (size_t i = 0; i < partials.size(); ++i) total[i % sums] += partials[i];
  });
}

const char* attnres_status_text(int status) {
  switch (status) {
    case ATTNRES_OK:
      return "done";
    case ATTNRES_NULL_POINTER:
      return "a pointer that must be given is NULL";
    case ATTNRES_WRONG_POINTER:
      return "max, sum or grad_sum is given, but the mode is not ATTNRES_PHASE_ONE";
    case ATTNRES_WRONG_DTYPE:
      return "dtype is no attnres_dtype";
    case ATTNRES_WRONG_MODE:
      return "mode is no attnres_mode";
    case ATTNRES_WRONG_SIZE:
      return "num_sources, num_sites and width must be positive, num_tokens not negative, and "
             "tensors fit in memory";
    case ATTNRES_WRONG_RANGE:
      return "the range must be 0 <= first <= last <= num_tokens";
    case ATTNRES_WRONG_EPS:
      return "eps must be positive and finite";
    case ATTNRES_OUT_OF_MEMORY:
      return "out of memory";
  }
  return "no attnres_status";
}

const char* attnres_version(void) {
  return ATTNRES_VERSION;
}
