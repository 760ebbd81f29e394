"""Nothing stays: what forward saved is free after backward, and steps leave nothing behind."""

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import octet
import pytest
from laws import RECIPES, within
from octet import _ops

import torch

ROWS, IN, OUT = 4096, 256, 64


class Heap(ctypes.Structure):
    """glibc's mallinfo2: every tensor on the CPU lies in what it counts."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def heap_bytes() -> int:
    """Bytes that are allocated now, by Python, torch and Octet alike."""
    for _ in range(3):  # what earlier tests left is freed in turns
        gc.collect()
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        pytest.skip("the C library does not tell what is allocated")
    mallinfo2.restype = Heap
    heap = mallinfo2()
    return heap.uordblks + heap.hblkhd


def tensors() -> int:
    """Tensors that Python can reach."""
    gc.collect()
    return sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())


CASES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "none": ("none", (None,)),
    "delayed": ("delayed", (None,)),
    "mxfp8": ("mxfp8", (None,)),
    "nvfp4": ("nvfp4", (None,)),
    "cached weight": ("current", (True, False)),  # is_first_microbatch, in turns
}


def make(case: str, compile_it: bool) -> tuple[octet.Linear, Callable[[int], torch.Tensor]]:
    """A layer, and its forward call of a step of a given number."""
    name, words = CASES[case]
    layer = octet.Linear(IN, OUT, params_dtype=torch.bfloat16, device="cpu")
    # A tensor that the graph alone holds; x * 1 would be x itself, says Inductor from 2.15 on.
    call = within(RECIPES[name], lambda x, first: layer(x * 2, first))
    if compile_it:
        call = torch.compile(call, fullgraph=True)
    x = torch.randn(ROWS, IN, dtype=torch.bfloat16, requires_grad=True)
    return layer, lambda step: call(x, words[step % len(words)])


def train(forward: Callable[[int], torch.Tensor], steps: int) -> None:
    for step in range(steps):
        forward(step).sum().backward()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def only_what_is_new() -> Iterator[None]:
    """Collections walk through what a test makes, not through all that was there before."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("compile_it", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("case", CASES)
def test_leaks__backward_frees_and_steps_leave_nothing(case: str, compile_it: bool) -> None:
    layer, forward = make(case, compile_it)
    train(forward, 20)  # past what a layer remembers of its calls
    kept = octet.measure(layer, ROWS, RECIPES[CASES[case][0]])
    saved = kept.stored or 2 * ROWS * IN  # in high precision, the input
    y = forward(0)
    held = heap_bytes()
    y.sum().backward()
    freed = held - heap_bytes()
    assert freed > 0.75 * saved  # the output itself is still there
    del y
    before, count = heap_bytes(), tensors()
    train(forward, 100)
    assert tensors() <= count
    assert heap_bytes() - before < saved  # a leak of a hundredth would be as much


def test_leaks__a_leak_would_be_seen() -> None:
    _, forward = make("mxfp8", False)
    train(forward, 2)
    count, size = tensors(), heap_bytes()
    kept = [forward(0) for _ in range(3)]
    assert tensors() > count
    assert heap_bytes() - size > sum(y.nbytes for y in kept)


REFUSED: dict[str, tuple[int, str]] = {
    "a rule that is none": (4, "nonsense"),
    "a history too short": (4, "input delayed:history=99"),
    "half a state": (3, "input delayed:history=4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_update_keeps_no_tensor(case: str) -> None:
    """A list of torch's owns no tensor: whoever takes it lets go of all."""
    count, rule = REFUSED[case]
    states = [torch.ones(3), torch.zeros(8, 3), torch.ones(3), torch.zeros(8, 3)][:count]
    uses = [state._use_count() for state in states]
    with pytest.raises(ValueError, match=r"."):
        _ops.delayed_update(states, rule)
    assert [state._use_count() for state in states] == uses
