"""Blocks of Llama-3-8B on one GPU, forward and backward: what a whole model gains.

Every contender is measured in turns, each after it has run alone for a while, and compared with
bf16 compiled in the same run. Two forms: seven layers a block, as Hugging Face writes it, and
with q, k, v and gate, up as one layer each; that one has fused modules, too. Prints tables: ms,
ratio, peak memory of a step.

    python bench/blocks.py [--form seven] [--only bf16,current] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

import octet
from octet import recipe
from torch.nn import functional as F  # noqa: N812

import torch
from torch import nn

RECIPES: dict[str, recipe.Recipe] = {
    "delayed": recipe.DelayedScaling(),
    "current": recipe.Float8CurrentScaling(),
    "block": recipe.Float8BlockScaling(),
    "mxfp8": recipe.MXFP8BlockScaling(),
}


class Sizes(NamedTuple):
    """Of a block, and of the batch."""

    width: int = 4096
    inner: int = 14336
    heads: int = 32
    kv_heads: int = 8
    head: int = 128
    depth: int = 2
    batch: int = 2
    length: int = 8192


class Attention(nn.Module):
    """Causal attention with rotated queries and keys, grouped."""

    def __init__(self, made: Callable[..., nn.Module], at: Sizes, joined: bool) -> None:
        super().__init__()
        self.at, self.joined = at, joined
        queries, keys = at.heads * at.head, at.kv_heads * at.head
        if joined:
            self.qkv = made(at.width, queries + 2 * keys)
        else:
            self.q, self.k, self.v = (made(at.width, n) for n in (queries, keys, keys))
        self.o = made(queries, at.width)

    def _split(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Queries, keys and values: (batch, heads, length, head) each."""
        parts = [self.q(x), self.k(x), self.v(x)] if not self.joined else [self.qkv(x)]
        heads = [part.unflatten(-1, (-1, self.at.head)).transpose(1, 2) for part in parts]
        if self.joined:
            heads = list(heads[0].split([self.at.heads, *[self.at.kv_heads] * 2], 1))
        return heads

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> Any:  # noqa: ANN401
        q, k, v = self._split(x)
        q, k = turned(q, turns), turned(k, turns)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(-2))


class Feed(nn.Module):
    """SwiGLU between two products, or three."""

    def __init__(self, made: Callable[..., nn.Module], at: Sizes, joined: bool) -> None:
        super().__init__()
        self.joined = joined
        if joined:
            self.both = made(at.width, 2 * at.inner)
        else:
            self.gate, self.up = made(at.width, at.inner), made(at.width, at.inner)
        self.down = made(at.inner, at.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.both(x).chunk(2, -1) if self.joined else (self.gate(x), self.up(x))
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """One layer of the model."""

    def __init__(self, made: Callable[..., nn.Module], at: Sizes, joined: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(at.width, eps=1e-5) for _ in range(2))
        self.attention, self.feed = Attention(made, at, joined), Feed(made, at, joined)

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> Any:  # noqa: ANN401
        x = x + self.attention(self.norms[0](x), turns)
        return x + self.feed(self.norms[1](x))


def turned(x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary positions."""
    cos, sin = turns
    left, right = x.float().chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)


class FusedBlock(nn.Module):
    """The same block of fused modules, Octet's or Transformer Engine's: the norms, and SwiGLU,
    belong to the layers behind them. Its layers are joined."""

    def __init__(self, modules: Any, at: Sizes, **options: Any) -> None:  # noqa: ANN401
        super().__init__()
        options = {"bias": False, "params_dtype": torch.bfloat16, "device": "cuda", **options}
        normed = {"normalization": "RMSNorm", "eps": 1e-5, **options}

        def made(k: int, n: int) -> nn.Module:
            wide = k == at.width and n > at.width  # queries, keys and values
            kind, words = ("LayerNormLinear", normed) if wide else ("Linear", options)
            return getattr(modules, kind)(k, n, **words)

        self.attention = Attention(made, at, joined=True)
        self.feed = modules.LayerNormMLP(at.width, at.inner, activation="swiglu", **normed)

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> Any:  # noqa: ANN401
        x = x + self.attention(x, turns)
        return x + self.feed(x)


class Stack(nn.Module):
    """Blocks under one recipe."""

    compiles = True

    def __init__(
        self,
        made: Callable[..., nn.Module],
        at: Sizes,
        joined: bool,
        active: recipe.Recipe | None = None,
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.block(made, at, joined) for _ in range(at.depth))
        self.active = active
        self.to("cuda", torch.bfloat16)

    def block(self, made: Callable[..., nn.Module], at: Sizes, joined: bool) -> nn.Module:
        """One of its blocks."""
        return Block(made, at, joined)

    def under(self) -> Any:  # noqa: ANN401
        """The recipe's context."""
        return octet.autocast(enabled=self.active is not None, recipe=self.active)

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> Any:  # noqa: ANN401
        with self.under():
            for block in self.blocks:
                x = block(x, turns)
        return x


# ---- contenders ------------------------------------------------------------------------------


def torch_layer(k: int, n: int) -> nn.Module:
    """What everyone has."""
    return nn.Linear(k, n, bias=False, device="cuda", dtype=torch.bfloat16)


def octet_layer(**options: Any) -> Callable[..., nn.Module]:  # noqa: ANN401
    """Octet's, with options."""

    def made(k: int, n: int) -> nn.Module:
        return octet.Linear(
            k, n, bias=False, params_dtype=torch.bfloat16, device="cuda", **options
        )

    return made


class Fused(Stack):
    """Octet's fused modules; `made` gives their options."""

    def block(self, made: Callable[..., Any], at: Sizes, joined: bool) -> nn.Module:
        """One of its blocks."""
        return FusedBlock(octet, at, **made())


class EagerFused(Fused):
    """The same without torch.compile."""

    compiles = False


class Engine(Stack):
    """Transformer Engine's, eager: torch.compile does not take them as one graph."""

    compiles = False

    def block(self, made: Callable[..., Any], at: Sizes, joined: bool) -> nn.Module:
        """One of its blocks."""
        return FusedBlock(made(), at)

    def under(self) -> Any:  # noqa: ANN401
        """The recipe's context."""
        import transformer_engine.pytorch as te
        from transformer_engine.common import recipe as te_recipe

        return te.fp8_autocast(enabled=True, fp8_recipe=te_recipe.Float8CurrentScaling())


def engine_modules() -> Any:  # noqa: ANN401
    """Transformer Engine, where it is installed."""
    import transformer_engine.pytorch as te

    return te


def torchao_stack(at: Sizes, joined: bool) -> nn.Module:
    """torchao's layers with one scale a tensor."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name("tensorwise")
    return convert_to_float8_training(Stack(torch_layer, at, joined), config=config)


def contenders(at: Sizes, joined: bool) -> dict[str, Callable[[], nn.Module]]:
    """How each is made, by name; bf16 first."""
    found: dict[str, Callable[[], nn.Module]] = {
        "bf16": lambda: Stack(torch_layer, at, joined),
        "torchao": lambda: torchao_stack(at, joined),
    }
    for name, active in RECIPES.items():
        found[name] = lambda active=active: Stack(octet_layer(), at, joined, active)
        found[f"{name} saves its input"] = lambda active=active: Stack(
            octet_layer(save_original_input=True), at, joined, active
        )
        found[f"{name} save=memory"] = lambda active=active: Stack(
            octet_layer(save="memory"), at, joined, active
        )
    for name, active in RECIPES.items() if joined else ():
        for save in ("speed", "memory"):
            found[f"{name} fused save={save}"] = lambda active=active, save=save: Fused(
                lambda: {"save": save}, at, joined=True, active=active
            )
        found[f"{name} fused eager"] = lambda active=active: EagerFused(
            dict, at, joined=True, active=active
        )
    if joined:
        found["Transformer Engine fused eager"] = lambda: Engine(
            engine_modules, at, joined=True
        )
    return found


# ---- measuring -------------------------------------------------------------------------------


class Runner:
    """One contender: compiled, and ready to be measured."""

    def __init__(self, model: nn.Module, at: Sizes) -> None:
        compiles = getattr(model, "compiles", True)
        self.model = torch.compile(model, fullgraph=True) if compiles else model
        like = {"device": "cuda", "dtype": torch.bfloat16}
        self.x = torch.randn(at.batch, at.length, at.width, requires_grad=True, **like)
        self.grad = torch.randn_like(self.x) * 0.01
        rates = 500000.0 ** (-torch.arange(0, at.head, 2, device="cuda") / at.head)
        angles = torch.outer(torch.arange(at.length, device="cuda"), rates)
        self.turns = angles.cos(), angles.sin()
        self.times: list[float] = []
        self.step()
        self.step()
        self.peak = self._peak()

    def step(self) -> None:
        """Forward and backward."""
        self.model(self.x, self.turns).backward(self.grad)
        self.x.grad = None
        self.model.zero_grad()

    def _peak(self) -> float:
        """MiB that a step needs besides what is there before it."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def measure(self, steps: int = 5) -> None:
        """A step's share of some, after a while alone."""
        for _ in range(steps):
            self.step()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(steps):
            self.step()
        end.record()
        torch.cuda.synchronize()
        self.times.append(start.elapsed_time(end) / steps)


def rows(at: Sizes, joined: bool, only: set[str], rounds: int) -> list[list[str]]:
    """A table: name, ms, bf16's time over its, peak MiB, over bf16's."""
    torch._dynamo.config.recompile_limit = 64  # all contenders are graphs of one function
    found: dict[str, Runner] = {}
    for name, made in contenders(at, joined).items():
        if only and name not in only and name != "bf16":
            continue
        torch.manual_seed(0)
        try:
            found[name] = Runner(made(), at)
        except ImportError as error:
            print(f"{name}: {error}", file=sys.stderr)
    for _ in range(rounds):
        for runner in found.values():
            runner.measure()
    base = found["bf16"]
    table = []
    for name, runner in found.items():
        ms = statistics.median(runner.times)
        ratio = statistics.median(b / t for b, t in zip(base.times, runner.times, strict=True))
        share = runner.peak / base.peak
        table.append([name, f"{ms:.1f}", f"{ratio:.2f}", f"{runner.peak:.0f}", f"{share:.2f}"])
    return table


HEAD = ["", "ms", "bf16 / it", "peak MiB", "of bf16's"]


def table_text(table: list[list[str]], head: list[str]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *table]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Prints a table for each form."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--form", choices=["seven", "joined", "both"], default="both")
    parser.add_argument("--only", default="", help="names, with commas between them")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench/blocks.py needs a GPU")
    only = {name for name in asked.only.split(",") if name}
    for form in ("seven", "joined"):
        if asked.form in (form, "both"):
            print(f"\n{form} ({torch.cuda.get_device_name()}, torch {torch.__version__})\n")
            print(
                table_text(rows(Sizes(), form == "joined", only, asked.rounds), HEAD),
                flush=True,
            )


if __name__ == "__main__":
    main()
