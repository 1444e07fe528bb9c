// The entries of the list in mechanism.cc.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism residual_mechanism();
Mechanism attn_res_mechanism();
Mechanism block_attn_res_mechanism();
Mechanism delta_attn_res_mechanism();
Mechanism post_norm_mechanism();
Mechanism hybrid_norm_mechanism();
Mechanism rezero_mechanism();
Mechanism layer_scale_mechanism();
Mechanism highway_mechanism();
Mechanism deep_norm_mechanism();
Mechanism keel_mechanism();
Mechanism siamese_norm_mechanism();
Mechanism hyper_connections_mechanism();
Mechanism mhc_mechanism();
Mechanism mhc_lite_mechanism();
Mechanism hc_identity_mechanism();
Mechanism gated_residual_mechanism();
Mechanism deep_delta_mechanism();
Mechanism dense_net_mechanism();
Mechanism dense_former_mechanism();
Mechanism ancre_mechanism();
Mechanism mrla_mechanism();
Mechanism sknet_mechanism();
Mechanism muddformer_mechanism();
Mechanism dca_mechanism();
Mechanism depth_attention_mechanism();
Mechanism value_residual_mechanism();
Mechanism lime_mechanism();
Mechanism laurel_mechanism();
Mechanism scalar_mix_mechanism();

}  // namespace attnres
