"""A small GPT over characters: every product of a block is an octet.Linear."""

from dataclasses import dataclass

import octet
from torch.nn import functional as F  # noqa: N812

import torch
from torch import nn


@dataclass(frozen=True)
class Sizes:
    """How large a GPT is and where it lies; the context is in characters."""

    vocabulary: int
    context: int = 64
    width: int = 128
    heads: int = 2
    depth: int = 2
    device: str = "cpu"


class Block(nn.Module):
    """Attention, then two layers four times as wide, each added to what came in."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, device = sizes.width, sizes.device
        self.heads = sizes.heads
        self.norms = nn.ModuleList([nn.LayerNorm(width, device=device) for _ in range(2)])
        self.qkv = octet.Linear(width, 3 * width, name="qkv", device=device)
        self.proj = octet.Linear(width, width, name="proj", device=device)
        self.up = octet.Linear(width, 4 * width, name="up", device=device)
        self.down = octet.Linear(4 * width, width, name="down", device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, characters, width) to the same."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    """Which character comes next. The head stays in high precision, as is usual."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, device = sizes.width, sizes.device
        self.sizes = sizes
        self.characters = nn.Embedding(sizes.vocabulary, width, device=device)
        self.places = nn.Embedding(sizes.context, width, device=device)
        self.blocks = nn.ModuleList([Block(sizes) for _ in range(sizes.depth)])
        self.norm = nn.LayerNorm(width, device=device)
        self.head = octet.Linear(
            width, sizes.vocabulary, bias=False, name="head", device=device
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, characters) to (batch, characters, vocabulary), not normalized."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.characters(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        with octet.autocast(enabled=False):
            return self.head(self.norm(x))

    def loss(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy of the targets, in nats a character."""
        return F.cross_entropy(self(tokens).float().flatten(0, 1), targets.flatten())
