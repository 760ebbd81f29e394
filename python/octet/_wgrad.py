"""Weight gradients that are computed later, and the queue that holds their arguments.

In eager code a backward puts its tensors into the queue. In compiled code they leave the
graph through the op ``octet::queue_wgrad``, which copies them: the compiler may reuse their
memory.
"""

import itertools
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from octet import _ops, _signatures
from octet._tensor_ops import expand_args
from octet.tensor import HANDLERS, QuantizedTensor

# ---- gradients in main_grad ------------------------------------------------------------------


# If the gradient is in main_grad and the weight has the attribute grad_added_to_main_grad,
# backward also gives it an empty gradient, so that its hooks run; the attribute is then True.
# The gradient is zero if the weight has zero_out_wgrad.


def _is_zeroed(weight: torch.Tensor) -> bool:
    return getattr(weight, "zero_out_wgrad", False) is True


def _empty_gradient(weight: torch.Tensor, zeroed: bool) -> torch.Tensor:
    make = torch.zeros if zeroed else torch.empty
    return make(weight.shape, dtype=weight.dtype, device=weight.device)


class _Reported(torch.autograd.Function):
    """Gives the weight an empty gradient."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, zeroed: bool) -> torch.Tensor:  # noqa: ANN401
        ctx.made_of = weight, zeroed
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, _: Any) -> tuple[Any, ...]:  # noqa: ANN401
        return _empty_gradient(*ctx.made_of), None


def reported(weight: torch.Tensor) -> torch.Tensor:
    """The weight; backward will give it an empty gradient."""
    weight.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    return _Reported.apply(weight, _is_zeroed(weight))


def report(weight: torch.Tensor) -> None:
    """Gives the weight an empty gradient now."""
    weight.grad_added_to_main_grad = True  # type: ignore[attr-defined]
    torch.autograd.backward([weight], [_empty_gradient(weight, _is_zeroed(weight))])


# ---- gradients that come later ---------------------------------------------------------------


class QueuedCall(NamedTuple):
    """The arguments of one wgrad call."""

    tensors: list[torch.Tensor]
    sizes: list[int]
    words: str
    # name and size of the group that the layer is split over
    ranks: tuple[str, int] | None = None

    def gradient(self) -> torch.Tensor:
        """The weight's gradient."""
        if self.ranks is not None:
            return self._in_phases([])[0]
        return _ops.linear_wgrad(self.tensors, self.sizes, self.words)[0]

    def add_to(self, main_grad: torch.Tensor) -> None:
        """Writes the weight's gradient into main_grad or adds it, as the call says."""
        if self.ranks is not None:
            self._in_phases([main_grad])
            return
        _ops.linear_wgrad_into(main_grad, self.tensors, self.sizes, self.words)

    def _in_phases(self, written: list[torch.Tensor]) -> list[torch.Tensor]:
        from octet import _phases

        call, tensors = ("linear_wgrad", self.words), (written, self.tensors, ())
        return _phases.run(call, self.sizes, tensors, self.ranks)


class Queue:
    """The queued calls of a layer's backwards, oldest first. A copied queue is empty.

    ``handle`` is the queue as a graph sees it: (number, calls queued so far). It stays on the
    CPU, where the op reads it.
    """

    def __init__(self) -> None:
        number = next(_NUMBERS)
        self.handle = torch.tensor([number, 0], device="cpu")
        self.calls: deque[QueuedCall] = deque()
        _QUEUES[number] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Queue":
        return Queue()

    def __reduce__(self) -> tuple[Any, ...]:
        return Queue, ()


_NUMBERS = itertools.count()
_QUEUES: "weakref.WeakValueDictionary[int, Queue]" = weakref.WeakValueDictionary()


def _push(handle: torch.Tensor, call: QueuedCall) -> None:
    queue = _QUEUES.get(int(handle[0]))
    if queue is None:
        raise RuntimeError("the layer whose weight gradient is to be queued is no more")
    queue.calls.append(call)
    handle[1] += 1


def _with_quantized(
    grad: QuantizedTensor, saved: Sequence[torch.Tensor], words: str
) -> tuple[list[torch.Tensor], str]:
    """The same call for a gradient that arrived quantized: its bytes are queued."""
    found = dict(zip(_signatures.later_names(words), saved, strict=True))
    found["grad_output"] = grad
    words = _signatures.gradient_words(words, None, grad._text)
    return [found[name] for name in _signatures.later_names(words)], words


def queue_wgrad(
    handle: torch.Tensor,
    grad: torch.Tensor,
    saved: list[torch.Tensor],
    sizes: list[int],
    placed: tuple[str, tuple[str, int] | None],
) -> None:
    """Queues the arguments of a wgrad call; `grad` is the incoming gradient."""
    words, ranks = placed
    if torch.compiler.is_compiling():
        where = () if ranks is None else ranks
        torch.ops.octet.queue_wgrad.default(handle, grad, saved, sizes, words, *where)
        return
    if isinstance(grad, QuantizedTensor):
        saved, words = _with_quantized(grad, saved, words)
    _push(handle, QueuedCall(saved, list(sizes), words, ranks))


_LIBRARY = torch.library.Library("octet", "FRAGMENT")
_LIBRARY.define(
    "queue_wgrad(Tensor(a!) queue, Tensor grad, Tensor[] saved, SymInt[] sizes, str words, "
    "str group='', int ranks=1) -> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _queue_copies(
    queue: torch.Tensor,
    grad: torch.Tensor,
    saved: list[torch.Tensor],
    sizes: list[int],
    words: str,
    group: str = "",
    ranks: int = 1,
) -> None:
    del grad
    where = (group, ranks) if group else None
    _push(queue, QueuedCall([tensor.clone() for tensor in saved], list(sizes), words, where))


_LIBRARY.impl("queue_wgrad", _queue_copies, "CompositeExplicitAutograd")


@torch.library.register_fake("octet::queue_wgrad")
def _(
    queue: torch.Tensor,
    grad: torch.Tensor,
    saved: list[torch.Tensor],
    sizes: Sequence[Any],
    words: str,
    group: str = "",
    ranks: int = 1,
) -> None: ...


def _queue_quantized(func: Any, args: Any, kwargs: Any) -> None:  # noqa: ANN401
    """queue_wgrad for quantized tensors in a graph: queues the buffers that the plan reads."""
    handle, grad, saved, sizes, words, *where = args
    if isinstance(grad, QuantizedTensor):
        saved, words = _with_quantized(grad, saved, words)
        grad = grad.buffers()[0]
    saved = expand_args("linear_wgrad", words, saved, mutated=1)
    func(handle, grad, saved, sizes, words, *where)


HANDLERS[torch.ops.octet.queue_wgrad.default] = _queue_quantized
