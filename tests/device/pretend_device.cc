#include "tests/device/pretend_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

#include "attnres/support/compute_device.h"
#include "attnres/support/error.h"

namespace attnres::testing {
namespace {

using at::Tensor;

constexpr c10::DeviceType kType = c10::kPrivateUse1;
const c10::Device kDevice(kType, 0);

// ---- Memory ----

// Addresses that nobody may read, and where the numbers are that tensors believe to be there.
class Memory {
 public:
  static Memory& instance() {
    static auto* memory = new Memory;  // outlives every tensor
    return *memory;
  }

  // Never gives an address again, so that none is taken for another's after its end.
  void* allocate(size_t bytes) {
    const std::lock_guard guard(mutex_);
    if (used_ + bytes > limit_) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "Pretend out of memory. Tried to allocate ", bytes,
                       " bytes. It has ", limit_, " in all.");
    }
    used_ += bytes;
    peak_ = std::max(peak_, used_);
    std::byte* closed = next_;
    next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    TORCH_CHECK(next_ <= first_ + kAddresses, "pretend device: out of addresses");
    open_[closed] = {std::make_unique<std::byte[]>(bytes), bytes};
    return closed;
  }
  void release(void* closed) {
    const std::lock_guard guard(mutex_);
    const auto block = open_.find(static_cast<std::byte*>(closed));
    if (block == open_.end()) return;
    used_ -= block->second.size;
    open_.erase(block);
  }
  void* open(const void* closed) {
    const std::lock_guard guard(mutex_);
    const auto* address = static_cast<const std::byte*>(closed);
    auto after = open_.upper_bound(const_cast<std::byte*>(address));
    TORCH_CHECK(after != open_.begin(), "pretend device: an address of another device");
    --after;
    return after->second.bytes.get() + (address - after->first);
  }

  void set_limit(size_t bytes) {
    const std::lock_guard guard(mutex_);
    limit_ = bytes;
  }
  size_t limit() {
    const std::lock_guard guard(mutex_);
    return limit_;
  }
  size_t used() {
    const std::lock_guard guard(mutex_);
    return used_;
  }
  size_t take_peak() {
    const std::lock_guard guard(mutex_);
    return std::exchange(peak_, used_);
  }

 private:
  static constexpr size_t kAddresses = size_t{1} << 40, kAlignment = 64;

  Memory()
      : first_(static_cast<std::byte*>(::mmap(nullptr, kAddresses, PROT_NONE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))),
        next_(first_) {
    TORCH_CHECK(first_ != MAP_FAILED, "pretend device: no addresses for its memory");
  }

  std::mutex mutex_;
  std::byte *first_, *next_;
  struct Block {
    std::unique_ptr<std::byte[]> bytes;
    size_t size;
  };
  std::map<std::byte*, Block> open_;  // by closed address
  size_t used_ = 0, peak_ = 0, limit_ = SIZE_MAX;
};

void release(void* closed) {
  Memory::instance().release(closed);
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, kDevice};
    void* closed = Memory::instance().allocate(bytes);
    return {closed, closed, &release, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(Memory::instance().open(to), Memory::instance().open(from), bytes);
  }
};
Allocator allocator;

bool is_here(const Tensor& x) {
  return x.device().type() == kType;
}

// A CPU tensor of the same numbers, in their place.
Tensor on_host(const Tensor& x) {
  if (!is_here(x)) return x;
  const auto options = at::TensorOptions(x.dtype());
  if (x.storage().nbytes() == 0) return at::empty_strided(x.sizes(), x.strides(), options);
  auto* first = static_cast<std::byte*>(Memory::instance().open(x.storage().data()));
  return at::from_blob(first + x.storage_offset() * static_cast<int64_t>(x.element_size()),
                       x.sizes(), x.strides(), options);
}

// ---- What is counted ----

class Reads {
 public:
  static Reads& instance() {
    static auto* reads = new Reads;
    return *reads;
  }
  void add(std::string what) {
    const std::lock_guard guard(mutex_);
    list_.push_back(std::move(what));
  }
  void clear() {
    const std::lock_guard guard(mutex_);
    list_.clear();
  }
  std::vector<std::string> list() {
    const std::lock_guard guard(mutex_);
    return list_;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> list_;
};

// Copies that the CPU's operation is computed on are none that a device would make.
thread_local bool computing = false;

// ---- Operations ----

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool /*non_blocking*/) {
  if (is_here(from) && !is_here(to) && !computing) {
    Reads::instance().add(fmt::format("copy of {} numbers", from.numel()));
  }
  on_host(to).copy_(on_host(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const Tensor& x) {
  if (!computing) Reads::instance().add("item");
  return on_host(x).item();
}

const Tensor& resize(const Tensor& x, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  const int64_t numbers =
      std::accumulate(size.begin(), size.end(), int64_t{1}, std::multiplies<>());
  const size_t bytes = static_cast<size_t>(numbers + x.storage_offset()) * x.element_size();
  c10::StorageImpl* storage = x.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    c10::DataPtr larger = allocator.allocate(bytes);
    if (storage->nbytes() > 0) {
      allocator.copy_data(larger.get(), storage->data(), storage->nbytes());
    }
    storage->set_data_ptr_noswap(std::move(larger));
    storage->set_nbytes(bytes);
  }
  x.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return x;
}

Tensor as_strided(const Tensor& x, c10::IntArrayRef size, c10::IntArrayRef stride,
                  std::optional<int64_t> offset) {
  Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(x.storage()), x.key_set(), x.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride,
                                                    offset.value_or(x.storage_offset()));
  return view;
}

Tensor view(const Tensor& x, c10::IntArrayRef size) {
  const auto shape = at::infer_size_dv(size, x.numel());
  const auto stride = at::detail::computeStride(x.sizes(), x.strides(), shape);
  TORCH_CHECK(stride, "view: these sizes do not fit the strides; use reshape");
  return as_strided(x, shape, *stride, x.storage_offset());
}

Tensor reshape_alias(const Tensor& x, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return as_strided(x, size, stride, x.storage_offset());
}

Tensor unfold(const Tensor& x, int64_t dimension, int64_t size, int64_t step) {
  std::vector<int64_t> sizes = x.sizes().vec(), strides = x.strides().vec();
  const int64_t d = dimension < 0 ? dimension + x.dim() : dimension;
  sizes.push_back(size);
  strides.push_back(strides.at(d));
  sizes.at(d) = (sizes.at(d) - size) / step + 1;
  strides.at(d) *= step;
  return as_strided(x, sizes, strides, x.storage_offset());
}

std::vector<Tensor> tensors_of(const c10::IValue& value) {
  std::vector<Tensor> tensors;
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    tensors = value.toTensorVector();
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor) tensors.push_back(*tensor);
    }
  }
  std::erase_if(tensors, [](const Tensor& tensor) { return !tensor.defined(); });
  return tensors;
}

// A GPU tells the host how large their results are. An index of bools becomes one of numbers by
// `nonzero`, but for what is put.
bool has_size_of_numbers(const std::string& name, const std::vector<Tensor>& inputs) {
  static const std::set<std::string> names = {
      "aten::bincount",  "aten::equal",   "aten::masked_select", "aten::nonzero",
      "aten::one_hot",   "aten::_unique", "aten::_unique2",      "aten::unique_consecutive",
      "aten::unique_dim"};
  return names.contains(name) ||
         (name == "aten::_index_put_impl_" &&
          std::any_of(inputs.begin() + 1, inputs.end(),
                      [](const Tensor& x) { return x.scalar_type() == at::kBool; }));
}

void compute_on_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const std::string& name = operation.schema().name();
  if (!computing) {
    std::vector<Tensor> inputs;
    for (const c10::IValue& value :
         torch::jit::last(*stack, operation.schema().arguments().size())) {
      for (const Tensor& tensor : tensors_of(value)) inputs.push_back(tensor);
    }
    TORCH_CHECK(name.starts_with("aten::"), name, " has no kernel for the pretend device");
    for (const Tensor& input : inputs) {
      TORCH_CHECK(is_here(input) || input.dim() == 0, "expected all tensors on one device, but ",
                  name, " got one on ", input.device());
    }
    if (has_size_of_numbers(name, inputs)) Reads::instance().add(name);
  }
  const bool outer = std::exchange(computing, true);
  try {
    at::native::cpu_fallback(operation, stack, /*error_on_views=*/true);
  } catch (...) {
    computing = outer;
    throw;
  }
  computing = outer;
}

// ---- What libtorch asks a device ----

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}

 private:
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_cpu>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("resize_", &resize);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &unfold);
}

const bool is_registered = [] {
  c10::register_privateuse1_backend("pretend");
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  return true;
}();

}  // namespace

at::Device pretend_device() {
  return kDevice;
}

int64_t pretend_bytes() {
  return static_cast<int64_t>(Memory::instance().used());
}

int64_t take_peak_pretend_bytes() {
  return static_cast<int64_t>(Memory::instance().take_peak());
}

namespace {

const GpuLibrary kLibrary = {
    .list =
        [] {
          Gpus gpus;
          gpus.all.push_back({"Pretend", static_cast<int64_t>(Memory::instance().limit())});
          return gpus;
        },
    .free_memory =
        [](int) {
          Memory& memory = Memory::instance();
          return static_cast<int64_t>(memory.limit() - std::min(memory.limit(), memory.used()));
        },
    .peak_memory = [](int) { return int64_t{1} << 20; }};

}  // namespace

LimitedMemory::LimitedMemory(int64_t bytes) {
  Memory::instance().set_limit(static_cast<size_t>(bytes));
  gpu_library = &kLibrary;
}

LimitedMemory::~LimitedMemory() {
  Memory::instance().set_limit(SIZE_MAX);
  gpu_library = nullptr;
}

HostReads::HostReads() {
  Reads::instance().clear();
}

int64_t HostReads::count() const {
  return std::ssize(list());
}

std::vector<std::string> HostReads::list() const {
  return Reads::instance().list();
}

}  // namespace attnres::testing
