"""How a call of a Linear runs, in eager and in traced code."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch._C import _are_functorch_transforms_active, _is_any_autocast_enabled
from torch._subclasses.fake_tensor import FakeTensor
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn import Parameter
from torch.nn.functional import linear as torch_linear

import torch
from octet import _custom, _dtensor, _foreign, _sharded
from octet._constant import traced_as_constant
from octet._dtypes import HIGH_PRECISION
from octet._function import (
    DRAW,
    LinearFunction,
    LinearOfParts,
    Placed,
    apply_eagerly,
    apply_in_graph,
    run_forward,
)
from octet._linear_call import LinearCall
from octet._prologue import applied
from octet._shard import check_recomputed, restore_rowwise
from octet._sharded import is_dtensor
from octet._signatures import (
    READ_CACHE,
    Call,
    Options,
    buffers_of,
    call_of,
    device_options,
    draws_in_its_node,
    draws_with_graph,
    forward_signature,
    is_flat,
    is_plain_in_graph,
    words_of_ranks,
)
from octet._verbose import VERBOSE, announce
from octet.proto import TensorProto
from octet.recipe import DelayedScaling
from octet.state import recompute, reduction
from octet.state.active import (
    current,
    in_backward,
)
from octet.state.recompute import NO_RECIPE, CallRecipe, FirstRun
from octet.state.scaling import SLOTS, scaling_made_late
from octet.state.scaling_rule import Rule
from octet.tensor import QuantizedTensor


@traced_as_constant
def share_casts_in_graphs() -> None:
    """Installs the pass by which layers that read one tensor share its cast."""
    from octet import _siblings  # imports the compiler, which is loaded during tracing anyway

    _siblings.install()


class TracedCall(NamedTuple):
    """What a traced call needs."""

    # "more": the general path (_run). "plain": torch's linear. "stateless": takes the operands
    # only. "unread seed": draws a seed that is not read. "reads": takes delayed scaling's state
    # of forward. "records": takes both states.
    kind: str
    columns: int = 0  # columns of the input
    in_features: int = 0
    out_features: int = 0
    words: str = ""
    takes_bias: bool = False
    rule: str = ""


NEEDS_MORE = TracedCall("more")
_KINDS_OF_STATE = {  # by whether it would record, and what it takes
    (False, ()): "stateless",
    (True, ()): "stateless",
    (False, ("fp8_state",)): "reads",
    (True, ("fp8_state", "fp8_grad_state")): "records",
}


class LinearRun(LinearCall):
    """A linear layer's calls of every kind."""

    def _run_plain(
        self, inp: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> Any:  # noqa: ANN401
        """A call without quantization."""
        if not is_compiling() and not _are_functorch_transforms_active():
            self._note(NO_RECIPE, True)
        y = self._torchs(inp, weight, bias)
        return (y, bias) if self.return_bias else y

    def _torchs(
        self, inp: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """torch's own linear, after torch's norm or activation. For a weight in parts that
        fully_shard holds, a variant that saves the parts."""
        if self._prologue is not None:
            dtype = self._checked(inp).dtype
            if not is_dynamo_compiling():
                self._check_parameters(inp.device, weight, bias)
            # Of the input as it is: torch.autocast casts what a norm makes, not what it reads.
            inp = applied(inp, self._prologue, self._vectors()).to(dtype)
        parts = _sharded.parameters(self)
        added = None if self.return_bias else bias
        if not parts:
            return torch_linear(inp, weight, added)
        return LinearOfParts.apply(inp, added, *parts)

    def _run(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> Any:  # noqa: ANN401
        """The general path of a call, eager or traced."""
        if not isinstance(inp, torch.Tensor | TensorProto):
            traced = _foreign.traced_by_fx(self, inp, is_first_microbatch, fp8_output, fp8_grad)
            if traced is not None:
                return traced
        elif inp.is_nested:
            return _foreign.over_values(self, inp, is_first_microbatch, fp8_output, fp8_grad)
        if self._local is None and is_dtensor(self._parameters.get("weight")):
            self._check_dtensor()
            return _dtensor.run(self, inp, is_first_microbatch, fp8_output, fp8_grad)
        region, run = current(), None
        if is_compiling():
            recipe = self._recipe_in_graph(region)
            self._check_recomputed(is_dynamo_compiling())
        elif in_backward():
            recipe, run = self._recipe_in_backward(region)
            restore_rowwise(self, self._whole("weight"))
        else:
            recipe = self._recipe_in(region)
        weight, bias = self._whole("weight"), self._whole("bias")
        if isinstance(inp, torch.Tensor) and self._is_plain(recipe, inp, weight, bias):
            if not inp.shape or inp.shape[-1] != self._columns():
                self._checked(inp)
            if is_dynamo_compiling():
                self._check_in_graph()
            if run is not None:
                self._calls.note_again(run)
                y = self._torchs(inp, weight, bias)
                return (y, bias) if self.return_bias else y
            return self._run_plain(inp, weight, bias)
        if not is_compiling() and _are_functorch_transforms_active():
            raise NotImplementedError(
                f"{self._label()}: torch.func's transforms (grad, vmap, jvp, ...) do not reach "
                "into a layer that quantizes; use torch.autograd, or leave the layer out"
            )
        given, inp = inp, self._checked(inp)
        if recipe.custom is not None:
            if self.sequence_parallel:
                raise NotImplementedError(
                    f"{self._label()}: {recipe.custom!r} has quantizers of a user's, whose "
                    "shards cannot be joined; take a recipe of Octet's own quantizers, or "
                    "leave out sequence_parallel"
                )
            if not is_compiling():
                if run is None:
                    self._note(recipe, True)
                else:
                    self._calls.note_again(run)
            asked = _custom.Asked(is_first_microbatch, fp8_output, fp8_grad)
            # the user's quantizer gets the result of the norm or activation
            if self._prologue is not None:
                inp = applied(given, self._prologue, self._vectors()).to(inp.dtype)
            return _custom.forward(self, inp, recipe.custom, asked)
        return self._run_recipe(inp, recipe, run, (is_first_microbatch, fp8_output, fp8_grad))

    def _run_recipe(
        self,
        inp: torch.Tensor,
        recipe: CallRecipe,
        run: FirstRun | None,
        asked: tuple[bool | None, bool, bool],
    ) -> Any:  # noqa: ANN401
        """A call by a recipe whose quantizers are all Octet's own."""
        weight, bias = self._whole("weight"), self._whole("bias")
        options = self._options(recipe, weight, *asked)
        wants = self._wants(inp, weight, bias)
        has_graph = wants[0] or wants[1] or wants[2] or self._vectors_want()
        if run is not None and recipe.rule is not None and is_compiling():
            # a compiled part of the repeated code
            raise recompute.scales_updated(self._label())
        records = self._records() if run is None else run.records()
        call = self._call((inp, weight, bias), recipe.text, options, records)
        if VERBOSE:
            self._announce(call.words, inp.dtype, None if is_compiling() else inp.shape)
        if self.tp_size > 1:
            self._compare_ranks(call.words, inp, recipe)
        state, updates = self._buffers, None
        if recipe.rule is not None:
            if is_compiling():
                self._need_scaling_in_graph(recipe.text)
                if "fp8_state" not in self._buffers:
                    raise scaling_made_late(self._label())
            else:
                self._need_scaling(recipe.text)
            state = self._buffers
        if is_compiling():
            if recipe.rule is not None and records:
                updates = self._begin_in_graph_unless_checkpointed(recipe.rule)
        elif run is None:
            updates = self._note(recipe, has_graph, records)
            self._note_cast(recipe, options)
        else:
            if run.read_older_cast and READ_CACHE not in options:
                raise recompute.cast_is_gone(self._label())
            self._calls.note_again(run)
            state, updates = self._state_of(run)
        extra, draws = (
            call.tensors,
            self._draws((inp, weight, bias), recipe.text, options, call),
        )
        if is_dynamo_compiling() and draws_in_its_node(call.words, call.tensors, inp.dtype):
            # As in _traced_call: the op's own node draws the seed.
            draws, updates, extra = False, DRAW, ()
        seed = self._draw(inp) if draws else None
        unread = seed if is_compiling() and "seed" not in call.tensors else None
        tensors = [inp, self._in_graph(weight, wants)]
        if call.takes_bias:
            tensors.append(bias)
        tensors.extend(self._vectors())
        for name in extra:
            if name == "cache":
                tensors.extend(self._cached_buffers(call.words))
            else:
                tensors.append(
                    seed if name == "seed" else self._extra_tensor(name, state, weight)
                )
        made_of = self._made_of(options) if has_graph else []
        placed = call.words, self._ranks(), len(made_of)
        if unread is not None:
            output, others = self._apply_with_unread(call, unread, tensors)
        else:
            output, others = self._apply_call(
                (call, placed), updates, [*tensors, *made_of], has_graph
            )
        if others:
            with torch.no_grad():
                unrecorded = recipe.rule is not None and not records
                self._store_cast(call.words, list(others), weight, unrecorded)
        return (output, bias) if self.return_bias else output

    def _made_of(self, options: Options) -> list[torch.Tensor]:
        """The parameters that are saved in the place of a weight that is joined of them."""
        saves_memory = self.save != "speed" and ("temporary_weight", True) not in options
        return _sharded.parameters(self, saves_memory)

    @traced_as_constant
    def _announce(self, words: str, dtype: torch.dtype, shape: torch.Size | None) -> None:
        """With OCTET_VERBOSE: prints a line about a call that is planned."""
        announce(self, words, None if shape is None else shape[:-1].numel(), dtype)

    def _compare_ranks(self, words: str, inp: torch.Tensor, recipe: CallRecipe) -> None:
        """Compares the call over all ranks of the group; raises on all of them if they
        differ."""
        shared, group = words_of_ranks(words), self._ranks()[0]
        scaled = self.sequence_parallel and recipe.rule is not None and not recipe.options
        if scaled:
            self._check_shared_scales(recipe.rule, group)
        if inp.is_meta or (isinstance(inp, FakeTensor) and not is_compiling()):
            return  # nothing is sent
        if is_compiling():
            self._agree_in_graph(words, shared, inp.device, scaled)
        else:
            self._agree(shared, inp.shape, inp.device, scaled)

    def _check_shared_scales(self, rule: Rule, group: str) -> None:
        """Raises unless ranks that gather bytes of delayed scaling share one scale, that is,
        reduce their amaxes."""
        given = current().step.group
        if not reduction.group_for(rule, given, group):
            raise ValueError(
                f"{self._label()}: sequence_parallel gathers bytes of one scale, but the "
                "recipe has reduce_amax=False, so ranks would have scales of their own; leave "
                "it True"
            )
        if given:
            reduction.check_covers(given, group, self._label())

    def _apply_call(
        self,
        asked: tuple[Call, Placed],
        updates: Any,  # noqa: ANN401
        tensors: list[torch.Tensor],
        has_graph: bool,
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Runs the op. Returns the output, and the buffers of a weight that was cast for later
        calls."""
        others: Sequence[torch.Tensor] = ()
        call, placed = asked
        ends = self._ends()
        if is_dynamo_compiling():
            share_casts_in_graphs()
        in_one_node = is_dynamo_compiling() and not isinstance(updates, DelayedScaling)
        if in_one_node and is_plain_in_graph(call.words, tensors[0].dtype):
            output, *others = apply_in_graph(placed, updates, ends, tensors)
            return output, others
        if has_graph and not is_compiling() and self._runs_flat(tensors):
            return self._apply_flat(call, updates, tensors), others
        if has_graph:
            output = LinearFunction.apply(placed, updates, ends, *tensors)
            if call.has_others:
                output, *others = output
            return output, others
        sizes = [*tensors[0].shape[:-1], *ends]
        flat = is_flat(call.words, len(tensors))
        task = call.words, forward_signature(call.words, flat), None
        output, others, _ = run_forward(task, sizes, tensors, ranks=placed[1])
        return output, others

    def _apply_with_unread(
        self, call: Call, seed: torch.Tensor, tensors: list[torch.Tensor]
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Runs the op of a traced call without a graph, tied to a seed that it does not read: a
        compiler would remove a draw that nothing needs."""
        share_casts_in_graphs()
        sizes = [*tensors[0].shape[:-1], *self._ends()]
        flat = is_flat(call.words, len(tensors))
        task = call.words, forward_signature(call.words, flat), None
        output, others, _ = run_forward(task, sizes, tensors, ranks=self._ranks(), unread=seed)
        return output, others

    def _runs_flat(self, tensors: list[torch.Tensor]) -> bool:
        """Whether the call passes the buffers of a quantized weight one by one."""
        later = self.fuse_wgrad_accumulation or self.delay_wgrad_compute or self.return_bias
        given = isinstance(tensors[0], QuantizedTensor)
        split = self.tp_size > 1
        return isinstance(tensors[1], QuantizedTensor) and not (given or later or split)

    def _apply_flat(
        self,
        call: Call,
        updates: Any,  # noqa: ANN401
        tensors: list[torch.Tensor],
    ) -> torch.Tensor:
        """Runs such a call. It saves exactly what _run_eagerly's call saves: one may be the
        recomputation of the other, and checkpoints compare the number of saved tensors."""
        inp, weight, *rest = tensors
        names = buffers_of(call.words, "weight", weight._text)
        task = call.words, forward_signature(call.words, True), None
        operands = tensors[: 2 + call.takes_bias + len(self._vectors())]
        flat = [inp, *(getattr(weight, name) for name in names), *rest]
        sizes = [*inp.shape[:-1], *self._ends()]
        return apply_eagerly((task, updates), sizes, flat, *operands)

    def _check_dtensor(self) -> None:
        """Raises for a DTensor weight behind a norm or activation."""
        if self._prologue is not None:
            raise NotImplementedError(
                f"{self._label()}: its weight is a DTensor, for which a layer that begins "
                f"with {self._prologue.word} has no rule; split it by parallel_mode and "
                "tp_group, or leave it out of parallelize_module"
            )

    # ---- traced ----------------------------------------------------------------------------

    @traced_as_constant
    def _check_recomputed(self, in_dynamo: bool) -> bool:
        """Raises if a checkpoint would repeat this code when fully_shard has not gathered the
        quantized weight."""
        weight = self._parameters.get("weight")
        if isinstance(weight, QuantizedTensor) and self._is_sharded():
            again = in_dynamo and recompute.is_checkpointed()
            if again or weight.buffers()[0].untyped_storage().size() == 0:
                check_recomputed(self, weight)
        return True

    @traced_as_constant
    def _unwrap_state(self) -> bool:
        """Unwraps state buffers that distribute_module made DTensors; each rank has its own
        scales."""
        for name in SLOTS:
            held = self._buffers.get(name)
            if is_dtensor(held):
                self._buffers[name] = held.to_local()
        return True

    @traced_as_constant
    def _decide_in_graph(
        self, text: str, traits: tuple[Any, ...], made_as: str
    ) -> tuple[Any, ...]:
        """A TracedCall as a plain tuple, because Dynamo of torch 2.11 cannot unpack a
        NamedTuple.

        Runs while code is traced: what it reads of the layer besides its arguments is what
        compiled code guards on anyway (its parameters; `made_as`) or what never changes."""
        del made_as
        share_casts_in_graphs()
        return tuple(self._traced_call(text, traits))

    def _traced_call(self, text: str, traits: tuple[Any, ...]) -> TracedCall:
        """What a traced call needs."""
        dtype, device, input_grad, grad, training = traits
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        sizes = self._columns(), self.in_features, self.out_features
        usual = type(weight) is Parameter and "bias" in self._parameters
        if not usual or _is_any_autocast_enabled() or len(self._parts) > 1:
            return NEEDS_MORE
        if self.return_bias or self.fuse_wgrad_accumulation or self.delay_wgrad_compute:
            return NEEDS_MORE
        if dtype not in HIGH_PRECISION or recompute.is_in_subgraph() or self.tp_size > 1:
            return NEEDS_MORE
        if text.startswith("delayed"):
            if "callback" in text or recompute.is_checkpointed():
                # the user's functions are traced, and checkpoints are refused, in _run
                return NEEDS_MORE
            self._need_scaling_in_graph(text)
        self._check_parameters(device, weight, bias)
        if text == "none":
            same = dtype == weight.dtype and (bias is None or bias.dtype == dtype)
            plain = same and self._prologue is None
            return TracedCall("plain", *sizes) if plain else NEEDS_MORE
        wants = (
            grad and input_grad,
            grad and weight.requires_grad,
            grad and bias is not None and bias.requires_grad,
        )
        options: Options = self._prologue_options() + self._saving_options(text)
        options += _sharded.options(self) + device_options(device.type, device.index)
        dtypes = self._dtypes(dtype, weight, bias)
        call = call_of(dtypes, (None, None), text, wants, options, training and grad)
        if call.error or not is_plain_in_graph(call.words, dtype):
            return NEEDS_MORE
        seed, state = "", call.tensors
        if draws_in_its_node(call.words, state, dtype):
            seed, state = DRAW, ()
        kind = _KINDS_OF_STATE.get((training and grad, state), "more")
        # A call without a graph may draw a seed that it does not read: see _draws.
        without = training and not grad and not state
        if without and draws_with_graph(dtypes, (None, None), text, options):
            kind = "unread seed"
        if kind == "more":
            return NEEDS_MORE
        if VERBOSE:
            self._announce(call.words, dtype, None)
        return TracedCall(kind, *sizes, call.words, call.takes_bias, seed)
