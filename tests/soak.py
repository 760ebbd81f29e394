"""Training for a long time, disturbed at random: results are those of an undisturbed run, bit
for bit, memory stays flat, and no cache passes its bound.

    make soak SECONDS=3600
    .venv/bin/python tests/soak.py --seconds 60 --seed 7

Models of every recipe train in turns, each step with a batch size of its own. The disturbed run
changes between eager and compiled code and between numbers of threads, another thread trains
meanwhile, and steps are stopped by exceptions, interruptions and refused inputs. Then a second
process repeats all steps: eager, on one thread, undisturbed."""

import argparse
import copy
import gc
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

import octet  # noqa: E402
from laws import RECIPES  # noqa: E402
from octet.state import active  # noqa: E402
from test_faults import FAULTS, HOOKS, Lines, watched  # noqa: E402

import torch  # noqa: E402

IN, HIDDEN, OUT = 70, 44, 30  # no multiple of any block
MOST_ROWS = 96
CODE = 400  # lines of the package before which a step may be stopped
COMPILED_THREADS = (1, 3)  # torch compiles anew for each
WARM = len(RECIPES) * len(COMPILED_THREADS)  # the first steps: compiled, and not measured
GROWTH = 16 << 20  # bytes by which the process may grow after its first third
LOAD = (
    "mxfp8",
    "block",
    "current",
)  # they draw no random numbers, of which all threads have one


class Job:
    """A model that trains by one recipe; the disturbed run has it compiled, too."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(1)
        options: dict[str, Any] = {"params_dtype": torch.bfloat16, "device": "cpu"}
        first = octet.Linear if name == "none" else octet.LayerNormLinear
        self.name, self.recipe = name, RECIPES[name]
        self.model = torch.nn.Sequential(
            first(IN, HIDDEN, **options), torch.nn.ReLU(), octet.Linear(HIDDEN, OUT, **options)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=2**-7)
        self.compiled = torch.compile(self.model, dynamic=True, fullgraph=True)

    def forward(self, x: torch.Tensor, compiled: bool = False) -> torch.Tensor:
        with octet.autocast(enabled=self.recipe is not None, recipe=self.recipe):
            return (self.compiled if compiled else self.model)(x)

    def step(self, batch: "Batch", compiled: bool = False) -> bytes:
        """One step; the digest of all it made. It has a loss, so that it trains for hours:
        weights that only walk at random become NaN, whose bits are no promise."""
        x, target = batch.tensors()
        self.optimizer.zero_grad(set_to_none=True)
        torch.manual_seed(batch.seed)
        y = self.forward(x, compiled)
        (OUT * torch.nn.functional.mse_loss(y.float(), target.float())).backward()
        made = [y, x.grad, *(p.grad for p in self.model.parameters())]
        for tensor in made:
            assert tensor.isfinite().all(), f"{self.name}: training has diverged"
        self.optimizer.step()
        made += self.model.state_dict().values()
        return digest(made)


class Batch:
    """Which model a step trains, and on what: a function of the seed and the step's number."""

    def __init__(self, seed: int, number: int) -> None:
        draw = random.Random(seed * 1_000_003 + number)
        names = list(RECIPES)
        self.job = names[number % len(names)] if number < WARM else draw.choice(names)
        self.rows = draw.choice((1, 2, 16, 17, 32, draw.randint(1, MOST_ROWS)))
        self.rows = max(self.rows, 2) if number < WARM else self.rows
        self.seed = draw.randrange(1 << 30)

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.Generator().manual_seed(self.seed)
        x = torch.randn(self.rows, IN, generator=made).bfloat16()
        return x.requires_grad_(), torch.randn(self.rows, OUT, generator=made).bfloat16()


def digest(tensors: list[torch.Tensor]) -> bytes:
    made = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        made.update(tensor.detach().contiguous().view(torch.uint8).numpy())
    return made.digest()


class Disturber:
    """What happens between two steps that count."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(-1 - seed)
        self.happened: Counter[str] = Counter()

    def __call__(self, job: Job, batch: Batch) -> None:
        kinds = (self.hook, self.stop, self.refuse, self.evaluate, self.drop, self.spare)
        kind = self.draw.choice(kinds)
        before = copy.deepcopy(job.model.state_dict())
        kind(job, batch)
        self.happened[kind.__name__] += 1
        if job.name == "delayed":  # amaxes of a step that failed count in the next
            octet.reset_state(job.model)
            job.model.load_state_dict(before)

    def hook(self, job: Job, batch: Batch) -> None:
        """An exception in a hook of some layer."""
        layer = self.draw.choice((job.model[0], job.model[2]))
        handle = HOOKS[self.draw.choice(list(HOOKS))](layer)
        try:
            job.step(batch)
            raise AssertionError("the hook did not run")
        except ArithmeticError:
            pass
        finally:
            handle.remove()

    def stop(self, job: Job, batch: Batch) -> None:
        """An interruption before some line of the package, in forward or backward."""
        lines = Lines(self.draw.randint(1, CODE), self.draw.choice(FAULTS))
        x, grad = batch.tensors()
        try:
            with watched(lines):
                job.forward(x).backward(grad)
        except (lines.fault, torch.OutOfMemoryError):
            pass
        if lines.on_the_way:  # see docs/testing.md, "Faults by count"
            active.activate(None)
        if lines.on_a_with:
            torch.set_grad_enabled(True)

    def refuse(self, job: Job, batch: Batch) -> None:
        """Inputs that a layer refuses."""
        bad = self.draw.choice(
            (
                torch.zeros(batch.rows, IN + 1, dtype=torch.bfloat16),
                torch.zeros(batch.rows, IN, dtype=torch.int64),
            )
        )
        try:
            job.forward(bad)
        except (ValueError, TypeError, RuntimeError):
            return
        raise AssertionError(f"{job.name} takes {bad.dtype} {tuple(bad.shape)}")

    def evaluate(self, job: Job, batch: Batch) -> None:
        job.model.eval()
        with torch.no_grad():
            job.forward(batch.tensors()[0])
        job.model.train()

    def drop(self, job: Job, batch: Batch) -> None:
        """A forward call without a backward."""
        job.forward(batch.tensors()[0])

    def spare(self, job: Job, batch: Batch) -> None:
        """A step of a copy, which nobody keeps."""
        other = copy.deepcopy(job.model)
        with octet.autocast(enabled=job.recipe is not None, recipe=job.recipe):
            y = other(batch.tensors()[0])
        y.sum().backward()


class Load(threading.Thread):
    """Trains small layers on its own all the while; its steps repeat, and so do its results."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done, self.steps, self.error = threading.Event(), 0, ""

    def run(self) -> None:
        made: dict[str, bytes] = {}
        jobs = {name: octet.Linear(IN, OUT, device="cpu") for name in LOAD}
        x = torch.linspace(-2, 2, 40 * IN).reshape(40, IN)
        while not self.done.is_set():
            for name, layer in jobs.items():
                with octet.autocast(recipe=RECIPES[name]):
                    y = layer.forward(x)  # torch.fx changes every module's call as it traces
                (grad,) = torch.autograd.grad(y, layer.weight, torch.ones_like(y))
                found = digest([y, grad])
                if made.setdefault(name, found) != found:
                    self.error = f"the other thread's {name} changed at its step {self.steps}"
                self.steps += 1
            self.done.wait(0.1)


def resident() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def crowded() -> list[str]:
    """Caches that have more entries than they may have."""
    return [name for name, info in octet.cache_info().items() if info.entries > info.capacity]


def threads_of(number: int, compiled: bool, draw: random.Random) -> int:
    if number < WARM:
        return COMPILED_THREADS[number // len(RECIPES)]
    return draw.choice(COMPILED_THREADS) if compiled else draw.randint(1, 4)


def show(text: str) -> None:
    """How far it is, at a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def train_disturbed(seconds: float, seed: int, out: Path) -> dict[str, Any]:
    """Trains until the time is up; the digests of all steps go to `out`."""
    torch._dynamo.config.recompile_limit = 8 * WARM  # all models have one code
    jobs = {name: Job(name) for name in RECIPES}
    disturb, draw, load = Disturber(seed), random.Random(seed), Load()
    sizes: list[tuple[float, int]] = []
    number, compiled, began = 0, 0, 0.0
    load.start()
    with out.open("wb") as digests:
        while number <= WARM or time.monotonic() - began < seconds:
            began = time.monotonic() if number <= WARM else began
            batch = Batch(seed, number)
            by_graph = number < WARM or (batch.rows > 1 and draw.random() < 0.5)
            if number >= WARM and draw.random() < 0.4:
                torch.set_num_threads(draw.randint(1, 4))
                disturb(jobs[batch.job], batch)
            torch.set_num_threads(threads_of(number, by_graph, draw))
            digests.write(jobs[batch.job].step(batch, by_graph))
            number, compiled = number + 1, compiled + by_graph
            now = time.monotonic() - began
            show(f"soak: step {number}, {now:.0f} of {seconds:.0f} s")
            if number > WARM and (not sizes or now - sizes[-1][0] > seconds / 200):
                sizes.append((now, resident()))
                assert not crowded(), crowded()
    show("")
    load.done.set()
    load.join()
    assert not load.error, load.error
    return {
        "steps": number,
        "compiled": compiled,
        "disturbed": dict(disturb.happened),
        "load": load.steps,
        "sizes": sizes,
        "cached": sum(info.entries for info in octet.cache_info().values()),
    }


def replay(seed: int, digests: Path) -> None:
    """Every step again, undisturbed; fails at the first that differs."""
    torch.set_num_threads(1)
    jobs = {name: Job(name) for name in RECIPES}
    wanted = digests.read_bytes()
    for number in range(len(wanted) // 8):
        batch = Batch(seed, number)
        found = jobs[batch.job].step(batch)
        if found != wanted[8 * number : 8 * number + 8]:
            sys.exit(
                f"step {number}, {batch.job}, {batch.rows} rows: other results, seed {seed}"
            )


def growth(sizes: list[tuple[float, int]]) -> tuple[int, float]:
    """Bytes by which the last third of the samples exceeds the middle one, and the slope of
    both in bytes a minute."""
    third = len(sizes) // 3
    middle, last = sizes[third : 2 * third], sizes[2 * third :]
    more = statistics.median(b for _, b in last) - statistics.median(b for _, b in middle)
    later = sizes[third:]
    slope = statistics.linear_regression(
        [t / 60 for t, _ in later], [b for _, b in later]
    ).slope
    return int(more), slope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", type=Path, help="digests of a disturbed run")
    args = parser.parse_args()
    if args.replay:
        return replay(args.seed, args.replay)
    with tempfile.TemporaryDirectory() as place:
        digests = Path(place, "digests")
        found = train_disturbed(args.seconds, args.seed, digests)
        sizes = found.pop("sizes")
        more, slope = growth(sizes)
        found |= {"MiB": sizes[-1][1] >> 20, "grown MiB": round(more / 2**20, 1)}
        found |= {"MiB a minute": round(slope / 2**20, 2)}
        print(json.dumps(found), flush=True)
        command = [sys.executable, __file__, "--seed", str(args.seed), "--replay", digests]
        same = subprocess.run(command, check=False).returncode == 0
    print("results: " + ("those of the undisturbed run, bit for bit" if same else "DIFFERENT"))
    if more > GROWTH:
        print(f"memory: GREW by {more >> 20} MiB after the first third")
    return sys.exit(not same or more > GROWTH)


if __name__ == "__main__":
    main()
