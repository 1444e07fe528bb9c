// A small model of every mechanism, variant and layout, for what has to hold for all of them.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/model/small_models.h"

namespace attnres::testing {

struct KindOfModel {
  std::string name;
  std::function<Transformer(Precision)> make_in;

  Transformer make() const { return make_in(at::kDouble); }
};
inline std::ostream& operator<<(std::ostream& out, const KindOfModel& kind) {
  return out << kind.name;
}

inline std::vector<KindOfModel> every_kind_of_model() {
  std::vector<KindOfModel> all;
  for (const Mixing& mixing : every_variant()) {
    all.push_back({mixing.name, [mixing](Precision precision) {
                     return small_model(mixing.json, {.precision = precision});
                   }});
  }
  for (const bool k3 : {false, true}) {
    all.push_back({k3 ? "kimi_k3" : "kimi_linear", [k3](Precision precision) {
                     return kimi_model(k3, block_attn_res(4), precision);
                   }});
  }
  for (const Json& mixing : {residual(), block_attn_res(4), Json{{"type", "value_residual"}}}) {
    all.push_back({"relative_" + mixing["type"].get<std::string>(),
                   [mixing](Precision precision) { return relative_model(mixing, precision); }});
  }
  // Recurrent states of layers and of the depth mixing.
  all.push_back({"kimi_mrla", [](Precision precision) {
                   return kimi_model(false, {{"type", "mrla"}}, precision);
                 }});
  // A mixer and experts whose parameters are of one role.
  all.push_back({"kimi_deep_delta", [](Precision precision) {
                   return kimi_model(false, {{"type", "deep_delta"}}, precision);
                 }});
  return all;
}

}  // namespace attnres::testing
