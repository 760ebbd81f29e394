"""Sections: the pieces of a program that a backward may run again, and which one a call is in.

There are two kinds. Each is known by an object that lives as long as the graph does:

- *By a function.* An autograd.Function makes calls in its forward, and makes them again in its
  backward: a reentrant checkpoint, a reversible block. The object is its ctx, the node itself.
- *By hooks.* Hooks for saved tensors are active around the calls. The hook that unpacks a
  tensor makes them again: a non-reentrant checkpoint. The object is that hook.

Python's stack tells which section a call is in, when it runs first and when it runs again. A
hook is recognized on the stack by its code and by what its closure holds. So a hook without a
closure, which many sections may share, makes no section that is known.
"""

import functools
import sys
import threading
import weakref
from types import FrameType, FunctionType, MethodType
from typing import Any

from torch.autograd import Function, _get_sequence_nr
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import _engine_run_backward

import torch
from octet import _C
from torch import is_grad_enabled

_autograd = torch._C._autograd
_top_hooks = _autograd._top_saved_tensors_default_hooks
_pop_hooks = _autograd._pop_saved_tensors_default_hooks
_push_hooks = _autograd._push_saved_tensors_default_hooks

# By these codes a frame is that of a function's forward, of its backward, or of a backward as a
# whole.
_FORWARD = Function.apply.__func__.__code__
_BACKWARD = BackwardCFunction.apply.__code__
_ENGINE = _engine_run_backward.__code__


class Section:
    """What the calls inside a section have noted, by layer."""

    def __init__(self) -> None:
        self.noted: dict[Any, list[Any]] = {}
        self.owners: list[weakref.ref[Any]] = []  # the objects that it lives as long as

    def note(self, layer: object, what: object) -> None:
        """Notes something of a layer, once."""
        known = self.noted.setdefault(layer, [])
        if what not in known:
            known.append(what)


_SECTIONS: dict[Any, Section] = {}
_UNPACKS: dict[int, int] = {}  # the ids of hooks' codes, and how many sections have each
_lock = threading.RLock()  # one that a thread may take twice: freeing may happen anywhere


def _leave(key: Any, owner: "weakref.ref[Any]") -> None:  # noqa: ANN401
    """An owner of a section was freed."""
    with _lock:
        section = _SECTIONS[key]
        section.owners = [ref for ref in section.owners if ref is not owner]
        if section.owners:
            return
        del _SECTIONS[key]
        if isinstance(key, tuple):
            _UNPACKS[key[0]] -= 1
            if not _UNPACKS[key[0]]:
                del _UNPACKS[key[0]]


def _section(key: Any, owner: object) -> Section:  # noqa: ANN401
    """The section with that key, which lives as long as its owner."""
    with _lock:
        ref, new = weakref.ref(owner, functools.partial(_leave, key)), Section()
        found = _SECTIONS.setdefault(key, new)
        if found is new and isinstance(key, tuple):
            _UNPACKS[key[0]] = _UNPACKS.get(key[0], 0) + 1
        if all(held() is not owner for held in found.owners):
            found.owners.append(ref)
        return found


# ---- the first run ---------------------------------------------------------------------------


def _key_of_hook(unpack: Any) -> tuple[int, ...] | None:  # noqa: ANN401
    """The key of a hook's section: its code, and what its closure and its object are."""
    own = ()
    if isinstance(unpack, MethodType):
        own, unpack = (id(unpack.__self__),), unpack.__func__
    if not isinstance(unpack, FunctionType) or not (unpack.__closure__ or own):
        return None
    try:
        held = tuple(id(cell.cell_contents) for cell in unpack.__closure__ or ())
    except ValueError:  # an empty cell
        return None
    return id(unpack.__code__), *held, *own


def _of_hooks() -> list[Section]:
    found = []
    for _, unpack in _C.saved_tensors_hooks(_top_hooks, _pop_hooks, _push_hooks):
        key = _key_of_hook(unpack)
        if key is not None:
            found.append(_section(key, unpack))
    return found


_MOST_WRAPPERS = 4  # how many decorators around a forward are looked through


def _first_argument(frame: FrameType) -> Any:  # noqa: ANN401
    code = frame.f_code
    names = code.co_varnames
    if code.co_argcount:
        return frame.f_locals.get(names[0])
    rest = frame.f_locals.get(names[code.co_kwonlyargcount]) if code.co_flags & 4 else None
    return rest[0] if rest else None


def _ctx_of(frames: list[FrameType]) -> Any:  # noqa: ANN401
    """The ctx that a forward was given. `frames` are those inside of Function.apply, the
    outermost last: the forward, and perhaps decorators around it."""
    for frame in reversed(frames[-_MOST_WRAPPERS:]):
        ctx = _first_argument(frame)
        if isinstance(ctx, torch._C._FunctionBase):
            return ctx
    return None


# Of each thread: the number of autograd's next node when no function was found on the stack. A
# function that is entered makes a node. So while the number is the same, there is none.
_none_found = threading.local()


def _of_functions() -> list[Section]:
    number = _get_sequence_nr()
    if getattr(_none_found, "number", -1) == number:
        return []
    found = []
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code is _FORWARD:
            ctx = _ctx_of(frames)
            if ctx is not None:
                found.append(_section(id(ctx), ctx))
        frames.append(frame)
        frame = frame.f_back
    if not found:
        _none_found.number = number
    return found


def may_run_again() -> bool:
    """Whether this call may be run again: it has no graph, or hooks for saved tensors are
    active."""
    return not is_grad_enabled() or _top_hooks(True) is not None


def around() -> tuple[list[Section], bool]:
    """The sections that the present call is in; and whether one of them is a function's, whose
    calls have no graph in their first run."""
    by_hooks = _of_hooks()
    by_functions = [] if is_grad_enabled() else _of_functions()
    return by_hooks + by_functions, bool(by_functions)


# ---- the run in backward ---------------------------------------------------------------------


def _of_frame(frame: FrameType) -> Section | None:
    """The section of a hook that runs in this frame."""
    code, local = frame.f_code, frame.f_locals
    held = (id(code), *(id(local.get(name)) for name in code.co_freevars))
    found = _SECTIONS.get(held)
    if found is None:  # perhaps a method
        found = _SECTIONS.get((*held, id(_first_argument(frame))))
    return found


def _of_ctx(ctx: Any) -> Section | None:  # noqa: ANN401
    return _SECTIONS.get(id(ctx))


def noted_in_first_run(layer: object) -> list[Any]:
    """What the layer noted in the first run of the section that a backward runs again now:
    the innermost one that knows the layer. Empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _ENGINE:
        section = None
        if frame.f_code is _BACKWARD:
            section = _of_ctx(frame.f_locals.get("self"))
        elif id(frame.f_code) in _UNPACKS:
            section = _of_frame(frame)
        if section is not None and layer in section.noted:
            return section.noted[layer]
        frame = frame.f_back
    # A Function whose apply in backward is not torch's leaves no frame of that code.
    section = _of_ctx(torch._C._current_autograd_node())
    return [] if section is None else section.noted.get(layer, [])
