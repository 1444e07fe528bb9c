"""A user's model, which mypy --strict takes and where it sees what is wrong (wheel_check.py)."""

from pathlib import Path

import attnres
import torch
from torch import Tensor, nn


class Network(nn.Module):
    def __init__(self, width: int, sublayers: int) -> None:
        super().__init__()
        self.mix = attnres.BlockAttnRes(width, num_sublayers=sublayers, block_size=2)
        self.maps = nn.ModuleList(nn.Linear(width, width) for _ in range(sublayers))

    def forward(self, embedding: Tensor) -> Tensor:
        state: attnres.DepthState = self.mix.start(embedding)
        for linear in self.maps:
            state = self.mix.write(state, linear(self.mix.read(state)))
        return self.mix.output(state)


def attention(sources: list[Tensor], query: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    return (
        attnres.depth_attention(sources, query, gain, eps=1e-6),
        attnres.depth_attention_weights(sources, query, gain),
    )


def retrofitted(model: nn.Module, folder: Path) -> attnres.BlockAttnRes:
    exempt: list[nn.Parameter] = attnres.no_weight_decay(model)
    print(len(exempt), attnres.__version__)
    return attnres.retrofit(model, checkpoint=folder)


def sources_of(model: Network) -> list[Tensor]:
    return model.mix.start(torch.zeros(2, 8)).sources
