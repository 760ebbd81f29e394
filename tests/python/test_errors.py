"""A failed op is the same Python exception, with the same words, wherever it comes out."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from laws import compiled
from octet import _ops

import torch

TEXT = "f32 fp8-tensor:e4m3+row"


def invalid(x: torch.Tensor) -> torch.Tensor:
    """A rule that only the kernel reads, so that tracing lets it pass."""
    state = x.new_ones(4, 3)
    _ops.delayed_update([state], "nonsense")
    return x * state.sum()


def no_memory(x: torch.Tensor) -> torch.Tensor:
    return x + _ops.quantize(x[:1, :1].expand(2**43, 32), [], TEXT)[0].sum()


HIDDEN = torch.ones(4, 32)
torch._C._set_throw_on_mutable_data_ptr(HIDDEN)  # torch refuses to tell where its data is


def no_data(x: torch.Tensor) -> torch.Tensor:
    return x + _ops.quantize(HIDDEN, [], TEXT)[0].sum()


FAILURES: dict[str, tuple[type, str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "invalid": (ValueError, "'nonsense' is not a role", invalid),
    "no memory": (
        MemoryError,
        rf".*torch cannot allocate a f32 tensor of {2**48} .*",
        no_memory,
    ),
    "no data": (RuntimeError, ".*aoti_torch_get_data_ptr failed", no_data),
}


def in_backward(fail: Callable[[torch.Tensor], torch.Tensor], depth: int) -> Any:  # noqa: ANN401
    """A call whose backward fails: at once, or in that many backwards inside of it. The engine
    leaves the caller's thread for one of its own at the sixtieth."""

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, depth: int) -> torch.Tensor:  # noqa: ANN401
            ctx.depth = depth
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:  # noqa: ANN401
            if ctx.depth:
                step(grad.detach(), ctx.depth - 1)
            return fail(grad), None

    def step(x: torch.Tensor, depth: int) -> None:
        with torch.enable_grad():
            Failing.apply(x.detach().requires_grad_(), depth).sum().backward()

    return lambda x: step(x, depth)


def in_a_thread(call: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    def outside(x: torch.Tensor) -> None:
        caught: list[BaseException] = []

        def run() -> None:
            try:
                call(x)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        raise caught[0]

    return outside


class Traced(torch.autograd.Function):
    """Fails in backward, with what is told last."""

    fail = staticmethod(invalid)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        return Traced.fail(grad)


def compiled_backward(fail: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # noqa: ANN401
    def step(x: torch.Tensor) -> None:
        Traced.fail = staticmethod(fail)
        call, _ = compiled(lambda x: Traced.apply(x).sum())
        y = call(x.detach().requires_grad_())
        y.backward()

    return step


WAYS: dict[str, Callable[[Callable[[torch.Tensor], torch.Tensor]], Any]] = {
    "eager": lambda fail: fail,
    "eager thread": in_a_thread,
    "aot_eager": lambda fail: compiled(fail, "aot_eager")[0],
    "inductor": lambda fail: compiled(fail, "inductor")[0],
    "backward": lambda fail: in_backward(fail, 0),
    "backward thread": lambda fail: in_a_thread(in_backward(fail, 0)),
    "engine's thread": lambda fail: in_backward(fail, 70),
    "compiled backward": compiled_backward,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FAILURES)
def test_errors__have_the_type_and_the_words_of_their_status(name: str, way: str) -> None:
    kind, pattern, fail = FAILURES[name]
    with pytest.raises(kind) as caught:
        WAYS[way](fail)(torch.ones(4, 32))
    assert type(caught.value) is kind
    with pytest.raises(kind) as eager:
        fail(torch.ones(4, 32))
    assert str(caught.value) == str(eager.value)
    assert "\n" not in str(eager.value)
    eager.match(f"^{pattern}$")


def test_errors__leave_the_next_call_alone() -> None:
    for _, _, fail in FAILURES.values():
        with pytest.raises((ValueError, MemoryError, RuntimeError)):
            fail(torch.ones(4, 32))
        assert len(_ops.quantize(torch.ones(4, 32), [], TEXT)) > 0
