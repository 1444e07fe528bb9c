// The gated delta rule of one head and its gradients, written as the formulas.
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

// The gradients of the inputs, from the last token to the first: with S' the state that has decayed
// and c = beta (v - k^T S') what is written where k points,
//   dS <- dS + q do^T
//   dk = dS c,  dc = dS^T k,  dv = beta dc,  dbeta = dc . (v - k^T S')
//   dS <- dS - k dv^T,  dk <- dk - S' dv
//   da * a = rows' sums of dS * S',  dS <- diag(a) dS
template <class Scalar>
DeltaRuleInputs<Scalar> gated_delta_rule_backward(
    const DeltaRuleInputs<Scalar>& in, const typename DeltaRuleInputs<Scalar>::Matrix& grad_o_TV,
    const typename DeltaRuleInputs<Scalar>::Matrix& grad_state_KV) {
  const size_t T = in.q_TK.size(), K = in.state_KV.size(), V = in.state_KV[0].size();
  std::vector<typename DeltaRuleInputs<Scalar>::Matrix> states = {in.state_KV};
  for (size_t t = 0; t < T; ++t) {
    const DeltaRuleInputs<Scalar> token = {{in.q_TK[t]},         {in.k_TK[t]},   {in.v_TV[t]},
                                           {in.log_decay_TK[t]}, {in.beta_T[t]}, states[t]};
    states.push_back(gated_delta_rule(token).state_KV);
  }
  const typename DeltaRuleInputs<Scalar>::Matrix keys(T, std::vector<Scalar>(K));
  DeltaRuleInputs<Scalar> grad = {.q_TK = keys,
                                  .k_TK = keys,
                                  .v_TV = in.v_TV,
                                  .log_decay_TK = keys,
                                  .beta_T = std::vector<Scalar>(T),
                                  .state_KV = grad_state_KV};
  auto& dS = grad.state_KV;
  for (size_t t = T; t-- > 0;) {
    const auto &q = in.q_TK[t], &k = in.k_TK[t], &grad_o = grad_o_TV[t];
    auto decayed = states[t];
    for (size_t i = 0; i < K; ++i) {
      for (size_t j = 0; j < V; ++j) {
        decayed[i][j] *= std::exp(in.log_decay_TK[t][i]);
        grad.q_TK[t][i] += states[t + 1][i][j] * grad_o[j];
        dS[i][j] += q[i] * grad_o[j];
      }
    }
    for (size_t j = 0; j < V; ++j) {
      Scalar lacking = in.v_TV[t][j], grad_c = 0;
      for (size_t i = 0; i < K; ++i) lacking -= k[i] * decayed[i][j];
      for (size_t i = 0; i < K; ++i) grad_c += dS[i][j] * k[i];
      const Scalar grad_v = in.beta_T[t] * grad_c;
      for (size_t i = 0; i < K; ++i) {
        grad.k_TK[t][i] += dS[i][j] * in.beta_T[t] * lacking - decayed[i][j] * grad_v;
        dS[i][j] -= k[i] * grad_v;
      }
      grad.v_TV[t][j] = grad_v;
      grad.beta_T[t] += grad_c * lacking;
    }
    for (size_t i = 0; i < K; ++i) {
      for (size_t j = 0; j < V; ++j) {
        grad.log_decay_TK[t][i] += dS[i][j] * decayed[i][j];
        dS[i][j] *= std::exp(in.log_decay_TK[t][i]);
      }
    }
  }
  return grad;
}

}  // namespace attnres::reference
