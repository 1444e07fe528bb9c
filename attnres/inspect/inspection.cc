#include "attnres/inspect/inspection.h"

#include <concepts>
#include <nlohmann/json.hpp>
#include <utility>

#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "attnres/support/told_numbers.h"

namespace attnres {
namespace {

using Counts = std::vector<std::pair<std::string, int64_t>>;

// The keys of each struct. V writes them or reads them.

template <class V>
void visit_fields(V& v, SiteDepthWeights& site) {
  v("site", site.site);
  v("name", site.name);
  v("sources", site.sources);
  v("weights", site.weights);
  v("entropy", site.entropy);
}

template <class V>
void visit_fields(V& v, TokenDepthWeights& site) {
  v("site", site.site);
  v("name", site.name);
  v("sources", site.sources);
  v("weights", site.weights);
}

template <class V>
void visit_fields(V& v, DepthWeightGroup& group) {
  v("name", group.name);
  v("tokens", group.tokens);
  v("sites", group.sites);
}

template <class V>
void visit_fields(V& v, InspectedMatrix& matrix) {
  v("stream", matrix.stream);
  v("mean", matrix.mean);
  v("semiseparable_rank", matrix.semiseparable_rank);
  v("semiseparable_rank_of_samples", matrix.semiseparable_rank_of_samples);
}

template <class V>
void visit_fields(V& v, InspectedTokens& tokens) {
  v("ids", tokens.ids);
  v("texts", tokens.texts);
  v("sites", tokens.sites);
}

template <class V>
void visit_fields(V& v, DropEffects::Layer& layer) {
  v("layer", layer.layer);
  v("change", layer.change);
}

template <class V>
void visit_fields(V& v, DropEffects::Sublayer& sublayer) {
  v("site", sublayer.site);
  v("name", sublayer.name);
  v("change", sublayer.change);
}

template <class V>
void visit_fields(V& v, DropEffects::Source& source) {
  v("name", source.name);
  v("change", source.change);
}

template <class V>
void visit_fields(V& v, DropEffects& effects) {
  v("loss", effects.loss);
  v("layers", effects.layers);
  v("sublayers", effects.sublayers);
  v.if_any("sources", effects.sources);
}

template <class V>
void visit_fields(V& v, Magnitudes& magnitudes) {
  v("output_rms", magnitudes.output);
  v("state_rms", magnitudes.state);
  v("gradient_rms", magnitudes.gradient);
}

template <class V>
void visit_fields(V& v, SourceSimilarity& similarity) {
  v("sources", similarity.sources);
  v("cosine", similarity.cosine);
}

template <class V>
void visit_fields(V& v, Inspection& inspection) {
  v("vocab_size", inspection.vocab_size);
  v("context", inspection.context);
  v("parameters", inspection.parameters);
  v("sites", inspection.sites);
  v("embedding_share", inspection.embedding_share);
  v("inter_block", inspection.inter_block);
  v("intra_block", inspection.intra_block);
  v.if_any("mixing_matrices", inspection.mixing_matrices);
  v("tokens", inspection.tokens);
  v("effects", inspection.effects);
  v("effective_depth", inspection.effective_depth);
  v("magnitudes", inspection.magnitudes);
  v("similarity", inspection.similarity);
  v.if_any("by_position", inspection.by_position);
  v.if_any("by_token_class", inspection.by_token_class);
}

class InspectionWriter {
 public:
  template <class T>
  void operator()(const char* key, T& value) {
    json[key] = json_of(value);
  }
  template <class T>
  void operator()(const char* key, std::optional<T>& value) {
    if (value) json[key] = json_of(*value);
  }
  template <class T>
  void if_any(const char* key, std::vector<T>& list) {
    if (!list.empty()) json[key] = json_of(list);
  }

  Json json = Json::object();

 private:
  template <class T>
  static Json json_of(T& value) {
    if constexpr (requires(InspectionWriter w) { visit_fields(w, value); }) {
      InspectionWriter inner;
      visit_fields(inner, value);
      return inner.json;
    } else {
      return value;
    }
  }
  template <class T>
  static Json json_of(std::vector<T>& list) {
    Json json = Json::array();
    for (T& item : list) json.push_back(json_of(item));
    return json;
  }
  static Json json_of(Counts& counts) {
    Json json = Json::object();
    for (const auto& [name, count] : counts) json[name] = count;
    return json;
  }
};

class InspectionReader {
 public:
  explicit InspectionReader(const Json& json) : json_(json) {}

  template <class T>
  void operator()(const char* key, T& value) {
    const auto found = json_.find(key);  // none where it is no object
    read(found == json_.end() ? Json() : *found, value);
  }
  template <class T>
  void if_any(const char* key, std::vector<T>& list) {
    (*this)(key, list);
  }

 private:
  static void read(const Json& json, double& value) { value = measured_in(json); }
  static void read(const Json& json, std::string& value) {
    if (json.is_string()) value = json.get<std::string>();
  }
  template <std::integral T>
  static void read(const Json& json, T& value) {
    const int64_t whole = whole_number(json).value_or(0);
    value = std::in_range<T>(whole) ? static_cast<T>(whole) : T{0};
  }
  static void read(const Json& json, Counts& counts) {
    if (!json.is_object()) return;
    for (const auto& [name, count] : json.items()) {
      read(count, counts.emplace_back(name, 0).second);
    }
  }
  template <class T>
  static void read(const Json& json, std::vector<T>& list) {
    if (!json.is_array()) return;
    for (const Json& item : json) read(item, list.emplace_back());
  }
  template <class T>
  static void read(const Json& json, std::optional<T>& value) {
    if (!json.is_null()) read(json, value.emplace());
  }
  template <class T>
  static void read(const Json& json, T& value) {
    InspectionReader reader(json);
    visit_fields(reader, value);
  }

  const Json& json_;
};

}  // namespace

Json inspection_to_json(Inspection inspection) {
  InspectionWriter writer;
  if (inspection.model) writer.json["model"] = write_config(*inspection.model);
  visit_fields(writer, inspection);
  return writer.json;
}

Inspection read_inspection(const Json& json, const std::string& what) {
  require(json.is_object(), "{}: not an inspection: expected an object, not {}", what, shown(json));
  Inspection inspection;
  InspectionReader reader(json);
  visit_fields(reader, inspection);
  return inspection;
}

}  // namespace attnres
