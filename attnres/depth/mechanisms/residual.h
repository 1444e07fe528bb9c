// The standard residual connection with PreNorm (Xiong et al., arXiv 2002.04745):
//   h_{l+1} = h_l + f_l(norm(h_l)),  h_0 = embedding
// The output site reads norm(h_L). Each norm is RMSNorm with its own gain.
#pragma once

namespace attnres {

// None; their type tells plain residual connections from everything else.
struct ResidualSettings {
  template <class V>
  void visit(V&) {}
};

}  // namespace attnres
