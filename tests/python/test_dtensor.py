"""parallelize_module: layers whose weight is a DTensor run on what each rank holds."""

from typing import Any

import octet
import pytest
import torch.distributed as dist
from fsdp_workers import Workers, workers  # noqa: F401
from laws import RECIPES
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.torch_version import TorchVersion

import torch

QUANTIZED = [name for name in RECIPES if name != "none"]


class MLP(torch.nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(70, dtype=dtype)
        self.up = torch.nn.Linear(70, 44, dtype=dtype)
        self.down = torch.nn.Linear(44, 70, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


STYLES = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def model(name: str) -> torch.nn.Module:
    torch.manual_seed(1)
    made = octet.convert(MLP())
    return octet.prepare(made, RECIPES[name]) if name == "delayed" else made


class Local:
    """The same by hand: layers of a rank's own rows and columns, and sums over the ranks."""

    def __init__(self, of: torch.nn.Module, mesh: DeviceMesh, name: str) -> None:
        rank, size = mesh.get_local_rank(), mesh.size()
        self.group, self.norm = mesh.get_group(), of.norm
        pick = lambda t, dim: t.detach().chunk(size, dim)[rank].contiguous()  # noqa: E731
        rows, columns = pick(of.up.weight, 0), pick(of.down.weight, 1)
        self.up = octet.Linear(70, rows.shape[0], device="cpu")
        self.down = octet.Linear(columns.shape[1], 70, bias=False, device="cpu")
        self.bias = of.down.bias.detach().clone().requires_grad_()
        with torch.no_grad():
            self.up.weight.copy_(rows)
            self.up.bias.copy_(pick(of.up.bias, 0))
            self.down.weight.copy_(columns)
        if name == "delayed":
            octet.prepare(torch.nn.ModuleList([self.up, self.down]), RECIPES[name])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.relu(self.up(_Summed.apply(self.norm(x), self.group))))
        first = dist.get_rank(self.group) == 0
        return _Sum.apply(y + self.bias if first else y + 0 * self.bias, self.group)


class _Sum(torch.autograd.Function):
    """The sum over ranks; its gradient is every rank's."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, group: Any) -> torch.Tensor:  # noqa: ANN401
        y = y.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # noqa: ANN401
        return grad, None


class _Summed(torch.autograd.Function):
    """Every rank's; its gradient is the sum over ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:  # noqa: ANN401
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # noqa: ANN401
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def call(name: str, of: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    torch.manual_seed(5)
    with octet.autocast(enabled=name != "none", recipe=RECIPES[name]):
        return of(x)


def styles_job(mesh: DeviceMesh, name: str, compiled: bool) -> None:
    made = model(name)
    by_hand = Local(model(name), mesh, name)
    parallelize_module(made, mesh, STYLES)
    run = made
    if compiled:
        counter = CompileCounterWithBackend("aot_eager")
        run = torch.compile(made, backend=counter, fullgraph=True)
    for number in range(2):
        torch.manual_seed(number)
        x = torch.randn(5, 6, 70, requires_grad=True)
        other = x.detach().clone().requires_grad_()
        for of in (made, by_hand.norm, by_hand.up, by_hand.down):
            of.zero_grad()
        by_hand.bias.grad = None
        y, wanted = call(name, run, x), call(name, by_hand, other)
        assert not isinstance(y, DTensor)
        assert torch.equal(y, wanted), number
        y.square().sum().backward()
        wanted.square().sum().backward()
        assert torch.equal(x.grad, other.grad)
        assert torch.equal(made.up.weight.grad.to_local(), by_hand.up.weight.grad)
        assert torch.equal(made.up.bias.grad.to_local(), by_hand.up.bias.grad)
        assert torch.equal(made.down.weight.grad.to_local(), by_hand.down.weight.grad)
        assert made.down.bias.grad.placements == (Replicate(),)
        total = (2 * y.detach()).reshape(-1, 70).sum(0)
        assert torch.allclose(made.down.bias.grad.to_local(), total, rtol=1e-5, atol=1e-5)
    if compiled:
        assert counter.frame_count > 0


@pytest.mark.parametrize("name", QUANTIZED)
def test_dtensor__a_rank_runs_what_it_holds(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(styles_job, 2, name, False)


def test_dtensor__shards_may_be_uneven(workers: Workers) -> None:  # noqa: F811
    for name in ("current", "mxfp8"):
        workers.run(styles_job, 3, name, False)


def uneven_job(mesh: DeviceMesh) -> None:
    made = parallelize_module(model("mxfp8"), mesh, STYLES)
    run = torch.compile(made, backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match=r"'up' .* 3 ranks share unevenly, in compiled code"):
        call("mxfp8", run, torch.randn(5, 70))


def test_dtensor__compiled_shards_may_be_uneven(workers: Workers) -> None:  # noqa: F811
    """From torch 2.13 on."""
    if TorchVersion(torch.__version__) >= (2, 13):
        workers.run(styles_job, 3, "mxfp8", True)
    else:
        workers.run(uneven_job, 3)


@pytest.mark.parametrize("name", QUANTIZED)
def test_dtensor__compiled(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(styles_job, 2, name, True)


# ---- sequence parallelism --------------------------------------------------------------------


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
    x = torch.randn(5, 6, 70)
    shard = x.chunk(size, 1)[rank].clone().requires_grad_()
    x.requires_grad_()
    y, wanted = call(name, made, shard), call(name, plain, x)
    assert torch.equal(y, wanted.chunk(size, 1)[rank])
    y.square().sum().backward()
    wanted.square().sum().backward()
    assert torch.equal(shard.grad, x.grad.chunk(size, 1)[rank])
    for layer in ("up", "down"):
        found, given = getattr(made, layer).weight.grad, getattr(plain, layer).weight.grad
        assert torch.equal(found.to_local(), given.to_local())


@pytest.mark.parametrize("name", QUANTIZED)
def test_dtensor__sequence_parallel(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(sequence_job, 2, name)


# ---- beside parallel_mode --------------------------------------------------------------------


class Two(torch.nn.Module):
    """Two layers; the second one without a bias, which parallel_mode adds behind the sum."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401
        super().__init__()
        self.up = octet.Linear(64, 128, device="cpu", **options, **self.mode("column", options))
        self.down = octet.Linear(
            128, 64, bias=False, device="cpu", **options, **self.mode("row", options)
        )

    @staticmethod
    def mode(mode: str, options: dict[str, Any]) -> dict[str, Any]:
        return {"parallel_mode": mode} if options else {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def beside_job(mesh: DeviceMesh, name: str, compiled: bool) -> None:
    """parallelize_module's layers compute what parallel_mode's do, bit for bit: sums of two
    ranks have one order."""
    rank = mesh.get_local_rank()
    for sequence in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(1)
        made = Two()
        torch.manual_seed(1)
        split = Two(tp_group=mesh, sequence_parallel=sequence)
        layouts = Shard(0) if sequence else Replicate()
        styles = {
            "up": ColwiseParallel(input_layouts=layouts),
            "down": RowwiseParallel(output_layouts=layouts),
        }
        parallelize_module(made, mesh, styles)
        run = torch.compile(made, backend="aot_eager", fullgraph=True) if compiled else made
        torch.manual_seed(2)
        x, weights = torch.randn(128, 64), torch.randn(128, 64)
        if sequence:
            x, weights = (t.chunk(2)[rank].clone() for t in (x, weights))
        found, wanted = [], []
        for of, results in ((run, found), (split, wanted)):
            given = x.clone().requires_grad_()
            y = call(name, of, given)
            (y * weights).sum().backward()
            results += [y, given.grad]
        for (key, p), q in zip(made.named_parameters(), split.parameters(), strict=True):
            assert torch.equal(p.grad.to_local(), q.grad), (key, sequence)
        assert all(map(torch.equal, found, wanted)), sequence


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["current", "mxfp8", "block"])
def test_dtensor__equals_parallel_mode(workers: Workers, name: str, compiled: bool) -> None:  # noqa: F811
    workers.run(beside_job, 2, name, compiled)


def quantized_job(mesh: DeviceMesh) -> None:
    """parallelize_module cuts what a weight stands for: it would be stored unquantized."""
    words = (
        r"octet.Linear 'up' \(70 -> 44\): weight is stored .* or split the layer by parallel_"
    )
    torch.manual_seed(1)
    made = octet.convert(MLP(), weights=RECIPES["mxfp8"])
    with pytest.raises(ValueError, match=words):
        parallelize_module(made, mesh, STYLES)
    made = octet.fsdp_gather_quantized(model("current"), RECIPES["current"])
    with pytest.raises(ValueError, match=words):
        parallelize_module(made, mesh, STYLES)
    with pytest.raises(ValueError, match="call fsdp_gather_quantized after parallelize_module"):
        parallelize_module(made, mesh, STYLES)


def test_dtensor__quantized_weights_are_refused_by_name(workers: Workers) -> None:  # noqa: F811
    workers.run(quantized_job, 2)


# ---- with fully_shard ------------------------------------------------------------------------


def mesh_job(mesh: DeviceMesh, name: str, compiled: bool) -> None:
    """Shards of shards: a step is that of tensor parallelism on each half of the batch."""
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    made, plain = model(name), model(name)
    parallelize_module(plain, both["model"], STYLES)
    parallelize_module(made, both["model"], STYLES)
    if compiled:
        made.compile(backend="aot_eager")
    fully_shard(made, mesh=both["data"])
    for number in range(2):
        torch.manual_seed(number)
        x = torch.randn(2, 5, 70)[both["data"].get_local_rank()]
        losses = [call(name, of, x).square().sum() for of in (made, plain)]
        assert torch.equal(*losses)
        for loss in losses:
            loss.backward()
        for (key, p), q in zip(made.named_parameters(), plain.parameters(), strict=True):
            total = q.grad.full_tensor() if isinstance(q.grad, DTensor) else q.grad.clone()
            dist.all_reduce(total, group=both["data"].get_group())
            assert torch.equal(p.grad.full_tensor(), total / 2), key
        made.zero_grad()
        plain.zero_grad()


@pytest.mark.parametrize("name", QUANTIZED)
def test_dtensor__on_a_mesh_with_fully_shard(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(mesh_job, 4, name, False)


def test_dtensor__compiled_on_a_mesh_with_fully_shard(workers: Workers) -> None:  # noqa: F811
    workers.run(mesh_job, 4, "mxfp8", True)


# ---- other placements ------------------------------------------------------------------------


def placements_job(mesh: DeviceMesh) -> None:
    recipe = RECIPES["mxfp8"]
    layer = octet.Linear(64, 32, device="cpu", name="q")
    whole = [p.detach().clone() for p in (layer.weight, layer.bias)]
    x = torch.randn(4, 6, 64)
    dist.broadcast(x, 0, group=mesh.get_group())

    def put(*placements: Any) -> None:  # noqa: ANN401
        for name, tensor, placement in zip(("weight", "bias"), whole, placements, strict=True):
            made = distribute_tensor(tensor, mesh, [placement])
            layer.register_parameter(name, torch.nn.Parameter(made))

    with octet.autocast(recipe=recipe):
        wanted = layer(x)
        put(Replicate(), Replicate())
        for placement in (Replicate(), Shard(0), Shard(1)):
            y = layer(distribute_tensor(x, mesh, [placement]))
            assert y.placements == (placement,)
            # A product of fewer rows may add up in another order.
            assert torch.allclose(y.full_tensor(), wanted, atol=1e-6)
            y.sum().backward()
        put(Shard(0), Shard(0))
        y = layer(distribute_tensor(x, mesh, [Replicate()]))
        assert torch.allclose(y.full_tensor(), wanted, atol=1e-6)  # no block of rows is cut
        for given in (Shard(0), Shard(2)):
            with pytest.raises(ValueError, match=r"Linear 'q' .* redistribute them"):
                layer(distribute_tensor(x, mesh, [given]))
        with pytest.raises(ValueError, match=r"input is a Tensor beside DTensors"):
            layer(x)
        put(Shard(1), Shard(0))
        with pytest.raises(ValueError, match=r"bias .* redistribute them"):
            layer(distribute_tensor(x, mesh, [Shard(2)]))
        put(Shard(1), Replicate())
        with pytest.raises(ValueError, match=r"fp8_output and fp8_grad .* leave them out"):
            layer(distribute_tensor(x, mesh, [Shard(2)]), fp8_output=True)
    # Outside an autocast it is torch's own linear, with all its placements.
    put(Shard(0), Shard(0))
    found = layer(distribute_tensor(x, mesh, [Shard(0)])).full_tensor()
    assert torch.allclose(found, torch.nn.functional.linear(x, *whole), atol=1e-5)


def test_dtensor__other_placements_are_refused_by_name(workers: Workers) -> None:  # noqa: F811
    workers.run(placements_job, 2)


def cache_job(mesh: DeviceMesh) -> None:
    made = model("mxfp8")
    parallelize_module(made, mesh, STYLES)
    x = DTensor.from_local(torch.ones(3, 70), mesh, [Replicate()])
    with octet.autocast(recipe=RECIPES["mxfp8"]), torch.no_grad():
        first = made.up(x, is_first_microbatch=True)
        cached = made.up._weight_cache.tensor
        assert torch.equal(first, made.up(x, is_first_microbatch=False))
        assert made.up._weight_cache.tensor is cached
        made.up.weight.mul_(2)
        assert torch.equal(made.up(x, is_first_microbatch=False), made.up(x))
        assert not torch.equal(first, made.up(x, is_first_microbatch=False))


def test_dtensor__a_cached_weight_is_the_shards(workers: Workers) -> None:  # noqa: F811
    workers.run(cache_job, 2)
