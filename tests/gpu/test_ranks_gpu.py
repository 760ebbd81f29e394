"""Parallel layers on a GPU: one rank over NCCL, and two that share the GPU over gloo.

OCTET_TEST_RANKS_ON_CPU=1 runs them on a CPU instead, where gloo stands for NCCL.
"""

import copy
import os
from collections.abc import Iterator
from typing import Any

import octet
import pytest
import torch.distributed as dist
from laws import RECIPES
from octet._shard import QuantizedShard
from ranks import RankError, Ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import torch

HAS_GPU = torch.cuda.is_available()
ON_CPU = not HAS_GPU and "OCTET_TEST_RANKS_ON_CPU" in os.environ
DEVICE = "cpu" if ON_CPU else "cuda"
DTYPE = torch.bfloat16
pytestmark = pytest.mark.skipif(not HAS_GPU and not ON_CPU, reason="there is no GPU")

MODES = [("column", False), ("column", True), ("row", False), ("row", True)]


def within(name: str) -> Any:  # noqa: ANN401
    return octet.autocast(enabled=RECIPES[name] is not None, recipe=RECIPES[name])


# ---- one rank --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone() -> Iterator[Any]:
    """A mesh of this process."""
    backend = "gloo" if ON_CPU else "nccl"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh(DEVICE, (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


class Two(torch.nn.Module):
    """Two layers; without a bias behind the second one, which DTensor would add apart."""

    def __init__(self, first: dict[str, Any], second: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        options = {"params_dtype": DTYPE, "device": DEVICE}
        self.up = octet.Linear(256, 384, **options, **first)
        self.down = octet.Linear(384, 256, bias=False, **options, **second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def train(of: torch.nn.Module, name: str, call: Any = None) -> list[torch.Tensor]:  # noqa: ANN401
    """Losses and gradients of the input of some steps. The learning rate is a power of two, so
    that a CPU's step is the GPU's."""
    optimizer, found = torch.optim.SGD(of.parameters(), lr=0.125), []
    for number in range(3):
        torch.manual_seed(number)
        x = torch.randn(64, 256, dtype=DTYPE).to(DEVICE).requires_grad_()
        with within(name):
            loss = (of if call is None else call)(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found += [loss.detach(), x.grad]
    return found


def assert_same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert all(map(torch.equal, found, wanted))


@pytest.mark.usefixtures("same_seeds")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", RECIPES)
def test_ranks_gpu__a_group_of_one_is_no_group(name: str, compiled: bool, alone: Any) -> None:  # noqa: ANN401
    split = {"tp_group": alone, "sequence_parallel": True}
    made = Two({**split, "parallel_mode": "column"}, {**split, "parallel_mode": "row"})
    call = torch.compile(made, backend="aot_eager", fullgraph=True) if compiled else None
    assert_same(train(made, name, call), train(Two({}, {}), name))


@pytest.mark.usefixtures("same_seeds")
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", [name for name in RECIPES if name != "none"])
def test_ranks_gpu__dtensors_on_one_rank(name: str, compiled: bool, alone: Any) -> None:  # noqa: ANN401
    made, plain = Two({}, {}), Two({}, {})
    if name == "delayed":
        octet.prepare(made, RECIPES[name])
    parallelize_module(made, alone, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    call = torch.compile(made, backend="aot_eager", fullgraph=True) if compiled else None
    assert_same(train(made, name, call), train(plain, name))


@pytest.mark.usefixtures("same_seeds")
@pytest.mark.parametrize("kind", ["plain", "quantized", "gathered"])
@pytest.mark.parametrize("name", RECIPES)
def test_ranks_gpu__shards_on_the_cpu(name: str, kind: str, alone: Any) -> None:  # noqa: ANN401
    """CPUOffloadPolicy, by pinned memory where there is a GPU."""
    if kind != "plain" and name == "none":
        pytest.skip("nothing is quantized")
    if (name, kind) == ("delayed", "gathered"):
        pytest.skip("its weights are scaled by their own amaxes then")
    with octet.quantized_model_init(enabled=kind == "quantized", recipe=RECIPES[name]):
        made = Two({}, {})
    wanted = copy.deepcopy(made)
    if kind == "gathered":
        octet.fsdp_gather_quantized(made, RECIPES[name])
    for part in (made.up, made.down, made):
        fully_shard(part, mesh=alone, offload_policy=CPUOffloadPolicy(pin_memory=HAS_GPU))
    assert all(p.device.type == "cpu" for p in made.parameters())
    assert_same(train(made, name), train(wanted, name))
    for one, two in zip(made.parameters(), wanted.parameters(), strict=True):
        found = one.to_local()
        found = found.dequantize() if isinstance(found, QuantizedShard) else found
        whole = two.dequantize() if isinstance(two, octet.QuantizedTensor) else two
        assert torch.equal(found, whole.cpu())


# ---- two ranks -------------------------------------------------------------------------------

# Rounded to nearest, so that what the shares compute is known to the bit.
EXACT = {
    **{name: RECIPES[name] for name in RECIPES if name not in ("nvfp4", "mxfp4")},
    "nvfp4": octet.recipe.NVFP4BlockScaling(disable_stochastic_rounding=True),
    "mxfp4": octet.recipe.MXFP4BlockScaling(disable_stochastic_rounding=True),
}


def collectives(rank: int, device: str) -> None:
    """Those that split layers use in eager code, as they use them."""
    ops, name = torch.ops._c10d_functional, dist.group.WORLD.group_name
    x = torch.arange(8.0, device=device) + rank
    gathered = torch.empty(64, dtype=torch.uint8, device=device)
    for started in (
        ops.all_gather_into_tensor_out(x.view(torch.uint8), 2, name, out=gathered),
        ops.reduce_scatter_tensor(x.bfloat16(), "sum", 2, name),
        ops.all_reduce(x.bfloat16(), "sum", name),
        ops.all_reduce(x[:1], "max", name),
    ):
        ops.wait_tensor(started)


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    """Two processes that share the GPU; NCCL wants a GPU for each, so gloo moves tensors."""
    ranks = Ranks(2)
    try:
        ranks.run(collectives, DEVICE)
    except RankError as error:
        ranks.close()
        pytest.skip(f"gloo of torch {torch.__version__} does not move GPU tensors: {error}")
    yield ranks
    ranks.close()


def shares(mode: str, name: str, tensors: tuple[torch.Tensor, torch.Tensor]) -> Any:  # noqa: ANN401
    """Output, gradient of the input and of the weight of an unsplit layer of each share."""
    torch.manual_seed(7)
    whole = octet.Linear(256, 512, params_dtype=DTYPE, device=DEVICE, bias=mode == "column")
    axis, found = (0 if mode == "column" else 1), []
    for rank in range(2):
        weight = whole.weight.detach().chunk(2, axis)[rank]
        options = {"params_dtype": DTYPE, "device": DEVICE, "bias": mode == "column"}
        layer = octet.Linear(weight.shape[1], weight.shape[0], **options)
        x, grad = tensors
        with torch.no_grad():
            layer.weight.copy_(weight)
            if mode == "column":
                layer.bias.copy_(whole.bias.chunk(2)[rank])
        x = x if mode == "column" else x.chunk(2, -1)[rank]
        grad = grad.chunk(2, -1)[rank] if mode == "column" else grad
        x = x.clone().requires_grad_()
        with octet.autocast(enabled=EXACT[name] is not None, recipe=EXACT[name]):
            y = layer(x)
        y.backward(grad)
        found.append((y.detach(), x.grad, layer.weight.grad))
    return found


def split(rank: int, name: str, compiled: bool) -> None:
    """A split layer beside its shares, in every mode; ranks' sums have two summands, and so one
    result."""
    for mode, sequence in MODES:
        torch._dynamo.reset()
        torch.manual_seed(2)
        x = torch.randn(256, 256).to(DTYPE).to(DEVICE)
        grad = torch.randn(256, 512).to(DTYPE).to(DEVICE)
        outputs, inputs, weights = zip(*shares(mode, name, (x, grad)), strict=True)
        torch.manual_seed(7)
        layer = octet.Linear(
            256,
            512,
            params_dtype=DTYPE,
            device=DEVICE,
            bias=mode == "column",
            parallel_mode=mode,
            tp_group=dist.group.WORLD,
            sequence_parallel=sequence,
        )
        mine = (lambda t: t.chunk(2)[rank]) if sequence else (lambda t: t)
        x = mine(x) if mode == "column" else x.chunk(2, -1)[rank]
        grad = grad.chunk(2, -1)[rank] if mode == "column" else mine(grad)
        x = x.clone().requires_grad_()
        call = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
        with octet.autocast(enabled=EXACT[name] is not None, recipe=EXACT[name]):
            if compiled and sequence and not ON_CPU:
                with pytest.raises(
                    Exception, match="gathers by gloo, which cannot gather cuda"
                ):
                    call(x).backward(grad.contiguous())
                continue
            y = call(x)
        y.backward(grad.contiguous())
        if mode == "column":
            wanted = outputs[rank], mine(inputs[0] + inputs[1])
        else:
            wanted = mine(outputs[0] + outputs[1]), inputs[rank]
        assert torch.equal(y, wanted[0]), (mode, sequence)
        assert torch.equal(x.grad, wanted[1]), (mode, sequence)
        assert torch.equal(layer.weight.grad, weights[rank]), (mode, sequence)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_ranks_gpu__two_ranks_compute_what_unsplit_layers_do(
    name: str, compiled: bool, two: Ranks
) -> None:
    two.run(split, name, compiled)


def chunked(rank: int, name: str, mode: str) -> None:
    """An operand that is gathered in chunks beside one that is gathered at once. On a GPU the
    library may sum products of fewer rows in another order."""
    found = []
    for chunks in (False, 2):
        torch.manual_seed(7)
        layer = octet.Linear(
            256,
            512,
            params_dtype=DTYPE,
            device=DEVICE,
            bias=mode == "column",
            parallel_mode=mode,
            tp_group=dist.group.WORLD,
            sequence_parallel=True,
            ub_overlap_ag=chunks,
        )
        torch.manual_seed(2)
        column = mode == "column"
        x = torch.randn(*((512, 256) if column else (1024, 128))).to(DTYPE).to(DEVICE)
        for _ in range(3):
            inp = x.clone().requires_grad_()
            with octet.autocast(recipe=EXACT[name]):
                y = layer(inp)
            y.backward(torch.linspace(-1, 1, y.numel(), device=DEVICE).to(DTYPE).view_as(y))
            x = x.roll(1, 0) * 1.5
        found.append([y.detach(), inp.grad, layer.weight.grad])
    for one, two in zip(*found, strict=True):
        error = (one.double() - two.double()).norm() / one.double().norm()
        assert torch.equal(one, two) if ON_CPU else float(error) < 2.0**-6, float(error)


@pytest.mark.parametrize("mode", ["column", "row"])
@pytest.mark.parametrize("name", [name for name in EXACT if name != "none"])
def test_ranks_gpu__gathers_in_chunks(name: str, mode: str, two: Ranks) -> None:
    two.run(chunked, name, mode)
