"""Processes that stand for ranks: started once, they take jobs over pipes."""

import faulthandler
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

TIMEOUT = 60.0  # seconds that a collective, and a job, may take


def packed(value: Any) -> Any:  # noqa: ANN401
    """Tensors as bytes: what a pipe carries without shared memory."""
    if isinstance(value, torch.Tensor):
        dense = value.detach().contiguous()
        data = dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        return ("tensor", data, dense.dtype, tuple(dense.shape))
    if isinstance(value, dict):
        return {key: packed(one) for key, one in value.items()}
    if isinstance(value, list):
        return [packed(one) for one in value]
    return value


def unpacked(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, tuple) and value and value[0] == "tensor":
        _, data, dtype, shape = value
        if not data:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)
    if isinstance(value, dict):
        return {key: unpacked(one) for key, one in value.items()}
    return [unpacked(one) for one in value] if isinstance(value, list) else value


def stack_file(folder: str, rank: int) -> Path:
    """Where a rank writes what its threads do, when it is asked by a signal."""
    return Path(folder) / f"stack-{rank}"


def forget_reductions() -> None:
    """Each job is a program of its own. What the last one left for its ranks to reduce at the
    next optimizer's step is forgotten: the next job may run on others."""
    scaling = sys.modules.get("octet.state.scaling")
    if scaling is not None:
        for layer in scaling.registry.all_layers():
            layer._pending.late_group = ""
        scaling._GONE.clear()


def serve(rank: int, world: int, folder: str, pipe: Any) -> None:  # noqa: ANN401
    """Runs jobs until it is told to end; what a job raises is an answer, too."""
    stack = stack_file(folder, rank).open("w")
    faulthandler.register(signal.SIGUSR1, file=stack)
    faulthandler.enable(file=stack)
    sys.path[:0] = [
        str(Path(__file__).parent),
        str(Path(__file__).parents[2] / "python"),
    ]
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=TIMEOUT),
    )
    while (job := pipe.recv()) is not None:
        module, name, arguments = job
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        forget_reductions()
        try:
            made = getattr(importlib.import_module(module), name)(rank, *arguments)
            pipe.send(("made", packed(made)))
        except Exception as error:
            pipe.send(("raised", type(error).__name__, f"{error}\n{traceback.format_exc()}"))
    os._exit(0)  # gloo's threads have been seen to abort a process that ends in the usual way


class RankError(Exception):
    """A job failed on a rank."""


class Ranks:
    """A group of processes."""

    def __init__(self, world: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.world, self.processes, self.pipes = world, [], []
        self.is_whole = True  # every rank has answered so far
        self.folder = tempfile.mkdtemp()
        for rank in range(world):
            here, there = context.Pipe()
            arguments = rank, world, self.folder, there
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self.pipes.append(here)

    def start(self, job: Callable[..., Any], *arguments: Any, first: int | None = None) -> None:  # noqa: ANN401
        """Hands a job to every rank, or to the first few."""
        for pipe in self.pipes[:first]:
            pipe.send((job.__module__, job.__name__, arguments))

    def stacks(self) -> str:
        """What every rank does now, or did when it died."""
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid, signal.SIGUSR1)
        time.sleep(1)
        files = [stack_file(self.folder, rank) for rank in range(self.world)]
        return "\n".join(
            f"rank {r}:\n{f.read_text()}" for r, f in enumerate(files) if f.exists()
        )

    def answer(self, rank: int, seconds: float = TIMEOUT * 2) -> tuple[Any, ...]:
        self.is_whole = False
        if not self.pipes[rank].poll(seconds):
            raise TimeoutError(f"rank {rank} has not answered in {seconds} s\n{self.stacks()}")
        try:
            found = self.pipes[rank].recv()
        except EOFError:
            self.processes[rank].join(10)
            code = self.processes[rank].exitcode
            message = f"rank {rank} has ended, with exit code {code}\n{self.stacks()}"
            raise RankError(message) from None
        self.is_whole = True
        return found

    def run(
        self,
        job: Callable[..., Any],
        *arguments: Any,  # noqa: ANN401
        first: int | None = None,
        seconds: float = TIMEOUT * 2,
    ) -> list[Any]:
        """What a job makes on every rank, or on the first few."""
        self.start(job, *arguments, first=first)
        answers = [self.answer(rank, seconds) for rank in range(first or self.world)]
        for rank, answer in enumerate(answers):
            if answer[0] == "raised":
                raise RankError(f"rank {rank}: {answer[1]}: {answer[2]}")
        return [unpacked(answer[1]) for answer in answers]

    def errors(self, job: Callable[..., Any], *arguments: Any) -> list[str]:  # noqa: ANN401
        """What a job raises, as it must on every rank: "ValueError: text"."""
        self.start(job, *arguments)
        answers = [self.answer(rank) for rank in range(self.world)]
        assert all(answer[0] == "raised" for answer in answers), answers
        return [f"{kind}: {text}" for _, kind, text in answers]

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            if process.is_alive() and self.is_whole:
                pipe.send(None)
                process.join(10)
            if process.is_alive():
                process.kill()
