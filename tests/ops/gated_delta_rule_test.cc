// The gated delta rule: its forms against the recurrence in plain loops in float64, and their
// gradients against each other, the reference's and central differences; the kernel on every
// instruction set.
#include "attnres/ops/gated_delta_rule/gated_delta_rule.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>

#include "attnres/ops/gated_delta_rule/kernel.h"
#include "attnres/ops/gated_delta_rule/reference.h"
#include "attnres/support/error.h"
#include "tests/ops/every_target.h"
#include "tests/tolerances.h"

namespace attnres::gated_delta_rule_test {
namespace {

using at::Tensor;
using testing::close;
using testing::relative_error;

constexpr int64_t kBatch = 2, kHeads = 3, kKey = 5, kValue = 4;
const std::vector<int64_t> kLengths = {1, 2, 15, 16, 17, 63, 64, 65, 130};

using Form = GatedDeltaRuleOutput (*)(const GatedDeltaRuleInputs&);
struct NamedForm {
  const char* name;
  Form form;
};
constexpr NamedForm kForms[] = {{"recurrent", gated_delta_rule_recurrent},
                                {"chunked", gated_delta_rule_chunked},
                                {"chosen", gated_delta_rule}};

// log_decay of each token and channel.
using Decays = std::function<Tensor(at::IntArrayRef)>;
struct NamedDecays {
  const char* name;
  Decays decays;
};
const double kStrongest = std::log(1e-6);
Tensor any_decays(at::IntArrayRef shape) {
  return kStrongest * at::rand(shape, at::kDouble);
}
// Decays of all sizes, 1 and 1e-6 among them.
Tensor mixed_decays(at::IntArrayRef shape) {
  const Tensor choice = at::randint(4, shape, at::kDouble);
  const Tensor weak = -at::pow(10, -6 * at::rand(shape, at::kDouble));
  return at::where(choice == 0, at::zeros_like(weak),
                   at::where(choice == 1, at::full_like(weak, kStrongest),
                             at::where(choice == 2, weak, any_decays(shape))));
}
const NamedDecays kDecays[] = {
    {"1e-6", [](at::IntArrayRef shape) { return at::full(shape, kStrongest, at::kDouble); }},
    {"1", [](at::IntArrayRef shape) { return at::zeros(shape, at::kDouble); }},
    {"any", any_decays},
    {"mixed", mixed_decays}};

Tensor unit(const Tensor& x) {
  return x / x.norm(2, -1, true);
}

GatedDeltaRuleInputs random_inputs(int64_t T, const Decays& decays, int64_t K = kKey,
                                   int64_t V = kValue) {
  at::manual_seed(7);
  const std::vector<int64_t> keys = {kBatch, T, kHeads, K};
  return {.q = at::randn(keys, at::kDouble),
          .k = unit(at::randn(keys, at::kDouble)),
          .v = at::randn({kBatch, T, kHeads, V}, at::kDouble),
          .log_decay = decays(keys),
          .beta = at::rand({kBatch, T, kHeads}, at::kDouble),
          .state = at::randn({kBatch, kHeads, K, V}, at::kDouble)};
}

std::vector<double> numbers(const Tensor& x) {
  const Tensor dense = x.to(at::kDouble).contiguous();
  return {dense.const_data_ptr<double>(), dense.const_data_ptr<double>() + dense.numel()};
}

std::vector<std::vector<double>> rows(const Tensor& x) {
  std::vector<std::vector<double>> list;
  for (int64_t i = 0; i < x.size(0); ++i) list.push_back(numbers(x[i]));
  return list;
}

void copy_rows(const std::vector<std::vector<double>>& from, const Tensor& to) {
  for (size_t i = 0; i < from.size(); ++i) {
    to.select(0, static_cast<int64_t>(i)).copy_(at::tensor(from[i], at::kDouble));
  }
}

reference::DeltaRuleInputs<double> head_of(const GatedDeltaRuleInputs& in, int64_t b, int64_t h) {
  const auto head = [&](const Tensor& x) { return rows(x[b].select(1, h)); };
  return {.q_TK = head(in.q),
          .k_TK = head(in.k),
          .v_TV = head(in.v),
          .log_decay_TK = head(in.log_decay),
          .beta_T = numbers(in.beta[b].select(1, h)),
          .state_KV = in.state.defined()
                          ? rows(in.state[b][h])
                          : std::vector(in.k.size(3), std::vector<double>(in.v.size(3)))};
}

// The recurrence of every head, number by number.
GatedDeltaRuleOutput plain(const GatedDeltaRuleInputs& in) {
  const int64_t B = in.v.size(0), T = in.v.size(1), H = in.v.size(2), V = in.v.size(3),
                K = in.k.size(3);
  GatedDeltaRuleOutput out = {at::empty({B, T, H, V}, at::kDouble),
                              at::empty({B, H, K, V}, at::kDouble)};
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      const auto result = reference::gated_delta_rule(head_of(in, b, h));
      copy_rows(result.o_TV, out.o[b].select(1, h));
      copy_rows(result.state_KV, out.state[b][h]);
    }
  }
  return out;
}

GatedDeltaRuleInputs map(const GatedDeltaRuleInputs& in,
                         const std::function<Tensor(const Tensor&)>& f) {
  return {.q = f(in.q),
          .k = f(in.k),
          .v = f(in.v),
          .log_decay = f(in.log_decay),
          .beta = f(in.beta),
          .state = in.state.defined() ? f(in.state) : Tensor()};
}

GatedDeltaRuleInputs rounded(const GatedDeltaRuleInputs& in, at::ScalarType dtype) {
  return map(in, [&](const Tensor& x) { return x.to(dtype); });
}

// Some of the tokens, without a state.
GatedDeltaRuleInputs tokens(GatedDeltaRuleInputs in, int64_t first, int64_t count) {
  in.state = Tensor();
  return map(in, [&](const Tensor& x) { return x.narrow(1, first, count); });
}

double error(const GatedDeltaRuleOutput& actual, const GatedDeltaRuleOutput& expected) {
  return std::max(relative_error(actual.o, expected.o),
                  relative_error(actual.state, expected.state));
}

std::vector<Tensor> list(const GatedDeltaRuleInputs& in) {
  return {in.q, in.k, in.v, in.log_decay, in.beta, in.state};
}

// A scalar that depends on every output, each in a way of its own.
Tensor loss(const GatedDeltaRuleOutput& out) {
  at::manual_seed(11);
  const Tensor o = at::randn(out.o.sizes(), at::kDouble).to(out.o.scalar_type()),
               state = at::randn(out.state.sizes(), at::kDouble).to(out.state.scalar_type());
  return (out.o * o).sum() + (out.state * state).sum();
}

std::vector<Tensor> gradients(Form form, const GatedDeltaRuleInputs& inputs) {
  const GatedDeltaRuleInputs leaves =
      map(inputs, [](const Tensor& x) { return x.detach().clone().set_requires_grad(true); });
  return torch::autograd::grad({loss(form(leaves))}, list(leaves));
}

// The same by the reference's formulas, of float64 inputs with a state.
std::vector<Tensor> plain_gradients(const GatedDeltaRuleInputs& in) {
  const GatedDeltaRuleOutput plain_out = plain(in);
  const GatedDeltaRuleOutput out = {plain_out.o.requires_grad_(), plain_out.state.requires_grad_()};
  const std::vector<Tensor> of_out = torch::autograd::grad({loss(out)}, {out.o, out.state});
  const GatedDeltaRuleInputs all = map(in, [](const Tensor& x) { return at::empty_like(x); });
  for (int64_t b = 0; b < in.v.size(0); ++b) {
    for (int64_t h = 0; h < in.v.size(2); ++h) {
      const auto grad = reference::gated_delta_rule_backward(
          head_of(in, b, h), rows(of_out[0][b].select(1, h)), rows(of_out[1][b][h]));
      copy_rows(grad.q_TK, all.q[b].select(1, h));
      copy_rows(grad.k_TK, all.k[b].select(1, h));
      copy_rows(grad.v_TV, all.v[b].select(1, h));
      copy_rows(grad.log_decay_TK, all.log_decay[b].select(1, h));
      all.beta[b].select(1, h).copy_(at::tensor(grad.beta_T, at::kDouble));
      copy_rows(grad.state_KV, all.state[b][h]);
    }
  }
  return list(all);
}

TEST(GatedDeltaRule, IsTheRecurrence) {
  for (const auto& [name, form] : kForms) {
    for (const auto& [decay, decays] : kDecays) {
      for (const int64_t T : kLengths) {
        const GatedDeltaRuleInputs in = random_inputs(T, decays);
        EXPECT_LT(error(form(in), plain(in)), 1e-12) << name << ", " << T << ", decays " << decay;
        const GatedDeltaRuleInputs single = rounded(in, at::kFloat);
        EXPECT_LT(error(form(single), plain(single)), 1e-5)
            << name << ", " << T << ", decays " << decay;
      }
    }
  }
}

TEST(GatedDeltaRule, TakesEveryShape) {
  for (const auto& [name, form] : kForms) {
    for (const auto& [K, V] : {std::pair{1, 1}, {1, 7}, {128, 1}, {3, 64}}) {
      const GatedDeltaRuleInputs in = random_inputs(70, mixed_decays, K, V);
      EXPECT_LT(error(form(in), plain(in)), 1e-12) << name << ", " << K << ", " << V;
      const GatedDeltaRuleInputs single = rounded(in, at::kFloat);
      EXPECT_LT(error(form(single), plain(single)), 1e-5) << name << ", " << K << ", " << V;
    }
  }
}

// The kernel's columns: whole vectors of every instruction set, less and more.
TEST(GatedDeltaRule, KernelOnEveryInstructionSet) {
  const at::NoGradGuard no_grad;
  testing::on_every_target([] {
    for (const int64_t V : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 130}) {
      for (const int64_t K : {1, 2, 5}) {
        const GatedDeltaRuleInputs in = random_inputs(3, mixed_decays, K, V);
        EXPECT_LT(error(gated_delta_rule(in), plain(in)), 1e-12) << K << ", " << V;
        const GatedDeltaRuleInputs single = rounded(in, at::kFloat);
        EXPECT_LT(error(gated_delta_rule(single), plain(single)), 1e-5) << K << ", " << V;
        const GatedDeltaRuleInputs coarse = rounded(in, at::kBFloat16);
        EXPECT_LT(relative_error(gated_delta_rule(coarse).o, plain(coarse).o), 4e-3)
            << K << ", " << V;
      }
    }
  });
}

TEST(GatedDeltaRule, KernelOfNoTokensKeepsTheState) {
  std::vector<float> state(3 * 70), new_state(3 * 70, -1);
  for (size_t i = 0; i < state.size(); ++i) state[i] = static_cast<float>(i);
  const kernel::GatedDeltaRule<float> op{.tokens = 0,
                                         .heads = 1,
                                         .key_width = 3,
                                         .value_width = 70,
                                         .q = nullptr,
                                         .k = nullptr,
                                         .decay = nullptr,
                                         .v = nullptr,
                                         .beta = nullptr,
                                         .state = state.data(),
                                         .o = nullptr,
                                         .new_state = new_state.data()};
  kernel::gated_delta_rule(op, 0, op.pieces());
  EXPECT_EQ(new_state, state);
}

// One sequence, one head, and inputs that lie elsewhere in memory than their shape says.
TEST(GatedDeltaRule, TakesEveryLayout) {
  const GatedDeltaRuleInputs in = random_inputs(130, mixed_decays);
  const std::vector<std::function<Tensor(const Tensor&)>> layouts = {
      [](const Tensor& x) { return x.narrow(0, 1, 1); },
      [](const Tensor& x) { return x.transpose(0, 1).contiguous().transpose(0, 1); },
      [](const Tensor& x) {
        return at::stack({x, x}, -1).select(-1, 0);
      }};
  for (const auto& [name, form] : kForms) {
    for (size_t i = 0; i < layouts.size(); ++i) {
      const GatedDeltaRuleInputs laid = map(in, layouts[i]);
      EXPECT_LT(error(form(laid), plain(laid)), 1e-12) << name << ", layout " << i;
    }
    GatedDeltaRuleInputs head = tokens(in, 0, 130);
    head = map(head, [](const Tensor& x) { return x.narrow(2, 1, 1); });
    EXPECT_LT(error(form(head), plain(head)), 1e-12) << name << ", one head";
  }
}

TEST(GatedDeltaRule, StartsAtZeroWithoutAState) {
  GatedDeltaRuleInputs in = random_inputs(70, mixed_decays);
  in.state = Tensor();
  for (const auto& [name, form] : kForms) EXPECT_LT(error(form(in), plain(in)), 1e-12) << name;
}

// Against the recurrence of the same rounded inputs: the state has the errors of float32, and each
// number of o is rounded once.
TEST(GatedDeltaRule, ComputesBfloat16InFloat32) {
  const GatedDeltaRuleInputs in = rounded(random_inputs(70, mixed_decays), at::kBFloat16);
  const GatedDeltaRuleOutput exact = plain(in);
  const Tensor rounding = exact.o.abs() * 0x1p-8 + 1e-5 * exact.o.abs().max();
  const auto rounded_once = [&](const Tensor& o) {
    return (o.to(at::kDouble) - exact.o).abs().le(rounding).all().item<bool>();
  };
  for (const auto& [name, form] : kForms) {
    const GatedDeltaRuleOutput out = form(in);
    EXPECT_EQ(out.o.scalar_type(), at::kBFloat16) << name;
    EXPECT_TRUE(rounded_once(out.o)) << name;
    EXPECT_EQ(out.state.scalar_type(), at::kFloat) << name;
    EXPECT_LT(relative_error(out.state, exact.state), 1e-5) << name;
  }
  // Control: a state that is rounded after every token.
  GatedDeltaRuleOutput coarse = {{}, in.state};
  std::vector<Tensor> outputs;
  for (int64_t t = 0; t < 70; ++t) {
    GatedDeltaRuleInputs token = tokens(in, t, 1);
    token.state = coarse.state.to(at::kBFloat16);
    coarse = plain(token);
    outputs.push_back(coarse.o);
  }
  EXPECT_FALSE(rounded_once(at::cat(outputs, 1)));
  EXPECT_GT(relative_error(coarse.state, exact.state), 1e-3);
}

TEST(GatedDeltaRule, ContinuesFromAState) {
  const GatedDeltaRuleInputs in = random_inputs(130, mixed_decays);
  const GatedDeltaRuleOutput whole = plain(in);
  for (const auto& [name, form] : kForms) {
    for (const int64_t cut : {1, 16, 64, 100}) {
      GatedDeltaRuleInputs first = tokens(in, 0, cut), second = tokens(in, cut, 130 - cut);
      first.state = in.state;
      const GatedDeltaRuleOutput begun = form(first);
      EXPECT_GT(relative_error(form(second).o, whole.o.narrow(1, cut, 130 - cut)), 1e-2);
      second.state = begun.state;
      const GatedDeltaRuleOutput ended = form(second);
      EXPECT_LT(error({at::cat({begun.o, ended.o}, 1), ended.state}, whole), 1e-12)
          << name << " cut at " << cut;
    }
  }
}

// Each input, and the order of decay and correction, shows in the result.
TEST(GatedDeltaRule, ComparisonRefusesOtherRules) {
  const GatedDeltaRuleInputs in = random_inputs(20, any_decays);
  const GatedDeltaRuleOutput expected = plain(in);
  const std::vector<std::function<void(GatedDeltaRuleInputs&)>> mistakes = {
      [](GatedDeltaRuleInputs& x) { std::swap(x.q, x.k); },
      [](GatedDeltaRuleInputs& x) { x.beta = at::ones_like(x.beta); },
      [](GatedDeltaRuleInputs& x) { x.state = Tensor(); },
      [](GatedDeltaRuleInputs& x) { x.log_decay = x.log_decay.roll(1, 1); },
      [](GatedDeltaRuleInputs& x) { x.log_decay = x.log_decay.mean(-1, true).expand_as(x.k); },
  };
  for (const auto& [name, form] : kForms) {
    for (size_t i = 0; i < mistakes.size(); ++i) {
      GatedDeltaRuleInputs wrong = in;
      mistakes[i](wrong);
      EXPECT_GT(relative_error(form(wrong).o, expected.o), 1e-2) << name << ", mistake " << i;
    }
  }
}

TEST(GatedDeltaRule, FormsHaveEqualGradients) {
  for (const auto& [decay, decays] : kDecays) {
    for (const int64_t T : kLengths) {
      const GatedDeltaRuleInputs in = random_inputs(T, decays);
      const std::vector<Tensor> chunked = gradients(gated_delta_rule_chunked, in),
                                recurrent = gradients(gated_delta_rule_recurrent, in);
      for (size_t i = 0; i < chunked.size(); ++i) {
        EXPECT_TRUE(close(chunked[i], recurrent[i], 1e-12))
            << "input " << i << ", " << T << ", decays " << decay;
      }
    }
  }
}

TEST(GatedDeltaRule, ReferenceHasTheGradientsOfTheRecurrence) {
  for (const auto& [decay, decays] : kDecays) {
    const GatedDeltaRuleInputs in = random_inputs(9, decays);
    const std::vector<Tensor> expected = gradients(gated_delta_rule_recurrent, in),
                              reference = plain_gradients(in);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(close(reference[i], expected[i], 1e-12)) << "input " << i << ", " << decay;
      EXPECT_FALSE(close(reference[i], -expected[i], 1e-12)) << "input " << i << ", " << decay;
    }
  }
}

TEST(GatedDeltaRule, GradientsAreCentralDifferences) {
  const GatedDeltaRuleInputs in = random_inputs(5, any_decays, 3, 2);
  for (const auto& [name, form] : kForms) {
    const std::vector<Tensor> gradient = gradients(form, in);
    for (size_t i = 0; i < gradient.size(); ++i) {
      const Tensor input = list(in)[i];
      Tensor difference = at::empty_like(input);
      for (int64_t n = 0; n < input.numel(); ++n) {
        constexpr double kStep = 1e-5;
        double* number = input.mutable_data_ptr<double>() + n;
        const double value = *number;
        *number = value + kStep;
        const double above = loss(form(in)).item<double>();
        *number = value - kStep;
        const double below = loss(form(in)).item<double>();
        *number = value;
        difference.mutable_data_ptr<double>()[n] = (above - below) / (2 * kStep);
      }
      EXPECT_TRUE(close(gradient[i], difference, 1e-8)) << name << ", input " << i;
      EXPECT_FALSE(close(gradient[i], -difference, 1e-8)) << name << ", input " << i;
    }
  }
}

// Decays over a chunk down to e^-884 and to nothing at all: a quotient of cumulative decays would
// be 0 / 0.
TEST(GatedDeltaRule, ExtremeDecaysHaveFiniteGradients) {
  const Decays vanishing = [](at::IntArrayRef shape) {
    const Tensor decays = mixed_decays(shape);
    return decays.masked_fill(decays == kStrongest, -INFINITY);
  };
  for (const Decays& decays : {kDecays[0].decays, Decays(mixed_decays), vanishing}) {
    const GatedDeltaRuleInputs in = rounded(random_inputs(130, decays), at::kFloat);
    for (const auto& [name, form] : kForms) {
      EXPECT_LT(error(form(in), plain(in)), 1e-5) << name;
      const std::vector<Tensor> single = gradients(form, in),
                                exact = gradients(form, rounded(in, at::kDouble));
      // A decay's is a difference of q and k times theirs, however small it is itself.
      const double terms = exact[0].abs().max().item<double>();
      for (size_t i = 0; i < single.size(); ++i) {
        EXPECT_TRUE(close(single[i], exact[i], 2e-5, i == 3 ? terms : testing::kSmallestMagnitude))
            << name << ", input " << i;
      }
    }
  }
}

// Composed token by token it has a second derivative; the others refuse rather than return none.
TEST(GatedDeltaRule, SecondDerivatives) {
  const auto differentiate_twice = [](Form form) {
    const GatedDeltaRuleInputs in = map(random_inputs(5, any_decays), [](const Tensor& x) {
      return x.detach().clone().set_requires_grad(true);
    });
    const Tensor first = torch::autograd::grad({loss(form(in))}, {in.k}, {}, /*retain_graph=*/true,
                                               /*create_graph=*/true)[0];
    return torch::autograd::grad({first.square().sum()}, {in.k})[0];
  };
  EXPECT_GT(differentiate_twice(gated_delta_rule_recurrent).abs().max().item<double>(), 1e-3);
  EXPECT_THROW(differentiate_twice(gated_delta_rule_chunked), Error);
  EXPECT_THROW(differentiate_twice(gated_delta_rule), Error);
}

TEST(GatedDeltaRule, RefusesWrongShapes) {
  const auto message = [](const std::function<void(GatedDeltaRuleInputs&)>& spoil) -> std::string {
    GatedDeltaRuleInputs in = random_inputs(3, any_decays);
    spoil(in);
    try {
      gated_delta_rule(in);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message([](auto& in) { in.beta = in.beta.narrow(2, 0, 1); }),
            "gated_delta_rule: beta must be [2, 3, 3], but is [2, 3, 1]");
  EXPECT_EQ(message([](auto& in) { in.state = in.state.transpose(2, 3); }),
            "gated_delta_rule: state must be [2, 3, 5, 4], but is [2, 3, 4, 5]");
  EXPECT_EQ(message([](auto& in) { in.q = in.q.narrow(1, 0, 0); }),
            "gated_delta_rule: q must be [B, T, H, K], none of them 0");
  EXPECT_EQ(message([](auto& in) { in.q = in.q[0]; }),
            "gated_delta_rule: q must be [B, T, H, K], none of them 0");
}

}  // namespace
}  // namespace attnres::gated_delta_rule_test
