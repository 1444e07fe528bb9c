#include "attnres/conformance/test_vectors.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "attnres/conformance/decay_vectors.h"
#include "attnres/depth/mixing_analysis.h"
#include "attnres/formats/safetensors.h"
#include "attnres/support/error.h"
#include "attnres/support/random.h"

namespace attnres {
namespace {

constexpr int64_t kBatch = 2, kTokens = 4;

// Numbers that depend on nothing but their names.
at::Tensor normal_numbers(const std::string& entry, const std::string& name, at::IntArrayRef sizes,
                          double scale) {
  const RandomStream random(/*seed=*/0, "test_vectors." + entry + "." + name);
  const at::Tensor numbers = at::empty(sizes, at::kDouble);
  double* data = numbers.mutable_data_ptr<double>();
  for (int64_t i = 0; i < numbers.numel(); ++i) data[i] = scale * random.normal(i);
  return numbers;
}

std::string at_site(const std::string& name, int site) {
  return fmt::format("{}.{}", name, site);
}

// A parameter moved from its start by noise, so that it matters and no two are alike. A linear map
// moves by as much as keeps what it returns as large as what it reads, a number alone by half at
// least. A start beyond 4, which shuts something off, gives way to wide noise around 0.
at::Tensor moved(const at::Tensor& start, const at::Tensor& noise) {
  if (start.dim() >= 2) return start + noise / std::sqrt(static_cast<double>(start.size(-1)));
  if (start.numel() == 1) return start + 0.5 * noise.sign() * noise.abs().clamp_min(1);
  return at::where(start.abs() > 4, 2 * noise, start + 0.5 * noise);
}

// One run of a mixer alone.
class Run {
 public:
  Run(const TestVectorEntry& entry, at::ScalarType dtype, const MixerFactory& make)
      : entry_(entry), parameters_(dtype, /*seed=*/0) {
    mixer_ = make(entry.depth_mixing, entry.shape, parameters_);
    find_starts(make);
  }

  TestVectors vectors() {
    const at::AutoGradMode recording(true);
    const MixerShape& shape = entry_.shape;
    const std::vector<int64_t> sizes = {kBatch, kTokens, shape.width};
    const at::Tensor embedding = give("embedding", sizes, 1);
    move_parameters();
    DepthState state = mixer_->start(embedding.flatten(0, 1));
    state.sequence.spans = std::make_shared<Spans>(Spans::whole(kBatch, kTokens));
    MixingAnalysis analysis;
    state.analysis = &analysis;
    for (int site = 0;; ++site) {
      read(state, site);
      if (site == shape.sublayers) break;
      const at::Tensor output = give(at_site("output", site), sizes, 0.5 + 0.25 * site);
      mixer_->write(state, {output.flatten(0, 1)});
    }
    add_gradients();
    vectors_.results.insert(vectors_.results.end(), starts_.begin(), starts_.end());
    return std::move(vectors_);
  }

 private:
  at::Tensor give(const std::string& name, at::IntArrayRef sizes, double scale) {
    const at::Tensor leaf =
        normal_numbers(entry_.name, name, sizes, scale).to(parameters_.precision().parameters);
    return keep(name, leaf.set_requires_grad(true));
  }

  at::Tensor keep(const std::string& name, const at::Tensor& leaf) {
    vectors_.given.emplace_back(name, leaf);
    return leaf;
  }

  static std::string name_of(const Parameter& parameter, const std::string& what) {
    const bool shared = parameter.site == kEmbeddingSite;
    return shared ? what + parameter.role : at_site(what + parameter.role, parameter.site);
  }

  // Keeps the starts of parameters that begin with the same numbers whatever the seed.
  void find_starts(const MixerFactory& make) {
    ParameterRegistry others(parameters_.precision(), /*seed=*/1);
    make(entry_.depth_mixing, entry_.shape, others);
    for (const Parameter& parameter : parameters_.all()) {
      const at::Tensor start = parameter.tensor.detach();
      if (!at::equal(start, others.find(parameter.site, parameter.role)->tensor.detach())) continue;
      starts_.emplace_back(name_of(parameter, "start."), start.clone());
    }
  }

  void move_parameters() {
    for (const Parameter& parameter : parameters_.all()) {
      const std::string name = name_of(parameter, "parameter.");
      const at::Tensor& tensor = parameter.tensor;
      const at::Tensor noise = normal_numbers(entry_.name, name, tensor.sizes(), 1);
      tensor.detach().copy_(moved(tensor.detach().to(at::kDouble), noise));
      keep(name, tensor);
    }
  }

  void read(DepthState& state, int site) {
    const SublayerInput input = mixer_->read(state);
    const ReadTrace& trace = state.analysis->read;
    add_result(at_site("mixed", site), trace.mixed);
    for (const auto& [stream, mixed] : trace.other_streams) {
      add_result(at_site("mixed." + stream, site), mixed);
    }
    add_end(at_site("input", site), input.x);
    add_end(at_site("input.query", site), input.query);
    add_end(at_site("input.key", site), input.key);
    add_end(at_site("input.value", site), input.value);
    if (input.adapt_heads) adapt(input, site);
  }

  void adapt(const SublayerInput& input, int site) {
    const MixerShape& shape = entry_.shape;
    const auto heads_of = [&](const char* which, int64_t heads) {
      const std::string name = fmt::format("heads.{}.{}", which, site);
      return give(name, {kBatch, kTokens, heads, shape.head_width()}, 1).flatten(0, 1);
    };
    AttentionHeads heads = {heads_of("q", shape.heads), heads_of("k", shape.kv_heads),
                            heads_of("v", shape.kv_heads)};
    input.adapt_heads(heads);
    add_end(at_site("adapted.q", site), heads.q);
    add_end(at_site("adapted.k", site), heads.k);
    add_end(at_site("adapted.v", site), heads.v);
  }

  static at::Tensor by_sequence(const at::Tensor& rows) {
    return rows.unflatten(0, {kBatch, kTokens});
  }

  void add_result(const std::string& name, const at::Tensor& rows) {
    if (rows.defined()) vectors_.results.emplace_back(name, by_sequence(rows));
  }

  // A result that a sublayer reads, where the gradients begin.
  void add_end(const std::string& name, const at::Tensor& rows) {
    if (!rows.defined()) return;
    const at::Tensor result = by_sequence(rows);
    vectors_.results.emplace_back(name, result);
    ends_.push_back(result);
    const std::string cotangent = "cotangent." + name;
    cotangents_.emplace_back(
        cotangent, normal_numbers(entry_.name, cotangent, result.sizes(), 1).to(result.dtype()));
  }

  void add_gradients() {
    std::vector<at::Tensor> leaves, cotangents;
    for (const auto& [name, leaf] : vectors_.given) leaves.push_back(leaf);
    for (const auto& [name, cotangent] : cotangents_) cotangents.push_back(cotangent);
    const std::vector<at::Tensor> gradients =
        torch::autograd::grad(ends_, leaves, cotangents, /*retain_graph=*/false,
                              /*create_graph=*/false, /*allow_unused=*/true);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const at::Tensor& gradient = gradients[i];
      vectors_.results.emplace_back("gradient." + vectors_.given[i].first,
                                    gradient.defined() ? gradient : at::zeros_like(leaves[i]));
    }
    for (const auto& [name, cotangent] : cotangents_) vectors_.given.emplace_back(name, cotangent);
  }

  const TestVectorEntry& entry_;
  ParameterRegistry parameters_;
  std::unique_ptr<DepthMixer> mixer_;
  TestVectors vectors_;
  std::vector<at::Tensor> ends_;
  NamedTensors cotangents_, starts_;
};

// The settings of a mechanism in its entry where its defaults would show little.
Json base_settings(const std::string& mechanism) {
  if (mechanism == "block_attn_res") return {{"block_size", 3}};  // the last of 8 sublayers: two
  if (mechanism == "ancre") return {{"temperature", 0.5}};        // by default a hard choice
  return Json::object();
}

using Arms = std::vector<std::pair<const char*, Json>>;

// Single settings that make entries of their own beside a mechanism's.
const Arms& arms_of(const std::string& mechanism) {
  static const Arms attention_residuals = {{"query", "input_dependent"},
                                           {"query", "none"},
                                           {"weights", "sigmoid"},
                                           {"weights", "factorised"},
                                           {"key_norm", false},
                                           {"window", 2},
                                           {"heads", 4},
                                           {"norm_eps", "per_source_count"},
                                           {"score_scale", 0.25},
                                           {"score_scale", "learned"},
                                           {"value_query", true}};
  static const Arms with_summaries = [] {
    Arms arms = attention_residuals;
    arms.emplace_back("block_summary", "rms");
    return arms;
  }();
  static const std::map<std::string, Arms> arms = {
      {"attn_res", attention_residuals},
      {"block_attn_res", with_summaries},
      {"hybrid_norm", {{"first_layer_pre_norm", true}}},
      {"siamese_norm", {{"depth_scaling", false}, {"input_norm", false}}},
      {"hyper_connections", {{"streams", 2}}},
      {"delta_attn_res", {{"block_size", 3}, {"gate", "none"}}},
      {"mhc", {{"streams", 3}, {"sinkhorn_rounds", 5}, {"single_pass", true}}},
      {"mhc_lite", {{"streams", 3}}},
      {"hc_identity", {{"streams", 2}}},
      {"gated_residual", {{"streams", 2}, {"rank", 5}}},
      {"deep_delta", {{"value_channels", 1}}},
      {"dense_former", {{"form", "original"}}},
      {"muddformer", {{"pre_post_norm", true}}},
      {"dca", {{"recent_layers", 1}, {"recent_layers", 2}}},
      {"value_residual", {{"learned", false}}},
      {"laurel",
       {{"variant", "rw"},
        {"variant", "lr"},
        {"variant", "pa"},
        {"variant", "rw+pa"},
        {"rank", 5}}},
  };
  static const Arms none;
  const auto found = arms.find(mechanism);
  return found == arms.end() ? none : found->second;
}

std::vector<TestVectorEntry> make_entries() {
  const MixerShape shape = {
      .width = 16, .sublayers = 8, .norm_eps = 0.01, .heads = 4, .kv_heads = 2};
  std::vector<TestVectorEntry> entries;
  const auto add = [&](const std::string& mechanism, const std::string& name, const Json& arm) {
    Json settings = {{"type", mechanism}};
    settings.update(base_settings(mechanism));
    settings.update(arm);
    entries.push_back({name, DepthMixing(settings, shape), shape});
  };
  for (const Mechanism& mechanism : mechanisms()) {
    const std::string& name = mechanism.text.name;
    add(name, name, Json::object());
    for (const auto& [key, value] : arms_of(name)) {
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      add(name, fmt::format("{}.{}={}", name, key, text), {{key, value}});
    }
  }
  return entries;
}

// The texts of the parameters that are given, by role.
Json describe_roles(const MechanismText& text, const TestVectors& vectors) {
  std::set<std::string> given;
  for (const auto& [name, tensor] : vectors.given) {
    const std::string prefix = "parameter.";
    if (!name.starts_with(prefix)) continue;
    const std::string role_and_site = name.substr(prefix.size());
    given.insert(role_and_site.substr(0, role_and_site.find('.')));
  }
  Json roles = Json::object();
  for (const RoleText& role : text.roles) {
    if (given.contains(role.role)) roles[role.role] = role.text;
  }
  return roles;
}

Json describe(const TestVectorEntry& entry, const TestVectors& vectors) {
  const MixerShape& shape = entry.shape;
  const MechanismText& text = entry.depth_mixing.text();
  return {{"name", entry.name},
          {"depth_mixing", entry.depth_mixing.to_json()},
          {"formula", test_vector_formula(entry)},
          {"details", text.details},
          {"roles", describe_roles(text, vectors)},
          {"notation", test_vector_notation()},
          {"source", text.source},
          {"batch", kBatch},
          {"tokens", kTokens},
          {"width", shape.width},
          {"sublayers", shape.sublayers},
          {"heads", shape.heads},
          {"kv_heads", shape.kv_heads},
          {"norm_eps", shape.norm_eps},
          {"tensors",
           {{"embedding", "given, [B, T, d]: the token embedding"},
            {"output.l", "given, [B, T, d]: what sublayer l returns, whatever it reads"},
            {"parameter.ROLE.l",
             "given: a parameter of site l; parameter.ROLE: of no one site; roles says what it is"},
            {"heads.q.l", "given, [B, T, H or H_kv, d / H]: projections; also k and v"},
            {"cotangent.NAME", "given: c of the input or adapted heads NAME"},
            {"mixed.l",
             "[B, T, d]: h_l, which site l reads (its norm not yet applied, where it has one); "
             "mixed.STREAM.l: of the other maps of an attention"},
            {"input.l",
             "[B, T, d]: x_l, what sublayer l is given, for L the head; input.key.l and "
             "others: where a map reads another input"},
            {"adapted.q.l", "heads.q.l as the mechanism changed it; also k and v"},
            {"gradient.NAME",
             "of sum <c, x> over all inputs and adapted heads x, with respect to "
             "the given NAME"},
            {"start.ROLE.l",
             "what parameter.ROLE.l is before training, where that is not drawn at random"}}}};
}

}  // namespace

std::string test_vector_formula(const TestVectorEntry& entry) {
  return entry.depth_mixing.formula(entry.shape);
}

const char* test_vector_notation() {
  return "Sites l are 0 to L; y_l = output.l is what sublayer l returns, h_l = mixed.l what site l "
         "reads, x_l = input.l what sublayer l, or the head at L, is given. v_0 = embedding, v_i = "
         "y_{i-1}. Transformer layer j, of J = L/2, has its attention at site 2j and its "
         "feed-forward at site 2j + 1. RMS(x) = x / sqrt(mean(x^2) + norm_eps) over the channels, "
         "norm(x) = gain * RMS(x); sg is the sigmoid, * multiplies number by number. A matrix "
         "[out, "
         "in] maps x to W x. Everything numbered begins at 0.";
}

const std::vector<TestVectorEntry>& test_vector_entries() {
  static const std::vector<TestVectorEntry> entries = make_entries();
  return entries;
}

at::Tensor TestVectors::find(const std::string& name) const {
  for (const NamedTensors* tensors : {&given, &results}) {
    for (const auto& [known, tensor] : *tensors) {
      if (known == name) return tensor;
    }
  }
  return {};
}

TestVectors make_test_vectors(const TestVectorEntry& entry, at::ScalarType dtype,
                              const MixerFactory& make) {
  return Run(entry, dtype, make).vectors();
}

WrittenVectors write_test_vectors(const std::filesystem::path& path,
                                  const std::vector<std::string>& mechanism_names) {
  for (const std::string& name : mechanism_names) find_mechanism({{"type", name}});
  const auto chosen = [&](const TestVectorEntry& entry) {
    return mechanism_names.empty() || std::find(mechanism_names.begin(), mechanism_names.end(),
                                                entry.depth_mixing.name()) != mechanism_names.end();
  };
  WrittenVectors written;
  NamedTensors tensors;
  SafetensorsMetadata metadata = {{"format", "attnres test vectors"}};
  const auto add = [&](const std::string& entry, const TestVectors& vectors) {
    for (const NamedTensors* part : {&vectors.given, &vectors.results}) {
      for (const auto& [name, tensor] : *part) tensors.emplace_back(entry + "/" + name, tensor);
    }
  };
  for (const TestVectorEntry& entry : test_vector_entries()) {
    if (!chosen(entry)) continue;
    ++written.entries;
    const TestVectors vectors = make_test_vectors(entry);
    metadata[entry.name] = describe(entry, vectors).dump();
    add(entry.name, vectors);
  }
  if (mechanism_names.empty()) {
    ++written.entries;
    metadata[kDecayEntry] = describe_decay_vectors().dump();
    add(kDecayEntry, make_decay_vectors());
  }
  written.tensors = tensors.size();
  write_safetensors(path, tensors, metadata);
  return written;
}

}  // namespace attnres
