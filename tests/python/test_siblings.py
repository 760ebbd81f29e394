"""Layers that read one tensor share its cast in compiled graphs."""

from collections.abc import Callable
from typing import Any

import octet
import pytest
from octet import _siblings
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

import torch
from torch import nn

RECIPES = {
    "current": octet.recipe.Float8CurrentScaling,
    "block": octet.recipe.Float8BlockScaling,
    "mxfp8": octet.recipe.MXFP8BlockScaling,
    "nvfp4": octet.recipe.NVFP4BlockScaling,
    "mxfp4": octet.recipe.MXFP4BlockScaling,
}


class Attention(nn.Module):
    """Three layers on one tensor, and one that reads another."""

    def __init__(self, bias: bool = False, **options: Any) -> None:  # noqa: ANN401
        super().__init__()
        self.q = octet.Linear(64, 64, bias=bias, **options)
        self.k = octet.Linear(64, 32, bias=bias, **options)
        self.v = octet.Linear(64, 32, bias=bias, **options)
        self.o = octet.Linear(32, 64, bias=bias, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Something that depends on all of them."""
        q, k, v = self.q(x), self.k(x), self.v(x)
        return self.o(k * v) * q


class Sum(nn.Module):
    """Two layers whose outputs are added up: one gradient arrives at both."""

    def __init__(self) -> None:
        super().__init__()
        self.a = octet.Linear(64, 32, bias=False)
        self.b = octet.Linear(96, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A sum of both."""
        return self.a(x[..., :64] * 2) + self.b(x)


class Graphs:
    """What AOTAutograd makes of a model, with the pass or without, and its results."""

    def __init__(self, model: nn.Module, shares: bool, dynamic: bool = False) -> None:
        self.saved = 0
        self.forward: list[torch.fx.GraphModule] = []
        self.backward: list[torch.fx.GraphModule] = []

        def partition(joint: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if shares:
                self.saved += _siblings.share_casts(joint.graph)
                joint.recompile()
            return min_cut_rematerialization_partition(joint, *args, **kwargs)

        def keep(to: list[torch.fx.GraphModule]) -> Callable[..., Any]:
            def take(module: torch.fx.GraphModule, example: Any) -> Any:  # noqa: ANN401
                del example
                to.append(module)
                return make_boxed_func(module.forward)

            return take

        def infer(module: torch.fx.GraphModule, example: Any) -> Any:  # noqa: ANN401
            if shares:
                self.saved += _siblings.share_casts(module.graph)
                module.recompile()
            return keep(self.forward)(module, example)

        backend = aot_autograd(
            fw_compiler=keep(self.forward),
            bw_compiler=keep(self.backward),
            inference_compiler=infer,
            partition_fn=partition,
        )
        torch._dynamo.reset()
        self.model = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)

    def casts(self) -> int:
        """The casts of their own that forward's graphs have."""
        nodes = [node for module in self.forward for node in module.graph.nodes]
        return sum(node.target is torch.ops.octet.quantize.default for node in nodes)

    def saved_bytes(self) -> int:
        """What forward's first graph hands to backward: outputs behind the model's own."""
        (output,) = self.forward[0].graph.find_nodes(op="output")
        values = [n.meta["val"] for n in output.args[0][1:] if isinstance(n, torch.fx.Node)]
        found = {v.untyped_storage()._cdata: v for v in values if isinstance(v, torch.Tensor)}
        return sum(v.numel() * v.element_size() for v in found.values())


def step(
    run: Callable[..., torch.Tensor],
    model: nn.Module,
    recipe: octet.recipe.Recipe,
    rows: int = 64,
    wants: bool = True,
) -> list[torch.Tensor]:
    """The output, and every gradient."""
    torch.manual_seed(3)
    width = 96 if isinstance(model, Sum) else 64
    x = torch.randn(2, rows // 2, width, requires_grad=wants)
    model.zero_grad()
    with octet.autocast(recipe=recipe):
        y = run(x)
    y.square().sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return [y.detach(), *([x.grad] if wants else []), *(g.clone() for g in grads)]


def assert_equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", RECIPES)
def test_share__three_layers_cast_their_input_once(name: str) -> None:
    recipe, model = RECIPES[name](), Attention()
    shared, apart = Graphs(model, True), Graphs(model, False)
    found = step(shared.model, model, recipe)
    assert (shared.saved, shared.casts()) == (2, 1)
    expected = step(apart.model, model, recipe)
    assert (apart.saved, apart.casts()) == (0, 0)
    assert_equal(found, expected)
    assert_equal(found, step(model, model, recipe))


@pytest.mark.parametrize("name", ["block", "mxfp8"])
def test_share__one_copy_is_saved_for_backward(name: str) -> None:
    recipe, model = RECIPES[name](), Attention()
    shared, apart = Graphs(model, True), Graphs(model, False)
    step(shared.model, model, recipe)
    step(apart.model, model, recipe)
    # Two copies less of 64 x 64 elements, a byte each or more with their scales.
    assert apart.saved_bytes() - shared.saved_bytes() >= 2 * 64 * 64


@pytest.mark.parametrize("name", ["current", "mxfp8"])
def test_share__any_number_of_rows_by_one_graph(name: str) -> None:
    recipe, model = RECIPES[name](), Attention(bias=True)
    shared = Graphs(model, True, dynamic=True)
    for rows in (64, 32, 96):
        assert_equal(step(shared.model, model, recipe, rows), step(model, model, recipe, rows))
    assert shared.saved == 2
    assert len(shared.forward) == 1


@pytest.mark.parametrize("name", ["current", "block", "nvfp4"])
def test_share__only_some_weights_are_trained(name: str) -> None:
    recipe, model = RECIPES[name](), Attention()
    model.k.weight.requires_grad_(False)
    shared = Graphs(model, True)
    found = step(shared.model, model, recipe)
    assert shared.saved == 2
    assert_equal(found, step(model, model, recipe))


def test_share__an_input_without_a_gradient() -> None:
    recipe, model = RECIPES["block"](), Attention()
    shared = Graphs(model, True)
    found = step(shared.model, model, recipe, wants=False)
    assert shared.saved == 2
    assert_equal(found, step(model, model, recipe, wants=False))


@pytest.mark.parametrize("name", ["current", "mxfp8"])
def test_share__without_a_backward(name: str) -> None:
    recipe, model, x = RECIPES[name](), Attention(), torch.randn(2, 32, 64)
    shared = Graphs(model, True)
    with torch.no_grad(), octet.autocast(recipe=recipe):
        assert torch.equal(shared.model(x), model(x))
    assert shared.saved == 2


@pytest.mark.parametrize("name", ["current", "mxfp8"])
def test_share__quantized_weights(name: str) -> None:
    recipe = RECIPES[name]()
    with octet.quantized_model_init(recipe=recipe):
        model = Attention()
    shared = Graphs(model, True)
    found = step(shared.model, model, recipe)
    assert shared.saved == 2
    assert_equal(found, step(model, model, recipe))


def test_share__gradients_that_are_added_to_main_grad() -> None:
    recipe, model = RECIPES["block"](), Attention(fuse_wgrad_accumulation=True)

    def run(call: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        for parameter in model.parameters():
            parameter.main_grad = torch.ones_like(parameter)
        found = step(call, model, recipe)
        return [*found, *(parameter.main_grad for parameter in model.parameters())]

    shared = Graphs(model, True)
    found = run(shared.model)
    assert shared.saved == 2
    assert_equal(found, run(model))


@pytest.mark.parametrize("name", ["current", "block", "mxfp8"])
def test_share__one_gradient_of_two_layers_is_cast_once(name: str) -> None:
    recipe, model = RECIPES[name](), Sum()
    shared = Graphs(model, True)
    found = step(shared.model, model, recipe)
    assert shared.saved == 1
    assert_equal(found, step(model, model, recipe))


@pytest.mark.parametrize(
    "model",
    [
        Attention(save_original_input=True),
        Attention(delay_wgrad_compute=True),
    ],
    ids=["saves its input", "delays its wgrad"],
)
def test_share__layers_that_cannot_are_left_alone(
    model: Attention, caplog: pytest.LogCaptureFixture
) -> None:
    recipe, shared = RECIPES["block"](), Graphs(model, True)
    caplog.set_level("DEBUG", "octet")
    found = step(shared.model, model, recipe)
    why = "computed later" if model.q.delay_wgrad_compute else "it saves, gathers"
    assert sum("shares no cast" in line and why in line for line in caplog.messages) == 3
    for layer in model.children():
        if layer.delay_wgrad_compute:
            layer.backward_dw()
    assert shared.saved == 0
    expected = step(model, model, recipe)
    for layer in model.children():
        if layer.delay_wgrad_compute:
            layer.backward_dw()
    assert_equal(found, expected)


def test_share__scales_of_delayed_scaling_are_each_layers_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "octet")
    recipe, model = octet.recipe.DelayedScaling(), Attention()
    octet.prepare(model, recipe)
    shared = Graphs(model, True)
    step(shared.model, model, recipe)
    assert shared.saved == 0
    assert sum(": the scale is its own" in line for line in caplog.messages) == 3


# ---- Inductor --------------------------------------------------------------------------------


def test_inductor__runs_the_pass_and_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    casts: list[int] = []

    class Counts(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            op = torch.ops.octet.quantize.default
            casts.append(len(graph.find_nodes(op="call_function", target=op)))

        def uuid(self) -> None:
            return None  # so that graphs are compiled, not found

    recipe, model = RECIPES["current"](), Attention()
    with config.patch(joint_custom_pre_pass=Counts()):
        torch._dynamo.reset()
        found = step(torch.compile(model, fullgraph=True), model, recipe)
        monkeypatch.setenv("OCTET_SHARE_CASTS", "0")
        torch._dynamo.reset()
        apart = step(torch.compile(model, fullgraph=True), model, recipe)
    assert casts == [1, 0]
    assert_equal(found, apart)


def test_setting__is_part_of_what_graphs_are_found_by(monkeypatch: pytest.MonkeyPatch) -> None:
    on = _siblings._identity()
    monkeypatch.setenv("OCTET_SHARE_CASTS", "0")
    assert _siblings._identity() != on
    monkeypatch.setenv("OCTET_SHARE_CASTS", "yes")
    with pytest.raises(ValueError, match="OCTET_SHARE_CASTS is 'yes'; set it to 0 or 1"):
        _siblings.is_on()
