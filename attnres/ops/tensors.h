// The bridge from tensors to kernels, which know pointers and sizes only. For the sources of
// operations.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attnres/ops/device_table.h"
#include "attnres/ops/storage.h"
#include "attnres/support/error.h"

namespace attnres {

// Whether the CPU kernels can work on this tensor.
bool has_kernel(const at::Tensor& tensor);

// Whether the dispatcher's operations on rows [.., D] (depth attention, RMSNorm, SwiGLU, rotary
// embedding) have kernels for this tensor on its device. Libraries of other devices enter what they
// have.
extern DeviceTable<bool(const at::Tensor& rows)> row_kernel_table;
bool has_row_kernel(const at::Tensor& rows);

// Whether an operation on these inputs (some may be undefined) is to be recorded for a backward.
// Throws Error where one has a forward-mode tangent.
bool records(at::TensorList inputs);

// The dtype in which a kernel computes, and of its statistics: float64 for float64, else float32.
at::ScalarType compute_dtype(at::ScalarType storage);
at::ScalarType compute_dtype(const at::Tensor& tensor);

// As the dispatcher has it: none for an undefined tensor.
std::optional<at::Tensor> given(const at::Tensor& tensor);

// Tensors and lists of them, one after another; undefined for what is not given.
void append_tensors(std::vector<at::Tensor>& list, const at::Tensor& tensor);
void append_tensors(std::vector<at::Tensor>& list, const std::optional<at::Tensor>& tensor);
void append_tensors(std::vector<at::Tensor>& list, at::TensorList tensors);
template <class... Parts>
std::vector<at::Tensor> in_one_list(const Parts&... parts) {
  std::vector<at::Tensor> list;
  (append_tensors(list, parts), ...);
  return list;
}

// Undefined for what is not given or undefined.
at::Tensor contiguous_if_given(const std::optional<at::Tensor>& tensor);

// For messages: "[4, 16]", and "Float [4, 16] on cpu".
std::string shape_of(const at::Tensor& tensor);
std::string described(const at::Tensor& tensor);

// Throws Error naming `operation` and their devices unless all tensors are on one.
[[noreturn]] void refuse_devices(const char* operation, at::TensorList tensors);
template <class... Tensors>
void require_one_device(const char* operation, const at::Tensor& first, const Tensors&... others) {
  if ((... || (others.device() != first.device()))) refuse_devices(operation, {first, others...});
}

// Lets a tensor's device check that all of these bools are true, so that the host waits for
// nothing: where they are not, a GPU computes nothing after this, and whatever waits for it next
// throws c10::Error. Without numbers (meta) nothing is checked.
void check_on_device(const at::Tensor& conditions, const char* message);

// The number of tokens, of a tensor [..., D].
int64_t tokens_of(const at::Tensor& rows);

// What follows allocates results for kernels, and for Meta functions, which know sizes as symbols.

// Contiguous, of the same shape and dtype.
at::Tensor empty_like_rows(const at::Tensor& rows);

// One number a token of rows [..., D], or `copies` of them: [...] or [copies, ...].
at::Tensor empty_per_token(const at::Tensor& rows, std::optional<int64_t> copies = {});

// Without numbers, in the place of a result that is not wanted.
at::Tensor empty_result(const at::Tensor& rows);
// One or the other: for a gradient of `rows`.
at::Tensor empty_if_wanted(bool wanted, const at::Tensor& rows);

// Runs f(first, last) over the tokens on all threads, each with enough work to be worth waking.
void parallel_over_tokens(int64_t num_tokens, int64_t channels_a_token,
                          const std::function<void(int64_t first, int64_t last)>& f);

// Typed by the kernel's storage type, which torch does not know. Null for a tensor that is
// undefined or has no numbers.
template <class T>
T* data(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.data_ptr()) : nullptr;
}

// Sums over tokens that do not depend on the number of threads: calls f(first, last, sums), which
// adds to `num_sums` sums, for chunks of tokens that depend on the number of tokens only, and adds
// the chunks' sums in their order. Returns [num_sums], float32 or float64. Where there are many
// sums, larger chunks cost fewer additions.
using SumOverTokens = std::function<void(int64_t first, int64_t last, const at::Tensor& sums)>;
at::Tensor sum_over_tokens(int64_t num_tokens, int64_t num_sums, at::ScalarType dtype,
                           const SumOverTokens& f, int64_t smallest_chunk = 32);

// Calls f with a value of the storage type that the kernels use for this dtype.
template <class F>
void with_storage_type(at::ScalarType dtype, F f) {
  switch (dtype) {
    case at::kFloat:
      return f(float{});
    case at::kDouble:
      return f(double{});
    case at::kBFloat16:
      return f(kernel::BFloat16{});
    default:
      fail("there is no kernel for tensors of dtype {}", c10::toString(dtype));
  }
}

// Contiguous versions of tensors, and pointers to their data, as the kernels take them.
template <class Storage>
class Rows {
 public:
  explicit Rows(at::TensorList tensors) {
    for (const at::Tensor& tensor : tensors) add(tensor);
  }
  // The pointer, null for an undefined tensor.
  const Storage* add(const at::Tensor& tensor) {
    tensors_.push_back(tensor.defined() ? tensor.contiguous() : tensor);
    return pointers_.emplace_back(data<const Storage>(tensors_.back()));
  }
  const Storage* const* pointers() const { return pointers_.data(); }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<const Storage*> pointers_;
};

// Pointers to the numbers of each tensor, null where it has none.
template <class T>
std::vector<T*> pointers_to(at::TensorList tensors) {
  std::vector<T*> pointers;
  for (const at::Tensor& tensor : tensors) pointers.push_back(data<T>(tensor));
  return pointers;
}

// Pointers to the N parts of `count` numbers each that a tensor [N, ...] has.
template <class T>
std::vector<T*> slices(const at::Tensor& tensor, int64_t num_slices, int64_t count) {
  std::vector<T*> pointers;
  for (int64_t n = 0; n < num_slices; ++n) pointers.push_back(data<T>(tensor) + n * count);
  return pointers;
}

// An array of flags, which std::vector<bool> is not.
class Flags {
 public:
  Flags(int64_t count, bool value) : flags_(std::make_unique<bool[]>(count)) {
    for (int64_t i = 0; i < count; ++i) flags_[i] = value;
  }
  explicit Flags(const c10::List<bool>& values) : Flags(std::ssize(values), false) {
    for (size_t i = 0; i < values.size(); ++i) flags_[i] = values[i];
  }
  bool& operator[](int64_t i) { return flags_[i]; }
  const bool* data() const { return flags_.get(); }

 private:
  std::unique_ptr<bool[]> flags_;
};

}  // namespace attnres
