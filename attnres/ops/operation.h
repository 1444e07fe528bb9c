// How operations of the dispatcher are found and called, by the sources of operations.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <type_traits>
#include <utility>

namespace attnres {

// The operation that is registered as "attnres::NAME": found when it is first used. A device's
// implementations are functions like this one; no two operations have the same.
template <auto function>
class Operation {
 public:
  constexpr explicit Operation(const char* name) : name_(name) {}

  const auto& operator*() const {
    using Function = std::remove_pointer_t<decltype(function)>;
    static const auto handle =
        c10::Dispatcher::singleton().findSchemaOrThrow(name_, "").typed<Function>();
    return handle;
  }
  const auto* operator->() const { return &**this; }

 private:
  const char* name_;
};

// What of the dispatcher has nothing to do where no gradient is recorded.
inline constexpr c10::DispatchKeySet kNothingToDo =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
    c10::DispatchKeySet(c10::DispatchKey::BackendSelect);

// Calls an operation, past the dispatcher where it would only look for the kernel of the tensors'
// device: no gradient is recorded, no tensor is a fake or a wrapper of another, no mode looks on.
// What is decoded makes such calls for every token and site. Inputs with a forward-mode tangent are
// not for it.
template <class Result, class... Arguments>
Result call_operation(const c10::TypedOperatorHandle<Result(Arguments...)>& operation,
                      std::type_identity_t<Arguments>... arguments) {
  if (!at::GradMode::is_enabled()) {
    const c10::DispatchKeySet keys =
        c10::impl::computeDispatchKeySet(c10::detail::multi_dispatch_key_set(arguments...),
                                         c10::DispatchKeySet(c10::DispatchKeySet::FULL)) -
        kNothingToDo;
    if (keys.highestFunctionalityKey() == c10::DispatchKey::Dense) {
      return operation.redispatch(keys, std::forward<Arguments>(arguments)...);
    }
  }
  return operation.call(std::forward<Arguments>(arguments)...);
}

}  // namespace attnres
