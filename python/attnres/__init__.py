"""Attention Residuals (arXiv 2603.15031) for PyTorch.

`BlockAttnRes` and `AttnRes` take the place of a Transformer's residual connections, `DeltaAttnRes`
adds to them; `depth_attention` is the operation inside, which they run in two phases, forward and
backward. On CPUs they run fused kernels in float32, float64 and bfloat16; on NVIDIA GPUs, where the
package was built with nvcc, in float32 and bfloat16; elsewhere compositions of PyTorch's
operations. `torch.compile` sees through all of them. `retrofit` changes models of transformers.
"""

from pathlib import Path

from .built_for import ATTNRES as __version__
from .built_for import TORCH as _built_for
from .launch import is_run_as_module, run_module

if is_run_as_module():
    run_module()  # before torch is imported, which the program does not need

import torch  # noqa: E402

if torch.__version__.split(".")[:2] != _built_for.split("."):
    raise ImportError(
        f"attnres was built for torch {_built_for} and this is torch {torch.__version__}: pip "
        f"install 'torch=={_built_for}.*', or build attnres anew in its source, with pip install "
        "--no-build-isolation --force-reinstall --no-deps ."
    )
torch.ops.load_library(Path(__file__).with_name("libattnres_ops.so"))
_for_gpus = Path(__file__).with_name("libattnres_cuda.so")
if _for_gpus.exists() and "libtorch_cuda.so" in Path("/proc/self/maps").read_text():
    torch.ops.load_library(_for_gpus)

from .modules import (  # noqa: E402
    AttnRes,
    BlockAttnRes,
    DeltaAttnRes,
    DepthState,
    no_weight_decay,
)
from .operations import (  # noqa: E402
    depth_attention,
    depth_attention_composed,
    depth_attention_weights,
)
from .retrofit import retrofit  # noqa: E402

__all__ = [
    "AttnRes",
    "BlockAttnRes",
    "DeltaAttnRes",
    "DepthState",
    "__version__",
    "depth_attention",
    "depth_attention_composed",
    "depth_attention_weights",
    "no_weight_decay",
    "retrofit",
]
