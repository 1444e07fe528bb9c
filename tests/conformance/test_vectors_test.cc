#include "attnres/conformance/test_vectors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "attnres/formats/safetensors.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/conformance/vector_entries.h"
#include "tests/depth/mechanisms/attn_res_reference.h"
#include "tests/text/test_files.h"

namespace attnres::testing::test_vectors_test {
namespace {

using reference::Vector;
using ::testing::HasSubstr;
using ::testing::Not;

// The numbers of one token, of all B T, of a tensor [B, T, d]; or all of one without tokens.
Vector numbers(const at::Tensor& tensor, int64_t token) {
  const at::Tensor row =
      (tensor.dim() == 3 ? tensor.flatten(0, 1)[token] : tensor).detach().contiguous();
  return {row.data_ptr<double>(), row.data_ptr<double>() + row.numel()};
}

int64_t tokens_of(const TestVectors& vectors) {
  return vectors.find("embedding").size(0) * vectors.find("embedding").size(1);
}

// What a network of the reference reads at every site, mixed and normalised, for one token.
struct PlainReads {
  std::vector<Vector> mixed, inputs;
};

// Everything given for one token, by name.
using Given = std::map<std::string, Vector>;

Given given_for(const TestVectors& vectors, int64_t token) {
  Given given;
  for (const auto& [name, tensor] : vectors.given) given[name] = numbers(tensor, token);
  return given;
}

std::string named(const std::string& name, size_t site) {
  return fmt::format("{}.{}", name, site);
}

Vector normed(const Vector& h, const Vector& gain, double eps) {
  Vector x(h.size());
  for (size_t c = 0; c < h.size(); ++c) x[c] = gain[c] * h[c] / reference::rms(h, eps);
  return x;
}

PlainReads plain_reads(const TestVectorEntry& entry, const Given& given) {
  const auto L = static_cast<size_t>(entry.shape.sublayers);
  const double eps = entry.shape.norm_eps;
  std::vector<reference::Site> sites;
  for (size_t l = 0; l <= L; ++l) {
    const Vector& norm = given.at(named("parameter.input_norm", l));
    if (l == 0 || entry.name == "residual") {
      sites.push_back({{}, {}, norm});
    } else {
      sites.push_back({given.at(named("parameter.pseudo_query", l)),
                       given.at(named("parameter.key_norm", l)), norm});
    }
  }
  PlainReads reads;
  if (entry.name == "residual") {
    Vector h = given.at("embedding");
    for (size_t l = 0; l <= L; ++l) {
      reads.mixed.push_back(h);
      if (l == L) break;
      for (size_t c = 0; c < h.size(); ++c) h[c] += given.at(named("output", l))[c];
    }
  } else {
    const size_t block_size = entry.depth_mixing.to_json().value("block_size", 0);
    reads.mixed = reference::mixed_inputs(
        given.at("embedding"), sites, block_size, eps,
        [&](size_t l, const Vector&) { return given.at(named("output", l)); });
  }
  for (size_t l = 0; l <= L; ++l) {
    reads.inputs.push_back(normed(reads.mixed[l], sites[l].norm, eps));
  }
  return reads;
}

double largest_difference(const Vector& a, const Vector& b) {
  if (a.size() != b.size()) return 1e300;
  double largest = 0;
  for (size_t c = 0; c < a.size(); ++c) largest = std::max(largest, std::abs(a[c] - b[c]));
  return largest;
}

TEST(TestVectors, AreWhatPlainLoopsGive) {
  for (const char* name : {"residual", "attn_res", "block_attn_res"}) {
    const TestVectorEntry& entry = entry_named(name);
    const TestVectors vectors = make_test_vectors(entry);
    for (int64_t token = 0; token < tokens_of(vectors); ++token) {
      const PlainReads reads = plain_reads(entry, given_for(vectors, token));
      ASSERT_EQ(reads.mixed.size(), 9U);
      for (size_t l = 0; l < reads.mixed.size(); ++l) {
        const Vector mixed = numbers(vectors.find(named("mixed", l)), token),
                     input = numbers(vectors.find(named("input", l)), token);
        EXPECT_LT(largest_difference(mixed, reads.mixed[l]), 1e-13) << name << ", site " << l;
        EXPECT_LT(largest_difference(input, reads.inputs[l]), 1e-13) << name << ", site " << l;
      }
    }
  }
}

TEST(TestVectors, GradientsAreThoseOfPlainLoops) {
  const TestVectorEntry& entry = entry_named("block_attn_res");
  const TestVectors vectors = make_test_vectors(entry);
  const int64_t tokens = tokens_of(vectors);
  std::vector<Given> given;
  for (int64_t token = 0; token < tokens; ++token) given.push_back(given_for(vectors, token));
  // sum <c, x> of one token.
  const auto objective = [&](const Given& of_token) {
    const PlainReads reads = plain_reads(entry, of_token);
    double sum = 0;
    for (size_t l = 0; l < reads.inputs.size(); ++l) {
      const Vector& cotangent = of_token.at(named("cotangent.input", l));
      for (size_t c = 0; c < cotangent.size(); ++c) sum += cotangent[c] * reads.inputs[l][c];
    }
    return sum;
  };
  int compared = 0;
  for (const auto& [name, tensor] : vectors.given) {
    if (name.starts_with("cotangent.")) continue;
    const at::Tensor gradient = vectors.find("gradient." + name);
    ASSERT_TRUE(gradient.defined()) << name;
    const bool by_token = tensor.dim() == 3;
    Vector expected(tensor.size(-1), 0.0);
    for (int64_t token = 0; token < tokens; ++token) {
      if (by_token) expected.assign(expected.size(), 0.0);
      for (size_t c = 0; c < expected.size(); ++c) {
        constexpr double kStep = 1e-5;
        Given moved = given[token];
        moved.at(name)[c] += kStep;
        const double above = objective(moved);
        moved.at(name)[c] -= 2 * kStep;
        expected[c] += (above - objective(moved)) / (2 * kStep);
      }
      if (by_token || token == tokens - 1) {
        EXPECT_LT(largest_difference(numbers(gradient, token), expected), 1e-7) << name;
        ++compared;
      }
    }
  }
  EXPECT_EQ(compared, 9 * tokens + 9 + 8 + 8);
}

TEST(TestVectors, HoldEveryMechanismAndArm) {
  std::set<std::string> names;
  for (const TestVectorEntry& entry : test_vector_entries()) names.insert(entry.name);
  EXPECT_EQ(names.size(), test_vector_entries().size());
  for (const Mechanism& mechanism : mechanisms()) EXPECT_TRUE(names.contains(mechanism.text.name));
  for (const char* arm :
       {"attn_res.query=none", "attn_res.query=input_dependent", "attn_res.weights=sigmoid",
        "attn_res.weights=factorised", "attn_res.window=2", "block_attn_res.key_norm=false",
        "block_attn_res.heads=4", "block_attn_res.score_scale=learned",
        "block_attn_res.block_summary=rms", "block_attn_res.value_query=true"}) {
    EXPECT_TRUE(names.contains(arm)) << arm;
  }
}

TEST(TestVectors, EverySettingDepartsFromItsDefault) {
  for (const Mechanism& mechanism : mechanisms()) {
    const std::string& name = mechanism.text.name;
    const Json defaults = DepthMixing({{"type", name}}, entry_named(name).shape).to_json();
    for (const auto& [key, value] : defaults.items()) {
      if (key == "type" || key == "query_init") continue;  // how a parameter starts: they are given
      const bool departs =
          std::any_of(test_vector_entries().begin(), test_vector_entries().end(),
                      [&, &key = key, &value = value](const TestVectorEntry& entry) {
                        return entry.depth_mixing.name() == name &&
                               entry.depth_mixing.to_json().at(key) != value;
                      });
      EXPECT_TRUE(departs) << name << " " << key;
    }
  }
}

TEST(TestVectors, HaveMoreThanOneSequence) {
  const at::Tensor embedding = make_test_vectors(entry_named("residual")).find("embedding");
  EXPECT_EQ(embedding.size(0), 2);
  EXPECT_FALSE(at::equal(embedding[0], embedding[1]));
}

// Roles whose parameters an entry gives.
std::set<std::string> given_roles(const TestVectors& vectors) {
  std::set<std::string> roles;
  for (const auto& [name, tensor] : vectors.given) {
    if (!name.starts_with("parameter.")) continue;
    const std::string role = name.substr(std::string("parameter.").size());
    roles.insert(role.substr(0, role.find('.')));
  }
  return roles;
}

TEST(TestVectors, ExplainEveryParameter) {
  const auto path = fresh_folder("vectors") / "all";
  write_test_vectors(path, {});
  const SafetensorsFile file(path);
  std::map<std::string, std::set<std::string>> explained;  // by mechanism
  for (const TestVectorEntry& entry : test_vector_entries()) {
    const Json about = parse_json(file.metadata().at(entry.name), entry.name);
    std::set<std::string> roles;
    for (const auto& [role, text] : about.at("roles").items()) {
      EXPECT_NE(text, "") << entry.name << " " << role;
      roles.insert(role);
    }
    EXPECT_EQ(roles, given_roles(make_test_vectors(entry))) << entry.name;
    explained[entry.depth_mixing.name()].merge(roles);
    EXPECT_NE(about.at("details"), "") << entry.name;
  }
  for (const Mechanism& mechanism : mechanisms()) {
    EXPECT_EQ(explained[mechanism.text.name].size(), mechanism.text.roles.size())
        << mechanism.text.name << " explains a parameter that it never has";
  }
}

TEST(TestVectors, HaveTheFormulaOfTheirSettings) {
  const auto formula = [](const char* name) { return test_vector_formula(entry_named(name)); };
  for (const Mechanism& mechanism : mechanisms()) {
    EXPECT_EQ(formula(mechanism.text.name.c_str()), mechanism.text.formula);
  }
  EXPECT_THAT(formula("attn_res.weights=sigmoid"), Not(HasSubstr("softmax")));
  EXPECT_THAT(formula("attn_res.weights=sigmoid"), HasSubstr("sg("));
  EXPECT_THAT(formula("block_attn_res.key_norm=false"), Not(HasSubstr("RMS")));
  std::set<std::string> formulas;
  size_t entries = 0;
  for (const TestVectorEntry& entry : test_vector_entries()) {
    if (!entry.name.starts_with("attn_res") && !entry.name.starts_with("block_attn_res")) continue;
    formulas.insert(test_vector_formula(entry));
    ++entries;
  }
  EXPECT_EQ(formulas.size(), entries);
}

// A reader of the texts alone must learn what a setting that departs from its default does.
TEST(TestVectors, SayWhatEverySettingChanges) {
  for (const TestVectorEntry& entry : test_vector_entries()) {
    const MechanismText& text = entry.depth_mixing.text();
    const Json defaults = DepthMixing({{"type", text.name}}, entry.shape).to_json();
    std::string texts = text.details;
    for (const RoleText& role : text.roles) texts += "\n" + role.text;
    const Json settings = entry.depth_mixing.to_json();
    for (const auto& [key, value] : settings.items()) {
      if (value == defaults.at(key)) continue;
      const bool is_said =
          test_vector_formula(entry) != text.formula || texts.find(key) != std::string::npos;
      EXPECT_TRUE(is_said) << entry.name << ": " << key;
    }
  }
  const auto formula = [](const char* name) { return test_vector_formula(entry_named(name)); };
  EXPECT_THAT(formula("value_residual.learned=false"), HasSubstr("(v_first + v) / 2"));
  EXPECT_THAT(formula("dense_former.form=original"), HasSubstr("X_j = sum"));
  EXPECT_THAT(formula("dca.recent_layers=2"), HasSubstr("newest 2"));
}

// By the text alone: v_0, one sum, and the newest two, the oldest of them first.
TEST(TestVectors, OfDcaWithTwoRecentLayersAreWhatTheTextSays) {
  const TestVectorEntry& entry = entry_named("dca.recent_layers=2");
  const TestVectors vectors = make_test_vectors(entry);
  const auto given = [&](const std::string& name) { return vectors.find(name).detach(); };
  std::vector<at::Tensor> v = {given("embedding")};
  for (int j = 0; j < 4; ++j) {
    v.push_back(given(named("output", 2 * j)) + given(named("output", 2 * j + 1)));
  }
  const auto g = [&](const std::vector<at::Tensor>& sources) {
    const at::Tensor b = given("parameter.bias.8"), w = given("parameter.score.8");
    at::Tensor sum = at::zeros_like(v[0]);
    for (size_t i = 0; i < sources.size(); ++i) {
      const at::Tensor& s = sources[i];
      const at::Tensor rms = s.square().mean(-1, true).add(entry.shape.norm_eps).sqrt();
      sum = sum + (b[static_cast<int64_t>(i)] + (w * s / rms).sum(-1, true).relu()) * s;
    }
    return sum;
  };
  const at::Tensor output = given("mixed.8");
  EXPECT_LT((g({v[0], v[1] + v[2], v[3], v[4]}) - output).abs().max().item<double>(), 1e-12);
  // Control: the order matters.
  EXPECT_GT((g({v[0], v[1] + v[2], v[4], v[3]}) - output).abs().max().item<double>(), 1e-2);
}

TEST(TestVectors, EveryGivenNumberMatters) {
  for (const TestVectorEntry& entry : test_vector_entries()) {
    for (const auto& [name, tensor] : make_test_vectors(entry).results) {
      EXPECT_TRUE(at::isfinite(tensor).all().item<bool>()) << entry.name << " " << name;
      if (name.starts_with("gradient.")) {
        EXPECT_GT(tensor.abs().max().item<double>(), 1e-3) << entry.name << " " << name;
      }
    }
  }
}

TEST(TestVectors, AreFarFromTheMeanOfTheSources) {
  const TestVectors vectors = make_test_vectors(entry_named("attn_res"));
  at::Tensor sum = vectors.find("embedding").clone();
  for (int l = 1; l <= 8; ++l) {
    sum = sum + vectors.find(named("output", l - 1));
    const at::Tensor mixed = vectors.find(named("mixed", l));
    EXPECT_GT((mixed - sum / (l + 1)).abs().max().item<double>(), 0.2) << l;
  }
}

TEST(TestVectors, AreTheSameBytesEveryTime) {
  const auto folder = fresh_folder("vectors");
  const std::vector<std::string> mechanisms = {"lime", "block_attn_res"};
  const WrittenVectors written = write_test_vectors(folder / "a", mechanisms);
  write_test_vectors(folder / "b", mechanisms);
  EXPECT_EQ(read_file(folder / "a"), read_file(folder / "b"));
  EXPECT_EQ(written.entries, 14U);

  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.names().size(), written.tensors);
  EXPECT_TRUE(file.contains("block_attn_res.heads=4/mixed.8"));
  EXPECT_TRUE(file.contains("lime/adapted.k.2"));
  EXPECT_FALSE(file.contains("attn_res/mixed.8"));
  const Json described = parse_json(file.metadata().at("block_attn_res"), "metadata");
  EXPECT_EQ(described.at("depth_mixing").at("block_size"), 3);
  EXPECT_EQ(described.at("sublayers"), 8);
  EXPECT_THAT(message_of<UsageError>([&] { write_test_vectors(folder / "c", {"attn_rse"}); }),
              HasSubstr("attn_res"));
}

}  // namespace
}  // namespace attnres::testing::test_vectors_test
