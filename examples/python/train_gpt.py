"""Trains a small GPT in FP8 or FP4, on one process or on many.

    python examples/python/train_gpt.py --recipe mxfp8
    torchrun --nproc-per-node 4 examples/python/train_gpt.py --tp 2 --sp --fsdp --compile

The processes form a mesh: groups of `--tp` of them share every layer (tensor parallelism), and
each group trains on batches of its own (data parallelism, with `--fsdp` over sharded weights).
The text to learn is the source of Python's standard library, byte by byte.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import octet
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from octet import recipe
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F  # noqa: N812
from tqdm import tqdm

import torch
from torch import nn

RECIPES: dict[str, Callable[[], recipe.Recipe]] = {
    "delayed": recipe.DelayedScaling,
    "current": recipe.Float8CurrentScaling,
    "block": recipe.Float8BlockScaling,
    "mxfp8": recipe.MXFP8BlockScaling,
    "nvfp4": recipe.NVFP4BlockScaling,
    "mxfp4": recipe.MXFP4BlockScaling,
}
VOCABULARY = 256  # bytes


# ---- the model -------------------------------------------------------------------------------


class Ranks:
    """Where this process stands: its data parallel group and its tensor parallel group."""

    def __init__(self, tp: int, sequence: bool, device: str) -> None:
        world = dist.get_world_size()
        if world % tp:
            raise SystemExit(f"--tp is {tp}; it must divide the {world} processes")
        self.mesh: DeviceMesh = init_device_mesh(
            device, (world // tp, tp), mesh_dim_names=("dp", "tp")
        )
        self.tp, self.dp = tp, world // tp
        self.tp_rank = self.mesh["tp"].get_local_rank()
        self.dp_rank = self.mesh["dp"].get_local_rank()
        self.tp_group = self.mesh["tp"].get_group()
        self.sequence = sequence and tp > 1

    def layer(self, inputs: int, outputs: int, mode: str, name: str) -> octet.Linear:
        """A layer split over the tensor parallel group: "column" by outputs, "row" by
        inputs."""
        if self.tp == 1:
            return octet.Linear(inputs, outputs, name=name)
        return octet.Linear(
            inputs,
            outputs,
            parallel_mode=mode,
            tp_group=self.tp_group,
            tp_size=self.tp,
            sequence_parallel=self.sequence,
            name=name,
        )


class Block(nn.Module):
    """Attention, then two layers four times as wide, each added to what came in.

    With sequence parallelism a rank holds its part of the characters between the layers; a
    column-split layer gathers all of them, a row-split one leaves each rank its own."""

    def __init__(self, width: int, heads: int, ranks: Ranks) -> None:
        super().__init__()
        self.heads = heads // ranks.tp
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.qkv = ranks.layer(width, 3 * width, "column", "qkv")
        self.proj = ranks.layer(width, width, "row", "proj")
        self.up = ranks.layer(width, 4 * width, "column", "up")
        self.down = ranks.layer(4 * width, width, "row", "down")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(characters, batch, width) to the same."""
        # A rank's outputs are whole heads: q, k and v of one head lie side by side.
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (self.heads, 3, -1)).unbind(-2)
        q, k, v = (part.permute(1, 2, 0, 3) for part in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.permute(2, 0, 1, 3).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    """Which byte comes next."""

    def __init__(self, asked: argparse.Namespace, ranks: Ranks) -> None:
        super().__init__()
        width = asked.width
        self.ranks = ranks
        self.bytes = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(asked.context, width)
        self.blocks = nn.ModuleList(
            [Block(width, asked.heads, ranks) for _ in range(asked.depth)]
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def own(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part of the characters."""
        if not self.ranks.sequence:
            return x
        return x.chunk(self.ranks.tp)[self.ranks.tp_rank]

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Both (characters, batch). The mean loss, or this rank's part of it."""
        places = torch.arange(len(tokens), device=tokens.device)
        x = self.bytes(self.own(tokens)) + self.places(self.own(places)).unsqueeze(1)
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x)).float().flatten(0, 1)
        total = F.cross_entropy(scores, self.own(targets).flatten(), reduction="sum")
        return total / targets.numel()


# ---- many processes --------------------------------------------------------------------------


def add_up_over_sequence(model: nn.Module, ranks: Ranks) -> None:
    """With sequence parallelism a rank's gradient of a parameter that is not split is that of
    its own characters: they are added up. Split weights have theirs."""
    if not ranks.sequence:
        return
    split = {
        id(parameter)
        for layer in model.modules()
        if isinstance(layer, octet.Linear)
        for name, parameter in layer.named_parameters(recurse=False)
        if name == "weight" or layer.parallel_mode == "column"
    }
    for parameter in model.parameters():
        if id(parameter) not in split and parameter.grad is not None:
            grad = parameter.grad
            dist.all_reduce(getattr(grad, "_local_tensor", grad), group=ranks.tp_group)


def average_over_data(model: nn.Module, ranks: Ranks) -> None:
    """The mean of the gradients of all batches; FSDP does this by itself."""
    group = ranks.mesh["dp"].get_group()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat, group=group)
    flat /= ranks.dp
    for grad, mean in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
        grad.copy_(mean.view_as(grad))


def mean_loss(loss: torch.Tensor, ranks: Ranks) -> float:
    """The loss of all batches."""
    whole = loss.detach().clone()
    if ranks.sequence:
        dist.all_reduce(whole, group=ranks.tp_group)
    dist.all_reduce(whole, group=ranks.mesh["dp"].get_group())
    return whole.item() / ranks.dp


# ---- data and checkpoints --------------------------------------------------------------------


def text() -> torch.Tensor:
    """The source of the standard library."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))[:80]
    return torch.frombuffer(
        bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8
    )


def batches(
    asked: argparse.Namespace, ranks: Ranks, first: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pieces of the text and the same moved by one byte, (characters, batch) each. A step's
    batch depends on the step and on the data parallel rank alone."""
    data = text()
    for step in range(first, asked.steps):
        # The same numbers for stochastic rounding, too, whether resumed or not.
        torch.manual_seed(asked.seed * 1_000_003 + step * ranks.dp + ranks.dp_rank)
        starts = torch.randint(len(data) - asked.context, (1, asked.batch))
        pieces = data[starts + torch.arange(asked.context + 1).unsqueeze(1)].long()
        pieces = pieces.to(asked.device)
        yield pieces[:-1].contiguous(), pieces[1:].contiguous()


class Checkpoints:
    """Saves model and optimizer, and loads the newest. Ranks of one tensor parallel group hold
    other parts of a layer, so each has a folder: resume with the same `--tp`. The number of
    data parallel ranks may change."""

    def __init__(self, folder: Path | None, ranks: Ranks) -> None:
        self.parent, self.tp = folder, ranks.tp
        self.folder = folder and folder / f"tp{ranks.tp_rank}-of-{ranks.tp}"
        self.group = ranks.mesh["dp"].get_group()

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        """After so many steps."""
        if self.folder is not None:
            weights, moments = get_state_dict(model, optimizer)
            state = {"model": weights, "optimizer": moments}
            where = self.folder / f"{step:07d}"
            dcp.save(state, checkpoint_id=where, process_group=self.group)

    def newest(self) -> int:
        """The newest step that every rank has saved; 0 where there is none. A rank may have
        died before the others had saved theirs."""
        if self.parent is None or self.folder is None:
            return 0
        others = {path.name for path in self.parent.glob("tp*-of-*")}
        if others and not any(name.endswith(f"-of-{self.tp}") for name in others):
            found = ", ".join(sorted(others))
            raise SystemExit(f"{self.parent} has {found}; resume with the --tp that saved it")
        saved = {int(path.parent.name) for path in self.folder.glob("*/.metadata")}
        all_saved: list[set[int]] = [set() for _ in range(dist.get_world_size())]
        dist.all_gather_object(all_saved, saved)
        return max(set.intersection(*all_saved), default=0)

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """The step to go on with."""
        step = self.newest()
        if step == 0 or self.folder is None:
            return 0
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        where = self.folder / f"{step:07d}"
        dcp.load(state, checkpoint_id=where, process_group=self.group)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        return step


# ---- training --------------------------------------------------------------------------------


def made(asked: argparse.Namespace, ranks: Ranks) -> nn.Module:
    """The model, sharded and compiled as asked. All ranks draw from one seed, so a split layer
    begins as the parts of the whole one."""
    torch.manual_seed(asked.seed)
    with torch.device(asked.device):
        model = GPT(asked, ranks)
    if asked.recipe == "delayed":
        octet.prepare(model, RECIPES["delayed"]())  # so that checkpoints have its scales
    for block in model.blocks:
        if asked.compile:
            block.compile(fullgraph=True)
        if asked.fsdp:
            fully_shard(block, mesh=ranks.mesh["dp"])
    if asked.fsdp:
        fully_shard(model, mesh=ranks.mesh["dp"])
    return model


def inside(asked: argparse.Namespace, ranks: Ranks) -> AbstractContextManager[Any]:
    """The autocast of a step."""
    if asked.recipe == "none":
        return nullcontext()
    group = dist.group.WORLD if ranks.tp * ranks.dp > 1 else None
    return octet.autocast(recipe=RECIPES[asked.recipe](), amax_reduction_group=group)


def train(asked: argparse.Namespace, ranks: Ranks) -> float:
    """The loss of the last step."""
    model = made(asked, ranks)
    optimizer = torch.optim.AdamW(model.parameters(), asked.rate, betas=(0.9, 0.95))
    checkpoints = Checkpoints(asked.checkpoints, ranks)
    first = checkpoints.load(model, optimizer) if asked.resume else 0
    if first >= asked.steps:
        raise SystemExit(f"the newest checkpoint has {first} steps; ask for more: --steps")
    hidden = True if dist.get_rank() else None  # None: tqdm hides it where there is no terminal
    bar = tqdm(total=asked.steps, initial=first, disable=hidden, unit="step")
    tokens_a_step = asked.context * asked.batch * ranks.dp
    loss, start = float("nan"), time.perf_counter()
    for step, (tokens, targets) in enumerate(batches(asked, ranks, first), first + 1):
        with torch.autocast(asked.device, torch.bfloat16), inside(asked, ranks):
            part = model(tokens, targets)
        part.backward()
        add_up_over_sequence(model, ranks)
        if ranks.dp > 1 and not asked.fsdp:
            average_over_data(model, ranks)
        optimizer.step()
        optimizer.zero_grad()
        loss = mean_loss(part, ranks)
        speed = (step - first) * tokens_a_step / (time.perf_counter() - start)
        bar.set_postfix(loss=f"{loss:.3f}", tokens_per_s=f"{speed:.0f}")
        bar.update()
        if step % asked.every == 0 or step == asked.steps:
            checkpoints.save(model, optimizer, step)
    bar.close()
    return loss


def arguments() -> argparse.Namespace:
    """What is asked on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def number(name: str, default: float, what: str) -> None:
        what = f"{what} (default: {default})"
        parser.add_argument(name, type=type(default), default=default, help=what)

    def switch(name: str, what: str) -> None:
        parser.add_argument(name, action="store_true", help=what)

    number("--tp", 1, "processes that share each layer")
    switch("--sp", "these split the sequence, too")
    switch("--fsdp", "shard weights over the other processes, by fully_shard")
    recipes, what = ["none", *RECIPES], "how layers quantize (default: mxfp8)"
    parser.add_argument("--recipe", choices=recipes, default="mxfp8", help=what)
    switch("--compile", "compile each block whole")
    number("--steps", 100, "of training, those before a resume included")
    number("--batch", 8, "pieces of text in a step, for each data parallel rank")
    number("--context", 128, "bytes in a piece of text")
    number("--width", 128, "of the model")
    number("--heads", 4, "of attention, in each block")
    number("--depth", 2, "blocks")
    number("--rate", 3e-3, "of learning")
    number("--seed", 0, "of weights and batches")
    parser.add_argument("--checkpoints", type=Path, metavar="FOLDER", help="where to save")
    number("--every", 50, "steps between two checkpoints")
    switch("--resume", "go on with the newest checkpoint that all processes have")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help=f"cuda or cpu (default: {device})")
    asked = parser.parse_args()
    for name, value, parts in (
        ("--heads", asked.heads, asked.tp),
        ("--context", asked.context, asked.tp),
        ("--width", asked.width, asked.heads),
    ):
        if value % parts:
            parser.error(f"{name} is {value}; it must be a multiple of {parts}")
    if asked.resume and asked.checkpoints is None:
        parser.error("--resume needs --checkpoints FOLDER")
    return asked


def main() -> int:
    """Trains, alone or as one of torchrun's processes."""
    asked = arguments()
    alone = "RANK" not in os.environ
    if alone:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    if asked.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    store = dist.HashStore() if alone else None
    dist.init_process_group(
        "nccl" if asked.device == "cuda" else "gloo",
        store=store,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    try:
        loss = train(asked, Ranks(asked.tp, asked.sp, asked.device))
        if dist.get_rank() == 0:
            print(f"loss {loss:.4f} after {asked.steps} steps")
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
