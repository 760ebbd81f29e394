"""Models as they are trained: what torch offers around layers changes no bit of theirs."""

import copy
import functools
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same
from models import DEVICE, WIDTH, batch, called, model, quantizing, sgd, state, train
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import torch

every_recipe = pytest.mark.parametrize("name", RECIPES)
a_few = pytest.mark.parametrize("name", ["delayed", "current", "nvfp4"])


def usual(name: str, **options: Any) -> list[torch.Tensor]:  # noqa: ANN401
    """Three eager steps with an optimizer."""
    net = model(**options)
    return train(net, called(net, RECIPES[name]), sgd(net))


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
            seen += [y.detach().clone(), x.grad]
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


# ---- mixed precision -------------------------------------------------------------------------


@every_recipe
def test_models__a_scaler_skips_a_step_that_is_not_finite(name: str) -> None:
    """fp16 under a GradScaler. Biases see what quantized products may saturate."""
    net = model(params_dtype=torch.float32)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**4)
    optimizer = sgd(net)
    moved = []
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
        moved.append(sum(not torch.equal(a, b) for a, b in zip(before, after, strict=True)))
        assert all(torch.isfinite(p).all() for p in after)
        assert all(torch.isfinite(linear.fp8_grad_scale).all() for linear in net.layers())
    assert moved == [len(before), 0, len(before), len(before)]
    assert scaler.get_scale() == 2.0**3


@every_recipe
def test_models__torch_autocast_around_and_inside(name: str) -> None:
    """fp32 weights in bf16: as an input cast by hand, whichever of the two is outside."""
    found = []
    for order in ("none", "torch outside", "octet outside"):
        linear = model(params_dtype=torch.float32).a_up
        mixed = torch.autocast(DEVICE, torch.bfloat16, enabled=order != "none")
        x, _ = batch(0, torch.float32)
        x.requires_grad_()
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
    """Moments are plain, and the new weight is the old one's, moved and quantized."""
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


# ---- copies and other places -----------------------------------------------------------------


@every_recipe
def test_models__copies_go_on_as_the_model_does(name: str) -> None:
    net = model()
    train(net, called(net, RECIPES[name]))
    net.zero_grad()
    buffer = io.BytesIO()
    torch.save(net, buffer)
    copies = [copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
    copies.append(torch.load(io.BytesIO(buffer.getvalue()), weights_only=False))
    copies.append(model().to("cpu"))
    copies[-1].load_state_dict({key: value.cpu() for key, value in net.state_dict().items()})
    copies[-1].to(DEVICE)
    want = train(net, called(net, RECIPES[name]))
    for other in copies:
        for mine, theirs in zip(net.layers(), other.layers(), strict=True):
            if name == "nvfp4":  # a state holds what rounding has drawn, on either device
                assert torch.equal(theirs.rounding_state[0], mine.rounding_state[0])
        assert_same(want, train(other, called(other, RECIPES[name])))


@pytest.mark.parametrize("name", ["delayed", "nvfp4"])
def test_models__state_moves_with_the_layer(name: str) -> None:
    """A step on the CPU, one here, one on the CPU: scales and draws are those of the CPU."""
    here, there = model().a_up, model(device="cpu").a_up
    for turn, device in enumerate(("cpu", DEVICE, "cpu")):
        x, _ = batch(turn)
        for linear, at in ((here.to(device), device), (there, "cpu")):
            linear.zero_grad()
            with quantizing(name):
                y = linear(x.to(at))
            y.backward(torch.full_like(y, 0.5 + turn))
        assert {t.device.type for t in (*here.parameters(), *here.buffers())} == {device}
        for a, b in zip(here.buffers(), there.buffers(), strict=True):
            assert torch.equal(a.cpu(), b)
        assert torch.equal(here.bias.grad.cpu(), there.bias.grad)


def test_models__half_of_a_trained_layer() -> None:
    linear = model(params_dtype=torch.float32).a_up
    call = called(linear, RECIPES["delayed"])
    train_one = batch(0, torch.float32)[0]
    call(train_one)
    scale = linear.fp8_scale.clone()
    linear.half()
    assert linear.weight.dtype == torch.float16
    assert torch.equal(linear.fp8_scale, scale)
    other = model(params_dtype=torch.float16).a_up
    other.load_state_dict(linear.state_dict())
    x = train_one.half()
    assert_same([call(x).detach()], [called(other, RECIPES["delayed"])(x).detach()])


# ---- shapes ----------------------------------------------------------------------------------


@every_recipe
def test_models__inputs_of_any_shape_and_stride(name: str) -> None:
    """As their contiguous copies in two axes."""
    linear = model().a_up
    wide = torch.randn(6, 3, 2, 2 * WIDTH, device=DEVICE).bfloat16()
    rows = wide[..., :WIDTH]
    inputs = [
        rows[0, 0, 0],
        rows,
        rows.transpose(0, 2),
        wide[..., ::2],
        rows[:1, :1, :1].expand(4, 3, 2, WIDTH),
        rows[:0],
        rows[:, :0],
    ]
    for x in inputs:
        found = []
        flat = x.reshape(-1, WIDTH).contiguous()
        for each in (x, flat):
            linear.rounding_state[1] = 0
            linear.fp8_scale.fill_(1.0)
            linear.fp8_grad_scale.fill_(1.0)
            linear.zero_grad()
            leaf = each.detach().requires_grad_()
            with quantizing(name):
                y = linear(leaf)
            assert y.shape == (*each.shape[:-1], 80)
            if each is x:
                y.sum().backward()  # a gradient of stride 0
            else:
                y.backward(torch.ones_like(y))
            grads = [leaf.grad.reshape(flat.shape), linear.weight.grad, linear.bias.grad]
            found.append([y.detach().reshape(-1, 80), *grads])
        if name == "none":  # another step from row to row may be another algorithm
            torch.testing.assert_close(*found, rtol=2.0**-6, atol=2.0**-6)
        else:
            assert_same(*found)


@every_recipe
def test_models__sizes_of_zero(name: str) -> None:
    for k, n in ((0, 32), (32, 0), (0, 0)):
        linear = octet.Linear(k, n, device=DEVICE, params_dtype=torch.bfloat16)
        x = torch.ones(5, k, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        with quantizing(name):
            y = linear(x)
        y.sum().backward()
        assert torch.equal(y, linear.bias.expand(5, n))
        assert not x.grad.any()
        assert x.grad.shape == x.shape
        assert linear.weight.grad.shape == (n, k)
        assert torch.equal(linear.bias.grad, torch.full_like(linear.bias, 5.0))


# ---- settings of torch's ---------------------------------------------------------------------


@every_recipe
def test_models__deterministic_algorithms(name: str) -> None:
    """New memory is then filled with NaN: nothing is read before it is written."""
    linear, other = model().a_up, model().a_up
    found = []
    for each, is_strict in ((linear, False), (other, True)):
        torch.use_deterministic_algorithms(is_strict)
        try:
            for turn in range(2):
                x, _ = batch(turn)
                x = x[..., :13, :].requires_grad_()
                each.zero_grad()
                with quantizing(name):
                    y = each(x)
                y.backward(torch.ones_like(y))
        finally:
            torch.use_deterministic_algorithms(False)
        found.append([y.detach(), *state(each)])
    assert_same(*found)


@a_few
def test_models__a_default_device(name: str) -> None:
    """Made and trained under it, weight gradients later."""
    torch.set_default_device(DEVICE)
    try:
        net = model(device=None, delay_wgrad_compute=True)
        assert {p.device.type for p in net.parameters()} == {DEVICE}
        for turn in range(2):
            x, dy = batch(turn)
            net.zero_grad()
            with quantizing(name):
                y = net(x)
            y.backward(dy)
            for linear in net.layers():
                linear.backward_dw()
        q = octet.NVFP4Quantizer(stochastic_rounding=True)
        drawn = q(torch.ones(64, 64))
        assert torch.equal(drawn.dequantize(), torch.ones(64, 64))
    finally:
        torch.set_default_device(None)
    other = model()
    train(other, called(other, RECIPES[name]), turns=2)
    assert_same(state(other), state(net))


def test_models__stochastic_quantizers_draw_anew() -> None:
    """Between two steps each element goes to both, in the shares of its distance."""
    x = torch.full((256, 256), 2.5, device=DEVICE)
    x[:, ::16] = 6.0
    q = octet.NVFP4Quantizer(stochastic_rounding=True, columnwise=False)
    first, second = q(x).dequantize(), q(x).dequantize()
    assert not torch.equal(first, second)
    drawn = first[x == 2.5]
    assert drawn.unique().tolist() == [2.0, 3.0]
    assert abs(float(drawn.mean()) - 2.5) < 0.02


# ---- threads and processes -------------------------------------------------------------------


def test_models__threads_of_different_recipes() -> None:
    want = {name: usual(name) for name in RECIPES}
    nets = {name: model() for name in RECIPES}
    barrier = threading.Barrier(len(RECIPES), timeout=120)
    found: dict[str, Any] = {}

    def work(name: str) -> None:
        net = nets[name]

        def call(x: torch.Tensor) -> torch.Tensor:
            barrier.wait()
            with quantizing(name):
                barrier.wait()
                y = net(x)
                barrier.wait()
            return y

        found[name] = train(net, call, sgd(net))

    threads = [threading.Thread(target=work, args=(name,)) for name in RECIPES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in RECIPES:
        assert_same(want[name], found[name])


@pytest.fixture(scope="module")
def process_group() -> Iterator[None]:
    """A group of this process alone."""
    from torch import distributed

    backend = "nccl" if DEVICE == "cuda" else "gloo"
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@every_recipe
@pytest.mark.usefixtures("process_group")
def test_models__data_parallel(name: str) -> None:
    net = model()
    wrapped = torch.nn.parallel.DistributedDataParallel(net)
    assert_same(usual(name), train(net, called(wrapped, RECIPES[name]), sgd(net)))


def shard(net: Any) -> Callable[..., Any]:  # noqa: ANN401
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(DEVICE, (1,))
    for linear in net.layers():
        fully_shard(linear, mesh=mesh)
    return fully_shard(net, mesh=mesh)


@every_recipe
@pytest.mark.usefixtures("process_group")
def test_models__fully_sharded(name: str) -> None:
    net = model()
    shard(net)
    found = train(net, called(net, RECIPES[name]), sgd(net))
    whole = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in found]
    assert_same(usual(name), whole)
