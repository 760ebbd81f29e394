"""Linear as an autograd function: one op forward and one op backward, in eager and compiled
code."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from torch.compiler import is_compiling, is_dynamo_compiling
from torch.fx.experimental import proxy_tensor

import torch
from octet import _ops, _plans, _wgrad
from octet._signatures import (
    Backward,
    Forward,
    Group,
    backward_signature,
    forward_signature,
    is_flat,
    writes_of,
)
from octet.state import seeds
from octet.state.scaling_rule import Rule, ScaleUpdater, update
from octet.tensor import QuantizedTensor
from torch import is_grad_enabled

_proxies_of = getattr(proxy_tensor, "_get_proxies", lambda tensor: ())

# The ops without their Python wrappers, which only tracing needs.
linear_op, _linear_backward = _ops.linear._op, _ops.linear_backward._op
linear_drawn = torch.ops.octet.linear_drawn.default
_linear_into = [op._op for op in _ops.linear_into]
_linear_backward_into = [op._op for op in _ops.linear_backward_into]


def _gather(
    group: Group, outs: Sequence[torch.Tensor], dtype: torch.dtype, shape: Sequence[Any]
) -> torch.Tensor:
    """Builds a tensor from the outputs that hold its buffers."""
    if group.quantizer == "none":
        return outs[group.start]
    buffers = outs[group.start : group.start + group.count]
    return QuantizedTensor(buffers, group.quantizer, dtype, shape)


# A call's text, its forward signature, and its backward signature for a gradient of the usual
# dtype (None if not known yet).
Task = tuple[str, Forward, Backward | None]
# used in place of a rule: backward rounds stochastically, by a seed drawn in forward
DRAW = "draw"
# How a backward updates the gradients' scales: a rule, or an object that decides; None if it
# does not.
GradientScales = Rule | ScaleUpdater | None


# Name and size of the group that a call is split over; None if it is not split.
Ranks = tuple[str, int] | None
# A call's words, its ranks, and how many parameters follow the tensors: those that the weight
# was made of. They are saved in place of the weight (see _sharded.py). 0 if the weight itself
# is saved.
Placed = tuple[str, Ranks, int]


def run_in_phases(
    call: tuple[str, str],
    sizes: list[Any],
    tensors: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], Sequence[torch.Tensor]],
    ranks: tuple[str, int],
) -> Sequence[torch.Tensor]:
    """Runs a plan that is split over ranks. Imports the collectives at first use."""
    from octet import _phases

    return _phases.run(call, sizes, tensors, ranks)


def run_forward(
    task: Task,
    sizes: list[Any],
    tensors: list[torch.Tensor],
    in_graph: bool = False,
    ranks: Ranks = None,
    unread: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Sequence[torch.Tensor], Sequence[torch.Tensor]]:
    """Returns the output, buffers for the layer to cache, and what backward needs (the arena
    last). `unread`: a seed that a traced call draws and does not read."""
    words, signature, _ = task
    if signature.parted is None:
        args = tensors[: signature.reads]
        written = tensors[signature.reads : len(signature.args)]
    else:
        args = [tensors[i] for i in signature.parted[0]]
        written = [tensors[i] for i in signature.parted[1]]
    if ranks is not None and (is_compiling() or _plans.has_collectives("linear", words)):
        lends_seed = in_graph and signature.lends_seed
        after = [tensors[len(signature.args)]] if lends_seed else []
        after = after if unread is None else [unread]
        outs = run_in_phases(("linear", words), sizes, (written, args, after), ranks)
    elif unread is not None and not written:
        outs = _ops.linear_seeded(args, unread, sizes, words)
    elif written:
        into = _ops.linear_into if is_dynamo_compiling() else _linear_into
        outs = _ops.listed(into[signature.made](written, args, sizes, words))
    elif in_graph and signature.lends_seed:
        # The seed is an argument of forward's node, too. Otherwise a compiler would move the
        # draw to where it is read: into backward.
        if len(tensors) > len(signature.args):
            outs = _ops.linear_seeded(args, tensors[len(signature.args)], sizes, words)
        else:
            before = seeds.last_in_graph()
            outs = linear_drawn(args[0], args[1:], before, sizes, words)
            tensors.append(seeds.drawn_in_graph(outs.pop()))
    else:
        outs = (_ops.linear if is_dynamo_compiling() else linear_op)(args, sizes, words)
    if signature.is_simple:
        return outs[0], (), outs[1:]
    saved = [tensors[i] if is_arg else outs[i] for is_arg, i in signature.saves]
    if signature.saves_arena:
        saved.append(outs[-1])
    others: Sequence[torch.Tensor] = ()
    for group in signature.others:
        others = (*others, *outs[group.start : group.start + group.count])
    output = signature.output
    if output.quantizer == "none":
        return outs[output.start], others, saved
    shape = [*sizes[:-2], sizes[-1]]
    if ranks is not None:
        times, over = _plans.phases("linear", words).output_rows
        shape[0] = shape[0] * times // over
    return _gather(output, outs, tensors[0].dtype, shape), others, saved


def _in_parameters(
    signature: Forward, saved: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]
) -> tuple[tuple[int, int], Sequence[torch.Tensor]]:
    """The saved tensors with the weight replaced by the parameters it was made of; and where
    these are."""
    if (True, 1) not in signature.saves:
        return (0, 0), saved
    at = signature.saves.index((True, 1))
    return (at, len(parameters)), [*saved[:at], *parameters, *saved[at + 1 :]]


def _forward(
    ctx: Any,  # noqa: ANN401
    call: tuple[Task, GradientScales],
    sizes: list[Any],
    tensors: list[torch.Tensor],
    *seen: torch.Tensor,
    in_graph: bool = False,
    placed: tuple[Ranks, int] = (None, 0),
) -> Any:  # noqa: ANN401
    """Runs forward and saves for backward. `tensors` are forward's tensors, then those that the
    layer lends to backward, then the weight's parameters. `seen` repeats those that may get a
    gradient, for autograd."""
    task, updates = call
    ranks, count = placed
    if count:
        tensors, parameters = tensors[:-count], tensors[-count:]
    output, others, saved = run_forward(task, sizes, tensors, in_graph, ranks)
    if count:
        ctx.parameters, saved = _in_parameters(task[1], saved, parameters)
        ctx.in_graph = in_graph
    ctx.save_for_backward(*saved)
    operands: tuple[Any, ...] = ()
    if task[1].applies and not in_graph:
        count = len(task[1].operands)
        operands = tuple(ref(each) for each in (seen or tensors)[:count])
    elif seen:
        operands = ref(seen[0]), ref(seen[1])
    elif not in_graph:
        operands = ref(tensors[0]), ref(tensors[1])
    ctx.call = task, updates, sizes, tensors[len(task[1].args) :], operands
    ctx.placed = placed
    if not others:
        return output
    ctx.mark_non_differentiable(*others)
    return output, *others


class LinearFunction(torch.autograd.Function):
    """y = x w^T + b. The plan says what is saved and what backward computes."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        placed: Placed,
        updates: GradientScales,
        ends: tuple[int, int],
        *tensors: torch.Tensor,
    ) -> Any:  # noqa: ANN401
        """`tensors` are forward's tensors, then those that the layer lends to backward. `ends`
        are K and N, the last two of the call's sizes."""
        words, ranks, count = placed
        task = words, forward_signature(words, is_flat(words, len(tensors) - count)), None
        sizes, in_graph = [*tensors[0].shape[:-1], *ends], is_compiling()
        where = ranks, count
        return _forward(
            ctx, (task, updates), sizes, [*tensors], in_graph=in_graph, placed=where
        )

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple[Any, ...]:  # noqa: ANN401
        """Gradients in the order of forward's arguments."""
        if is_dynamo_compiling():
            return _once(ctx, grad) if is_grad_enabled() else _backward(ctx, grad)
        try:
            if is_grad_enabled():
                with torch.no_grad():
                    grads = _backward(ctx, grad)
                return refusing(ctx, grad, grads, 3)
            return _backward(ctx, grad)
        except MemoryError as error:  # raised by an op; users catch torch's own class
            raise torch.OutOfMemoryError(str(error)) from None


def _let_change(lent: Sequence[torch.Tensor]) -> None:
    """Tells a compiler that tensors lent to backward may change before it runs: another
    backward may write them. Compilers check this from torch 2.13 on."""
    for tensor in lent:
        for proxy in _proxies_of(tensor):
            proxy.node.meta["saved_tensor_with_no_vc_check"] = True


class _InGraph(LinearFunction):
    """LinearFunction in a traced call, differentiated by the compiler."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        placed: Placed,
        updates: GradientScales,
        ends: tuple[int, int],
        *tensors: torch.Tensor,
    ) -> Any:  # noqa: ANN401
        words, ranks, count = placed
        draws = updates == DRAW
        flat = is_flat(words, len(tensors) - count + draws)
        task = words, forward_signature(words, flat), None
        sizes = [*tensors[0].shape[:-1], *ends]
        lent = zip(task[1].lent, tensors[len(task[1].args) :], strict=False)
        _let_change([tensor for name, tensor in lent if name != "seed"])
        call = task, None if draws else updates
        where = ranks, count
        return _forward(ctx, call, sizes, [*tensors], in_graph=True, placed=where)


class _Eager(torch.autograd.Function):
    """LinearFunction for eager code; takes the task and all sizes.

    Autograd sees only the operands. Tensors that the layer lends get no gradient."""

    forward = staticmethod(_forward)
    backward = staticmethod(LinearFunction.backward)


def _forward_split(
    ctx: Any,  # noqa: ANN401
    call: tuple[Task, GradientScales, Ranks],
    sizes: list[Any],
    tensors: list[torch.Tensor],
    *seen: torch.Tensor,
) -> Any:  # noqa: ANN401
    task, updates, ranks = call
    return _forward(ctx, (task, updates), sizes, tensors, *seen, placed=(ranks, 0))


class _EagerSplit(torch.autograd.Function):
    """The same for a call that is split over ranks."""

    forward = staticmethod(_forward_split)
    backward = staticmethod(LinearFunction.backward)


# These skip torch's Python `apply`, whose extra work is not needed here: functorch transforms
# (the caller has checked that there are none), vjp, and a missing backward.
apply_eagerly = super(torch.autograd.Function, _Eager).apply
apply_split = super(torch.autograd.Function, _EagerSplit).apply
_Eager._backward_cls.apply = LinearFunction.backward  # type: ignore[attr-defined]
_EagerSplit._backward_cls.apply = LinearFunction.backward  # type: ignore[attr-defined]


# ---- one node of a traced graph --------------------------------------------------------------

# Traced code calls a layer through this op. When the compiler differentiates the graph, the op
# is replaced by the forward and backward ops below it. Compared with tracing the autograd
# function itself, tracing is shorter and torch can cache the graph.
_LIBRARY = torch.library.Library("octet", "FRAGMENT")
_LIBRARY.define(
    "linear_autograd(Tensor[] read, Tensor(a!)[] written, SymInt[] sizes, str words, "
    "str rule, str group='', int ranks=1, int parameters=0) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def _autograd(
    read: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor],
    sizes: Sequence[Any],
    words: str,
    rule: str,
    group: str = "",
    ranks: int = 1,
    parameters: int = 0,
) -> list[torch.Tensor]:
    """Returns a call's output, and what it makes for the layer to cache, with their graph."""
    over = (group, ranks) if group else None
    made_of = read[len(read) - parameters :]
    read = read[: len(read) - parameters]
    if rule == DRAW and over is not None:  # a call in phases has no op that draws
        written, rule = [seeds.draw_in_graph(read[0])], ""
    flat = is_flat(words, len(read) + len(written) + (rule == DRAW))
    signature = forward_signature(words, flat)
    reads, writes = iter(read), iter(written)
    tensors = [next(writes if i in signature.writes else reads) for i in range(signature.count)]
    tensors.extend(writes)  # the tensors that the layer lends to backward
    if is_grad_enabled() and any(tensor.requires_grad for tensor in read):
        placed = words, over, parameters
        made = _InGraph.apply(placed, rule or None, tuple(sizes[-2:]), *tensors, *made_of)
        return list(made) if isinstance(made, tuple) else [made]
    if rule == DRAW:  # drawn but not read
        seeds.draw_in_graph(read[0])
    task = words, signature, None
    output, others, _ = run_forward(task, list(sizes), tensors, ranks=over)
    return [output, *others]


_LIBRARY.impl("linear_autograd", _autograd, "Autograd")
_LIBRARY.impl("linear_autograd", _autograd, "CompositeExplicitAutograd")


def apply_in_graph(
    placed: Placed, rule: str | None, ends: tuple[int, int], tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """A traced call: LinearFunction as one node."""
    words, ranks, parameters = placed
    made_of = tensors[len(tensors) - parameters :]
    tensors = tensors[: len(tensors) - parameters]
    draws = rule == DRAW
    writes, count = writes_of(words, is_flat(words, len(tensors) + draws))
    read = [tensors[i] for i in range(count) if i not in writes]
    written = [tensors[i] for i in range(len(tensors)) if i >= count or i in writes]
    sizes = [*tensors[0].shape[:-1], *ends]
    where = ("", 1) if ranks is None else ranks
    where = (*where, parameters) if parameters else where if ranks is not None else ()
    return torch.ops.octet.linear_autograd.default(
        [*read, *made_of], written, sizes, words, rule or "", *where
    )


def _into(
    call: tuple[Any, ...],
    signature: Backward,
    pool: Sequence[torch.Tensor],
    args: list[torch.Tensor],
    ranks: Ranks,
) -> Sequence[torch.Tensor]:
    """A backward that writes into tensors of the layer: amaxes, main_grad.

    The last one of a step updates the scales of gradients, too, by the rule."""
    _, updates, sizes, lent, _ = call
    written, rule = [pool[i] for i in signature.written], None
    if signature.records:
        rule = updates.take_rule() if isinstance(updates, ScaleUpdater) else updates
    if ranks is not None:
        of = "linear_backward", signature.text
        outs = run_in_phases(of, sizes, (written, args, []), ranks)
        if rule is not None:
            update(lent[:1], rule, "grad_output")
        return outs
    text = rule if isinstance(rule, str) else ""
    into = _ops.linear_backward_into if is_dynamo_compiling() else _linear_backward_into
    outs = _ops.listed(into[signature.made](written, args, sizes, signature.text, text))
    if rule is not None and not text:
        update(lent[:1], rule, "grad_output")
    return outs


# Joins parameters in backward. It also takes the gradient, without reading it. Otherwise a
# compiler would join them in forward and save the result.
_LIBRARY.define(
    "join_again(Tensor[] parameters, Tensor gradient) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.impl("join_again", lambda parts, _: torch.cat(parts), "CompositeExplicitAutograd")


def _join_again(parameters: Sequence[torch.Tensor], gradient: torch.Tensor) -> torch.Tensor:
    return torch.ops.octet.join_again.default(list(parameters), gradient)


def _with_weight(
    ctx: Any,  # noqa: ANN401
    grad: torch.Tensor,
    cast: Callable[[torch.Tensor], torch.Tensor] | None,
) -> Sequence[torch.Tensor]:
    """The saved tensors, with the weight made again from its parameters, which fully_shard has
    gathered again. It is cast again if a user's quantizer cast it in forward."""
    (at, count), saved = ctx.parameters, ctx.saved_tensors
    if not count:
        return saved
    parameters = saved[at : at + count]
    if ctx.in_graph:
        whole = _join_again(parameters, grad)
    else:
        whole = torch.cat(parameters) if count > 1 else parameters[0]
    return [*saved[:at], whole if cast is None else cast(whole), *saved[at + count :]]


def _backward(
    ctx: Any,  # noqa: ANN401
    grad: torch.Tensor,
    cast: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[Any, ...]:
    # Traced code cannot know whether the gradient will arrive quantized. If it does, the op
    # itself handles it.
    (words, forward, signature), _, sizes, lent, _ = ctx.call
    if signature is None or signature.dtype is not grad.dtype:
        signature = backward_signature(words, grad.dtype, forward.flat)
    ranks, count = ctx.placed
    saved = _with_weight(ctx, grad, cast) if count else ctx.saved_tensors
    nothing = (None,) * count
    pool = (grad, *saved, *lent)
    args = [pool[i] for i in signature.args]
    if ranks is not None and not _plans.has_collectives("linear_backward", signature.text):
        ranks = None
    if signature.written or ranks is not None:
        outs = _into(ctx.call, signature, pool, args, ranks)
    else:
        op = _ops.linear_backward if is_dynamo_compiling() else _linear_backward
        outs = op(args, sizes, signature.text)
    if signature.later is not None:
        saved = [pool[i] if i >= 0 else outs[-1] for i in signature.later]
        _wgrad.queue_wgrad(lent[-1], grad, saved, sizes, (signature.text, ctx.placed[0]))
    if signature.around is not None:
        before, after = signature.around
        return *before, *outs, *after, *nothing
    grads = [None if i < 0 else outs[i] for i in signature.places]
    if not signature.is_plain:
        of_input, of_weight = signature.operands
        for at, group in signature.grads:
            is_weight = group.name == "grad_weight"
            shape = [sizes[-1], sizes[-2]] if is_weight else sizes[:-1]
            made = _gather(group, outs, of_weight if is_weight else of_input, shape)
            # In a graph the gradient of a plain parameter must be a plain tensor.
            in_graph = is_dynamo_compiling() or isinstance(ctx, _InGraph._backward_cls)
            grads[at] = made.dequantize() if is_weight and in_graph else made
    return (*grads, *nothing)


_once = torch.autograd.function.once_differentiable(_backward)


# ---- without a recipe ------------------------------------------------------------------------


class LinearOfParts(torch.autograd.Function):
    """torch's linear with a weight in parts. It saves the parts, and backward joins them again
    with differentiable ops."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        inp: torch.Tensor,
        bias: torch.Tensor | None,
        *parts: torch.Tensor,
    ) -> torch.Tensor:
        """y = x w^T + b."""
        ctx.save_for_backward(inp, *parts)
        return torch.nn.functional.linear(inp, torch.cat(parts), bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:  # noqa: ANN401
        """Gradients of input, bias and parts."""
        inp, *parts = ctx.saved_tensors
        needs = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        found: list[Any] = [None] * len(needs)
        if needs[0]:
            whole = _join_again(parts, grad) if is_compiling() else torch.cat(parts)
            found[0] = (rows @ whole.to(rows.dtype)).view(inp.shape)
        if needs[1]:
            found[1] = rows.sum(0)
        if any(needs[2:]):
            whole = rows.t() @ inp.reshape(-1, inp.shape[-1]).to(rows.dtype)
            found[2:] = whole.split([part.shape[0] for part in parts])
        return tuple(found)


# ---- second derivatives ----------------------------------------------------------------------


class _Refusal(torch.autograd.Function):
    """A gradient that cannot be differentiated again: its backward raises."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        del ctx
        return gradient.detach()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Any, ...]:  # noqa: ANN401
        raise RuntimeError(NO_SECOND)


NO_SECOND = (
    "a layer of Octet's that quantizes has no second derivative (it is once_differentiable): "
    "take it outside of octet.autocast, or differentiate once, without create_graph"
)


_SOURCES = {0: (1,), 1: (0,)}  # operand -> the operands that its gradient depends on


def refusing(
    ctx: Any,  # noqa: ANN401
    grad: torch.Tensor,
    grads: tuple[Any, ...],
    first: int,
) -> tuple[Any, ...]:
    """Wraps gradients so that every route to a second derivative raises an error.

    The gradient of the input depends on the incoming gradient and on the weight; that of the
    weight on the incoming gradient and on the input. With a norm or activation each depends on
    all operands. The operands are the function's arguments from `first` on. If an operand was
    freed, the error cannot be raised later, so it is raised now."""
    _, _, _, _, operands = ctx.call
    needs = ctx.needs_input_grad[first : first + max(2, len(operands))]
    forward = ctx.call[0][1]
    found = list(grads)
    for at in range(first, min(first + max(3, len(operands)), len(found))):
        if not isinstance(found[at], torch.Tensor):
            continue
        sources = [grad] if grad.requires_grad else []
        others = range(len(operands)) if forward.applies else _SOURCES.get(at - first, ())
        for other in others:
            if needs[other]:
                source = operands[other]()
                if source is None:
                    raise RuntimeError(NO_SECOND)
                sources.append(source)
        if at == first and forward.delays:
            sources.append(grad.new_empty(0).requires_grad_())
        if sources:
            found[at] = _Refusal.apply(found[at], *sources)
    return tuple(found)
