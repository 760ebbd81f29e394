"""State through torch's own ways to copy, move, load and look at models."""

import copy
import io
from collections.abc import Callable, Iterator

import octet
import pytest
import torch.distributed as dist
from laws import RECIPES, inputs, layer, step, within
from torch.nn.utils import parametrize

import torch

DELAYED = RECIPES["delayed"]
SCALING = ("fp8_state", "fp8_grad_state")


def trained() -> octet.Linear:
    linear, (x, grad) = layer(), inputs()
    for _ in range(2):
        step(linear, within(DELAYED, linear), x, grad)
    return linear


def saved_whole(linear: octet.Linear) -> octet.Linear:
    file = io.BytesIO()
    torch.save(linear, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def assigned(linear: octet.Linear) -> octet.Linear:
    other = layer(device="meta")
    other.load_state_dict(copy.deepcopy(linear.state_dict()), assign=True)
    return other


@pytest.mark.parametrize(
    "make",
    [
        saved_whole,
        copy.deepcopy,
        assigned,
        lambda linear: linear.type(torch.float16),
        lambda linear: linear.half(),
        lambda linear: linear.double().bfloat16(),
        lambda linear: linear.to_empty(device="cpu"),
    ],
    ids=["save", "deepcopy", "assign", "type", "half", "double", "to_empty"],
)
def test_loaders__state_stays_as_it_is_and_float32(
    make: Callable[[octet.Linear], octet.Linear],
) -> None:
    linear = trained()
    wanted = {name: linear._buffers[name].clone() for name in SCALING}
    assert not torch.equal(wanted["fp8_state"][0], torch.ones(3))
    other = make(linear)
    for name in SCALING:
        found = other._buffers[name]
        assert type(found) is torch.Tensor
        assert found.dtype == torch.float32
        assert torch.equal(found, wanted[name]), name


@pytest.mark.parametrize("prepared", [False, True])
def test_loaders__a_meta_layer_gets_fresh_state_where_a_checkpoint_has_none(
    prepared: bool,
) -> None:
    torch.use_deterministic_algorithms(True)  # uninitialized memory holds NaN
    try:
        weights = {k: v for k, v in trained().state_dict().items() if k not in SCALING}
        assigned, emptied = layer(device="meta"), layer(device="meta")
        if prepared:
            octet.prepare(assigned, DELAYED)
            octet.prepare(emptied, DELAYED)
        assigned.load_state_dict(weights, assign=True)
        emptied = emptied.to_empty(device="cpu")
        emptied.load_state_dict(weights)
        for linear in (assigned, emptied):
            assert len(list(linear.buffers())) == (2 if prepared else 0)
            assert torch.equal(linear.fp8_scale, torch.ones(3))
            assert torch.equal(linear.fp8_grad_scale, torch.ones(2))
            assert not linear.fp8_amax_history.any()
            assert not linear.fp8_grad_amax_history.any()
            x, grad = inputs()
            found = step(linear, within(DELAYED, linear), x, grad)
            assert all(tensor.isfinite().all() for tensor in found)
            assert all(type(tensor) is torch.Tensor for tensor in linear.buffers())
    finally:
        torch.use_deterministic_algorithms(False)


def test_loaders__a_layer_prepared_on_meta_compiles() -> None:
    linear = octet.prepare(layer(device="meta"), DELAYED)
    # As loaders do that set tensors one by one, of which a checkpoint has the weights alone.
    for name, tensor in layer().state_dict().items():
        setattr(linear, name, torch.nn.Parameter(tensor))
    x, grad = inputs()
    wanted = step(trained_once := layer(), within(DELAYED, trained_once), x, grad)
    call = torch.compile(within(DELAYED, linear), fullgraph=True, backend="aot_eager")
    found = step(linear, call, x, grad)
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    made = torch.nn.Sequential(
        torch.nn.Linear(64, 96), torch.nn.LayerNorm(96), torch.nn.Linear(96, 32)
    )
    return octet.convert(made)


@pytest.mark.parametrize("name", RECIPES)
def test_loaders__fx_keeps_layers_as_calls_of_modules(name: str) -> None:
    converted = model()
    traced = torch.fx.symbolic_trace(converted)
    assert [n.target for n in traced.graph.nodes if n.op == "call_module"] == ["0", "1", "2"]
    assert type(traced.get_submodule("0")) is octet.Linear
    x = torch.randn(8, 64)
    for _ in range(2):
        found = []
        for each in (converted, copy.deepcopy(traced)):
            torch.manual_seed(3)
            found.append(within(RECIPES[name], each.eval())(x))
        assert torch.equal(*found)


def test_loaders__weight_decay_groups_find_linear_layers() -> None:
    decayed = {
        f"{name}.weight"
        for name, module in model().named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    assert decayed == {"0.weight", "2.weight"}


class Doubled(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["none", "mxfp8", "delayed"])
def test_loaders__a_parametrized_weight_computes_as_a_plain_one(name: str, bias: bool) -> None:
    linear, plain = layer(bias=bias), layer(bias=bias)
    with torch.no_grad():
        plain.weight.mul_(2)
    parametrize.register_parametrization(linear, "weight", Doubled())
    x, grad = inputs()
    for _ in range(2):
        one, two = within(RECIPES[name], linear)(x), within(RECIPES[name], plain)(x)
        assert torch.equal(one, two)
        one.backward(grad)
        two.backward(grad)
    original = linear.parametrizations.weight.original
    assert torch.equal(original.grad, 2 * plain.weight.grad)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_loaders__tensor_parallel_layers_quantize(alone: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    wanted, split, x = model(), model(), torch.randn(8, 64)
    parallelize_module(split, init_device_mesh("cpu", (1,)), {"0": ColwiseParallel()})
    assert torch.equal(wanted(x), split(x))
    for name in ("mxfp8", "delayed"):
        assert torch.equal(*(within(RECIPES[name], of)(x) for of in (wanted, split)))
