// A function to call while it lives, without owning or copying it.
#pragma once

#include <memory>
#include <type_traits>

namespace attnres {

template <class Argument>
class FunctionRef {
 public:
  template <class F, class = std::enable_if_t<!std::is_same_v<std::decay_t<F>, FunctionRef>>>
  FunctionRef(F&& function)  // NOLINT(google-explicit-constructor): lambdas are passed as they are
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(function)))),
        call_([](void* object, Argument argument) {
          (*static_cast<std::remove_reference_t<F>*>(object))(argument);
        }) {}

  void operator()(Argument argument) const { call_(object_, argument); }

 private:
  void* object_;
  void (*call_)(void*, Argument);
};

}  // namespace attnres
