"""The ops: registered from C, with fake kernels that evaluate the C plans."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from octet import _C, _plans
from octet._dtypes import NAMES
from octet.state import seeds

_FOLDER = Path(torch.__file__).parent / "lib"
_LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib")


def _libtorch() -> str:
    for name in _LIBRARIES:
        if (_FOLDER / name).exists():
            return str(_FOLDER / name)
    raise ImportError(
        f"there is no {_LIBRARIES[0]} in {_FOLDER}: Octet needs torch 2.10 or newer"
    )


def _cuda_folders() -> list[str]:
    """The folders where torch's wheels keep NVRTC and cuBLASLt."""
    beside = _FOLDER.parents[1] / "nvidia"
    return [str(_FOLDER), *(str(found) for found in sorted(beside.glob("*/lib")))]


_C.register_ops(_libtorch())
if (_FOLDER / "libtorch_cuda.so").exists():
    _C.use_cuda(str(_FOLDER / "libtorch_cuda.so"), ":".join(_cuda_folders()))

quantize = torch.ops.octet.quantize.default
quantize_into = torch.ops.octet.quantize_into.default
dequantize = torch.ops.octet.dequantize.default
linear = torch.ops.octet.linear.default
linear_seeded = torch.ops.octet.linear_seeded.default
linear_backward = torch.ops.octet.linear_backward.default
linear_wgrad = torch.ops.octet.linear_wgrad.default
linear_wgrad_into = torch.ops.octet.linear_wgrad_into.default
linear_phase = torch.ops.octet.linear_phase.default
delayed_record = torch.ops.octet.delayed_record.default
delayed_update = torch.ops.octet.delayed_update.default

# Ops that write arguments have one overload for each number of outputs.
linear_into = [getattr(torch.ops.octet.linear_into, name) for name in _C.OVERLOADS]
linear_backward_into = [
    getattr(torch.ops.octet.linear_backward_into, name) for name in _C.OVERLOADS
]


def listed(outs: Any) -> Sequence[torch.Tensor]:  # noqa: ANN401
    """The result of an overload as a sequence, for any number of outputs."""
    if isinstance(outs, tuple):
        return outs
    return () if outs is None else (outs,)


def _check_devices(tensors: Sequence[torch.Tensor]) -> None:
    """Raises if tensors are on different devices. For meta tensors no kernel runs that would
    check it."""
    for tensor in tensors:
        if tensor.device != tensors[0].device:
            raise ValueError(
                f"a tensor is on {tensor.device}, another on {tensors[0].device}: move one of "
                "them"
            )


def _known(sizes: Sequence[_plans.Size]) -> tuple[int, ...]:
    """Sizes as C reads them; symbolic sizes become -1."""
    return tuple(size if isinstance(size, int) else -1 for size in sizes)


def _check(
    kind: str,
    text: str,
    args: Sequence[torch.Tensor],
    mutated: int = 0,
    sizes: Sequence[_plans.Size] = (),
) -> None:
    """Checks the arguments as the kernel would, with the same messages."""
    plan = _plans.describe(kind, text)
    given = [i for i, port in enumerate(plan.args) if not port.is_in_state]
    places = [i for i in given if not (mutated and plan.args[i].is_mutable)]
    wanted = len(places) + sum(plan.arenas)
    if len(args) != wanted or len(given) - len(places) != mutated:
        names = ", ".join(plan.args[i].name for i in places)
        raise ValueError(
            f"{len(args)} tensors; the plan takes {wanted}: {names}, restored blocks"
        )
    known = _known(sizes)
    for place, tensor in zip(places, args, strict=False):
        name, shape = NAMES.get(tensor.dtype), _known(tensor.shape)
        _C.check_argument(kind, text, known, place, name, shape)
    _check_devices(args)


def _outputs(
    kind: str, text: str, sizes: Sequence[_plans.Size], like: torch.Tensor
) -> list[torch.Tensor]:
    plan, at = _plans.describe(kind, text), _plans.axes(kind, sizes)
    outs = [
        like.new_empty(_plans.shape(port.dims, at), dtype=port.dtype)
        for port in plan.outs
        if port.alias < 0
    ]
    if plan.arena:
        outs.append(like.new_empty([_plans.arena_bytes(plan, at)], dtype=torch.uint8))
    return outs


@torch.library.register_fake("octet::quantize")
def _(input: torch.Tensor, live: list[torch.Tensor], text: str) -> list[torch.Tensor]:
    _check("quantize", text, [input, *live], sizes=input.shape)
    return _outputs("quantize", text, input.shape, input)


@torch.library.register_fake("octet::quantize_into")
def _(
    buffers: list[torch.Tensor], input: torch.Tensor, live: list[torch.Tensor], text: str
) -> None:
    plan = _plans.describe("quantize", text)
    _check("quantize", text, [input, *live], sizes=input.shape)
    if [buffer.dtype for buffer in buffers] != [port.dtype for port in plan.outs]:
        raise ValueError(f"{len(buffers)} buffers are not those of {text}")
    _check_devices([input, *buffers])


@torch.library.register_fake("octet::dequantize")
def _(buffers: list[torch.Tensor], sizes: Sequence[_plans.Size], text: str) -> torch.Tensor:
    _check("dequantize", text, buffers)
    return _outputs("dequantize", text, sizes, buffers[0])[0]


@torch.library.register_fake("octet::linear")
def _(args: list[torch.Tensor], sizes: Sequence[_plans.Size], words: str) -> list[torch.Tensor]:
    _check("linear", words, args, sizes=sizes)
    return _outputs("linear", words, sizes, args[0])


@torch.library.register_fake("octet::linear_seeded")
def _(
    args: list[torch.Tensor], seed: torch.Tensor, sizes: Sequence[_plans.Size], words: str
) -> list[torch.Tensor]:
    _check("linear", words, args, sizes=sizes)
    return _outputs("linear", words, sizes, args[0])


@torch.library.register_fake("octet::linear_backward")
def _(args: list[torch.Tensor], sizes: Sequence[_plans.Size], words: str) -> list[torch.Tensor]:
    _check("linear_backward", words, args, sizes=sizes)
    return _outputs("linear_backward", words, sizes, args[0])


@torch.library.register_fake("octet::linear_wgrad")
def _(args: list[torch.Tensor], sizes: Sequence[_plans.Size], words: str) -> list[torch.Tensor]:
    _check("linear_wgrad", words, args, sizes=sizes)
    return _outputs("linear_wgrad", words, sizes, args[0])


# linear for a call that draws a seed only for its backward. The seed is the last output. It is
# one node of a graph instead of two. `before` is the previous draw, as in
# octet::draw_seed_after.
_LIBRARY = torch.library.Library("octet", "FRAGMENT")
_LIBRARY.define(
    "linear_drawn(Tensor input, Tensor[] others, Tensor[] before, SymInt[] sizes, "
    "str words) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded),
)


def _linear_drawn(
    input: torch.Tensor,
    others: list[torch.Tensor],
    before: list[torch.Tensor],
    sizes: Sequence[int],
    words: str,
) -> list[torch.Tensor]:
    del before
    seed = seeds.draw(input.device)
    return [*linear._op([input, *others], sizes, words), seed]


_LIBRARY.impl("linear_drawn", _linear_drawn, "CompositeExplicitAutograd")


@torch.library.register_fake("octet::linear_drawn")
def _(
    input: torch.Tensor,
    others: list[torch.Tensor],
    before: list[torch.Tensor],
    sizes: Sequence[_plans.Size],
    words: str,
) -> list[torch.Tensor]:
    _check("linear", words, [input, *others], sizes=sizes)
    outs = _outputs("linear", words, sizes, input)
    return [*outs, input.new_empty([1], dtype=torch.int64)]


def _fake_into(
    written: list[torch.Tensor],
    args: list[torch.Tensor],
    sizes: Sequence[_plans.Size],
    words: str,
    rule: str | None = None,
) -> Any:  # noqa: ANN401
    """The fake kernel of both ops that write arguments. Only backward has a rule, by which it
    also updates scales."""
    kind = "linear" if rule is None else "linear_backward"
    _check(kind, words, args, len(written), sizes)
    _check_devices([*args, *written])
    outs = _outputs(kind, words, sizes, args[0])
    return tuple(outs) if len(outs) > 1 else outs[0] if outs else None


for _op in (*linear_into, *linear_backward_into):
    torch.library.register_fake(_op.name(), _fake_into)
del _op


@torch.library.register_fake("octet::linear_wgrad_into")
def _(
    main_grad: torch.Tensor,
    args: list[torch.Tensor],
    sizes: Sequence[_plans.Size],
    words: str,
) -> None:
    _check("linear_wgrad", words, args, 1, sizes)
    _check_devices([main_grad, *args])


# A call's words -> a function that waits for the call's sizes. See octet._share.
AWAITING: dict[str, Callable[[list[int]], None]] = {}


def _hint(size: _plans.Size) -> int:
    """A size as an int; for a symbolic size its value during tracing."""
    found = size if isinstance(size, int) else size.node.hint
    return -1 if found is None else int(found)


@torch.library.register_fake("octet::linear_phase")
def _(
    written: list[torch.Tensor],
    read: list[torch.Tensor],
    after: list[torch.Tensor],
    sizes: Sequence[_plans.Size],
    words: str,
    plan: int,
    phase: int,
) -> None:
    if words in AWAITING:
        AWAITING.pop(words)([_hint(size) for size in sizes])
    kind = _plans.LINEAR_PLANS[plan]
    found, known = _plans.phases(kind, words).phases[phase], _known(sizes)
    for slots, tensors in ((found.written, written), (found.read, read)):
        if len(slots) != len(tensors):
            raise ValueError(f"{len(tensors)} tensors; phase {phase} takes {len(slots)}")
        for (place, port), tensor in zip(slots, tensors, strict=True):
            if place == "arg":
                name, shape = NAMES.get(tensor.dtype), _known(tensor.shape)
                _C.check_argument(kind, words, known, port, name, shape)
    _check_devices([*written, *read])


@torch.library.register_fake("octet::delayed_record")
def _(state: torch.Tensor, amax: torch.Tensor) -> None: ...


@torch.library.register_fake("octet::delayed_update")
def _(states: list[torch.Tensor], rule: str) -> None: ...
