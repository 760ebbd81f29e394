"""A small transformer's training step on a GPU: layers of Octet in the place of torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import octet
from octet import recipe

import torch

WIDTH, HEADS, DEPTH = 1024, 16, 8
BATCH, LENGTH = 4, 512
SHAPE = f"{DEPTH} blocks of width {WIDTH}, {BATCH} x {LENGTH} tokens"

Made = Callable[[int, int], torch.nn.Module]


class Block(torch.nn.Module):
    """Attention and a feed-forward part: four linear layers."""

    def __init__(self, made: Made) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = made(WIDTH, 3 * WIDTH), made(WIDTH, WIDTH)
        self.up, self.down = made(WIDTH, 4 * WIDTH), made(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norms[0](x)).view(BATCH, LENGTH, 3, HEADS, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norms[1](x))))


class Training:
    """A model, its optimizer and a batch; calling it is one step."""

    def __init__(self, active: recipe.Recipe | None, ours: bool = True) -> None:
        layer = octet.Linear if ours else torch.nn.Linear
        self.model = torch.nn.Sequential(*(Block(layer) for _ in range(DEPTH)))
        self.model.to("cuda", torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4, fused=True)
        self.x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.bfloat16, device="cuda")
        self.active = active

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with octet.autocast(enabled=self.active is not None, recipe=self.active):
            return self.model(x)

    def step(self, forward: Callable[[torch.Tensor], Any] | None = None) -> None:
        self.optimizer.zero_grad()
        y = (forward or self.forward)(self.x)
        torch.nn.functional.mse_loss(y, self.x).backward()
        self.optimizer.step()
