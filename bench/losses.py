"""Training of fused and of plain blocks on one GPU: do their losses agree within noise?

A small model of the blocks of bench/blocks.py learns the tales of the demo, compiled. It does
so three times for each recipe, from the same weights on the same batches: of plain layers, of
fused modules, and of plain layers some of whose weights begin one bf16 step away. The last one
is the noise. Prints a table of the mean loss of the last tenth of the steps.

    python bench/losses.py [--steps 300] [--only current,block]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "examples" / "python" / "gpt")]

from blocks import RECIPES, Fused, Sizes, Stack, octet_layer, table_text  # noqa: E402
from octet import recipe  # noqa: E402
from tales import tales  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import torch  # noqa: E402
from torch import nn  # noqa: E402

AT = Sizes(width=512, inner=1408, heads=8, kv_heads=2, head=64, depth=4, batch=32, length=256)
RATE, WARMUP = 1e-3, 30  # of AdamW
TEXT = tales()
CHARACTERS = sorted(set(TEXT))
ALL = {**RECIPES, "nvfp4": recipe.NVFP4BlockScaling()}


class Model(nn.Module):
    """Characters, blocks, and a head in bf16."""

    def __init__(self, blocks: Stack) -> None:
        super().__init__()
        self.blocks = blocks
        like = {"device": "cuda", "dtype": torch.bfloat16}
        self.characters = nn.Embedding(len(CHARACTERS), AT.width, **like)
        self.norm = nn.RMSNorm(AT.width, eps=1e-5, **like)
        self.head = nn.Linear(AT.width, len(CHARACTERS), bias=False, **like)
        rates = 10000.0 ** (-torch.arange(0, AT.head, 2, device="cuda") / AT.head)
        angles = torch.outer(torch.arange(AT.length, device="cuda"), rates)
        self.turns = angles.cos(), angles.sin()

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy, in nats a character."""
        x = self.blocks(self.characters(tokens), self.turns)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def take_weights(fused: Model, plain: Model) -> None:
    """Gives a model of fused modules the weights of a plain one."""
    pairs = [(fused.characters, plain.characters), (fused.norm, plain.norm)]
    for one, other in [*pairs, (fused.head, plain.head)]:
        one.load_state_dict(other.state_dict())
    with torch.no_grad():
        for to, of in zip(fused.blocks.blocks, plain.blocks.blocks, strict=True):
            to.attention.qkv.layer_norm_weight.copy_(of.norms[0].weight)
            to.attention.qkv.weight.copy_(of.attention.qkv.weight)
            to.attention.o.weight.copy_(of.attention.o.weight)
            to.feed.layer_norm_weight.copy_(of.norms[1].weight)
            to.feed.fc1_weight.copy_(of.feed.both.weight)
            to.feed.fc2_weight.copy_(of.feed.down.weight)


def disturb(model: Model) -> None:
    """Moves one weight of a hundred by a bf16 step."""
    with torch.no_grad():
        for weight in model.parameters():
            step = (torch.rand_like(weight) < 0.01) * 2.0**-8
            weight.add_(weight * step)


def batches(steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pieces of the text, and the same moved by one character."""
    numbers = {character: number for number, character in enumerate(CHARACTERS)}
    text = torch.tensor([numbers[character] for character in TEXT], device="cuda")
    draw = torch.Generator().manual_seed(5)
    for _ in range(steps):
        starts = torch.randint(len(text) - AT.length - 1, (AT.batch,), generator=draw)
        pieces = torch.stack([text[at : at + AT.length + 1] for at in starts.tolist()])
        yield pieces[:, :-1], pieces[:, 1:]


def losses(model: Model, steps: int) -> torch.Tensor:
    """Trains a model; returns the loss of each step."""
    torch._dynamo.reset()
    torch.manual_seed(11)  # of stochastic rounding
    compiled = torch.compile(model, fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    found = []
    for number, (tokens, targets) in enumerate(batches(steps)):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (number + 1) / WARMUP)
        loss = compiled(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return torch.stack(found).float().cpu()


def row(name: str, active: recipe.Recipe, steps: int) -> list[str]:
    """A row of the table."""
    torch.manual_seed(3)
    plain = Model(Stack(octet_layer(), AT, True, active))
    noisy = Model(Stack(octet_layer(), AT, True, active))
    noisy.load_state_dict(plain.state_dict())
    disturb(noisy)
    fused = Model(Fused(lambda: {}, AT, joined=True, active=active))
    take_weights(fused, plain)
    runs = [losses(model, steps) for model in (plain, fused, noisy)]
    ends = [float(one[-max(1, steps // 10) :].mean()) for one in runs]
    apart = (abs(end - ends[0]) for end in ends[1:])
    cells = [float(runs[0][0]), *ends, *apart]
    return [name, *(f"{cell:.4f}" for cell in cells)]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--only", default="", help="names, with commas between them")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench/losses.py needs a GPU")
    only = {name for name in asked.only.split(",") if name} or set(ALL)
    head = ["", "first loss", "plain", "fused", "disturbed", "fused off by", "disturbed off by"]
    found = [row(name, active, asked.steps) for name, active in ALL.items() if name in only]
    print(
        f"\n{asked.steps} steps ({torch.cuda.get_device_name()}, torch {torch.__version__})\n"
    )
    print(table_text(found, head))


if __name__ == "__main__":
    main()
