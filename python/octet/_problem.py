"""A Linear call as the C core's problem text, and what its plans ask of the front end."""

from typing import NamedTuple

import torch
from octet import _C, _plans, _texts
from octet._constant import constant
from octet._dtypes import TORCH_DTYPES, dtype_name


@constant
def problem_text(
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype | None],
    quantized: tuple[str | None, str | None],
    recipe: str,
    grads: tuple[bool, bool, bool],
    options: tuple[str, ...],
) -> str:
    """The words of a call but for its sizes: input, weight and bias, and what is asked."""
    input_dtype, weight_dtype, bias_dtype = dtypes
    words = [f"in={dtype_name(input_dtype)}"]
    if weight_dtype != input_dtype:
        words.append(f"w={dtype_name(weight_dtype)}")
    if bias_dtype is not None:
        same = bias_dtype == weight_dtype
        words.append("bias" if same else f"bias={dtype_name(bias_dtype)}")
    words += [f"recipe={recipe}"] if recipe != "none" else []
    words += [
        f"{word}={text}" for word, text in zip(("qin", "qw"), quantized, strict=True) if text
    ]
    wanted = "".join(letter for letter, wants in zip("xwb", grads, strict=True) if wants)
    words.append(f"grad={wanted or 'none'}")
    return " ".join((*words, *options))


@constant
def device_words(kind: str, index: int | None) -> tuple[str, ...]:
    """The word for where a call runs; the CPU needs none."""
    return (f"device={_C.cuda_device(index or 0)}",) if kind == "cuda" else ()


# ---- forward ---------------------------------------------------------------------------------


class Forward(NamedTuple):
    """What a forward call takes, gives and saves, tensor by tensor."""

    args: tuple[str, ...]
    count: int  # of them
    writes: tuple[int, ...]  # those that it writes
    output: _plans.Group
    others: tuple[_plans.Group, ...]  # tensors that it makes besides, for the layer to keep
    saves: tuple[tuple[bool, int], ...]  # besides the block: (is an argument, which)
    has_block: bool
    reads: int  # how many arguments it only reads before the first that it writes
    # Where others that it only reads follow (a cached weight): which it reads, which it writes.
    parted: tuple[tuple[int, ...], tuple[int, ...]] | None
    made: int  # tensors that it returns
    is_simple: bool  # they are the output and, where it saves anything, the block
    flat: bool  # its arguments are buffers one by one


def _made(plan: _plans.Plan) -> tuple[_plans.Group, ...]:
    """The tensors that an op returns: those that are not arguments."""
    return _plans.groups([port for port in plan.outs if port.alias < 0])


def _count(plan: _plans.Plan) -> int:
    """How many tensors an op returns."""
    return sum(port.alias < 0 for port in plan.outs) + bool(plan.block)


def _saves(plan: _plans.Plan, flat: bool) -> tuple[tuple[bool, int], ...]:
    saves: list[tuple[bool, int]] = []
    for place, port in plan.saved:
        if place == "arg":
            saved = (True, port if flat else _plans.group_of(plan.args, port))
            saves += [] if saved in saves else [saved]
        elif place == "out":
            saves.append((False, port))
    return tuple(saves)


@constant
def forward_signature(problem: str, flat: bool = False) -> Forward:
    """What the forward call of a problem takes, gives and saves; `flat`: of a quantized
    argument the caller hands over its buffers one by one."""
    plan = _plans.describe("linear", problem)
    made = {group.name: group for group in _made(plan)}
    args = _plans.ports(plan.args) if flat else _plans.groups(plan.args)
    written = [plan.args[group.start].is_mutable for group in args]
    reads = written.index(True) if True in written else len(written)
    parted = tuple(
        tuple(i for i, is_written in enumerate(written) if is_written is wanted)
        for wanted in (False, True)
    )
    output, saves, count = made["output"], _saves(plan, flat), _count(plan)
    return Forward(
        args=tuple(group.name for group in args),
        count=len(args),
        writes=parted[1],
        output=output,
        others=tuple(group for name, group in made.items() if name == "weight.cached"),
        saves=saves,
        has_block=bool(plan.block),
        reads=reads,
        parted=None if all(written[reads:]) else (parted[0], parted[1]),
        made=count,
        is_simple=not saves and output.quantizer == "none" and count == 1 + bool(plan.block),
        flat=flat,
    )


@constant
def is_flat(problem: str, count: int) -> bool:
    """Whether that many tensors, those for backward included, are buffers one by one."""
    return count != forward_signature(problem).count + len(lent(problem))


@constant
def writes_of(problem: str, flat: bool) -> tuple[tuple[int, ...], int]:
    """Which arguments a forward call writes, and how many it has."""
    signature = forward_signature(problem, flat)
    return signature.writes, signature.count


@constant
def buffers_of(problem: str, name: str, text: str) -> tuple[str, ...]:
    """The buffers of a quantized argument that a forward call reads, in the plan's order."""
    names, ports = _texts.part_names(text), _plans.describe("linear", problem).args
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
    grads: tuple[tuple[int, _plans.Group], ...]  # which argument of the function, and where
    records: bool  # amaxes, in what it writes first
    # Of each argument of the function (3, and its tensors) the output that is its gradient; -1
    # where there is none. Where one is quantized it is gathered by `grads`.
    places: tuple[int, ...]
    is_plain: bool
    # The gradients, None, of the arguments before and after those whose gradients the outputs
    # are, all of them and in order; None where they are not.
    around: tuple[tuple[None, ...], tuple[None, ...]] | None
    kept: tuple[int, ...] | None  # for a later wgrad; -1 is the block that backward makes


# What the layer lends to a backward, in this order: delayed scaling's scale and history, the
# seed (never beside those), and either main_grad or the queue for a later wgrad.
LENT = ("scale", "history", "seed", "main_grad", "queue")


@constant
def lent(problem: str) -> tuple[str, ...]:
    """Which of LENT a call's backward takes."""
    if " grad=none" in problem:
        return ()
    plan = _plans.describe("linear_backward", problem)
    names = {port.name for port in plan.args}
    if "amax" in names:
        names |= {"scale", "history"}
    if delays(problem):
        names |= {"queue"}
    return tuple(name for name in LENT if name in names)


@constant
def lends_seed(problem: str) -> bool:
    """Whether the seed of a call is its backward's alone; it is the first that is lent then."""
    return lent(problem)[:1] == ("seed",) and "seed" not in forward_signature(problem).args


@constant
def delays(problem: str) -> bool:
    """Whether backward leaves the weight's gradient for later."""
    words = problem.split(" ")
    grad = next(word for word in words if word.startswith("grad="))
    return "delay_wgrad" in words and "w" in grad


def _sources(problem: str, text: str, flat: bool) -> list[tuple[str, int]]:
    """Each argument of backward by name, and its place in Backward's pool."""
    forward = _plans.describe("linear", problem)
    plan = _plans.describe("linear_backward", text)
    slots = zip(forward.saved, plan.kept, strict=True)
    aliases = {kept[1]: saved for saved, kept in slots if kept[0] == "arg"}
    saves = _saves(forward, flat)
    first_lent = 1 + len(saves) + bool(forward.block)
    sources: list[tuple[str, int]] = []
    for group in _plans.groups(plan.args):
        for port in range(group.start, group.start + group.count):
            place, index = aliases.get(port, ("", 0))
            if place == "out":
                sources.append((group.name, 1 + saves.index((False, index))))
                continue
            if place == "arg" and flat:
                sources.append((group.name, 1 + saves.index((True, index))))
                continue
            if place == "arg":
                whole = (True, _plans.group_of(forward.args, index))
                sources.append((group.name, 1 + saves.index(whole)))
            elif group.name == "grad_output":
                sources.append((group.name, 0))
            else:
                name = "history" if group.name == "amax" else group.name
                sources.append((group.name, first_lent + lent(problem).index(name)))
            break
    return sources


def _around(
    grads: tuple[tuple[int, _plans.Group], ...], count: int, made: int
) -> tuple[tuple[None, ...], tuple[None, ...]] | None:
    first = grads[0][0] if grads else 0
    places = [(at, group.start) for at, group in grads if group.quantizer == "none"]
    if not made or places != [(first + i, i) for i in range(made)]:
        return None
    return (None,) * first, (None,) * (count - first - made)


def _operands(problem: str) -> tuple[torch.dtype, torch.dtype]:
    """The dtypes of input and weight, as problem_text wrote them."""
    words = dict(word.split("=", 1) for word in problem.split() if "=" in word)
    return TORCH_DTYPES[words["in"]], TORCH_DTYPES[words.get("w", words["in"])]


@constant
def backward_signature(problem: str, dtype: torch.dtype, flat: bool = False) -> Backward:
    """What the backward call takes and gives where a gradient of that dtype arrives."""
    text = f"{problem} dy={dtype_name(dtype)}"
    plan = _plans.describe("linear_backward", text)
    sources = _sources(problem, text, flat)
    made = {group.name: group for group in _made(plan)}
    block = 1 + len(_saves(_plans.describe("linear", problem), flat))
    writes = {port.name for port in plan.args if port.is_mutable}
    args = tuple(place for name, place in sources if name not in writes)
    grads = tuple(
        (3 + at, made[f"grad_{name}"])
        for at, name in enumerate(("input", "weight", "bias"))
        if f"grad_{name}" in made
    )
    count = 3 + len(forward_signature(problem, flat).args) + len(lent(problem))
    starts = {at: group.start for at, group in grads}
    return Backward(
        text=text,
        dtype=dtype,
        operands=_operands(problem),
        args=args + ((block,) if plan.blocks[0] else ()),
        written=tuple(place for name, place in sources if name in writes),
        made=_count(plan),
        grads=grads,
        records="amax" in writes,
        places=tuple(starts.get(at, -1) for at in range(count)),
        is_plain=all(group.quantizer == "none" for _, group in grads),
        around=_around(grads, count, _count(plan)),
        kept=_kept(text, sources, block) if delays(problem) else None,
    )


@constant
def is_plain_in_graph(problem: str, dtype: torch.dtype) -> bool:
    """Whether a call gives and takes back plain tensors only, and computes all at once."""
    if forward_signature(problem).output.quantizer != "none" or delays(problem):
        return False
    return " grad=none" in problem or backward_signature(problem, dtype).is_plain


# ---- wgrad -----------------------------------------------------------------------------------


@constant
def later_names(text: str) -> tuple[str, ...]:
    """What a wgrad that runs later takes, tensor by tensor; blocks come last."""
    plan = _plans.describe("linear_wgrad", text)
    names = [group.name for group in _plans.groups(plan.args) if group.name != "main_grad"]
    blocks = zip(plan.blocks, ("forward's block", "backward's block"), strict=True)
    return (*names, *(name for has, name in blocks if has))


def _kept(text: str, sources: list[tuple[str, int]], block: int) -> tuple[int, ...]:
    """Where a later wgrad's arguments are; -1 is the block that backward makes."""
    places = dict(sources) | {"forward's block": block, "backward's block": -1}
    return tuple(places[name] for name in later_names(text))


# ---- a call ----------------------------------------------------------------------------------


class Call(NamedTuple):
    """A call of a layer, as far as it does not depend on a size."""

    problem: str
    error: str  # what the C core has against it; empty where nothing
    cache: str = "none"  # the quantizer of the cached weight that it reads
    tensors: tuple[str, ...] = ()  # what it takes besides input, weight and bias
    takes_bias: bool = False
    has_others: bool = False


def _cache_of(problem: str) -> str:
    ports = _plans.describe("linear", problem).args
    return next((port.quantizer for port in ports if port.name == "weight.cached"), "none")


# The layer's own names for what plans ask for: in forward, and lent to backward.
FORWARD_STATE = {
    "scale": "fp8_scale",
    "amax": "fp8_amax_history",
    "seed": "seed",
    "weight.cached": "cache",
}
_BACKWARD = {
    "seed": "seed",
    "scale": "fp8_grad_scale",
    "history": "fp8_grad_amax_history",
    "main_grad": "main_grad",
    "queue": "queue",
}


def _recording(problem: str) -> str:
    """The problem of a call that records what it measures: amaxes are raised in the history."""
    ports = _plans.describe("linear", problem).outs
    if " grad=none" not in problem:
        ports += _plans.describe("linear_backward", problem).outs
    return f"{problem} raise_amax" if any(port.name == "amax" for port in ports) else problem


@constant
def call_of(
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype | None],
    quantized: tuple[str | None, str | None],
    recipe: str,
    grads: tuple[bool, bool, bool],
    options: tuple[str, ...],
    records: bool = True,
) -> Call:
    """The call with these operands and options; `records`: whether it records amaxes."""
    problem = problem_text(dtypes, quantized, recipe, grads, options)
    try:
        problem = _recording(problem) if records else problem
        signature, lends = forward_signature(problem), lent(problem)
    except ValueError as error:
        return Call(problem, str(error))
    first = [FORWARD_STATE[name] for name in signature.args if name in FORWARD_STATE]
    return Call(
        problem,
        "",
        cache=_cache_of(problem),
        tensors=(*first, *(_BACKWARD[name] for name in lends)),
        takes_bias="bias" in signature.args,
        has_others=bool(signature.others),
    )


@constant
def draws_with_graph(
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype | None],
    quantized: tuple[str | None, str | None],
    recipe: str,
    options: tuple[str, ...],
) -> bool:
    """Whether a call with these operands draws a seed where all of them get gradients."""
    grads = (True, True, dtypes[2] is not None)
    return "seed" in call_of(dtypes, quantized, recipe, grads, options, False).tensors
