"""The signature of a Linear call from the C core, as tuples of indices: what it takes, returns
and saves."""

from typing import Any, NamedTuple

import torch
from octet import _C, _plans, _texts
from octet._constant import constant
from octet._dtypes import TORCH_DTYPES, dtype_name

# Options of a call: fields of the C core's argument struct, with values.
Options = tuple[tuple[str, Any], ...]
# Dtypes of input, weight and bias; then of gamma and beta if the call begins with a norm.
Dtypes = tuple[torch.dtype | None, ...]


@constant
def device_options(kind: str, index: int | None) -> Options:
    """The device option of a call; none for the CPU."""
    return (("device", _C.cuda_device(index or 0)),) if kind == "cuda" else ()


# Options used in several places.
CALIBRATE = ("calibrate", True)
READ_CACHE, WRITE_CACHE = ("weight_cache", "read"), ("weight_cache", "write")


@constant
def linear_words(
    dtypes: Dtypes,
    quantized: tuple[str | None, str | None],
    recipe: str,
    grads: tuple[bool, bool, bool],
    options: Options,
) -> str:
    """The words of a call: everything but its sizes. The ops take this text."""
    names = tuple(None if dtype is None else dtype_name(dtype) for dtype in dtypes)
    return _C.linear_words(names, quantized, recipe, grads, options)


@constant
def stored_weight(recipe: str, dtype: torch.dtype, where: Options) -> str:
    """The quantizer of a weight that is stored quantized under a recipe."""
    words = linear_words((dtype, dtype, None), (None, None), recipe, (True, True, False), where)
    return _C.parameter_quantizer(words)


class Group(NamedTuple):
    """A tensor: one buffer if it is plain, several if it is quantized."""

    name: str
    start: int
    count: int
    quantizer: str
    is_mutable: bool


# ---- forward ---------------------------------------------------------------------------------


class Forward(NamedTuple):
    """The signature of a forward call, tensor by tensor."""

    args: tuple[str, ...]
    count: int  # number of arguments
    writes: tuple[int, ...]  # arguments that it writes
    output: Group
    others: tuple[Group, ...]  # other tensors that it returns, for the layer to cache
    cached: str  # quantizer of the cached weight that it reads, or "none"
    saves: tuple[tuple[bool, int], ...]  # besides the arena: (is an argument, which)
    saves_arena: bool
    lent: tuple[str, ...]  # tensors that the layer gives to its backward
    delays: bool  # whether the weight's gradient is computed later
    returns_amaxes: bool  # whether it or its backward returns amaxes of delayed scaling
    has_backward: bool
    reads: int  # number of arguments before the first one that it writes
    # (read, written) indices, if read arguments follow written ones (a cached weight); else
    # None.
    parted: tuple[tuple[int, ...], tuple[int, ...]] | None
    made: int  # number of tensors that it returns
    is_simple: bool  # they are the output and, where it saves anything, the arena
    flat: bool  # whether quantized arguments are passed as single buffers
    operands: tuple[str, ...]  # arguments that may get a gradient
    applies: bool  # whether it has a norm or activation before the product

    @property
    def lends_seed(self) -> bool:
        """Whether only the backward reads the seed. It is then the first lent tensor."""
        return self.lent[:1] == ("seed",) and "seed" not in self.args


_OPERANDS = ("input", "weight", "bias", "gamma", "beta")


@constant
def prologue_of(words: str) -> str:
    """The norm or activation of a call; "none" if there is none."""
    return _C.fields("linear", f"linear m=0 k=1 n=1 {words}")["prologue"]


@constant
def input_factor(prologue: str) -> int:
    """Columns of the input for each column of the weight, with this prologue."""
    words = linear_words(
        (torch.float32, torch.float32, None),
        (None, None),
        "none",
        (False, False, False),
        (("prologue", prologue),),
    )
    return _plans.describe("linear", words).args[0].dims[-1][1]


@constant
def forward_signature(words: str, flat: bool = False) -> Forward:
    """The signature of the forward call of these words. `flat`: quantized arguments are passed
    as single buffers."""
    found = _C.linear_signature(words, flat)
    args, outs = (tuple(Group(*group) for group in groups) for groups in found[:2])
    saves, lent, saves_arena, made, delays, returns_amaxes, has_backward = found[2:]
    by_name = {group.name: group for group in outs}
    reads = tuple(i for i, group in enumerate(args) if not group.is_mutable)
    writes = tuple(i for i, group in enumerate(args) if group.is_mutable)
    output = by_name["output"]
    in_order = reads == tuple(range(len(reads)))
    return Forward(
        args=tuple(group.name for group in args),
        count=len(args),
        writes=writes,
        output=output,
        others=tuple(group for group in outs if group.name == "weight.cached"),
        cached=next((g.quantizer for g in args if g.name == "weight.cached"), "none"),
        saves=saves,
        saves_arena=saves_arena,
        lent=lent,
        delays=delays,
        returns_amaxes=returns_amaxes,
        has_backward=has_backward,
        reads=writes[0] if writes else len(args),
        parted=None if in_order else (reads, writes),
        made=made,
        is_simple=not saves and output.quantizer == "none" and made == 1 + saves_arena,
        flat=flat,
        operands=tuple(n for n in dict.fromkeys(g.name for g in args) if n in _OPERANDS),
        applies=prologue_of(words) != "none",
    )


@constant
def is_flat(words: str, count: int) -> bool:
    """Whether a call with this many tensors, lent ones included, passes single buffers."""
    signature = forward_signature(words)
    return count != signature.count + len(signature.lent)


@constant
def writes_of(words: str, flat: bool) -> tuple[tuple[int, ...], int]:
    """The arguments that a forward call writes, and the number of its arguments."""
    signature = forward_signature(words, flat)
    return signature.writes, signature.count


@constant
def buffers_of(words: str, name: str, text: str) -> tuple[str, ...]:
    """The buffers of a quantized argument that a forward call reads, in the plan's order."""
    names, ports = _texts.part_names(text), _plans.describe("linear", words).args
    return tuple(names[port.part] for port in ports if port.name == name)


# ---- backward --------------------------------------------------------------------------------


class Backward(NamedTuple):
    """The signature of a backward call, tensor by tensor.

    Arguments are indices into (gradient, tensors saved by forward, tensors lent by the
    layer)."""

    text: str
    dtype: torch.dtype  # dtype of the incoming gradient
    operands: tuple[torch.dtype, torch.dtype]  # dtypes of input and weight
    args: tuple[int, ...]
    written: tuple[int, ...]  # arguments that it writes
    made: int  # number of tensors that it returns
    # (argument of the autograd function, its gradient among the outputs)
    grads: tuple[tuple[int, Group], ...]
    records: bool  # whether it records amaxes, in the first tensor that it writes
    # For each argument of the autograd function (3, then its tensors): the output that is its
    # gradient, or -1. Quantized gradients are built through `grads`.
    places: tuple[int, ...]
    is_plain: bool
    # If the outputs are the gradients of neighbouring arguments, in order: the Nones before and
    # after them. Else None.
    around: tuple[tuple[None, ...], tuple[None, ...]] | None
    later: tuple[int, ...] | None  # for a later wgrad; -1 is the arena that backward makes


def _around(
    grads: tuple[tuple[int, Group], ...], count: int, made: int
) -> tuple[tuple[None, ...], tuple[None, ...]] | None:
    first = grads[0][0] if grads else 0
    places = [(at, group.start) for at, group in grads if group.quantizer == "none"]
    if not made or places != [(first + i, i) for i in range(made)]:
        return None
    return (None,) * first, (None,) * (count - first - made)


@constant
def gradient_words(words: str, dtype: torch.dtype | None, quantizer: str | None) -> str:
    """The words of a backward whose gradient has this dtype or quantizer."""
    return _C.gradient_words(words, None if dtype is None else dtype_name(dtype), quantizer)


_NORM = ("gamma", "beta")


@constant
def backward_signature(words: str, dtype: torch.dtype, flat: bool = False) -> Backward:
    """The signature of the backward call for a gradient of this dtype."""
    text, forward = gradient_words(words, dtype, None), forward_signature(words, flat)
    read, written, later, groups, made, records, operands = _C.backward_signature(text, flat)
    # gamma and beta come after the bias, if there is one.
    found = forward.operands
    places = (0, 1, 2, *(found.index(n) if n in found else -1 for n in _NORM))
    pairs = zip(places, groups, strict=True)
    grads = tuple((3 + at, Group(*group)) for at, group in pairs if group)
    count = 3 + forward.count + len(forward.lent)
    starts = {at: group.start for at, group in grads}
    return Backward(
        text=text,
        dtype=dtype,
        operands=(TORCH_DTYPES[operands[0]], TORCH_DTYPES[operands[1]]),
        args=read,
        written=written,
        made=made,
        grads=grads,
        records=records,
        places=tuple(starts.get(at, -1) for at in range(count)),
        is_plain=all(group.quantizer == "none" for _, group in grads),
        around=_around(grads, count, made),
        later=later if forward.delays else None,
    )


@constant
def is_plain_in_graph(words: str, dtype: torch.dtype) -> bool:
    """Whether a call returns and receives only plain tensors, and computes all gradients at
    once."""
    forward = forward_signature(words)
    if forward.output.quantizer != "none" or forward.delays:
        return False
    return not forward.has_backward or backward_signature(words, dtype).is_plain


# ---- wgrad -----------------------------------------------------------------------------------


@constant
def later_names(text: str) -> tuple[str, ...]:
    """The tensors that a delayed wgrad takes; arenas come last."""
    plan = _plans.describe("linear_wgrad", text)
    names = [group.name for group in _plans.groups(plan.args) if group.name != "main_grad"]
    arenas = zip(plan.arenas, ("forward's arena", "backward's arena"), strict=True)
    return (*names, *(name for has, name in arenas if has))


# ---- a call ----------------------------------------------------------------------------------


class Call(NamedTuple):
    """A call of a layer, without sizes."""

    words: str
    error: str  # why the C core refuses it; "" if it does not
    cache: str = "none"  # quantizer of the cached weight that it reads
    tensors: tuple[str, ...] = ()  # names of the tensors it takes besides its operands
    takes_bias: bool = False
    has_others: bool = False


# The plan's names -> the layer's names, for forward and for what is lent to backward.
FORWARD_STATE = {
    "scale": "fp8_state",
    "amax": "fp8_state",
    "seed": "seed",
    "weight.cached": "cache",
}
_LENT = {
    "seed": "seed",
    "scale": "fp8_grad_state",
    "state": "fp8_grad_state",
    "main_grad": "main_grad",
    "bias_main_grad": "bias_main_grad",
    "queue": "queue",
}


@constant
def call_of(
    dtypes: Dtypes,
    quantized: tuple[str | None, str | None],
    recipe: str,
    grads: tuple[bool, bool, bool],
    options: Options,
    records: bool = True,
) -> Call:
    """The call with these operands and options. `records`: whether it records amaxes."""
    try:
        if records:  # amaxes are raised in the history, not returned
            options += (("raise_amax", True),)
        elif CALIBRATE not in options:
            options += (("skip_amax", True),)
        words = linear_words(dtypes, quantized, recipe, grads, options)
        signature = forward_signature(words)
    except ValueError as error:
        return Call("", str(error))
    first = [FORWARD_STATE[name] for name in signature.args if name in FORWARD_STATE]
    return Call(
        words,
        "",
        cache=signature.cached,
        tensors=(*first, *(_LENT[name] for name in signature.lent)),
        takes_bias="bias" in signature.args,
        has_others=bool(signature.others),
    )


@constant
def row_multiple(words: str) -> int:
    """The input's rows must be a multiple of this if ranks share them."""
    return _plans.phases("linear", words).row_multiple


@constant
def chunk_multiple(words: str, in_backward: bool) -> int:
    """If forward (or backward) computes a product in chunks, what is cut must be a multiple of
    this: its columns, or the input's rows."""
    if in_backward and not forward_signature(words).has_backward:
        return 1
    return _plans.phases("linear_backward" if in_backward else "linear", words).chunk_multiple


@constant
def words_of_ranks(words: str) -> str:
    """A call's words without the device, so that all ranks have the same."""
    return _C.words_on_cpu(words)


@constant
def draws_with_graph(
    dtypes: Dtypes,
    quantized: tuple[str | None, str | None],
    recipe: str,
    options: Options,
) -> bool:
    """Whether a call with these operands draws a seed if all of them get gradients."""
    grads = (True, True, dtypes[2] is not None)
    norm = zip(("gamma_requires_grad", "beta_requires_grad"), dtypes[3:], strict=False)
    missing = [(name, True) for name, dtype in norm if dtype is not None]
    options += tuple(each for each in missing if each not in options)
    return "seed" in call_of(dtypes, quantized, recipe, grads, options, False).tensors


@constant
def draws_in_its_node(words: str, tensors: tuple[str, ...], dtype: torch.dtype) -> bool:
    """Whether a call's only extra tensor is a seed that only backward reads. In a graph, the
    call's own node then draws it."""
    if tensors != ("seed",) or not is_plain_in_graph(words, dtype):
        return False
    return "seed" not in forward_signature(words).args
