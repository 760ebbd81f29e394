"""A training step that is interrupted at any line of the package leaves the layer usable and
its state whole: the next step is that of an undisturbed run."""

import contextlib
import copy
import linecache
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import octet
import pytest
from laws import RECIPES, inputs, layer
from octet.state import active

import torch

PACKAGE = str(Path(octet.__file__).parent)
STATES = ("fp8_state", "fp8_grad_state")
STRIDE = 7  # of lines; the long test takes every one
FAULTS = (KeyboardInterrupt, torch.OutOfMemoryError, MemoryError)
KINDS = {
    "none": {},
    "mxfp8": {},
    "current": {},
    "delayed": {},
    "nvfp4": {},
    "mxfp8, cached": {"is_first_microbatch": True},
    "delayed, cached": {"is_first_microbatch": True},
}


def is_on_the_way(frame: FrameType | None) -> bool:
    """Whether an autocast is being entered or left, where no `with` can tell what is so."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE) and code.co_name in ("__enter__", "__exit__"):
            return True
        frame = frame.f_back
    return False


class Lines:
    """Counts the package's lines as they run; `fault` is raised before line number `at`."""

    def __init__(self, at: int = -1, fault: type[BaseException] = KeyboardInterrupt) -> None:
        self.count, self.at, self.fault = 0, at, fault
        self.where = ""
        self.on_the_way = self.on_a_with = False

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.at:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                self.on_the_way = is_on_the_way(frame)
                text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
                self.on_a_with = text.lstrip().startswith("with ")
                raise self.fault("injected")
        return self


@contextlib.contextmanager
def watched(lines: Lines) -> Iterator[None]:
    was = sys.gettrace()
    sys.settrace(lines)
    try:
        yield
    finally:
        sys.settrace(was)


def step(linear: octet.Linear, kind: str, factor: float = 1.0) -> list[torch.Tensor]:
    """Output and gradients of a step; gradients begin anew."""
    x, grad = inputs()
    x = (x * factor).requires_grad_()
    linear.zero_grad(set_to_none=True)
    torch.manual_seed(5)
    recipe = RECIPES[kind.split(",")[0]]
    with octet.autocast(enabled=recipe is not None, recipe=recipe):
        y = linear(x, **KINDS[kind])
    y.backward(grad)
    found = [y.detach(), x.grad, linear.weight.grad, linear.bias.grad]
    return [t.clone() for t in found if t is not None]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


def trained(kind: str) -> octet.Linear:
    linear = layer()
    step(linear, kind)
    return linear


def interrupted(linear: octet.Linear, kind: str, lines: Lines) -> bool:
    """Whether the step was; what was injected comes out, want of memory as torch's."""
    expected = (lines.fault, torch.OutOfMemoryError)[: 1 + (lines.fault is MemoryError)]
    try:
        with watched(lines):
            step(linear, kind, 2.0)
    except expected:
        return True
    return False


def check(kind: str, stride: int) -> None:
    before = trained(kind)
    undisturbed, later = copy.deepcopy(before), copy.deepcopy(before)
    wanted = step(undisturbed, kind, 2.0)
    step(later, kind, 2.0)
    after = step(later, kind, 2.0)  # where the interrupted step had updated its scales
    plain = before(inputs()[0]).detach()
    counter = Lines()
    interrupted(copy.deepcopy(before), kind, counter)
    assert counter.count > 50
    stops = 0
    for at in range(1, counter.count + 1, stride):
        linear = copy.deepcopy(before)
        lines = Lines(at, FAULTS[at // stride % len(FAULTS)])
        stops += interrupted(linear, kind, lines)
        if lines.on_the_way:
            active.activate(None)
        if lines.on_a_with:  # Python itself may have left it without its exit: torch's no_grad
            torch.set_grad_enabled(True)
        assert torch.equal(linear(inputs()[0]).detach(), plain), lines.where
        found = step(linear, kind, 2.0)
        assert same(found, wanted) or same(found, after), lines.where
        for name in STATES if kind.startswith("delayed") else ():
            assert linear._buffers[name][0].isfinite().all(), lines.where
    assert stops > 0.8 * len(range(1, counter.count + 1, stride))


@pytest.mark.parametrize("kind", list(KINDS))
def test_faults__any_seventh_line(kind: str) -> None:
    check(kind, STRIDE)


@pytest.mark.long
@pytest.mark.parametrize("kind", list(KINDS))
def test_faults__any_line(kind: str) -> None:
    check(kind, 1)


def fail(*_: object, **__: object) -> None:
    raise ArithmeticError("from a hook")


HOOKS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "forward_pre": lambda m: m.register_forward_pre_hook(fail),
    "forward": lambda m: m.register_forward_hook(fail),
    "backward_pre": lambda m: m.register_full_backward_pre_hook(fail),
    "backward": lambda m: m.register_full_backward_hook(fail),
    "weight's gradient": lambda m: m.weight.register_hook(fail),
    "accumulated": lambda m: m.weight.register_post_accumulate_grad_hook(fail),
}


@pytest.mark.parametrize("hook", list(HOOKS))
@pytest.mark.parametrize("kind", list(KINDS))
def test_faults__an_exception_in_a_hook(kind: str, hook: str) -> None:
    before = trained(kind)
    undisturbed, linear = copy.deepcopy(before), copy.deepcopy(before)
    wanted = step(undisturbed, kind, 2.0)
    after = step(undisturbed, kind, 2.0)
    handle = HOOKS[hook](linear)
    with pytest.raises(ArithmeticError, match="from a hook"):
        step(linear, kind, 2.0)
    handle.remove()
    found = step(linear, kind, 2.0)
    assert same(found, wanted) or same(found, after)
