"""The ops of octet.stats: they add what a cast lost to a small tensor of sums."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from octet import _C, _ops, _texts
from octet._constant import constant
from octet._dtypes import dtype_name
from octet._function import _let_change
from octet.tensor import QuantizedTensor

FIELDS = (
    "calls",
    "elements",
    "nonzero",
    "underflow",
    "saturated",
    "nonfinite",
    "error",
    "power",
)
SUMS = len(FIELDS)  # after the sums: the smallest exponent of a scale, negated, and the largest
LENGTH = SUMS + 2

_LIBRARY = torch.library.Library("octet", "FRAGMENT")
_LIBRARY.define(
    "gather_stats(Tensor(a!) into, Tensor input, Tensor[] states, int slot, str quantizer) "
    "-> ()",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.define(
    "watch_grad(Tensor output, Tensor(a!) into, Tensor[] states, int slot, str quantizer) "
    "-> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
gather = torch.ops.octet.gather_stats.default


def new_row(device: torch.device) -> torch.Tensor:
    """An empty row of sums."""
    row = torch.zeros(LENGTH, dtype=torch.float64, device=device)
    row[SUMS:] = -torch.inf
    return row


# ---- numbers of one cast ---------------------------------------------------------------------


def _quantized(
    x: torch.Tensor, states: Sequence[torch.Tensor], slot: int, text: str
) -> QuantizedTensor:
    """Casts the tensor. Stochastic rounding uses a fixed seed, so that torch's generator does
    not advance."""
    live: list[torch.Tensor] = []
    if _texts.takes_scale(text):
        live.append(states[0][0, slot : slot + 1])  # of the row of scales
    if _texts.is_stochastic(text):
        live.append(x.new_zeros(1, dtype=torch.int64))
    words = _texts.tensor_words(dtype_name(x.dtype), text)
    buffers = _ops.quantize(x, live, words)
    return QuantizedTensor(buffers[: len(_texts.layout(text))], text, x.dtype, x.shape)


def _saturated(codes: torch.Tensor, text: str) -> torch.Tensor:
    """How many codes have the largest magnitude."""
    bits, largest = _C.largest_code(text)
    magnitude = (1 << (bits - 1)) - 1
    found = (codes & magnitude == largest).sum()
    return found if bits == 8 else found + ((codes >> bits) & magnitude == largest).sum()


_SCHEMES = ("mxfp8:e4m3", "nvfp4:e2m1", "mxfp4:e2m1")  # schemes whose scales are codes


@functools.lru_cache(64)
def _exponents(scheme: str, device: torch.device) -> torch.Tensor | None:
    """Code of a block scale -> its exponent; None if scales are float32."""
    table = _C.scale_exponents(scheme)
    return torch.tensor(table, dtype=torch.int32, device=device) if table else None


def prepare(device: torch.device) -> None:
    """Makes the tables beforehand: the ops may run in a CUDA graph, where no copy from the host
    is possible."""
    for text in _SCHEMES:
        _exponents(_quantizer_of(text), device)


@constant
def _quantizer_of(text: str) -> str:
    """The usual quantizer of a text's scheme, which has the same scales."""
    scheme = _texts.scheme(text)
    return next((usual for usual in _SCHEMES if usual.startswith(f"{scheme}:")), text)


def _used(scale: torch.Tensor, dims: Any, sizes: dict[str, int]) -> torch.Tensor:  # noqa: ANN401
    """Block scales without their padding."""
    for axis, (name, times, over, _) in enumerate(dims):
        scale = scale.narrow(axis, 0, -(-sizes[name] * times // over))
    return scale


def _scale_ends(made: QuantizedTensor, into: torch.Tensor) -> torch.Tensor:
    """The smallest exponent, negated, and the largest of the scales (value = code * scale).
    Zero, NaN and scales of empty blocks are left out."""
    k = made.shape[-1]
    m = made.numel() // k
    sizes = {"one": 1, "m": m, "k": k, "leading": m}
    text = made._text
    for name, part, _, dims in _texts.layout(text):
        if part in ("rowwise scale", "scale_inv"):
            scale = _used(getattr(made, name), dims, sizes)
            break
    table = _exponents(_quantizer_of(text), scale.device)
    if table is not None:
        found = table[scale.long()]
        is_scale = found != _C.NO_EXPONENT
    else:
        found = torch.frexp(scale).exponent - 1
        is_scale = (scale > 0) & scale.isfinite()
    least = torch.where(is_scale, -found, -torch.inf).amax()
    return torch.stack([least, torch.where(is_scale, found, -torch.inf).amax()]).to(into.dtype)


MOST_ELEMENTS = 1 << 16  # elements that are compared; larger tensors are sampled by rows


def _some_rows(tensor: torch.Tensor, step: int) -> torch.Tensor:
    return tensor.reshape(-1, tensor.shape[-1])[::step]


def _gather(
    into: torch.Tensor,
    input: torch.Tensor,
    states: Sequence[torch.Tensor],
    slot: int,
    quantizer: str,
) -> None:
    """Adds what casting a tensor loses. Nothing here waits for a GPU."""
    with torch.no_grad():
        x = input.detach().contiguous()
        if x.numel() == 0:
            return
        made = _quantized(x, states, slot, quantizer)
        step = -(-x.numel() // MOST_ELEMENTS)
        wide = _some_rows(x, step).float()
        back = _some_rows(made.dequantize(torch.float32), step)
        codes = _some_rows(getattr(made, _texts.layout(quantizer)[0][0]), step)
        error = wide - back
        finite = error.isfinite()
        nonzero = finite & (wide != 0)
        error, power = torch.where(finite, error, 0), torch.where(finite, wide, 0)
        count = into.new_full((), wide.numel())
        sums = (
            into.new_ones(()),
            count,
            nonzero.sum(),
            (nonzero & (back == 0)).sum(),
            _saturated(codes, quantizer),
            count - finite.sum(),
            error.square_().sum(dtype=torch.float64),
            power.square_().sum(dtype=torch.float64),
        )
        into[:SUMS] += torch.stack([each.to(into.dtype) for each in sums])
        into[SUMS:] = torch.maximum(into[SUMS:], _scale_ends(made, into))


_LIBRARY.impl("gather_stats", _gather, "CompositeExplicitAutograd")


@torch.library.register_fake("octet::gather_stats")
def _(
    into: torch.Tensor,
    input: torch.Tensor,
    states: Sequence[torch.Tensor],
    slot: int,
    quantizer: str,
) -> None: ...


# ---- gradients -------------------------------------------------------------------------------


class _Tap(torch.autograd.Function):
    """Returns the output; its backward measures the incoming gradient."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, *asked: Any) -> torch.Tensor:  # noqa: ANN401
        """The output."""
        ctx.asked = asked
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        """The gradient."""
        into, states, slot, quantizer = ctx.asked
        if not isinstance(grad, QuantizedTensor):
            gather(into, grad, states, slot, quantizer)
        return grad, None, None, None, None


def _watch_grad(
    output: torch.Tensor,
    into: torch.Tensor,
    states: Sequence[torch.Tensor],
    slot: int,
    quantizer: str,
) -> torch.Tensor:
    _let_change([into, *states])
    return _Tap.apply(output, into, list(states), slot, quantizer)


_LIBRARY.impl("watch_grad", _watch_grad, "Autograd")
_LIBRARY.impl("watch_grad", lambda output, *asked: output.clone(), "CompositeExplicitAutograd")
watch_grad = torch.ops.octet.watch_grad.default
tap = _Tap.apply
