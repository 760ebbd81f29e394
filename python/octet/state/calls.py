"""The state side of a layer's calls: which recipe a call uses, and what it records, draws and
caches."""

from typing import Any

from torch.compiler import is_compiling, is_dynamo_compiling

import torch
from octet import _texts
from octet._constant import constant, traced_as_constant
from octet._foreign import infers_shapes
from octet._signatures import (
    CALIBRATE,
    READ_CACHE,
    WRITE_CACHE,
    Options,
    buffers_of,
    forward_signature,
)
from octet.recipe import CustomRecipe, DelayedScaling, Recipe
from octet.state import recompute, reduction, registry, scaling, seeds
from octet.state.active import (
    Region,
    Step,
    constant_weights_here,
    current,
    in_backward,
)
from octet.state.layer import LayerState
from octet.state.recompute import NO_RECIPE, CallRecipe, FirstRun
from octet.state.scaling_rule import Rule, rule_of
from torch import is_grad_enabled, is_inference_mode_enabled


@constant
def _call_recipe(text: str, options: Options, rule: str | None) -> CallRecipe:
    return CallRecipe(text, options, rule)


class StatefulCalls(LayerState):
    """A layer's calls, as far as live state is concerned."""

    in_features: int
    out_features: int
    name: str | None

    def _whole(self, kind: str) -> torch.Tensor | None:
        raise NotImplementedError

    # ---- which recipe -----------------------------------------------------------------------

    def _recipe_for(self, recipe: Recipe | None, enabled: bool) -> CallRecipe:
        """What a recipe asks of this layer."""
        options = () if enabled else (CALIBRATE,)
        if isinstance(recipe, CustomRecipe):
            answers = recipe.answers("linear", self.name or "")
            has_own = enabled and not all(q._is_core for q in answers.values())
            text = recipe.text_of(answers)
            return CallRecipe(text, options, None, recipe if has_own else None)
        rule = rule_of(recipe) if isinstance(recipe, DelayedScaling) else None
        if isinstance(rule, DelayedScaling):
            return CallRecipe(recipe.text, options, rule)
        return _call_recipe(recipe.text, options, rule)

    def _recipe_in(self, region: Region) -> CallRecipe:
        """What an autocast asks of this layer."""
        if region.enabled or region.calibrating:
            return self._recipe_for(region.recipe, region.enabled)
        return NO_RECIPE

    def _recipe_in_backward(self, region: Region) -> tuple[CallRecipe, FirstRun | None]:
        """The recipe of an eager call inside a backward, and the first run that it repeats, if
        any. See octet.state.recompute."""
        now = self._recipe_in(region)
        # The inner autocast decides; a first run by the same recipe gives the scales.
        run = self._calls.first_run(now if region.in_backward else None)
        if isinstance(run, str):
            raise recompute.several(self._label())
        if region.in_backward:
            return now, run
        if run is not None:
            return self._recipe_of_first_run(run, now), run
        last = self._calls.last
        if last is not None and last != now.name:
            raise recompute.refused(self._label(), now.name, last)
        return now, None

    def _recipe_of_first_run(self, run: FirstRun, now: CallRecipe) -> CallRecipe:
        """The recipe of a call that repeats a first run outside of all inner autocasts."""
        if not run.in_graph:
            return run.recipe
        # Compiled code ran first, and this is eager code: the name is all that is known.
        name = run.recipe.text
        if _texts.is_delayed(name):
            raise recompute.scales_updated(self._label())
        if name == now.name:
            return now
        if name.endswith(recompute.USER_QUANTIZERS):
            raise recompute.refused(self._label(), now.name, name)
        return _call_recipe(name, (), None)

    def _recipe_in_graph(self, region: Region) -> CallRecipe:
        """The recipe of a traced call. Inside a backward it repeats the recipe of its first
        run."""
        now = self._recipe_in(region)
        if not in_backward():
            if is_dynamo_compiling() and not recompute.is_in_subgraph():
                self._note_in_graph(region, now.name)
            return now
        text = recompute.recipe_in_graph(now, region, self._calls, self._label())
        if _texts.is_delayed(text) and not region.in_backward:
            raise recompute.scales_updated(self._label())
        return now if text == now.text else _call_recipe(text, (), None)

    def _note_in_graph(self, region: Region, name: str) -> None:
        """Notes a traced call, when compiled code runs. Code that enters the autocast itself
        enters it again where it is repeated, so nothing else has to know."""
        if region.traced:
            self._calls.last = name
        else:
            self._calls.in_graph.value = name

    def _records(self) -> bool:
        """Whether a call records amaxes. As BatchNorm with its statistics, only in training.
        Compiled code cannot tell inference_mode from no_grad, so there gradients must be on."""
        region = current()
        if region.calibrating and not region.enabled:
            return True
        if is_compiling():
            return self.training and is_grad_enabled()
        if not self.training or is_inference_mode_enabled():
            return False
        return not infers_shapes()

    # ---- delayed scaling -------------------------------------------------------------------

    def _note(self, recipe: CallRecipe, has_graph: bool, records: bool = True) -> Any:  # noqa: ANN401
        """Logs an eager call. Under delayed scaling, returns an updater of the gradients'
        scales for its backward if it records."""
        rule, updates = recipe.rule, None
        self._calls.last = recipe.name
        if rule is not None and records and self._records():
            updates = self._begin(current().step, rule, has_graph)
        if recompute.may_run_again():
            self._note_first(recipe, has_graph)
        return updates

    def _note_first(self, recipe: CallRecipe, has_graph: bool) -> None:
        """Notes an eager call that may be run again."""
        if recipe.rule is None:
            self._calls.note_first(recipe, has_graph)
            return
        pending = self._pending if self.training else None
        self._calls.note_first(recipe, has_graph, self._buffers["fp8_state"], pending)

    def _begin(self, step: Step, rule: Rule, has_graph: bool = True) -> scaling.GradientUpdate:
        """Begins the layer's step of delayed scaling, unless it has begun already."""
        pending = self._pending
        if pending.waits and pending.step is step.id:  # otherwise it is another thread's step
            if not (pending.backward_ran and self._has_been_updated()):
                pending.rule = rule
                return pending.join(self, rule)
            # Inside one autocast a backward ran and its gradient was used: this is the next
            # step.
            scaling.restart_step(step)
        self._calls.step_began = True
        updates = pending.begin(self, step, rule, has_graph)
        pending.versions = self._versions()
        return updates

    def _has_been_updated(self) -> bool:
        """Whether somebody has used the gradients of a backward that ran: a parameter was
        written to, or the weight's gradient is gone, as after zero_grad(). The latter tells of
        optimizers that write through .data. It tells nothing where gradients go elsewhere, and
        where ranks wait for one another nothing may rest on it."""
        pending = self._pending
        if pending.versions != self._versions():
            return True
        weight = self._parameters.get("weight")
        is_plain = type(weight) is torch.nn.Parameter and not self._gives_gradients_elsewhere()
        return (
            is_plain and weight.requires_grad and weight.grad is None and not pending.with_ranks
        )

    def _gives_gradients_elsewhere(self) -> bool:
        """Whether the weight's gradient is not to be found in weight.grad."""
        raise NotImplementedError

    def _versions(self) -> list[int]:
        """The version counter of each parameter: how often it was written to."""
        try:
            return [p._version for p in self._parameters.values() if p is not None]
        except RuntimeError:  # torch counts no versions of tensors made under inference_mode
            found = [p for p in self._parameters.values() if p is not None]
            return [0 if p.is_inference() else p._version for p in found]

    def _begin_in_graph_unless_checkpointed(self, rule: Rule) -> Rule | None:
        """_begin_in_graph, but refused if a checkpoint would run the traced call again."""
        if recompute.is_checkpointed():
            raise recompute.scales_updated(self._label())
        return self._begin_in_graph(current().step, rule, self._buffers["fp8_state"])

    def _begin_in_graph(self, step: Step, rule: Rule, state: torch.Tensor) -> Rule | None:
        """_begin in traced code. Returns the rule if this call's backward updates the
        gradients' scales."""
        group = reduction.group_for(rule, step.group, self._tp_group)
        with_ranks = bool(group)
        if step.traced:
            mine = step.updates_in_graph.setdefault(self, [])
            is_first = all(state is not s or rule != r for s, r in mine)
            # a scale that is listed already is updated by the rule it was listed with
            if all(state is not s for s, _ in mine):
                if with_ranks:
                    step.states_of_ranks.append((self, state, rule))
                else:
                    step.states_in_graph.setdefault((rule, state.device), []).append(state)
            if is_first:
                mine.append((state, rule))
        else:
            if self._step_watch.is_over.value:
                raise scaling.step_is_over(self._label())
            # Only write, do not compare: Dynamo would guard on what is read.
            pending = self._pending
            is_first, step.in_graph = not pending.waits, True
            pending.waits, pending.rule, pending.step = True, rule, step.id
            pending.group = group
            if is_first:
                pending.state = state
        return rule if is_first and not with_ranks else None

    def _state_of(
        self, run: FirstRun
    ) -> tuple[dict[str, torch.Tensor | None], FirstRun | None]:
        """The buffers for a call that repeats a first run, and who decides whether its backward
        updates the gradients' scales.

        The scales are those of the first run. Amaxes are thrown away: the first run recorded
        them. If the first run left no graph (a reentrant checkpoint), the last repeated call of
        the step updates."""
        rule = run.recipe.rule
        if rule is not None and run.is_stale():
            raise recompute.scales_changed(self._label())
        if rule is None:
            return dict(self._buffers), None
        if run.state is None:
            own = self._buffers["fp8_state"] if run.of is None else run.of
            return {**self._buffers, "fp8_state": recompute.current_rows(own)}, None
        region = current()
        if (region.enabled or region.calibrating) and self._records():
            # The step may have ended without an update, if the autocast was left under no_grad.
            self._begin(region.step, rule, has_graph=False)
        run.with_ranks = self._pending.with_ranks
        return {**self._buffers, "fp8_state": run.state}, run

    def _undo_begin(self) -> None:
        """Takes back _begin after the call failed, so that another call may begin the step."""
        recorded = current().step.recorded
        recorded[:] = [layer for layer in recorded if layer is not self]
        self._pending.clear()

    # ---- cached weights, seeds -------------------------------------------------------------

    def _cache_options(self, is_first_microbatch: bool | None, delayed: bool) -> Options:
        """Whether a call casts the weight and caches it, or reads the cached cast. A call that
        records amaxes casts anew what was cast without recording."""
        cache = self._weight_cache
        if is_first_microbatch is None:
            constant = constant_weights_here()
            if constant is None:
                return ()
            # entered in this graph, so the graph knows which weights it has cast
            if constant.traced:
                if all(cache is not other for other in constant.cast):
                    constant.cast.append(cache)
                    return (WRITE_CACHE,)
                return (READ_CACHE,)
        elif is_first_microbatch:
            return (WRITE_CACHE,)
        reads = cache.fresh.value and cache.text != "none"
        reads = reads and not (delayed and cache.unrecorded and self._records())
        return (READ_CACHE if reads else WRITE_CACHE,)

    def _note_cast(self, recipe: CallRecipe, options: Options) -> None:
        """Logs that a call read a cached weight which was cast in an earlier step, by other
        scales. Only for calls that may be run again."""
        if recipe.rule is None or READ_CACHE not in options or not recompute.may_run_again():
            return
        if self._weight_cache.cast_in is not self._pending.step:
            self._calls.note_older_cast()

    def _cached_buffers(self, words: str) -> list[torch.Tensor]:
        """The buffers of the cached weight that a call reads."""
        cache = self._weight_cache
        names = _texts.buffer_names(cache.text)
        wanted = buffers_of(words, "weight.cached", cache.text)
        return [cache.memory[names.index(name)] for name in wanted]

    def _store_cast(
        self, words: str, buffers: list[torch.Tensor], weight: torch.Tensor, unrecorded: bool
    ) -> None:
        """Caches a cast weight. Compiled code copies it into memory that was made
        beforehand. `unrecorded`: delayed scaling has not recorded its amax."""
        text, cache = forward_signature(words).others[0].quantizer, self._weight_cache
        cache.unrecorded = unrecorded
        if not is_compiling():
            cache.store(buffers, text, weight)
            return
        self._make_cache_memory(text)
        for memory, made in zip(cache.memory, buffers, strict=True):
            memory.copy_(made)
        cache.fresh.value = True

    @traced_as_constant
    def _make_cache_memory(self, text: str) -> bool:
        """Makes memory for the cast, while a graph is traced. All layers of the same sizes get
        it, since they could share the graph (as in _need_scaling_in_graph)."""
        for layer in registry.all_layers():
            shape = layer.in_features, layer.out_features
            if layer is self or (shape == (self.in_features, self.out_features)):
                layer._weight_cache.make_memory(text, layer._whole("weight"))
        return True

    def _draw(self, inp: torch.Tensor) -> torch.Tensor:
        """Draws a seed for stochastic rounding."""
        return seeds.draw_in_graph(inp) if is_compiling() else seeds.draw(inp.device)
