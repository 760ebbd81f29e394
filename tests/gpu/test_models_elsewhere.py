"""Models elsewhere: copied, moved, sharded, in threads, of any shape, under any setting."""

import copy
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same
from models import (
    DEVICE,
    WIDTH,
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

import torch

every_recipe = pytest.mark.parametrize("name", RECIPES)
a_few = pytest.mark.parametrize("name", ["delayed", "current", "nvfp4"])


# ---- copies and other places -----------------------------------------------------------------


@every_recipe
def test_models_elsewhere__copies_go_on_as_the_model_does(name: str) -> None:
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
        assert list(other.state_dict()) == list(net.state_dict())
        assert_same(want, train(other, called(other, RECIPES[name])))


@pytest.mark.usefixtures("same_seeds")
@pytest.mark.parametrize("name", ["delayed", "nvfp4"])
def test_models_elsewhere__state_moves_with_the_layer(name: str) -> None:
    """A step on the CPU, one here, one on the CPU: scales are those of the CPU."""
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


def test_models_elsewhere__half_of_a_trained_layer() -> None:
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
def test_models_elsewhere__inputs_of_any_shape_and_stride(name: str) -> None:
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
            linear.reset_state()
            linear.zero_grad()
            seed(0)
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
def test_models_elsewhere__sizes_of_zero(name: str) -> None:
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
def test_models_elsewhere__deterministic_algorithms(name: str) -> None:
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
                seed(turn)
                with quantizing(name):
                    y = each(x)
                y.backward(torch.ones_like(y))
        finally:
            torch.use_deterministic_algorithms(False)
        found.append([y.detach(), *state(each)])
    assert_same(*found)


@a_few
def test_models_elsewhere__a_default_device(name: str) -> None:
    """Made and trained under it, weight gradients later."""
    torch.set_default_device(DEVICE)
    try:
        net = model(device=None, delay_wgrad_compute=True)
        assert {p.device.type for p in net.parameters()} == {DEVICE}
        for turn in range(2):
            x, dy = batch(turn)
            net.zero_grad()
            seed(turn)
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


def test_models_elsewhere__stochastic_quantizers_draw_anew() -> None:
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


def test_models_elsewhere__threads_of_different_recipes() -> None:
    # Two recipes that draw share torch's generator, and threads have no order: one of them.
    names = [name for name in RECIPES if name != "mxfp4"]
    want = {name: usual(name) for name in names}
    nets = {name: model() for name in names}
    barrier = threading.Barrier(len(names), timeout=120)
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

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
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
def test_models_elsewhere__data_parallel(name: str) -> None:
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
def test_models_elsewhere__fully_sharded(name: str) -> None:
    net = model()
    shard(net)
    found = train(net, called(net, RECIPES[name]), sgd(net))
    whole = [t.full_tensor() if hasattr(t, "full_tensor") else t for t in found]
    assert_same(usual(name), whole)
