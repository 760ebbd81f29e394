"""parallelize_module of layers whose weights are stored quantized: ranks hold bytes of them."""

import copy
from pathlib import Path
from typing import Any

import octet
import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsdp_workers import Workers, workers  # noqa: F401
from laws import QUANTIZERS, RECIPES
from octet._distribute import cut, step_of
from test_dtensor import QUANTIZED, _Sum, _Summed, call
from test_fsdp_quantized import OWN_SCALES, Counted
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import torch

STYLES = {"up": ColwiseParallel(), "down": RowwiseParallel()}


class MLP(torch.nn.Module):
    """A half of the middle axis is whole blocks of every scheme."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.up = torch.nn.Linear(64, 256)
        self.down = torch.nn.Linear(256, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


def model(name: str, seed: int = 1) -> torch.nn.Module:
    torch.manual_seed(seed)
    made = octet.convert(MLP(), weights=RECIPES[name])
    return octet.prepare(made, RECIPES[name]) if name == "delayed" else made


def same_bytes(one: Any, two: Any) -> bool:  # noqa: ANN401
    assert isinstance(one, octet.QuantizedTensor)
    assert isinstance(two, octet.QuantizedTensor)
    assert one._text == two._text
    return all(map(torch.equal, one.buffers(), two.buffers()))


# ---- cuts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda q: q.text)
@pytest.mark.parametrize("shape", [(300, 200), (64, 96), (256, 512)])
@pytest.mark.parametrize("dim", [0, 1])
def test_cut__parts_stand_for_parts(quantizer: Any, shape: tuple[int, int], dim: int) -> None:  # noqa: ANN401
    whole = quantizer(torch.randn(shape, dtype=torch.bfloat16))
    step = step_of(whole._text, dim)
    if step == 0:
        return
    wanted, at = whole.dequantize(), 0
    for count in (step, shape[dim] // step // 2 * step, shape[dim]):
        count = min(count, shape[dim] - at)
        if count <= 0:
            continue
        part = cut(whole, dim, at, count)
        assert torch.equal(part.dequantize(), wanted.narrow(dim, at, count))
        fresh = quantizer(torch.zeros(part.shape, dtype=torch.bfloat16))
        assert [b.shape for b in part.buffers()] == [b.shape for b in fresh.buffers()]
        at += count


# ---- calls -----------------------------------------------------------------------------------


class Local:
    """The same by hand: layers of a rank's own bytes, and sums over the ranks."""

    def __init__(self, of: torch.nn.Module, mesh: DeviceMesh, name: str) -> None:
        rank, ranks = mesh.get_local_rank(), mesh.size()
        self.group, self.norm = mesh.get_group(), of.norm
        each = 256 // ranks
        self.up = octet.Linear(64, each, device="cpu")
        self.down = octet.Linear(each, 64, bias=False, device="cpu")
        for layer, whole, dim in ((self.up, of.up, 0), (self.down, of.down, 1)):
            part = cut(whole.weight.detach(), dim, rank * each, each)
            layer.weight = torch.nn.Parameter(part)
        with torch.no_grad():
            self.up.bias.copy_(of.up.bias.chunk(ranks)[rank])
        if name == "delayed":
            octet.prepare(torch.nn.ModuleList([self.up, self.down]), RECIPES[name])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = _Summed.apply(self.norm(x), self.group)
        return _Sum.apply(self.down(torch.relu(self.up(x))), self.group)


def styles_job(mesh: DeviceMesh, name: str, compiled: bool) -> None:
    """Weights are those of the first rank; a step is the one by hand, and so are the bytes that
    the optimizer leaves."""
    rank = mesh.get_local_rank()
    made, by_hand = model(name, seed=1 + rank), Local(model(name), mesh, name)
    parallelize_module(made, mesh, STYLES)
    for layer in ("up", "down"):
        local = getattr(made, layer).weight.to_local()
        assert same_bytes(local, getattr(by_hand, layer).weight)
        assert not local._is_part
    run = made
    if compiled:
        counter = CompileCounterWithBackend("aot_eager")
        run = torch.compile(made, backend=counter, fullgraph=True)
    optimizers = [
        torch.optim.SGD([getattr(of, n).weight for n in ("up", "down")], lr=0.1)
        for of in (made, by_hand)
    ]
    for number in range(2):
        torch.manual_seed(number)
        x = torch.randn(5, 6, 64, requires_grad=True)
        other = x.detach().clone().requires_grad_()
        y, wanted = call(name, run, x), call(name, by_hand, other)
        assert torch.equal(y, wanted), number
        y.square().sum().backward()
        wanted.square().sum().backward()
        assert torch.equal(x.grad, other.grad)
        for layer in ("up", "down"):
            found, given = getattr(made, layer).weight, getattr(by_hand, layer).weight
            assert torch.equal(found.grad.to_local(), given.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for layer in ("up", "down"):
            found, given = getattr(made, layer).weight, getattr(by_hand, layer).weight
            assert same_bytes(found.to_local(), given)
    if compiled:
        assert counter.frame_count > 0


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_dtensor__a_rank_runs_on_its_bytes(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(styles_job, 2, name, False)


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_dtensor__compiled(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(styles_job, 2, name, True)


def unsplit_job(mesh: DeviceMesh, name: str) -> None:
    """The bytes are the whole's: a column-parallel layer's output is the unsplit layer's, and
    full_tensor() is what the whole stands for. Outside an autocast layers compute with that."""
    made, whole = model(name), model(name)
    parallelize_module(made, mesh, STYLES)
    for layer in ("up", "down"):
        wanted = getattr(whole, layer).weight.dequantize()
        assert torch.equal(getattr(made, layer).weight.full_tensor(), wanted)
    torch.manual_seed(0)
    x = torch.randn(5, 64)
    wanted = call(name, whole.up, x).chunk(mesh.size(), 1)[mesh.get_local_rank()]
    # A product of fewer columns may add up in another order.
    assert torch.allclose(call(name, made.up, x), wanted, atol=1e-6)
    assert torch.allclose(made(x), whole(x), atol=1e-5)


def sequence_job(mesh: DeviceMesh, name: str) -> None:
    """torch gathers before the layer and scatters behind it: the layer's part is the same."""
    made, plain = model(name), model(name)
    styles = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(made, mesh, styles)
    parallelize_module(plain, mesh, STYLES)
    rank, size = mesh.get_local_rank(), mesh.size()
    torch.manual_seed(0)
    x = torch.randn(5, 6, 64)
    shard = x.chunk(size, 1)[rank].clone().requires_grad_()
    x.requires_grad_()
    y, wanted = call(name, made, shard), call(name, plain, x)
    assert torch.equal(y, wanted.chunk(size, 1)[rank])
    y.square().sum().backward()
    wanted.square().sum().backward()
    assert torch.equal(shard.grad, x.grad.chunk(size, 1)[rank])


def beside_job(mesh: DeviceMesh, name: str) -> None:
    """parallel_mode's layers with the same bytes compute the same."""
    made, rank = model(name), mesh.get_local_rank()
    options = {"tp_group": mesh, "bias": False, "device": "cpu"}
    up = octet.Linear(64, 256, parallel_mode="column", **{**options, "bias": True})
    down = octet.Linear(256, 64, parallel_mode="row", **options)
    for layer, whole, dim in ((up, made.up, 0), (down, made.down, 1)):
        part = cut(whole.weight.detach(), dim, rank * 128, 128)
        layer.weight = torch.nn.Parameter(part)
    with torch.no_grad():
        up.bias.copy_(made.up.bias.chunk(2)[rank])
    norm = copy.deepcopy(made.norm)
    parallelize_module(made, mesh, STYLES)
    torch.manual_seed(0)
    x = torch.randn(8, 64)
    y = call(name, made, x)
    wanted = call(name, lambda x: down(torch.relu(up(norm(x)))), x)
    assert torch.equal(y, wanted)
    y.sum().backward()
    wanted.sum().backward()
    assert torch.equal(made.up.weight.grad.to_local(), up.weight.grad)
    assert torch.equal(made.down.weight.grad.to_local(), down.weight.grad)


def test_quantized_dtensor__equals_others(workers: Workers) -> None:  # noqa: F811
    for name in QUANTIZED:
        workers.run(unsplit_job, 2, name)
        workers.run(sequence_job, 2, name)
        if name != "delayed":  # parallel_mode reduces its amaxes over the ranks
            workers.run(beside_job, 2, name)


# ---- other cuts ------------------------------------------------------------------------------


def uneven_job(mesh: DeviceMesh) -> None:
    """One scale, or no block that is cut: parts may be uneven, and ranks may hold nothing."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    for name, shape, dim in (
        ("current", (70, 44), 0),
        ("current", (70, 44), 1),
        ("mxfp8", (95, 64), 0),
        ("nvfp4", (64, 46), 1),
        ("current", (2, 8), 0),
    ):
        with octet.quantized_model_init(recipe=RECIPES[name]):
            layer = octet.Linear(shape[1], shape[0], bias=False, device="cpu")
        whole = layer.weight.detach()
        made = distribute_tensor(whole, mesh, [Shard(dim)])
        dist.broadcast(given := whole.dequantize(), 0, group=mesh.get_group())
        assert torch.equal(made.full_tensor(), given)
        local = made.to_local()
        assert isinstance(local, octet.QuantizedTensor)
        each = -(-shape[dim] // ranks)
        assert local.shape[dim] == max(0, min(each, shape[dim] - rank * each))
        copied = distribute_tensor(whole, mesh, [Replicate()]).to_local()
        assert isinstance(copied, octet.QuantizedTensor)
        assert torch.equal(copied.dequantize(), given)
        alone = distribute_tensor(whole, mesh, [Shard(dim)], src_data_rank=None)
        assert torch.equal(alone.to_local().dequantize(), local.dequantize())


def test_quantized_dtensor__parts_may_be_uneven(workers: Workers) -> None:  # noqa: F811
    workers.run(uneven_job, 3)


def refused_job(mesh: DeviceMesh) -> None:
    for name, style, words in (
        (
            "mxfp8",
            ColwiseParallel(),
            r"weight is .* get 22 rows each, and mxfp8.* blocks of 32",
        ),
        ("block", RowwiseParallel(), r"get 35 columns each, and fp8-block.* a multiple of 128"),
    ):
        with octet.quantized_model_init(recipe=RECIPES[name]):
            layer = octet.Linear(70, 44, device="cpu", name="up")
        with pytest.raises(
            ValueError, match=rf"Linear 'up' \(70 -> 44\): .*{words}.*parallel_"
        ):
            parallelize_module(layer, mesh, style)


def test_quantized_dtensor__cuts_through_blocks_are_refused(workers: Workers) -> None:  # noqa: F811
    workers.run(refused_job, 2)


class Two(torch.nn.Module):
    """Sizes whose halves are no whole blocks."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__()
        column, row = ({**options, "parallel_mode": m} for m in ("column", "row"))
        self.up = octet.Linear(48, 72, device="cpu", **(column if options else {}))
        self.down = octet.Linear(72, 48, bias=False, device="cpu", **(row if options else {}))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def after_job(mesh: DeviceMesh, name: str) -> None:
    """The fix that the refusal names: ranks quantize their shares, as parallel_mode's do; and
    the way back."""
    recipe = RECIPES[name]
    torch.manual_seed(1)
    made = parallelize_module(Two(), mesh, STYLES)
    plain = made.up.weight.full_tensor()
    octet.convert(made, weights=recipe)
    torch.manual_seed(1)
    with octet.quantized_model_init(recipe=recipe):
        split = Two(tp_group=mesh)
    torch.manual_seed(2)
    x = torch.randn(8, 48)
    y, wanted = (call(name, of, x) for of in (made, split))
    assert torch.equal(y, wanted)
    y.sum().backward()
    wanted.sum().backward()
    for layer in ("up", "down"):
        one, two = getattr(made, layer), getattr(split, layer)
        assert same_bytes(one.weight.to_local(), two.weight)
        assert torch.equal(one.weight.grad.to_local(), two.weight.grad)
    assert torch.zeros_like(made.up.weight).to_local().__class__ is torch.Tensor
    stands_for = made.up.weight.full_tensor()
    octet.unconvert(made)
    assert type(made.up.weight.to_local()) is torch.Tensor
    assert torch.equal(made.up.weight.full_tensor(), stands_for)
    assert torch.allclose(stands_for, plain, atol=0.05)


def test_quantized_dtensor__weights_may_be_quantized_afterwards(workers: Workers) -> None:  # noqa: F811
    for name in QUANTIZED:
        if name != "delayed":  # whose amaxes parallel_mode reduces over the ranks
            workers.run(after_job, 2, name)


# ---- checkpoints -----------------------------------------------------------------------------


def saved_job(mesh: DeviceMesh, name: str, folder: str) -> None:
    """state_dict, load_state_dict and torch.distributed.checkpoint keep the bytes."""
    made, by_dict, by_dcp = (model(name, seed) for seed in (1, 2, 3))
    for of in (made, by_dict, by_dcp):
        parallelize_module(of, mesh, STYLES)
    by_dict.load_state_dict(copy.deepcopy(made.state_dict()))
    place = {"checkpoint_id": f"{folder}/{name}", "process_group": mesh.get_group()}
    dcp.save({"model": get_model_state_dict(made)}, **place)
    state = {"model": get_model_state_dict(by_dcp)}
    dcp.load(state, **place)
    set_model_state_dict(by_dcp, state["model"])
    for of in (by_dict, by_dcp):
        for layer in ("up", "down"):
            found, wanted = getattr(of, layer).weight, getattr(made, layer).weight
            assert same_bytes(found.to_local(), wanted.to_local()), (name, layer)
    x = torch.randn(4, 64)
    dist.broadcast(x, 0, group=mesh.get_group())
    wanted = call(name, made, x)
    assert all(torch.equal(call(name, of, x), wanted) for of in (by_dict, by_dcp))


def test_quantized_dtensor__checkpoints_keep_the_bytes(
    workers: Workers,  # noqa: F811
    tmp_path: Path,
) -> None:
    for name in QUANTIZED:
        workers.run(saved_job, 2, name, str(tmp_path))


def save_job(mesh: DeviceMesh, name: str, folder: str) -> None:
    made = parallelize_module(model(name), mesh, STYLES)
    place = {"checkpoint_id": f"{folder}/{name}", "process_group": mesh.get_group()}
    dcp.save({"model": get_model_state_dict(made)}, **place)


def load_job(mesh: DeviceMesh, name: str, folder: str) -> None:
    """More ranks read their bytes of what was saved."""
    whole, made, rank = model(name), model(name, 2), mesh.get_local_rank()
    parallelize_module(made, mesh, STYLES)
    state = {"model": get_model_state_dict(made)}
    dcp.load(state, checkpoint_id=f"{folder}/{name}", process_group=mesh.get_group())
    set_model_state_dict(made, state["model"])
    for layer, dim in (("up", 0), ("down", 1)):
        wanted = cut(getattr(whole, layer).weight.detach(), dim, rank * 64, 64)
        assert same_bytes(getattr(made, layer).weight.to_local(), wanted), layer


def fewer_job(mesh: DeviceMesh, name: str, folder: str) -> None:
    """Bytes of ranks that have trained have scales of their own, and are not joined."""
    state = {"model": get_model_state_dict(model(name))}
    with pytest.raises(CheckpointException, match="a copy of a part of another"):
        dcp.load(state, checkpoint_id=f"{folder}/{name}", process_group=mesh.get_group())


def test_quantized_dtensor__checkpoints_load_on_more_ranks(
    workers: Workers,  # noqa: F811
    tmp_path: Path,
) -> None:
    for name in ("current", "mxfp8", "nvfp4"):
        workers.run(save_job, 2, name, str(tmp_path))
        workers.run(load_job, 4, name, str(tmp_path))
        workers.run(fewer_job, 1, name, str(tmp_path))


def block_job(mesh: DeviceMesh, folder: str) -> None:
    """Half of what a rank has saved may be half a block."""
    made = parallelize_module(model("current"), mesh, STYLES)
    state = {"model": get_model_state_dict(made)}
    for layer in ("up", "down"):
        part = getattr(model("block"), layer).weight.detach()
        state["model"][f"{layer}.weight"] = part
    place = {"checkpoint_id": f"{folder}/block", "process_group": mesh.get_group()}
    dcp.save(state, **place)
    state = {"model": get_model_state_dict(made)}
    with pytest.raises(
        CheckpointException, match=r"64 cut a block of 128; load it on as many ranks"
    ):
        dcp.load(state, **place)


def test_quantized_dtensor__a_checkpoints_block_is_not_cut(
    workers: Workers,  # noqa: F811
    tmp_path: Path,
) -> None:
    workers.run(block_job, 4, str(tmp_path))


def states_job(mesh: DeviceMesh, name: str) -> None:
    """From meta; moments are plain, also of a model that was moved or copied since."""
    with octet.quantized_model_init(recipe=RECIPES[name]):
        made = torch.nn.Sequential(*(octet.Linear(256, 256, device="meta") for _ in range(2)))
    parallelize_module(made, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    made.to_empty(device="cpu")
    for layer in made:
        layer.reset_parameters()
        assert isinstance(layer.weight.to_local(), octet.QuantizedTensor)
        drawn = layer.weight.full_tensor()
        assert drawn.abs().max() <= 1.1 / 16
        assert drawn.std() > 0
    for of in (made, copy.deepcopy(made).bfloat16()):
        with octet.autocast(recipe=RECIPES[name]):
            of(torch.randn(4, 256, dtype=of[0].weight.dtype)).sum().backward()
        optimizer = torch.optim.AdamW(of.parameters())
        optimizer.step()
        for layer in of:
            assert isinstance(layer.weight.to_local(), octet.QuantizedTensor)
            moment = optimizer.state[layer.weight]["exp_avg"].to_local()
            assert type(moment) is torch.Tensor


def test_quantized_dtensor__optimizer_states_are_plain(workers: Workers) -> None:  # noqa: F811
    for name in ("current", "mxfp8"):
        workers.run(states_job, 2, name)


# ---- with fully_shard ------------------------------------------------------------------------


def mesh_job(mesh: DeviceMesh, name: str, compiled: bool, gathers: bool) -> None:
    """Shards of shards: steps are those of tensor parallelism on each half of the batch. Either
    weights are stored quantized, or they travel so."""
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    made, plain = (plain_model(name) if gathers else model(name) for _ in range(2))
    for of in (made, plain):
        parallelize_module(of, both["model"], STYLES)
    if gathers:
        octet.fsdp_gather_quantized(made, RECIPES[name])
    if compiled:
        made.compile(backend="aot_eager")
    fully_shard(made, mesh=both["data"])
    optimizers = [torch.optim.SGD(of.parameters(), lr=0.1) for of in (made, plain)]
    for number in range(2):
        torch.manual_seed(number)
        x = torch.randn(2, 5, 64)[both["data"].get_local_rank()]
        losses = [call(name, of, x).square().sum() for of in (made, plain)]
        assert torch.equal(*losses), number
        for loss in losses:
            loss.backward()
        for q in plain.parameters():
            local = q.grad.to_local() if isinstance(q.grad, DTensor) else q.grad
            dist.all_reduce(local, group=both["data"].get_group())
            local /= 2
        for (key, p), q in zip(made.named_parameters(), plain.parameters(), strict=True):
            total = q.grad.full_tensor() if isinstance(q.grad, DTensor) else q.grad
            assert torch.equal(p.grad.full_tensor(), total), key
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    with pytest.raises(ValueError, match=r"'up' .*: fully_shard has cut its weight; call it"):
        octet.fsdp_gather_quantized(made, RECIPES[name])
    with pytest.raises(ValueError, match=r"has cut the weight of up; call convert before"):
        octet.convert(made, weights=RECIPES[name])


def plain_model(name: str) -> torch.nn.Module:
    torch.manual_seed(1)
    made = octet.convert(MLP())
    return octet.prepare(made, RECIPES[name]) if name == "delayed" else made


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized_dtensor__on_a_mesh_with_fully_shard(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(mesh_job, 4, name, False, False)


def test_quantized_dtensor__compiled_on_a_mesh_with_fully_shard(workers: Workers) -> None:  # noqa: F811
    for name in ("current", "nvfp4"):
        workers.run(mesh_job, 4, name, True, False)


@pytest.mark.parametrize("name", OWN_SCALES)
def test_gather_quantized__of_dtensors(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(mesh_job, 4, name, False, True)


def test_gather_quantized__of_dtensors_compiled(workers: Workers) -> None:  # noqa: F811
    for name in ("current", "mxfp8"):
        workers.run(mesh_job, 4, name, True, True)


def traffic_job(mesh: DeviceMesh, name: str, gathers: bool) -> list[float]:
    """What the gathers over the data ranks bring, as parts of what bfloat16 brings."""
    recipe, found = RECIPES[name], []
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    options = {"bias": False, "device": "cpu", "params_dtype": torch.bfloat16}
    with octet.quantized_model_init(enabled=not gathers, recipe=recipe):
        made = torch.nn.Sequential(*(octet.Linear(1024, 1024, **options) for _ in range(2)))
    for at, layer in enumerate(made):
        style = RowwiseParallel() if at % 2 else ColwiseParallel()
        parallelize_module(layer, both["model"], style)
    if gathers:
        octet.fsdp_gather_quantized(made, recipe)
    for part in (*made, made):
        fully_shard(part, mesh=both["data"])
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    for number in range(2):
        with Counted() as count:
            with octet.autocast(recipe=recipe):
                y = made(torch.randn(4, 1024, dtype=torch.bfloat16))
            y.float().sum().backward()
            optimizer.step()
        assert len(count.gathered) == 4
        needs = name in ("delayed", "current", "nvfp4")
        assert count.reduced == needs * (1 + 2 * (gathers and number == 0))
        found += [size / (1024 * 1024) for size in count.gathered]  # half of 2 bytes each
    return found


@pytest.mark.parametrize("name", QUANTIZED)
def test_gather_quantized__bytes_of_dtensors_travel(workers: Workers, name: str) -> None:  # noqa: F811
    most = 0.30 if "4" in name else 0.52
    for gathers in (False, True):
        for found in workers.run(traffic_job, 4, name, gathers):
            assert max(found) <= most
