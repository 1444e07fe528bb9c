// The gated delta rule of one head, written as the formula.
#pragma once

#include <cmath>
#include <vector>

namespace attnres::reference {

template <class Scalar>
struct DeltaRuleInputs {
  using Matrix = std::vector<std::vector<Scalar>>;
  Matrix q_TK, k_TK, v_TV, log_decay_TK;
  std::vector<Scalar> beta_T;
  Matrix state_KV;  // before the first token
};

template <class Scalar>
struct DeltaRuleOutput {
  typename DeltaRuleInputs<Scalar>::Matrix o_TV, state_KV;
};

// S <- diag(a) S,  S <- S + beta k (v - k^T S)^T,  o = S^T q,  with a = e^log_decay.
template <class Scalar>
DeltaRuleOutput<Scalar> gated_delta_rule(const DeltaRuleInputs<Scalar>& in) {
  const size_t T = in.q_TK.size(), K = in.state_KV.size(), V = in.state_KV[0].size();
  auto S = in.state_KV;
  DeltaRuleOutput<Scalar> out;
  for (size_t t = 0; t < T; ++t) {
    auto& o = out.o_TV.emplace_back(V);
    for (size_t i = 0; i < K; ++i) {
      for (size_t j = 0; j < V; ++j) S[i][j] *= std::exp(in.log_decay_TK[t][i]);
    }
    for (size_t j = 0; j < V; ++j) {
      Scalar recalled = 0;
      for (size_t i = 0; i < K; ++i) recalled += in.k_TK[t][i] * S[i][j];
      const Scalar correction = in.beta_T[t] * (in.v_TV[t][j] - recalled);
      for (size_t i = 0; i < K; ++i) S[i][j] += in.k_TK[t][i] * correction;
      for (size_t i = 0; i < K; ++i) o[j] += in.q_TK[t][i] * S[i][j];
    }
  }
  out.state_KV = S;
  return out;
}

}  // namespace attnres::reference
