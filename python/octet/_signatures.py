"""What a Linear call takes, gives and saves, as the C core says it: tuples of indices."""

from typing import Any, NamedTuple

import torch
from octet import _C, _plans, _texts
from octet._constant import constant
from octet._dtypes import TORCH_DTYPES, dtype_name

# What a call is asked besides its operands: fields of the C core's arguments and their values.
Options = tuple[tuple[str, Any], ...]
# Of input, weight and bias; and of gamma and beta where the call begins with a norm.
Dtypes = tuple[torch.dtype | None, ...]


@constant
def device_options(kind: str, index: int | None) -> Options:
    """Where a call runs; nothing for the CPU."""
    return (("device", _C.cuda_device(index or 0)),) if kind == "cuda" else ()


# Options that several ask for.
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
    """A call in the words that its ops take: all but its sizes."""
    names = tuple(None if dtype is None else dtype_name(dtype) for dtype in dtypes)
    return _C.linear_words(names, quantized, recipe, grads, options)


@constant
def stored_weight(recipe: str, dtype: torch.dtype, where: Options) -> str:
    """The quantizer of a weight that is stored quantized under a recipe."""
    words = linear_words((dtype, dtype, None), (None, None), recipe, (True, True, False), where)
    return _C.parameter_quantizer(words)


class Group(NamedTuple):
    """A tensor: one buffer where it is plain, several where it is quantized."""

    name: str
    start: int
    count: int
    quantizer: str
    is_mutable: bool


# ---- forward ---------------------------------------------------------------------------------


class Forward(NamedTuple):
    """What a forward call takes, gives and saves, tensor by tensor."""

    args: tuple[str, ...]
    count: int  # of them
    writes: tuple[int, ...]  # those that it writes
    output: Group
    others: tuple[Group, ...]  # tensors that it makes besides, for the layer to cache
    cached: str  # the quantizer of the cached weight that it reads, or none
    saves: tuple[tuple[bool, int], ...]  # besides the block: (is an argument, which)
    has_block: bool
    lent: tuple[str, ...]  # what the layer lends to its backward
    delays: bool  # its backward leaves the weight's gradient for later
    returns_amaxes: bool  # or its backward does: those of delayed scaling
    has_backward: bool
    reads: int  # how many arguments it only reads before the first that it writes
    # Where others that it only reads follow (a cached weight): which it reads, which it writes.
    parted: tuple[tuple[int, ...], tuple[int, ...]] | None
    made: int  # tensors that it returns
    is_simple: bool  # they are the output and, where it saves anything, the block
    flat: bool  # its arguments are buffers one by one
    operands: tuple[str, ...]  # those arguments that may get a gradient
    applies: bool  # a function to the input, before the product

    @property
    def lends_seed(self) -> bool:
        """Whether the seed of a call is its backward's alone; it is lent first then."""
        return self.lent[:1] == ("seed",) and "seed" not in self.args


_OPERANDS = ("input", "weight", "bias", "gamma", "beta")


@constant
def prologue_of(words: str) -> str:
    """The function that a call applies to its input; none where there is none."""
    return _C.fields("linear", f"linear m=0 k=1 n=1 {words}")["prologue"]


@constant
def input_factor(prologue: str) -> int:
    """How many columns the input of a call with this prologue has for each of the weight's."""
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
    """What the forward call of these words takes, gives and saves; `flat`: of a quantized
    argument the caller hands over its buffers one by one."""
    found = _C.linear_signature(words, flat)
    args, outs = (tuple(Group(*group) for group in groups) for groups in found[:2])
    saves, lent, has_block, made, delays, returns_amaxes, has_backward = found[2:]
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
        has_block=has_block,
        lent=lent,
        delays=delays,
        returns_amaxes=returns_amaxes,
        has_backward=has_backward,
        reads=writes[0] if writes else len(args),
        parted=None if in_order else (reads, writes),
        made=made,
        is_simple=not saves and output.quantizer == "none" and made == 1 + has_block,
        flat=flat,
        operands=tuple(n for n in dict.fromkeys(g.name for g in args) if n in _OPERANDS),
        applies=prologue_of(words) != "none",
    )


@constant
def is_flat(words: str, count: int) -> bool:
    """Whether that many tensors, those for backward included, are buffers one by one."""
    signature = forward_signature(words)
    return count != signature.count + len(signature.lent)


@constant
def writes_of(words: str, flat: bool) -> tuple[tuple[int, ...], int]:
    """Which arguments a forward call writes, and how many it has."""
    signature = forward_signature(words, flat)
    return signature.writes, signature.count


@constant
def buffers_of(words: str, name: str, text: str) -> tuple[str, ...]:
    """The buffers of a quantized argument that a forward call reads, in the plan's order."""
    names, ports = _texts.part_names(text), _plans.describe("linear", words).args
    return tuple(names[port.part] for port in ports if port.name == name)


# ---- backward --------------------------------------------------------------------------------


class Backward(NamedTuple):
    """What a backward call takes and gives, tensor by tensor.

    Its arguments are places in (the gradient, what forward saved, what the layer lent)."""

    text: str
    dtype: torch.dtype  # of the gradient that arrives
    operands: tuple[torch.dtype, torch.dtype]  # the input's and the weight's
    args: tuple[int, ...]
    written: tuple[int, ...]  # those that it writes
    made: int  # tensors that it returns
    grads: tuple[tuple[int, Group], ...]  # which argument of the function, and where
    records: bool  # amaxes, in what it writes first
    # Of each argument of the function (3, and its tensors) the output that is its gradient; -1
    # where there is none. Where one is quantized it is gathered by `grads`.
    places: tuple[int, ...]
    is_plain: bool
    # The gradients, None, of the arguments before and after those whose gradients the outputs
    # are, all of them and in order; None where they are not.
    around: tuple[tuple[None, ...], tuple[None, ...]] | None
    later: tuple[int, ...] | None  # for a later wgrad; -1 is the block that backward makes


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
    """The words of a backward where a gradient of that dtype or quantizer arrives."""
    return _C.gradient_words(words, None if dtype is None else dtype_name(dtype), quantizer)


_NORM = ("gamma", "beta")


@constant
def backward_signature(words: str, dtype: torch.dtype, flat: bool = False) -> Backward:
    """What the backward call takes and gives where a gradient of that dtype arrives."""
    text, forward = gradient_words(words, dtype, None), forward_signature(words, flat)
    read, written, later, groups, made, records, operands = _C.backward_signature(text, flat)
    # Those of a prologue's parameters come after the bias, where there is one.
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
    """Whether a call gives and takes back plain tensors only, and computes all at once."""
    forward = forward_signature(words)
    if forward.output.quantizer != "none" or forward.delays:
        return False
    return not forward.has_backward or backward_signature(words, dtype).is_plain


# ---- wgrad -----------------------------------------------------------------------------------


@constant
def later_names(text: str) -> tuple[str, ...]:
    """What a wgrad that runs later takes, tensor by tensor; blocks come last."""
    plan = _plans.describe("linear_wgrad", text)
    names = [group.name for group in _plans.groups(plan.args) if group.name != "main_grad"]
    blocks = zip(plan.blocks, ("forward's block", "backward's block"), strict=True)
    return (*names, *(name for has, name in blocks if has))


# ---- a call ----------------------------------------------------------------------------------


class Call(NamedTuple):
    """A call of a layer, as far as it does not depend on a size."""

    words: str
    error: str  # what the C core has against it; empty where nothing
    cache: str = "none"  # the quantizer of the cached weight that it reads
    tensors: tuple[str, ...] = ()  # what it takes besides input, weight and bias
    takes_bias: bool = False
    has_others: bool = False


# The layer's own names for what plans ask for: in forward, and lent to backward.
FORWARD_STATE = {
    "scale": "fp8_scale",
    "amax": "fp8_amax_history",
    "seed": "seed",
    "weight.cached": "cache",
}
_LENT = {
    "seed": "seed",
    "scale": "fp8_grad_scale",
    "history": "fp8_grad_amax_history",
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
    """The call with these operands and options; `records`: whether it records amaxes."""
    try:
        if records:  # amaxes, if it has any: raised in the history, not returned
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
    """What the rows of a call's input must be a multiple of, where ranks share them."""
    return _plans.phases("linear", words).row_multiple


@constant
def chunk_multiple(words: str, in_backward: bool) -> int:
    """What is cut where forward, or backward, makes a product in chunks must be a multiple of:
    its columns, or the input's rows."""
    if in_backward and not forward_signature(words).has_backward:
        return 1
    return _plans.phases("linear_backward" if in_backward else "linear", words).chunk_multiple


@constant
def words_of_ranks(words: str) -> str:
    """A call's words as every rank has them: each has a device of its own."""
    return _C.words_on_cpu(words)


@constant
def draws_with_graph(
    dtypes: Dtypes,
    quantized: tuple[str | None, str | None],
    recipe: str,
    options: Options,
) -> bool:
    """Whether a call with these operands draws a seed where all of them get gradients."""
    grads = (True, True, dtypes[2] is not None)
    norm = zip(("gamma_requires_grad", "beta_requires_grad"), dtypes[3:], strict=False)
    missing = [(name, True) for name, dtype in norm if dtype is not None]
    options += tuple(each for each in missing if each not in options)
    return "seed" in call_of(dtypes, quantized, recipe, grads, options, False).tensors


@constant
def draws_in_its_node(words: str, tensors: tuple[str, ...], dtype: torch.dtype) -> bool:
    """Whether all that a call takes besides its operands is a seed that backward alone reads:
    in a graph its one node draws it."""
    if tensors != ("seed",) or not is_plain_in_graph(words, dtype):
        return False
    return "seed" not in forward_signature(words).args
