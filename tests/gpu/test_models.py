"""Models as they are trained: what torch offers around layers changes no bit of theirs."""

import copy
import functools
import io
from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same
from models import (
    DEVICE,
    WIDTH,
    Inside,
    batch,
    called,
    model,
    quantizing,
    seed,
    sgd,
    state,
    train,
    usual,
)
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import torch

every_recipe = pytest.mark.parametrize("name", RECIPES)
a_few = pytest.mark.parametrize("name", ["delayed", "current", "nvfp4"])


# ---- compiled: in fp32, since a compiler rounds sums in bf16 where it stores them ------------


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("delayed", "reduce-overhead"),
        ("nvfp4", "reduce-overhead"),
        ("current", "max-autotune-no-cudagraphs"),
    ],
)
def test_models__compiled_steps_are_eager(name: str, mode: str) -> None:
    net = model(params_dtype=torch.float32)
    fast = torch.compile(called(net, RECIPES[name]), fullgraph=True, mode=mode)
    assert_same(usual(name, params_dtype=torch.float32), train(net, fast, sgd(net)))


def test_models__the_optimizer_inside_the_compiled_step() -> None:
    """torch breaks the graph at backward; the parts find the layers as they left them."""
    found = []
    for compile_it in (False, True):
        net = model(params_dtype=torch.float32)
        optimizer = sgd(net)
        seen: list[torch.Tensor] = []

        def whole(
            x: torch.Tensor,
            dy: torch.Tensor,
            net: torch.nn.Module = net,
            optimizer: torch.optim.Optimizer = optimizer,
        ) -> torch.Tensor:
            with octet.autocast(recipe=RECIPES["delayed"]):
                y = net(x)
            y.backward(dy)
            optimizer.step()
            optimizer.zero_grad()
            return y.detach()

        call = torch.compile(whole) if compile_it else whole
        for turn in range(3):
            seen.append(call(*batch(turn, torch.float32)).clone())
        found.append(seen + state(net))
    assert_same(*found)


def test_models__microbatches_reuse_weights_between_steps() -> None:
    """Six microbatches, an optimizer's step after each third; compiled for CUDA graphs."""
    from torch._dynamo.utils import counters

    found = []
    counters.clear()
    for compile_it in (False, True):
        net = model(params_dtype=torch.float32)
        call, optimizer = called(net, RECIPES["delayed"]), sgd(net)
        for parameter in net.parameters():  # a graph's own would be overwritten by the next
            parameter.grad = torch.zeros_like(parameter)
        if compile_it:
            call = torch.compile(call, fullgraph=True, mode="reduce-overhead")
        seen: list[torch.Tensor] = []
        for turn in range(6):
            x, dy = batch(turn, torch.float32)
            torch.compiler.cudagraph_mark_step_begin()
            y = call(x.requires_grad_(), turn % 3 == 0)
            y.backward(dy)
            seen += [y.detach().clone(), x.grad.clone()]
            if turn % 3 == 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)
        found.append(seen + state(net))
    assert_same(*found)
    assert DEVICE == "cpu" or counters["inductor"]["cudagraph_skips"] == 0


def test_models__one_graph_serves_every_number_of_rows() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    linear, counter = model().a_up, CompileCounterWithBackend("inductor")
    call = called(linear, RECIPES["current"])
    fast = torch.compile(call, fullgraph=True, backend=counter)
    for rows in (5, 17, 64, 33):
        x = torch.randn(rows, WIDTH, device=DEVICE).bfloat16()
        found = []
        for each in (call, fast):
            leaf = x.clone().requires_grad_()
            torch._dynamo.mark_dynamic(leaf, 0)
            linear.zero_grad()
            y = each(leaf)
            y.backward(torch.ones_like(y))
            found.append([y.detach(), leaf.grad, *state(linear)])
        assert_same(*found)
    assert counter.frame_count == 1


@a_few
@pytest.mark.parametrize("strict", [False, True])
def test_models__exported(name: str, strict: bool) -> None:
    """For any number of rows; the program is saved and loaded, and needs no autocast."""
    inside = Inside(model(), name).eval()
    x = batch()[0][0]
    rows = {0: torch.export.Dim("rows", min=2, max=4096)}
    with torch.no_grad():
        program = torch.export.export(inside, (x,), dynamic_shapes=(rows,), strict=strict)
        saved = io.BytesIO()
        torch.export.save(program, saved)
        loaded = torch.export.load(io.BytesIO(saved.getvalue())).module()
        for count in (20, 7, 3):
            assert_same([inside(x[:count])], [loaded(x[:count])])


# ---- mixed precision -------------------------------------------------------------------------


@every_recipe
def test_models__a_scaler_skips_a_step_that_is_not_finite(name: str) -> None:
    """fp16 under a GradScaler. Biases see what quantized products may saturate."""
    net = model(params_dtype=torch.float32)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**4)
    optimizer = sgd(net)
    changed = []
    for turn in range(4):
        x, dy = batch(turn, torch.float16)
        if turn == 1:
            dy[0, 3, 5] = float("inf")
        before = [p.detach().clone() for p in net.parameters()]
        with torch.autocast(DEVICE, torch.float16), quantizing(name):
            y = net(x)
        optimizer.zero_grad()
        scaler.scale((y * dy).sum() / 64).backward()
        scaler.step(optimizer)
        scaler.update()
        after = list(net.parameters())
        changed.append(sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True)))
        assert all(torch.isfinite(p).all() for p in after)
        assert all(torch.isfinite(linear.fp8_grad_scale).all() for linear in net.layers())
    assert changed == [len(before), 0, len(before), len(before)]
    assert scaler.get_scale() == 2.0**3


@every_recipe
def test_models__torch_autocast_around_and_inside(name: str) -> None:
    """fp32 weights in bf16: as an input cast by hand, whichever of the two is outside. With no
    recipe as nn.Linear, whose weight torch casts, too."""
    found = []
    for order in ("none", "torch outside", "octet outside"):
        linear: Any = model(params_dtype=torch.float32).a_up
        if name == "none" and order == "none":
            ours, linear = linear, torch.nn.Linear(WIDTH, 80, device=DEVICE)
            linear.load_state_dict(ours.state_dict())
            order = "torch outside"
        mixed = torch.autocast(DEVICE, torch.bfloat16, enabled=order != "none")
        x, _ = batch(0, torch.float32)
        x.requires_grad_()
        seed(0)
        if order == "octet outside":
            with quantizing(name), mixed:
                y = linear(x)
        else:
            with mixed, quantizing(name):
                y = linear(x.bfloat16() if order == "none" else x)
        y.backward(torch.ones_like(y))
        assert y.dtype == torch.bfloat16
        found.append([y.detach(), x.grad, *state(linear)])
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])


# ---- checkpoints -----------------------------------------------------------------------------


def saves_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:  # noqa: ANN401
    is_linear = op.name().startswith("octet::linear")
    return CheckpointPolicy.MUST_SAVE if is_linear else CheckpointPolicy.PREFER_RECOMPUTE


WAYS: dict[str, dict[str, Any]] = {
    "reentrant": {"use_reentrant": True},
    "usual": {"use_reentrant": False},
    "selective": {
        "use_reentrant": False,
        "context_fn": functools.partial(create_selective_checkpoint_contexts, saves_products),
    },
}


@every_recipe
@pytest.mark.parametrize("way", WAYS)
def test_models__checkpoints_change_nothing(name: str, way: str) -> None:
    """On a GPU a region is computed again by a thread of autograd's own."""
    net = model()
    found = train(
        net, called(lambda x: checkpoint(net, x, **WAYS[way]), RECIPES[name]), sgd(net)
    )
    assert_same(usual(name), found)


# ---- hooks, frozen parts, other optimizers ---------------------------------------------------


@every_recipe
def test_models__an_optimizer_inside_backward(name: str) -> None:
    """Each parameter moves as soon as its gradient is there, and the gradient goes."""
    net, seen = model(), []
    optimizers = {p: torch.optim.SGD([p], lr=2.0**-6) for p in net.parameters()}

    def move(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(move)
    net.b_up.register_full_backward_hook(lambda module, dx, dy: seen.append((dx[0], dy[0])))
    found = train(net, called(net, RECIPES[name]))
    want = usual(name)
    assert_same(want[: len(found)], found)  # but for the gradients, which are gone
    assert [(dx.shape[-1], dy.shape[-1]) for dx, dy in seen] == [(WIDTH, 80)] * 3


@every_recipe
def test_models__parts_that_are_frozen_in_turn(name: str) -> None:
    whole, part = model().a_up, model().a_up
    for turn, frozen in enumerate(("weight", "bias", "input", "none", "weight")):
        found = []
        for linear in (whole, part):
            x, _ = batch(turn)
            linear.zero_grad()
            for key, parameter in linear.named_parameters():
                parameter.requires_grad_(linear is whole or key != frozen)
            x.requires_grad_(linear is whole or frozen != "input")
            seed(turn)
            with quantizing(name):
                y = linear(x)
            y.backward(torch.ones_like(y).expand_as(y))
            named = {"input": x.grad, "weight": linear.weight.grad, "bias": linear.bias.grad}
            assert linear is whole or frozen == "none" or named[frozen] is None
            named.pop(frozen, None)
            found.append([y.detach(), *named.values(), *linear.buffers()])
        assert_same(*found)


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "none"])
def test_models__quantized_weights_and_adam(name: str) -> None:
    """Moments are plain, and the new weight is the old one's, changed and quantized."""
    with octet.quantized_model_init(recipe=RECIPES[name]):
        linear = model().a_up
    shadow = torch.nn.Parameter(linear.weight.detach().dequantize())
    options = {"lr": 2.0**-6, "weight_decay": 0.0, "foreach": True}
    adams = [torch.optim.AdamW([p], **options) for p in (linear.weight, shadow)]
    for turn in range(3):
        x, _ = batch(turn)
        linear.zero_grad()
        with quantizing(name):
            y = linear(x)
        y.backward(torch.ones_like(y))
        shadow.grad = linear.weight.grad.clone()
        for adam in adams:
            adam.step()
        want = copy.deepcopy(linear.weight.detach()).quantize_(shadow.detach())
        assert_same(want.buffers(), linear.weight.detach().buffers())
        with torch.no_grad():
            shadow.copy_(want.dequantize())
