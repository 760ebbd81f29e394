"""Delayed scaling's state: scales and amax histories, by the rule of BatchNorm's statistics.

A layer in ``train()`` records amaxes and updates its scales; one in ``eval()``, or under
``torch.inference_mode``, reads them. The tensors are buffers of the layer. They are made when a
layer first meets delayed scaling, or beforehand by ``octet.prepare``, so no loader meets
buffers that a model does not use.
"""

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from octet import _C, _texts
from octet.recipe import DelayedScaling, Recipe
from octet.state import reduction, registry
from octet.state.active import Step, StepId, entered
from octet.state.scaling_rule import Rule, ScaleUpdater, update

if TYPE_CHECKING:
    from octet.state.layer import LayerState

# Slots: input, weight, output; grad_output, grad_input. A history has a row for each step.
SLOTS = {
    "fp8_scale": _C.FORWARD_SLOTS,
    "fp8_amax_history": _C.FORWARD_SLOTS,
    "fp8_grad_scale": _C.BACKWARD_SLOTS,
    "fp8_grad_amax_history": _C.BACKWARD_SLOTS,
}
GRADIENTS = ("fp8_grad_scale", "fp8_grad_amax_history")
DEFAULT_ROWS = 1024  # of a history, where no recipe says


def is_history(name: str) -> bool:
    """Whether a buffer is a history; the others are scales."""
    return name.endswith("history")


def fresh(name: str, rows: int, device: torch.device | str | None) -> torch.Tensor:
    """A buffer as a new layer has it: amaxes 0, scales 1."""
    shape = (rows, SLOTS[name]) if is_history(name) else (SLOTS[name],)
    return torch.full(
        shape, 0.0 if is_history(name) else 1.0, dtype=torch.float32, device=device
    )


class Unread(torch.Tensor):
    """A fresh buffer of a layer on meta, which waits for a loader.

    Of a buffer that a checkpoint lacks, transformers' from_pretrained makes another one by
    ``torch.empty_like``, and nobody writes to it. That of this one is fresh. In all else it is
    a plain tensor, and so is all that is made of it."""

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
    """Whether what runs on a device now becomes part of a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def scaling_made_late(label: str) -> RuntimeError:
    """Code that is traced knows the buffers that a layer had when it first looked at them."""
    return RuntimeError(
        f"{label}: delayed scaling's state was made while this code was traced, which had "
        "looked at the layer's buffers before (pruning does, and other hooks); call "
        "octet.prepare(model, recipe) before the compiled code runs"
    )


State = tuple[torch.Tensor, torch.Tensor, Rule]  # a scale, its history, how it is updated


class Gone(NamedTuple):
    """What is left of a layer that was freed before its ranks reduced what it had recorded.

    Ranks free layers at times of their own, by garbage collection. One that still has it would
    wait for one that has not, so the latter takes part in its place, with zeros."""

    number: int
    group: str
    device: torch.device
    step: StepId | None = None  # that has not ended yet


_GONE: list[Gone] = []
_numbers = itertools.count()


class PendingUpdate:
    """What a layer has recorded in a step: its scales wait to be updated by a rule."""

    def __init__(self) -> None:
        self.number = next(_numbers)  # its place among others, which is the same on all ranks
        self.device = torch.device("cpu")  # of the layer's state
        self.step: StepId | None = None  # whose end updates them
        self.with_ranks = False  # and those of gradients, too: ranks reduce the amaxes
        self.late_group = ""  # the step has ended; its ranks reduce what its backward records
        self.clear()

    def __del__(self) -> None:
        if getattr(self, "late_group", ""):
            _GONE.append(Gone(self.number, self.late_group, self.device))
        if getattr(self, "group", "") and self.scale is not None:
            _GONE.append(Gone(self.number, self.group, self.scale.device, self.step))

    def clear(self) -> None:
        """Nothing waits, and nothing of a user's is held."""
        self.waits = False
        self.group = ""  # whose ranks reduce at the end of a step that compiled code began
        self.backward_ran = False  # of the call that began the step
        self.versions: Any = None  # of the layer's parameters, as they were then
        self.rule: Rule = ""
        self.scale: torch.Tensor | None = None
        self.history: torch.Tensor | None = None
        self.others: list[State] = []  # that the layer was given for calls of the same step

    def copied(self) -> None:
        """It is a copy's now, which the ranks do not know of: one of them may have made it."""
        self.number, self.late_group = next(_numbers), ""

    def forget_tensors(self) -> None:
        """The layer has other tensors now than those of the call."""
        self.scale = self.history = None

    def begin(self, layer: "LayerState", step: Step, rule: Rule) -> None:
        """A layer's first call in a step has recorded."""
        step.recorded.append(layer)
        buffers = layer._buffers
        self.scale, self.history = buffers["fp8_scale"], buffers["fp8_amax_history"]
        self.waits, self.backward_ran = True, False
        self.rule, self.step = rule, step.id
        self.with_ranks = bool(reduction.group_for(rule, step.group, layer._tp_group))

    def join(self, layer: "LayerState", rule: Rule) -> "GradientUpdate | None":
        """Another call of a layer whose step has begun. One that is given other buffers
        (torch.func.functional_call) updates those, too, and its backward those of gradients."""
        scale = layer._buffers["fp8_scale"]
        if self.scale is scale or self.scale is None:
            return None
        if any(scale is other[0] for other in self.others):
            return None
        self.others.append((scale, layer._buffers["fp8_amax_history"], rule))
        return GradientUpdate(None if self.with_ranks else rule, self)

    def take(self, layer: "LayerState") -> "list[State]":
        """What is updated by which rule, now that the step ends: the layer's scales and history
        or those that it was given for its calls (torch.func.functional_call)."""
        scale, history, rule = self.scale, self.history, self.rule
        if scale is None:  # the layer has others than those of the call
            buffers = layer._buffers
            scale, history = buffers["fp8_scale"], buffers["fp8_amax_history"]
        taken = [(scale, history, rule), *self.others]
        self.clear()
        return taken


class GradientUpdate(ScaleUpdater):
    """Handed to the backward of the call that began a step: it is the last backward of the
    step, so it updates the scales of gradients."""

    def __init__(self, rule: Rule | None, pending: PendingUpdate) -> None:
        self._rule = rule  # None: the end of a step updates them, with those of other ranks
        self._pending = pending
        self._step = pending.step

    def take_rule(self) -> Rule | None:
        """The rule to update by; called once by each backward."""
        if self._pending.waits and self._pending.step is self._step:
            self._pending.backward_ran = True
        return self._rule


# ---- the end of a step -----------------------------------------------------------------------


def _update_all(states: list[State], role: str = "input") -> None:
    """Updates scales; those of one rule and device at once."""
    if len(states) == 1:
        scale, history, rule = states[0]
        update([scale, history], rule, role)
        return
    groups: dict[Any, list[torch.Tensor]] = {}
    for scale, history, rule in states:
        groups.setdefault((rule, scale.device), []).extend((scale, history))
    for (rule, _), tensors in groups.items():
        update(tensors, rule, role)


def _forget(found: list[Gone]) -> None:
    """One by one: garbage collection may add others meanwhile."""
    for gone in found:
        _GONE.remove(gone)


def _take_gone(step: Step) -> list[tuple[int, torch.Tensor, str]]:
    """What stands for layers that have recorded in a step, in compiled code, and were freed
    before it ended. Their backwards may record on other ranks: that is reduced later."""
    found: list[tuple[int, torch.Tensor, str]] = []
    for gone in [each for each in _GONE if each.step is step.id]:
        _forget([each for each in _GONE if each.number == gone.number])
        for name in ("fp8_amax_history", "fp8_grad_amax_history"):
            found.append((gone.number, fresh(name, 1, gone.device), gone.group))
        _GONE.append(gone._replace(step=None))
    return found


def _update_with_ranks(
    layers: "list[LayerState]",
    states: list[State],
    step: Step,
) -> None:
    """Updates the scales of layers. Where ranks reduce, they first agree on the amaxes, and the
    scales of gradients are updated, too."""
    gradients: list[State] = []
    histories = [] if step.traced else _take_gone(step)
    for layer, (_, history, rule) in zip(layers, states, strict=True):
        group = reduction.group_for(rule, step.group, layer._tp_group)
        if group:
            scale, amaxes = (layer._buffers[name] for name in GRADIENTS)
            layer._pending.late_group, layer._pending.device = group, amaxes.device
            # Traced code has one order, and would be guarded by what it reads.
            number = 0 if step.traced else layer._pending.number
            histories.append((number, history, group))
            if all(scale is not other[0] for other in gradients):
                gradients.append((scale, amaxes, rule))
                histories.append((number, amaxes, group))
    if not step.traced:
        histories.sort(key=lambda each: each[0])
    if histories:
        with torch.no_grad():
            reduction.reduce_all([(history, group) for _, history, group in histories])
    if states:
        _update_all(states)
    if gradients:
        _update_all(gradients, "grad_output")


def end_step(step: Step, updates: bool) -> None:
    """Ends a step: layers that recorded amaxes update their scales, or leave the amaxes for the
    next step."""
    states: list[State] = []
    layers: list[LayerState] = []
    if step.traced:
        for (rule, _), tensors in step.states_in_graph.items() if updates else ():
            update(tensors, rule, "input")
        for layer, *state in step.states_of_ranks if updates else ():
            layers.append(layer)
            states.append(tuple(state))
        if states:
            _update_with_ranks(layers, states, step)
        return
    for layer in registry.all_layers() if step.in_graph else step.recorded:
        pending = layer._pending
        if pending.waits and pending.step is step.id:  # and not in another thread's
            taken = pending.take(layer)
            states.extend(taken)
            layers.extend([layer] * len(taken))
    if updates and (states or _GONE):
        _update_with_ranks(layers, states, step)
    elif _GONE:
        _forget([gone for gone in _GONE if gone.step is step.id])


def restart_step(step: Step) -> None:
    """Ends a step inside its autocast and begins the next one. Weights have changed, so it was
    a training step, though gradients may be off here: an optimizer may step in a backward."""
    if step.recorded or step.in_graph:
        end_step(step, True)
        step.restart()


def _reduce_late() -> None:
    """Makes what backwards have recorded since their steps ended the largest of the ranks.

    The end of the next step would do it as well. But before that a checkpoint may be saved, and
    DistributedDataParallel may put one rank's buffers over those of others. All ranks step
    their optimizers, while perhaps one of them saves."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        _GONE.clear()  # their ranks have parted
        return
    if torch._C._current_graph_task_id() != -1:  # a backward steps it, and goes on
        return
    found: list[tuple[int, torch.Tensor, str]] = []
    for layer in registry.all_layers():
        pending = layer._pending
        if pending.late_group:
            history = layer._buffers["fp8_grad_amax_history"]
            found.append((pending.number, history, pending.late_group))
            pending.late_group = ""
    late = [gone for gone in _GONE if gone.step is None]
    _forget(late)
    for gone in late:
        history = fresh("fp8_grad_amax_history", 1, gone.device)
        found.append((gone.number, history, gone.group))
    found.sort(key=lambda each: each[0])
    with torch.no_grad():
        reduction.reduce_all([(history, group) for _, history, group in found])


def _after_optimizer_step(*_: Any) -> None:  # noqa: ANN401
    """An optimizer's step ends a backward's recording; and inside an autocast the step of
    delayed scaling, too: so one autocast around a whole loop learns as well as one around each
    step."""
    if torch.compiler.is_compiling():
        return
    _reduce_late()
    region = entered()
    if region is not None and (region.enabled or region.calibrating):
        restart_step(region.step)


_watched: list[Any] = []


def watch_optimizers() -> None:
    """Has torch's optimizers say when they have stepped; once in a process."""
    if not _watched:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        _watched.append(register_optimizer_step_post_hook(_after_optimizer_step))


# ---- for users -------------------------------------------------------------------------------


def _layers_of(model: torch.nn.Module, what: str) -> "list[LayerState]":
    from octet.state.layer import LayerState

    found = [module for module in model.modules() if isinstance(module, LayerState)]
    if not found:
        raise ValueError(f"{what}: there is no octet layer in {type(model).__name__}")
    return found


def prepare(model: torch.nn.Module, recipe: Recipe) -> torch.nn.Module:
    """Makes the state that a recipe needs in every octet layer of a model; returns the model.

    Layers make it by themselves when they first need it. A loader wants it before: it looks for
    the keys that a model's ``state_dict`` has. Delayed scaling's state is buffers of the
    layers; other recipes have none. State that is there stays, unless its history is too short.

    >>> model = octet.prepare(
    ...     torch.nn.Sequential(octet.Linear(8, 8, device="cpu")), octet.recipe.DelayedScaling()
    ... )
    >>> sorted(model.state_dict())[1:3]
    ['0.fp8_amax_history', '0.fp8_grad_amax_history']
    """
    from octet.state.autocast import checked_recipe

    if recipe is None:
        raise TypeError("octet.prepare: recipe is None; name the recipe that will train")
    recipe = checked_recipe(recipe)
    for layer in _layers_of(model, "octet.prepare"):
        if isinstance(recipe, DelayedScaling):
            if not layer._saved_buffers():  # made by somebody's look at them, and not used
                for name in SLOTS:
                    layer._buffers.pop(name, None)
                registry.CHANGES[0] += 1
            layer._make_scaling(_texts.history_rows(recipe.text))
            layer._non_persistent_buffers_set.difference_update(SLOTS)
    return model


def reset_state(model: torch.nn.Module) -> torch.nn.Module:
    """Starts all live state of a model's octet layers afresh; returns the model.

    Scales become 1, histories 0, and cached weights are forgotten. Weights stay.

    >>> layer = octet.Linear(8, 8, device="cpu")
    >>> octet.reset_state(layer) is layer
    True
    """
    for layer in _layers_of(model, "octet.reset_state"):
        layer.reset_state()
    return model
