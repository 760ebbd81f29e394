"""Delayed scaling's state: scales and amax histories, by the rule of BatchNorm's statistics.

A layer in ``train()`` records amaxes and updates its scales; one in ``eval()``, or under
``torch.inference_mode``, reads them. The tensors are buffers of the layer. They are made when a
layer first meets delayed scaling, or beforehand by ``octet.prepare``, so no loader meets
buffers that a model does not use.
"""

import itertools
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from octet import _C, _texts
from octet.recipe import DelayedScaling, Recipe
from octet.state import optimizers, reduction, registry
from octet.state.active import MAY_CHANGE_BEFORE_BACKWARD, Live, Step, StepId, entered
from octet.state.scaling_rule import Rule, ScaleUpdater, update

if TYPE_CHECKING:
    from octet.state.layer import LayerState

# Slots of forward: input, weight, output. Slots of backward: grad_output, grad_input. Row 0 of
# a state holds the scales. The other rows are the amax history: one for each step, the current
# step first.
SLOTS = {"fp8_state": _C.FORWARD_SLOTS, "fp8_grad_state": _C.BACKWARD_SLOTS}
# The parts of each state, readable as attributes. Older versions saved them as buffers.
PARTS = {
    "fp8_state": ("fp8_scale", "fp8_amax_history"),
    "fp8_grad_state": ("fp8_grad_scale", "fp8_grad_amax_history"),
}
SAVED = (*SLOTS, *(part for parts in PARTS.values() for part in parts))  # keys of checkpoints
DEFAULT_ROWS = 1024  # rows of a history if no recipe says it


def rows_of(state: torch.Tensor) -> int:
    """The number of rows of a state's history."""
    return state.shape[0] - 1


def make_fresh(state: torch.Tensor) -> torch.Tensor:
    """Resets a state: scales 1, amaxes 0."""
    state.zero_()
    state[0].fill_(1.0)
    return state


def is_fresh(state: torch.Tensor) -> bool:
    """Whether a state is as in a new layer."""
    return not bool((state[0] != 1.0).any() or state[1:].any())


def fresh(name: str, rows: int, device: torch.device | str | None) -> torch.Tensor:
    """A new state: amaxes 0, scales 1."""
    made = torch.empty((1 + rows, SLOTS[name]), dtype=torch.float32, device=device)
    return make_fresh(made)


def _wrong_shape(key: str, value: torch.Tensor, wanted: str) -> ValueError:
    return ValueError(
        f"size mismatch for {key}: it is {tuple(value.shape)} in the checkpoint, {wanted} in "
        "the layer"
    )


def _joined(saved: dict[str, torch.Tensor], name: str, prefix: str) -> torch.Tensor | None:
    """A state from the two parts that older versions saved; None if the checkpoint has
    neither."""
    slots, (of_scale, of_history) = SLOTS[name], PARTS[name]
    scale, history = saved.get(of_scale), saved.get(of_history)
    if scale is not None and tuple(scale.shape) != (slots,):
        raise _wrong_shape(prefix + of_scale, scale, f"({slots},)")
    if history is not None and (
        history.dim() != 2 or history.shape[0] < 1 or history.shape[1] != slots
    ):
        raise _wrong_shape(prefix + of_history, history, f"(rows, {slots})")
    if scale is None and history is None:
        return None
    made = fresh(name, 1 if history is None else history.shape[0], "cpu")
    if scale is not None and not scale.is_meta:
        made[0].copy_(scale)
    if history is not None and not history.is_meta:
        made[1:].copy_(history)
    return made


def states_of(saved: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The states in a checkpoint, from the keys in SAVED. They are copies: the loaded tensors
    may be the buffers themselves. Raises ValueError if one is wrong."""
    found = {}
    for name, slots in SLOTS.items():
        value = saved.get(name)
        twice = [part for part in PARTS[name] if part in saved and value is not None]
        if twice:
            raise ValueError(
                f"{prefix}{name} and {prefix}{twice[0]} are both in the checkpoint, but hold "
                "the same: leave one of them out"
            )
        if value is None:
            value = _joined(saved, name, prefix)
        elif value.dim() != 2 or value.shape[0] < 2 or value.shape[1] != slots:
            raise _wrong_shape(prefix + name, value, f"(1 + rows, {slots})")
        if value is not None:
            found[name] = value if value.is_meta else value.detach().clone()
    return found


class Unread(torch.Tensor):
    """A fresh buffer of a layer on meta that waits for a loader.

    For a buffer that a checkpoint lacks, transformers' from_pretrained calls
    ``torch.empty_like`` and never writes the result. For this class ``empty_like`` gives a
    fresh buffer. In all else it is a plain tensor, and results of ops on it are plain."""

    @classmethod
    def __torch_function__(
        cls,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Runs an op as on a plain tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
            if func is torch.empty_like and not made.is_meta:
                made.copy_(args[0])
            return made

    def plain(self) -> torch.Tensor:
        """The same buffer as a plain tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(torch.Tensor)


def is_captured(device: torch.device) -> bool:
    """Whether work on this device is being captured in a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def scaling_made_late(label: str) -> RuntimeError:
    """The error for buffers made during tracing, after Dynamo had read the layer's buffers."""
    return RuntimeError(
        f"{label}: delayed scaling's state was made while this code was traced, which had "
        "looked at the layer's buffers before (pruning does, and other hooks); call "
        "octet.prepare(model, recipe) before the compiled code runs"
    )


State = tuple[torch.Tensor, Rule]  # and how it is updated


class Gone(NamedTuple):
    """What is left of a layer that was freed before its ranks reduced its amaxes.

    Garbage collection frees layers at different times on different ranks. A rank that still has
    the layer would wait for one that has not. So the latter takes part with zeros."""

    number: int
    group: str
    device: torch.device
    step: StepId | None = None  # the step in which it recorded, if that has not ended


_GONE: list[Gone] = []
_numbers = itertools.count()


class PendingUpdate:
    """What a layer recorded in a step, until the scales are updated."""

    def __init__(self) -> None:
        self.number = next(_numbers)  # orders updates; the same on all ranks
        self.device = torch.device("cpu")  # device of the layer's state
        self.step: StepId | None = None  # the step whose end updates the scales
        # whether ranks reduce amaxes; then the step's end updates the gradients' scales, too
        self.with_ranks = False
        # set once the step has ended: the group that reduces what its backward records
        self.late_group = ""
        # whether the last backward has recorded amaxes and not updated scales by them
        self.unconsumed = False
        self.clear()

    def __del__(self) -> None:
        if getattr(self, "late_group", ""):
            _GONE.append(Gone(self.number, self.late_group, self.device))
        if getattr(self, "group", "") and self.state is not None:
            _GONE.append(Gone(self.number, self.group, self.state.device, self.step))

    def clear(self) -> None:
        """Forgets the step; no tensor of the user's is held."""
        self.waits = False
        self.group = ""  # the group that reduces at the end of a step that compiled code began
        self.backward_ran = False  # whether a backward of the step has run
        # whether the call that began the step has a backward, which updates gradients' scales
        self.has_updater = False
        self.versions: Any = None  # versions of the layer's parameters at that call
        self.rule: Rule = ""
        self.state: torch.Tensor | None = None
        # other buffers that functional_call gave the layer in the same step
        self.others: list[State] = []

    def copied(self) -> None:
        """Called for a copied layer. Other ranks may have no such copy, so it gets a new
        number."""
        self.number, self.late_group = next(_numbers), ""

    def forget_tensors(self) -> None:
        """Called when the layer's tensors were replaced since the call."""
        self.state = None

    def begin(
        self, layer: "LayerState", step: Step, rule: Rule, has_graph: bool
    ) -> "GradientUpdate":
        """A layer's first call of a step has recorded."""
        step.recorded.append(layer)
        self.state = layer._buffers["fp8_state"]
        self.waits, self.backward_ran, self.has_updater = True, False, has_graph
        self.rule, self.step = rule, step.id
        given, shared = step.group, layer._tp_group
        reduces = (given or shared) and reduction.group_for(rule, given, shared)
        self.with_ranks = bool(reduces)
        return GradientUpdate(None if self.with_ranks else rule, self)

    def join(self, layer: "LayerState", rule: Rule) -> "GradientUpdate":
        """A further call in a step that has begun. If torch.func.functional_call gave the layer
        other buffers, these are updated, too, and its backward updates theirs."""
        state = layer._buffers["fp8_state"]
        is_known = self.state is None or self.state is state
        if is_known or any(state is other for other, _ in self.others):
            return GradientUpdate(None, self)
        self.others.append((state, rule))
        return GradientUpdate(None if self.with_ranks else rule, self)

    def backward_recorded(self, step: StepId | None, updated: bool) -> None:
        """A backward of a step has recorded amaxes, and perhaps updated scales by them."""
        self.unconsumed = not updated
        if self.waits and self.step is step:
            self.backward_ran = True

    def take(self, layer: "LayerState") -> "list[State]":
        """Ends the step for a layer: which states to update, and by which rules. That is the
        layer's state, or those that torch.func.functional_call gave it."""
        state, rule = self.state, self.rule
        if state is None:  # the layer has another one than that of the call
            state = layer._buffers["fp8_state"]
        taken = [(state, rule), *self.others]
        self.clear()
        return taken


class GradientUpdate(ScaleUpdater):
    """Given to the backward of each call that records.

    Of the call that began a step the backward runs last, so it has the rule, and updates the
    gradients' scales. What other backwards record after it is left to the end of a step."""

    def __init__(self, rule: Rule | None, pending: PendingUpdate) -> None:
        # None: not this backward updates, but another, or where ranks reduce the end of a step
        self._rule = rule
        self._pending = pending
        self._step = pending.step

    def take_rule(self) -> Rule | None:
        """The rule to update by; called once by each backward."""
        self._pending.backward_recorded(self._step, self._rule is not None)
        return self._rule


class StepWatch:
    """Whether a layer's parameters have changed since its training step began, for compiled
    code: it cannot end a step between two calls. A copied layer begins with a watch of its
    own."""

    def __init__(self, layer: "LayerState | None" = None) -> None:
        self._layer = weakref.ref(layer) if layer is not None else None
        # Read by the guards of compiled code, before each call.
        self.is_over = Live(self._is_over)

    def bind(self, layer: "LayerState") -> None:
        """Sets the layer; called for copies."""
        self._layer = weakref.ref(layer)

    def _is_over(self) -> bool:
        layer = self._layer() if self._layer is not None else None
        region = entered()
        if layer is None or region is None:
            return False
        pending, versions = layer._pending, layer._versions()
        if pending.waits and pending.step is region.step.id:
            return pending.versions is not None and pending.versions != versions
        pending.versions = versions
        return False

    def __deepcopy__(self, memo: dict[int, Any]) -> "StepWatch":
        return StepWatch()

    def __reduce__(self) -> tuple[Any, ...]:
        return StepWatch, ()


def step_is_over(label: str) -> RuntimeError:
    """The error for compiled code whose autocast was not left after the parameters changed."""
    return RuntimeError(
        f"{label}: its parameters have changed since its last call, but the octet.autocast "
        "around both is the same, so delayed scaling would never update its scales in compiled "
        "code: enter octet.autocast once for each training step, or step an optimizer of "
        "torch.optim"
    )


# ---- the end of a step -----------------------------------------------------------------------


def _update_all(states: list[State], role: str = "input") -> None:
    """Updates scales; one op for all scales of one rule and device."""
    if len(states) == 1:
        state, rule = states[0]
        update([state], rule, role)
        return
    groups: dict[Any, list[torch.Tensor]] = {}
    for state, rule in states:
        groups.setdefault((rule, state.device), []).append(state)
    for (rule, _), tensors in groups.items():
        update(tensors, rule, role)


def _forget(found: list[Gone]) -> None:
    """Removes them one by one: garbage collection may add others meanwhile."""
    for gone in found:
        _GONE.remove(gone)


def _take_gone(step: Step) -> list[tuple[int, torch.Tensor, str]]:
    """Zeros in place of layers that recorded in a step, in compiled code, and were freed before
    its end. Their backwards may still record on other ranks; that is reduced later."""
    found: list[tuple[int, torch.Tensor, str]] = []
    for gone in [each for each in _GONE if each.step is step.id]:
        _forget([each for each in _GONE if each.number == gone.number])
        for name in SLOTS:
            found.append((gone.number, fresh(name, 1, gone.device), gone.group))
        _GONE.append(gone._replace(step=None))
    return found


def _check_alike(layers: "list[LayerState]", reduced: list[tuple[torch.Tensor, str]]) -> None:
    """All ranks reduce alike. Where they do not, nothing of these layers is reduced later,
    either: that would be another disagreement."""
    try:
        reduction.check_alike(reduced, [layer._label() for layer in layers])
    except ValueError:
        for layer in layers:
            layer._pending.late_group = ""
        raise


def _update_with_ranks(
    layers: "list[LayerState]",
    states: list[State],
    step: Step,
) -> None:
    """Updates the scales of layers. If ranks reduce, they first agree on the amaxes, and the
    gradients' scales are updated, too."""
    gradients: list[State] = []
    reduced = [] if step.traced else _take_gone(step)
    for layer, (state, rule) in zip(layers, states, strict=True):
        group = reduction.group_for(rule, step.group, layer._tp_group)
        if group:
            of_gradients = layer._buffers["fp8_grad_state"]
            layer._pending.late_group, layer._pending.device = group, of_gradients.device
            # Traced code has a fixed order, and reading the number would add a guard.
            number = 0 if step.traced else layer._pending.number
            reduced.append((number, state, group))
            if all(of_gradients is not other for other, _ in gradients):
                gradients.append((of_gradients, rule))
                reduced.append((number, of_gradients, group))
    if not step.traced:
        reduced.sort(key=lambda each: each[0])
    if reduced:
        found = [(state, group) for _, state, group in reduced]
        if not step.traced:
            _check_alike(layers, found)
        with torch.no_grad():
            reduction.reduce_all(found)
    if states:
        _update_all(states)
    if gradients:
        _update_all(gradients, "grad_output")


def end_step(step: Step, updates: bool) -> None:
    """Ends a step. Layers that recorded amaxes update their scales, or leave the amaxes for the
    next step if not `updates`."""
    states: list[State] = []
    layers: list[LayerState] = []
    gradients: list[State] = []  # what backwards have recorded, but not consumed
    if step.traced:
        for (rule, _), tensors in step.states_in_graph.items() if updates else ():
            update(tensors, rule, "input")
        for layer, state, rule in step.states_of_ranks if updates else ():
            layers.append(layer)
            states.append((state, rule))
        if states:
            _update_with_ranks(layers, states, step)
        return
    over_ranks = bool(step.group)
    for layer in registry.all_layers() if step.in_graph else step.recorded:
        pending = layer._pending
        if pending.waits and pending.step is step.id:  # not another thread's step
            leaves = pending.unconsumed or (step.in_graph and MAY_CHANGE_BEFORE_BACKWARD)
            shared = layer._tp_group
            if updates and leaves and not reduction.group_for(pending.rule, step.group, shared):
                gradients.append((layer._buffers["fp8_grad_state"], pending.rule))
                pending.unconsumed = False
            taken = pending.take(layer)
            states.extend(taken)
            layers.extend([layer] * len(taken))
            over_ranks = over_ranks or bool(layer._tp_group)
    if updates and (_GONE or over_ranks):
        _update_with_ranks(layers, states, step)
    elif updates and states:
        _update_all(states)
    elif _GONE:
        _forget([gone for gone in _GONE if gone.step is step.id])
    if gradients:  # by a state without new amaxes this does nothing
        _update_all(gradients, "grad_output")


def restart_step(step: Step) -> None:
    """Ends a step inside its autocast and begins the next one. Weights have changed, so it was
    a training step, even if gradients are off here: an optimizer may step inside a backward."""
    if step.recorded or step.in_graph:
        end_step(step, True)
        step.restart()


def _reduce_late() -> None:
    """Reduces the amaxes that backwards recorded after their steps had ended.

    The end of the next step would do it as well. But before that a checkpoint may be saved, and
    DistributedDataParallel may put one rank's buffers over those of others. All ranks step
    their optimizers, while perhaps one of them saves."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        _GONE.clear()  # the process group is gone
        return
    # an optimizer that steps inside a backward, which goes on
    if torch._C._current_graph_task_id() != -1:
        return
    found: list[tuple[int, torch.Tensor, str]] = []
    for layer in registry.all_layers():
        pending = layer._pending
        if pending.late_group:
            state = layer._buffers["fp8_grad_state"]
            found.append((pending.number, state, pending.late_group))
            pending.late_group = ""
    late = [gone for gone in _GONE if gone.step is None]
    _forget(late)
    for gone in late:
        found.append((gone.number, fresh("fp8_grad_state", 1, gone.device), gone.group))
    found.sort(key=lambda each: each[0])
    with torch.no_grad():
        reduction.reduce_all([(state, group) for _, state, group in found])


def _after_optimizer_step() -> None:
    """Ends the recording of a backward and, inside an autocast, the step of delayed scaling. So
    one autocast around a whole loop works as well as one around each step."""
    _reduce_late()
    region = entered()
    if region is not None and (region.enabled or region.calibrating):
        restart_step(region.step)


def watch_optimizers() -> None:
    """Has the function above run after each step of an optimizer."""
    optimizers.follow(_after_optimizer_step)


# ---- for users -------------------------------------------------------------------------------


def _layers_of(model: torch.nn.Module, what: str) -> "list[LayerState]":
    from octet.state.layer import LayerState

    found = [module for module in model.modules() if isinstance(module, LayerState)]
    if not found:
        raise ValueError(
            f"{what}: there is no octet layer in {type(model).__name__}; convert it first: "
            "octet.convert(model)"
        )
    return found


def prepare(model: torch.nn.Module, recipe: Recipe) -> torch.nn.Module:
    """Creates the buffers that a recipe needs in every octet layer of a model; returns it.

    Only delayed scaling needs buffers: scales and histories of amaxes. A layer creates them at
    its first call. Call ``prepare`` if they must exist earlier: before a checkpoint is loaded
    (many loaders fill only the keys that the model has), before a CUDA graph is captured, and
    before DistributedDataParallel wraps the model. Existing buffers stay, unless their history
    is too short.

    >>> model = octet.prepare(
    ...     torch.nn.Sequential(octet.Linear(8, 8, device="cpu")), octet.recipe.DelayedScaling()
    ... )
    >>> sorted(model.state_dict())[1:3]
    ['0.fp8_grad_state', '0.fp8_state']
    """
    from octet.state.autocast import checked_recipe

    if recipe is None:
        raise TypeError("octet.prepare: recipe is None; name the recipe that will train")
    recipe = checked_recipe(recipe)
    for layer in _layers_of(model, "octet.prepare"):
        if isinstance(recipe, DelayedScaling):
            if not layer._saved_buffers():  # they were only read, not used
                for name in SLOTS:
                    layer._buffers.pop(name, None)
                registry.CHANGES[0] += 1
            layer._make_scaling(_texts.history_rows(recipe.text))
            layer._non_persistent_buffers_set.difference_update(SLOTS)
    return model


def reset_state(model: torch.nn.Module) -> torch.nn.Module:
    """Resets the live state of all octet layers of a model; returns the model.

    Scales become 1, histories become 0, and cached weights are dropped. Weights stay.

    >>> layer = octet.Linear(8, 8, device="cpu")
    >>> octet.reset_state(layer) is layer
    True
    """
    for layer in _layers_of(model, "octet.reset_state"):
        layer.reset_state()
    return model
