"""One cast for all layers that read one tensor: a pass over the graphs that Inductor compiles.

Layers such as q, k and v, or gate and up, quantize the same tensor in the same way. A graph
proves it: their nodes have the same operand. The pass casts the tensor once and gives every
layer the bytes, so that one copy is saved for backward. The C core decides which calls may
share a cast. Bytes and results are the same as without the pass.
"""

import functools
import hashlib
import logging
import operator
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch.fx import Graph, Node
from torch.fx.node import map_arg

import torch
from octet import _C, _ops, _plans, _texts
from octet._constant import constant
from octet._dtypes import dtype_name
from octet._signatures import forward_signature, gradient_words
from octet._texts import usages, with_usage

_LOG = logging.getLogger("octet")
_DRAWN = torch.ops.octet.linear_drawn.default
_VARIABLE = "OCTET_SHARE_CASTS"


def is_on() -> bool:
    """Whether casts are shared; OCTET_SHARE_CASTS=0 turns it off."""
    value = os.environ.get(_VARIABLE, "1")
    if value not in ("0", "1"):
        raise ValueError(f"{_VARIABLE} is '{value}'; set it to 0 or 1")
    return value == "1"


# ---- nodes -----------------------------------------------------------------------------------


def _tensors(node: Node) -> list[Node]:
    """The tensors that a forward or backward node reads."""
    if node.target is _DRAWN:
        return [node.args[0], *node.args[1]]
    return list(node.kwargs["args"] if node.kwargs else node.args[0])


def _words(node: Node) -> str:
    return node.kwargs["words"] if node.kwargs else node.args[-1]


def _ask(node: Node, tensors: Sequence[Node], words: str) -> None:
    """Changes the arguments and words of a forward or backward node."""
    if node.kwargs:  # a backward that writes arguments, as functionalization represents it
        node.kwargs = {**node.kwargs, "args": list(tensors), "words": words}
    elif node.target is _DRAWN:
        node.args = (tensors[0], list(tensors[1:]), *node.args[2:4], words)
    else:
        node.args = (list(tensors), *node.args[1:-1], words)
    if "eager_input_vals" in node.meta:  # Inductor takes the layout of arguments from here
        node.meta["eager_input_vals"] = _values(node.args), _values(node.kwargs)


def _values(args: Any) -> Any:  # noqa: ANN401
    """The fake tensors of a node's arguments."""
    return map_arg(args, lambda node: node.meta["val"])


def _is_backward(node: Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target is torch.ops.higher_order.auto_functionalized_v2:
        return node.args[0] in _ops.linear_backward_into
    return node.target is _ops.linear_backward


def _items(node: Node) -> dict[int, Node]:
    """The getitem nodes of a node, by output index."""
    return {user.args[1]: user for user in node.users if user.target is operator.getitem}


def _describe(node: Node, like: Node, value: Any) -> Node:  # noqa: ANN401
    """Copies the metadata of an old node to a new one, with a new value."""
    stale = ("val", "tensor_meta", "eager_input_vals")
    node.meta = {key: mark for key, mark in like.meta.items() if key not in stale}
    node.meta["val"] = value
    return node


def _item(node: Node, index: int) -> Node:
    found = _items(node).get(index)
    if found is None:
        with node.graph.inserting_after(node):
            found = node.graph.call_function(operator.getitem, (node, index))
        _describe(found, node, node.meta["val"][index])
    return found


# ---- casts -----------------------------------------------------------------------------------


class Cast(NamedTuple):
    """One cast of a tensor, with all directions that its readers need."""

    quantizer: str
    parts: dict[str, Node]


def _cast(tensor: Node, quantizers: Sequence[str], first: Node) -> Cast:
    """Inserts a cast before the first node that reads it."""
    row, col = (any(usage) for usage in zip(*map(usages, quantizers), strict=True))
    quantizer = with_usage(quantizers[0], row, col)
    text = _texts.tensor_words(dtype_name(tensor.meta["val"].dtype), quantizer)
    with tensor.graph.inserting_before(first):
        node = tensor.graph.call_function(_ops.quantize, (tensor, [], text))
        _describe(node, first, _ops.quantize(tensor.meta["val"], [], text))
        parts = {}
        for i, port in enumerate(_plans.describe("quantize", text).outs):
            part = tensor.graph.call_function(operator.getitem, (node, i))
            parts[port.part] = _describe(part, first, node.meta["val"][i])
    return Cast(quantizer, parts)


def _read(cast: Cast, kind: str, words: str, name: str) -> list[Node]:
    """The buffers of a cast that a call reads, in the call's order."""
    ports = _plans.describe(kind, words).args
    return [cast.parts[port.part] for port in ports if port.name == name]


def _groups(nodes: Sequence[Node], of_grad: bool) -> Iterator[tuple[Node, list[Node], Cast]]:
    """Tensors that several calls would cast alike: the tensor, the calls, and the new cast."""
    found: dict[tuple[Node, str], dict[Node, str]] = {}
    for node in nodes:
        quantizer = _C.shared_quantizer(_words(node), of_grad)
        if quantizer != "none":
            key = _tensors(node)[0], with_usage(quantizer, True, True)
            found.setdefault(key, {})[node] = quantizer
    for (tensor, _), calls in found.items():
        if len(calls) > 1:
            yield tensor, list(calls), _cast(tensor, list(calls.values()), next(iter(calls)))


# ---- inputs ----------------------------------------------------------------------------------


@constant
def _reads(words: str) -> tuple[int, ...]:
    """Where a backward's arguments come from: indices into (gradient, saved tensors, lent
    tensors)."""
    return _C.backward_signature(words, True)[0]


def _backwards(node: Node) -> list[Node] | None:
    """The backward nodes that read what a forward saved; None if other nodes read it, too."""
    signature, found = forward_signature(_words(node), True), {}
    arena = _items(node).get(signature.made - 1) if signature.saves_arena else None
    for user in arena.users if arena is not None else ():
        if not _is_backward(user):
            _LOG.debug("%s: what it saved is read by %s; it casts for itself", node, user)
            return None
        found[user] = None
    return list(found)


def _is_plain(node: Node) -> bool:
    """Whether a forward node and all its backward nodes can be changed."""
    if node.op != "call_function" or node.target not in (_ops.linear, _DRAWN):
        return False
    if forward_signature(_words(node), True).delays or len(_items(node)) != len(node.users):
        return False
    return _backwards(node) is not None


def _places(words: str) -> dict[int, tuple[str, int]]:
    """What each output of a forward is."""
    signature, found = forward_signature(words, True), {}
    for group in (signature.output, *signature.others):
        for i in range(group.count):
            found[group.start + i] = (group.name, i)
    if signature.saves_arena:
        found[signature.made - 1] = ("arena", 0)
    found[signature.made] = ("seed", 0)  # the extra output of a node that draws
    return found


def _share_input(node: Node, cast: Cast) -> None:
    """Changes a forward and its backwards so that the input arrives quantized."""
    backwards, before = _backwards(node) or [], _words(node)
    words = _C.input_words(before, cast.quantizer, False)
    tensors = [*_read(cast, "linear", words, "input"), *_tensors(node)[1:]]
    items = _items(node)
    _ask(node, tensors, words)
    node.meta["val"] = node.target(*_values(node.args))
    now = {what: index for index, what in _places(words).items()}
    for index, what in _places(before).items():
        if index in items and what in now:
            items[index].args = (node, now[what])
            items[index].meta["val"] = node.meta["val"][now[what]]
    signature, was = forward_signature(words, True), forward_signature(before, True)
    saved = [tensors[i] if is_arg else _item(node, i) for is_arg, i in signature.saves]
    if signature.saves_arena:
        saved.append(_item(node, signature.made - 1))
    lent = 1 + len(was.saves) + was.saves_arena
    for backward in backwards:
        pool = dict(zip(_reads(_words(backward)), _tensors(backward), strict=True))
        others = {at - lent + 1 + len(saved): one for at, one in pool.items() if at >= lent}
        pool = {0: pool[0], **dict(enumerate(saved, 1)), **others}
        text = _C.input_words(_words(backward), cast.quantizer, True)
        _ask(backward, [pool[at] for at in _reads(text)], text)


# ---- gradients -------------------------------------------------------------------------------


def _share_grad(node: Node, cast: Cast) -> None:
    """Changes a backward so that the gradient arrives quantized."""
    words = gradient_words(_words(node), None, cast.quantizer)
    given = _read(cast, "linear_backward", words, "grad_output")
    _ask(node, [*given, *_tensors(node)[1:]], words)


# ---- the pass --------------------------------------------------------------------------------


def _is_forward(node: Node) -> bool:
    if node.op != "call_function":
        return False
    if node.target is torch.ops.higher_order.auto_functionalized_v2:
        return node.args[0] in _ops.linear_into
    return node.target in (_ops.linear, _DRAWN)


def _why_apart(node: Node) -> str:
    """Why a forward shares no cast of its input."""
    words = _words(node)
    if forward_signature(words, True).delays:
        return "its weight gradient is computed later"
    if _C.shared_quantizer(words, False) == "none":
        return (
            "the scale is its own, or it saves, gathers or draws: no other call has its bytes"
        )
    return "no other call casts it alike, or what it saved has another reader"


def _say_what_is_apart(graph: Graph) -> None:
    """Names the calls that read one tensor and share no cast of it."""
    readers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if _is_forward(node):
            readers.setdefault(_tensors(node)[0], []).append(node)
    for tensor, nodes in readers.items():
        is_cast = tensor.target is operator.getitem and tensor.args[0].target is _ops.quantize
        for node in nodes if len(nodes) > 1 and not is_cast else ():
            _LOG.debug("%s shares no cast of %s: %s", node, tensor, _why_apart(node))


def share_casts(graph: Graph) -> int:
    """Shares casts in a graph. Returns how many casts are saved."""
    saved = 0
    for tensor, calls, cast in _groups([n for n in graph.nodes if _is_plain(n)], False):
        _LOG.debug("%s is cast once for %s, as %s", tensor, calls, cast.quantizer)
        for call in calls:
            _share_input(call, cast)
        saved += len(calls) - 1
    for tensor, calls, cast in _groups([n for n in graph.nodes if _is_backward(n)], True):
        _LOG.debug("%s is cast once for %s, as %s", tensor, calls, cast.quantizer)
        for call in calls:
            _share_grad(call, cast)
        saved += len(calls) - 1
    if _LOG.isEnabledFor(logging.DEBUG):
        _say_what_is_apart(graph)
    if saved:
        graph.eliminate_dead_code()
        graph.lint()
    return saved


@functools.cache
def _sources() -> str:
    """A hash of Octet's code, so that graphs cached by another version are not reused."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*")):
        if path.suffix in (".py", ".so"):
            found.update(path.read_bytes())
    return found.hexdigest()


def _identity() -> str:
    """What compiled graphs depend on: Octet's code, and whether the pass is on."""
    return f"octet {_sources()} {is_on()}"


def install() -> None:
    """Installs the pass in Inductor, before an existing one.

    Called while code is traced: only then is the compiler imported, and the pass has to be
    there before a graph is looked up in torch's caches."""
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    given = config.joint_custom_pre_pass
    if getattr(given, "shares_octet_casts", False):
        return
    others = list(given) if isinstance(given, list | tuple) else [given] if given else []

    class SharedCasts(CustomGraphPass):
        """share_casts, then the passes that were there before."""

        shares_octet_casts = True

        def __call__(self, graph: Graph) -> None:
            if is_on():
                share_casts(graph)
            for other in others:
                other(graph)

        def uuid(self) -> Any | None:  # noqa: ANN401
            found = [getattr(other, "uuid", lambda: None)() for other in others]
            return None if None in found else [_identity(), *found]

    config.joint_custom_pre_pass = SharedCasts()
