#include "attnres/ops/without_kernel.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "attnres/ops/delta_attention/delta_attention.h"
#include "attnres/ops/packed_weight/streaming_product.h"
#include "attnres/ops/paged_attention/paged_attention.h"

namespace attnres {
namespace {

// "attnres::situ_fused" is "situ"; what belongs to an operation that has a name is empty.
std::string readable(std::string_view name) {
  constexpr std::string_view kOurs = "attnres::", kFused = "_fused", kOut = "_out";
  if (!name.starts_with(kOurs) || name.find("backward") != name.npos) return "";
  name.remove_prefix(kOurs.size());
  for (const std::string_view end : {kFused, kOut}) {
    if (name.ends_with(end)) name.remove_suffix(end.size());
  }
  std::string words(name);
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

}  // namespace

std::vector<std::string> operations_without_kernel(c10::DeviceType device) {
  std::set<std::string> names;
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const c10::DispatchKey key = c10::TensorOptions(device).computeDispatchKey();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::string words = readable(name.name);
    if (words.empty()) continue;
    const auto operation = dispatcher.findOp(name);
    if (operation && operation->hasKernelForDispatchKey(c10::DispatchKey::CPU) &&
        !operation->hasKernelForDispatchKey(key)) {
      names.insert(words);
    }
  }
  // What runs while decoding.
  if (!paged_attention_table.has(device)) names.insert("paged attention");
  if (!delta_attention_table.has(device)) names.insert("delta attention");
  if (!streaming_products_table.has(device)) names.insert("products with packed weights");
  return {names.begin(), names.end()};
}

}  // namespace attnres
