#include "attnres/ops/processor.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace attnres {
namespace {

bool has_onednn() {
  const auto has = [](const char* overload) {
    return c10::Dispatcher::singleton()
        .findSchema({"mkldnn::_linear_pointwise", overload})
        .has_value();
  };
  return at::globalContext().userEnabledMkldnn() && has("") && has("binary");
}

Processor find_out() {
  Processor found;
#ifdef __x86_64__
  __builtin_cpu_init();
  found.amd = __builtin_cpu_is("amd") != 0;
  found.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  found.bfloat16 = __builtin_cpu_supports("avx512bf16") != 0;
#endif
  found.has_onednn = has_onednn();
  return found;
}

}  // namespace

const Processor& processor() {
  static const Processor found = find_out();
  return found;
}

}  // namespace attnres
