"""Trains the GPT in one recipe, compiled whole, and counts what the compiler was given."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import octet
import torch._functorch.config
from gpt import GPT, Sizes
from octet import recipe
from tales import tales
from torch._inductor.compile_fx import compile_fx, compile_fx_inner

import torch

RECIPES: dict[str, recipe.Recipe | None] = {
    "bf16": None,
    "DelayedScaling": recipe.DelayedScaling(),
    "Float8CurrentScaling": recipe.Float8CurrentScaling(),
    "Float8BlockScaling": recipe.Float8BlockScaling(),
    "MXFP8BlockScaling": recipe.MXFP8BlockScaling(),
    "NVFP4BlockScaling": recipe.NVFP4BlockScaling(),
    "MXFP4BlockScaling": recipe.MXFP4BlockScaling(),
}

TEXT = tales()
CHARACTERS = sorted(set(TEXT))
RATE, WARMUP = 1e-2, 20  # of AdamW; the rate rises for so many steps, then falls to zero


@dataclass(frozen=True)
class Task:
    """What every recipe does alike: so many steps from the weights and batches of a seed."""

    steps: int = 150
    seed: int = 0
    device: str = "cpu"
    batch: int = 16


@dataclass
class Graphs:
    """Inductor as a backend that counts its graphs and the octet nodes in them."""

    count: int = 0
    forward: int = 0
    backward: int = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        """Compiles what Dynamo captured."""
        self.count += 1
        return compile_fx(graph, inputs, inner_compile=self._compile)

    def _compile(self, graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:  # noqa: ANN401
        nodes = sum(map(is_octet, graph.graph.nodes))
        if options.get("is_backward"):
            self.backward += nodes
        else:
            self.forward += nodes
        return compile_fx_inner(graph, inputs, **options)


@dataclass
class Run:
    """What training in one recipe gave."""

    name: str
    model: GPT
    losses: list[float] = field(default_factory=list)
    graphs: Graphs = field(default_factory=Graphs)
    compiling: float = 0.0  # seconds of the first step, most of which is compilation
    training: float = 0.0  # seconds of all other steps

    @property
    def final(self) -> float:
        """The mean loss of the last tenth of the steps."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return sum(last) / len(last)


def is_octet(node: torch.fx.Node) -> bool:
    """Whether a node is an octet op; one that mutates stands inside torch's wrapper."""
    return any(str(name).startswith("octet.") for name in (node.target, *node.args[:1]))


@contextmanager
def steady(device: str) -> Iterator[None]:
    """The same numbers in every run: one CPU thread, deterministic algorithms.

    Graphs are compiled anew, so that they can be counted; kernels come from Inductor's cache.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1 if device == "cpu" else threads)
    torch.use_deterministic_algorithms(True)
    try:
        with torch._functorch.config.patch(enable_autograd_cache=False):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)


def batches(task: Task) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Pieces of the text and the same moved by one character, drawn by the seed."""
    numbers = {character: number for number, character in enumerate(CHARACTERS)}
    text = torch.tensor([numbers[character] for character in TEXT])
    context = Sizes(len(CHARACTERS)).context
    draw = torch.Generator().manual_seed(task.seed)
    for _ in range(task.steps):
        starts = torch.randint(len(text) - context, (task.batch, 1), generator=draw)
        pieces = text[starts + torch.arange(context + 1)].to(task.device)
        yield pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous()


def inside(name: str) -> AbstractContextManager[Any]:
    """The autocast of a recipe by its name; "bf16" is none."""
    return octet.autocast(enabled=RECIPES[name] is not None, recipe=RECIPES[name])


def train(name: str, task: Task, tick: Callable[[float], None] = lambda _: None) -> Run:
    """Trains a GPT; `tick` hears the loss of each step."""
    torch._dynamo.reset()
    torch.manual_seed(task.seed)
    model = GPT(Sizes(len(CHARACTERS), device=task.device))
    run = Run(name, model)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.99), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP, 1.0) * (1 - step / task.steps)
    )

    def loss_of(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(task.device, torch.bfloat16), inside(name):
            return model.loss(tokens, targets)

    compiled = torch.compile(loss_of, fullgraph=True, backend=run.graphs)
    for tokens, targets in batches(task):
        start = time.perf_counter()
        loss = compiled(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        run.losses.append(loss.item())
        seconds = time.perf_counter() - start
        if len(run.losses) == 1:
            run.compiling = seconds
        else:
            run.training += seconds
        tick(run.losses[-1])
    return run


@torch.no_grad()
def write(run: Run, length: int) -> str:
    """How the trained model goes on after the first tale, in its recipe."""
    device, seen = run.model.sizes.device, run.model.sizes.context // 2
    draw = torch.Generator().manual_seed(0)
    start = TEXT[: TEXT.index("\n") + 1]
    written = [CHARACTERS.index(character) for character in start]
    for _ in range(length):
        tokens = torch.tensor([written[-seen:]], device=device)
        with torch.autocast(device, torch.bfloat16), inside(run.name):
            scores = run.model(tokens)[0, -1].float().cpu()
        likely = torch.softmax(2 * scores, -1)  # takes few chances
        written.append(int(torch.multinomial(likely, 1, generator=draw)))
    return "".join(CHARACTERS[number] for number in written[len(start) :])
