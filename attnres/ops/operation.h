// How operations of the dispatcher are found and called, by the sources of operations.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <type_traits>
#include <utility>

namespace attnres {

// The operation that is registered as "attnres::NAME", with arguments and results as Function's.
template <class Function>
c10::TypedOperatorHandle<Function> operation_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

// The same, found once, of which a device's implementations are functions like this one.
template <auto function>
const auto& dispatched(const char* name) {
  static const auto handle = operation_named<std::remove_pointer_t<decltype(function)>>(name);
  return handle;
}

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
