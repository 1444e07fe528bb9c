// The gated activation of SwiGLU, element by element, written as the formula.
#pragma once

#include <cmath>

namespace attnres::reference {

template <class Scalar>
Scalar sigmoid(Scalar x) {
  return Scalar(1) / (Scalar(1) + std::exp(-x));
}

// y = gate sigma(gate) up
template <class Scalar>
Scalar swiglu(Scalar gate, Scalar up) {
  return gate * sigmoid(gate) * up;
}

template <class Scalar>
struct SwigluGradients {
  Scalar gate, up;
};

// The gradients of dy y.
template <class Scalar>
SwigluGradients<Scalar> swiglu_backward(Scalar gate, Scalar up, Scalar dy) {
  const Scalar sigma = sigmoid(gate);
  return {dy * up * sigma * (Scalar(1) + gate * (Scalar(1) - sigma)), dy * gate * sigma};
}

}  // namespace attnres::reference
