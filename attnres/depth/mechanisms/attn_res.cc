// Full Attention Residuals (arXiv 2603.15031, section 3.1, Eqs. 2 to 4): every site attends to the
// token embedding and to the output of every sublayer before it. This is Block(1).
#include "attnres/depth/mechanisms/block_attn_res.h"
#include "attnres/depth/mechanisms/mechanisms.h"

namespace attnres {

Mechanism attn_res_mechanism() {
  return attn_res_mechanism(
      {.name = "attn_res",
       .formula = "h_l = sum_i softmax_i(w_l . (g_l * RMS(v_i))) v_i over v_0 .. v_l",
       .start = "w = 0, g = 1: the mean of the sources",
       .source = "Full Attention Residuals, arXiv 2603.15031, Eqs. 2 to 4",
       .traffic = "(S + N)d, N = L/S groups of S sites",
       .details =
           "Sources of site l: v_0 .. v_l, in this order. Site 0 reads v_0 and has its norm alone; "
           "x_l = norm(h_l). With heads, group n has channels n d/heads to (n + 1) d/heads - 1. "
           "With value_query, mixed.value.l at even l from 2 to L - 2 is h_l with w'_l for w_l, "
           "and "
           "input.value.l its norm with the gain of input.l.",
       .roles = attn_res_roles()});
}

}  // namespace attnres
