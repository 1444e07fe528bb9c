#include "attnres/ops/tensors.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <sstream>

namespace attnres {

bool has_kernel(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
         (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16);
}

constinit DeviceTable<bool(const at::Tensor& rows)> row_kernel_table(&has_kernel);

bool has_row_kernel(const at::Tensor& rows) {
  return row_kernel_table.of(rows)(rows);
}

bool records(at::TensorList inputs) {
  for (const at::Tensor& input : inputs) {
    require(
        !input.defined() || !input._fw_grad(/*level=*/0).defined(),
        "an operation with a kernel got a tensor with a forward-mode tangent, which kernels lose: "
        "differentiate backward, by autograd");
  }
  return at::GradMode::is_enabled() &&
         std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) {
           return input.defined() && input.requires_grad();
         });
}

at::ScalarType compute_dtype(at::ScalarType storage) {
  return storage == at::kDouble ? at::kDouble : at::kFloat;
}

at::ScalarType compute_dtype(const at::Tensor& tensor) {
  return compute_dtype(tensor.scalar_type());
}

std::optional<at::Tensor> given(const at::Tensor& tensor) {
  return tensor.defined() ? std::make_optional(tensor) : std::nullopt;
}

void append_tensors(std::vector<at::Tensor>& list, const at::Tensor& tensor) {
  list.push_back(tensor);
}

void append_tensors(std::vector<at::Tensor>& list, const std::optional<at::Tensor>& tensor) {
  list.push_back(tensor.value_or(at::Tensor()));
}

void append_tensors(std::vector<at::Tensor>& list, at::TensorList tensors) {
  list.insert(list.end(), tensors.begin(), tensors.end());
}

at::Tensor contiguous_if_given(const std::optional<at::Tensor>& tensor) {
  return tensor && tensor->defined() ? tensor->contiguous() : at::Tensor();
}

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sym_sizes();
  return text.str();
}

std::string described(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.scalar_type() << ' ' << tensor.sym_sizes() << " on " << tensor.device();
  return text.str();
}

void refuse_devices(const char* operation, at::TensorList tensors) {
  std::string devices;
  for (const at::Tensor& tensor : tensors) {
    devices += (devices.empty() ? "" : ", ") + tensor.device().str();
  }
  fail("{}: its tensors must be on one device, but are on {}; move them to one", operation,
       devices);
}

void check_on_device(const at::Tensor& conditions, const char* message) {
  if (!conditions.is_meta()) at::_assert_async(conditions.all(), message);
}

int64_t tokens_of(const at::Tensor& rows) {
  return rows.numel() / rows.size(-1);
}

at::Tensor empty_like_rows(const at::Tensor& rows) {
  return at::empty_symint(rows.sym_sizes(), rows.options().requires_grad(false));
}

at::Tensor empty_if_wanted(bool wanted, const at::Tensor& rows) {
  return wanted ? empty_like_rows(rows) : empty_result(rows);
}

at::Tensor empty_per_token(const at::Tensor& rows, std::optional<int64_t> copies) {
  std::vector<c10::SymInt> sizes = rows.sym_sizes().vec();
  sizes.pop_back();
  if (copies) sizes.insert(sizes.begin(), *copies);
  return at::empty_symint(sizes, rows.options().dtype(compute_dtype(rows)).requires_grad(false));
}

at::Tensor empty_result(const at::Tensor& rows) {
  return at::empty({0}, rows.options().dtype(compute_dtype(rows)).requires_grad(false));
}

void parallel_over_tokens(int64_t num_tokens, int64_t channels_a_token,
                          const std::function<void(int64_t, int64_t)>& f) {
  constexpr int64_t kChannelsWorthAThread = 32768;
  at::parallel_for(0, num_tokens, std::max<int64_t>(1, kChannelsWorthAThread / channels_a_token),
                   f);
}

at::Tensor sum_over_tokens(int64_t num_tokens, int64_t num_sums, at::ScalarType dtype,
                           const SumOverTokens& f, int64_t smallest_chunk) {
  constexpr int64_t kMostChunks = 64;
  const auto divide_up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  const int64_t chunk = std::max(smallest_chunk, divide_up(num_tokens, kMostChunks));
  const int64_t num_chunks = divide_up(num_tokens, chunk);
  const at::Tensor partials = at::zeros({num_chunks, num_sums}, dtype);
  at::parallel_for(0, num_chunks, 1, [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) {
      f(c * chunk, std::min(num_tokens, (c + 1) * chunk), partials.select(0, c));
    }
  });
  const at::Tensor sums = at::zeros({num_sums}, dtype);
  for (int64_t c = 0; c < num_chunks; ++c) sums.add_(partials.select(0, c));
  return sums;
}

}  // namespace attnres
