"""How a call of a Linear runs, eager or traced."""

from collections.abc import Sequence
from typing import Any

from torch._C import _are_functorch_transforms_active, _is_any_autocast_enabled
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn import Parameter
from torch.nn.functional import linear as torch_linear

import torch
from octet import _custom, _foreign
from octet._constant import traced_as_constant
from octet._dtypes import HIGH_PRECISION
from octet._function import DRAW, LinearFunction, apply_in_graph, run_forward
from octet._linear_call import LinearCall
from octet._signatures import (
    FORWARD_STATE,
    Call,
    Options,
    call_of,
    device_options,
    draws_with_graph,
    forward_signature,
    is_flat,
    is_plain_in_graph,
    words_of_ranks,
    writes_of,
)
from octet.proto import TensorProto
from octet.recipe import DelayedScaling
from octet.state import recompute, reduction
from octet.state.active import (
    BACKWARD,
    CONSTANT_WEIGHTS,
    ENTERED,
    MAIN_THREAD,
    current,
    in_backward,
)
from octet.state.recompute import NO_RECIPE, CallRecipe, FirstRun
from octet.state.scaling_rule import Rule
from octet.tensor import QuantizedTensor
from torch import is_grad_enabled

linear_autograd = torch.ops.octet.linear_autograd.default
linear_seeded = torch.ops.octet.linear_seeded.default


class LinearRun(LinearCall):
    """A linear layer's calls of every kind."""

    def _run_plain(
        self, inp: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> Any:  # noqa: ANN401
        """A call that has nothing to quantize."""
        if not is_compiling() and not _are_functorch_transforms_active():
            self._calls.note(NO_RECIPE, True, None)
        y = torch_linear(inp, weight, None if self.return_bias else bias)
        return (y, bias) if self.return_bias else y

    def _run(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> Any:  # noqa: ANN401
        """Any call at all, eager or traced."""
        if not isinstance(inp, torch.Tensor | TensorProto):
            traced = _foreign.traced_by_fx(self, inp, is_first_microbatch, fp8_output, fp8_grad)
            if traced is not None:
                return traced
        elif inp.is_nested:
            return _foreign.over_values(self, inp, is_first_microbatch, fp8_output, fp8_grad)
        region, run = current(), None
        if is_compiling():
            recipe = self._recipe_in_graph(region)
        elif in_backward():
            recipe, run = self._recipe_in_backward(region)
        else:
            recipe = self._recipe_in(region)
        weight, bias = self._whole("weight"), self._whole("bias")
        if isinstance(inp, torch.Tensor) and self._is_plain(recipe, inp, weight, bias):
            if not inp.shape or inp.shape[-1] != self.in_features:
                self._checked(inp)
            if is_dynamo_compiling():
                self._check_in_graph()
            if run is not None:
                self._calls.note_again(run)
                y = torch_linear(inp, weight, None if self.return_bias else bias)
                return (y, bias) if self.return_bias else y
            return self._run_plain(inp, weight, bias)
        if not is_compiling() and _are_functorch_transforms_active():
            raise NotImplementedError(
                f"{self._label()}: torch.func's transforms (grad, vmap, jvp, ...) do not reach "
                "into a layer that quantizes; use torch.autograd, or leave the layer out"
            )
        inp = self._checked(inp)
        if recipe.custom is not None:
            if self.tp_size > 1:
                raise NotImplementedError(
                    f"{self._label()}: {recipe.custom!r} has quantizers of a user's, whose "
                    "shards cannot be joined; take a recipe of Octet's own quantizers"
                )
            if not is_compiling():
                if run is None:
                    self._calls.note(recipe, True, None)
                else:
                    self._calls.note_again(run)
            asked = _custom.Asked(is_first_microbatch, fp8_output, fp8_grad)
            return _custom.forward(self, inp, recipe.custom, asked)
        return self._run_recipe(inp, recipe, run, (is_first_microbatch, fp8_output, fp8_grad))

    def _run_recipe(
        self,
        inp: torch.Tensor,
        recipe: CallRecipe,
        run: FirstRun | None,
        asked: tuple[bool | None, bool, bool],
    ) -> Any:  # noqa: ANN401
        """A call by a recipe of Octet's own quantizers."""
        weight, bias = self._whole("weight"), self._whole("bias")
        options = self._options(recipe, weight, *asked)
        wants = self._wants(inp, weight, bias)
        has_graph = wants[0] or wants[1] or wants[2]
        if run is not None and recipe.rule is not None and is_compiling():
            raise recompute.scales_updated(self._label())  # in part of a call that is compiled
        # Amaxes of a repeated call are recorded already.
        records = self._records() if run is None else run.recipe.rule is not None
        call = self._call((inp, weight, bias), recipe.text, options, records)
        if self.tp_size > 1:
            self._compare_ranks(call.problem, inp, recipe)
        state, updates = self._buffers, None
        if recipe.rule is not None:
            if is_compiling():
                self._need_scaling_in_graph(recipe.text)
            else:
                self._need_scaling(recipe.text)
            state = self._buffers
        if is_compiling():
            if recipe.rule is not None and records:
                updates = self._begin_in_graph(recipe.rule)
        elif run is None:
            updates = self._note(recipe, has_graph, records)
        else:
            self._calls.note_again(run)
            state, updates = self._state_of(run)
        draws = "seed" in call.tensors
        if not is_compiling():
            draws = self._draws((inp, weight, bias), recipe.text, options, call)
        seed = self._draw(inp) if draws else None
        tensors = [inp, self._in_graph(weight, wants)]
        if call.takes_bias:
            tensors.append(bias)
        for name in call.tensors:
            if name == "cache":
                tensors.extend(self._cached_buffers(call.problem))
            else:
                tensors.append(
                    seed if name == "seed" else self._extra_tensor(name, state, weight)
                )
        output, others = self._apply_call(call, updates, tensors, has_graph)
        if others:
            with torch.no_grad():
                self._store_cast(call.problem, list(others), weight)
        return (output, bias) if self.return_bias else output

    def _compare_ranks(self, problem: str, inp: torch.Tensor, recipe: CallRecipe) -> None:
        """All ranks of the group make the same call, or none of them does."""
        words, group = words_of_ranks(problem), self._ranks()[0]
        scaled = self.sequence_parallel and recipe.rule is not None and not recipe.options
        if scaled:
            self._check_shared_scales(recipe.rule, group)
        if inp.is_meta:
            return  # nothing is moved
        if is_compiling():
            self._agree_in_graph(problem, words, inp.device, scaled)
        else:
            self._agree(words, inp.shape, inp.device, scaled)

    def _check_shared_scales(self, rule: Rule, group: str) -> None:
        """Ranks that gather bytes of delayed scaling have one scale: amaxes are reduced over
        all of them."""
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
        call: Call,
        updates: Any,  # noqa: ANN401
        tensors: list[torch.Tensor],
        has_graph: bool,
    ) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """The output, and the buffers of a weight that was cast for later calls."""
        others: Sequence[torch.Tensor] = ()
        placed = call.problem, self._ranks()
        in_one_node = is_dynamo_compiling() and not isinstance(updates, DelayedScaling)
        if in_one_node and is_plain_in_graph(call.problem, tensors[0].dtype):
            output, *others = apply_in_graph(placed, updates, self.out_features, tensors)
            return output, others
        if has_graph:
            output = LinearFunction.apply(placed, updates, self.out_features, *tensors)
            if call.has_others:
                output, *others = output
            return output, others
        sizes = [*tensors[0].shape, self.out_features]
        flat = is_flat(call.problem, len(tensors))
        task = call.problem, forward_signature(call.problem, flat), None
        output, others, _ = run_forward(task, sizes, tensors, ranks=placed[1])
        return output, others

    # ---- traced ----------------------------------------------------------------------------

    def _run_traced(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> Any:  # noqa: ANN401
        """What most traced calls need and no more. A compiler traces every line of it, for
        every layer: what can be decided at once is decided by one call that it does not
        trace."""
        region = ENTERED.value
        if region is None:
            region = MAIN_THREAD.region
        recipe = region.recipe
        if (
            region.calibrating
            or (region.enabled and recipe._is_custom)
            or is_first_microbatch is not None
            or fp8_output
            or fp8_grad
            or self.return_bias
            or self.fuse_wgrad_accumulation
            or self.delay_wgrad_compute
            or not isinstance(inp, torch.Tensor)
            or isinstance(inp, QuantizedTensor)
            or inp.is_nested
            or BACKWARD.value
            or CONSTANT_WEIGHTS.value is not None
        ):
            return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        text = recipe._text if region.enabled else "none"
        traits = (inp.dtype, inp.device, inp.requires_grad, is_grad_enabled(), self.training)
        decided = self._decide_in_graph(text, traits, self.save_original_input)
        if decided is None or inp.shape[-1] != self.in_features:
            return self._run(inp, is_first_microbatch, fp8_output, fp8_grad)
        problem, takes_bias, reads, writes, records, seed = decided
        self._calls.last = text
        if problem is None:  # nothing is quantized
            return torch_linear(inp, weight, bias)
        tensors = [inp, weight, bias] if takes_bias else [inp, weight]
        sizes = [*inp.shape, self.out_features]
        if seed == "unread":
            drawn = torch.ops.octet.draw_seed.default(inp.detach())
            return linear_seeded(tensors, drawn, sizes, problem)[0]
        if not reads and not writes:
            return linear_autograd(tensors, [], sizes, problem, seed)[0]
        rule, buffers = "", self._buffers
        if records:
            rule = self._begin_in_graph(text) or ""
        tensors += [buffers[name] for name in reads]
        written = [buffers[name] for name in writes]
        return linear_autograd(tensors, written, sizes, problem, rule)[0]

    @traced_as_constant
    def _decide_in_graph(
        self, text: str, traits: tuple[Any, ...], save_original_input: bool
    ) -> tuple[Any, ...] | None:
        """What a traced call needs: its problem, or None if it quantizes nothing; whether it
        takes the bias; which buffers it reads and which it may write; whether it records
        amaxes; which seed it draws.
        None: it needs more.

        Runs while code is traced: what it reads of the layer besides its arguments is what
        compiled code guards on anyway (its parameters) or what never changes."""
        dtype, device, input_grad, grad, training = traits
        weight, bias = self._parameters.get("weight"), self._parameters.get("bias")
        plain = type(weight) is Parameter and "bias" in self._parameters
        if not plain or _is_any_autocast_enabled() or len(self._parts) > 1:
            return None
        if dtype not in HIGH_PRECISION or recompute.is_in_subgraph() or self.tp_size > 1:
            return None
        delayed = text.startswith("delayed")
        if delayed:
            if "callback" in text:  # a function of a user's, which is traced
                return None
            self._need_scaling_in_graph(text)
        self._check_parameters(device, weight, bias)
        if text == "none":
            same = dtype == weight.dtype and (bias is None or bias.dtype == dtype)
            return (None, True, (), (), False, "") if same else None
        wants = (
            grad and input_grad,
            grad and weight.requires_grad,
            grad and bias is not None and bias.requires_grad,
        )
        options: Options = (("save_original_input", True),) if save_original_input else ()
        options += device_options(device.type, device.index)
        dtypes = (dtype, weight.dtype, None if bias is None else bias.dtype)
        call = call_of(dtypes, (None, None), text, wants, options, training and grad)
        if call.error or not is_plain_in_graph(call.problem, dtype):
            return None
        seed, state = "", call.tensors
        if state == ("seed",) and "seed" not in forward_signature(call.problem).args:
            seed, state = DRAW, ()
        elif "seed" in state:
            return None
        # Without a graph it may draw a seed that it does not read: see _draws.
        without = training and not grad and not state
        if without and draws_with_graph(dtypes, (None, None), text, options):
            seed = "unread"
        writes, count = writes_of(call.problem, False)
        first = count - sum(n in FORWARD_STATE for n in forward_signature(call.problem).args)
        written = [first + i >= count or first + i in writes for i in range(len(state))]
        return (
            call.problem,
            call.takes_bias,
            tuple(n for n, w in zip(state, written, strict=True) if not w),
            tuple(n for n, w in zip(state, written, strict=True) if w),
            "fp8_amax_history" in state or "fp8_grad_amax_history" in state,
            seed,
        )
