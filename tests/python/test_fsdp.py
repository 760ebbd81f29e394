"""fully_shard (FSDP2) of layers with high-precision weights: steps are those of one process."""

import copy
import gc
import time
from collections.abc import Callable
from typing import Any

import octet
import pytest
import torch.distributed as dist
from fsdp_workers import Workers, workers  # noqa: F401
from laws import RECIPES
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import torch

STEPS = 3


class Block(torch.nn.Module):
    """Two layers whose sizes are no multiple of any block, nor of the ranks."""

    def __init__(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        super().__init__()
        self.up = octet.Linear(70, 44, params_dtype=dtype, device=device)
        self.down = octet.Linear(44, 70, params_dtype=dtype, device=device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def model(name: str, **options: Any) -> torch.nn.Module:  # noqa: ANN401
    torch.manual_seed(1)
    made = torch.nn.Sequential(Block(**options), Block(**options))
    made.append(octet.Linear(70, 44, params_dtype=options.get("dtype"), device="cpu"))
    return octet.prepare(made, RECIPES[name]) if name == "delayed" else made


def sharded(of: torch.nn.Module, mesh: DeviceMesh, **options: Any) -> torch.nn.Module:  # noqa: ANN401
    for part in (of[0], of[1], of):
        fully_shard(part, mesh=mesh, **options)
    return of


def forward(
    recipe: octet.recipe.Recipe | None, of: torch.nn.Module, number: int, rank: int
) -> torch.Tensor:
    """The loss of a rank's own batch; random numbers are the batch's own, too."""
    torch.manual_seed(10 * number + rank)
    dtype = next(of.parameters()).dtype
    with octet.autocast(enabled=recipe is not None, recipe=recipe):
        return of(torch.randn(6, 70, dtype=dtype)).float().square().mean()


class OneProcess:
    """What the ranks do, one after the other: a replica each, and the mean of gradients.

    The mean of two is exact in any order. Of more ranks only the first one has a loss, and
    gradients are summed: that is exact, too."""

    def __init__(self, of: torch.nn.Module, world: int) -> None:
        self.replicas = [copy.deepcopy(of) for _ in range(world)]
        self.optimizers = [torch.optim.SGD(r.parameters(), lr=0.5) for r in self.replicas]

    def step(self, recipe: octet.recipe.Recipe | None, number: int) -> list[torch.Tensor]:
        world = len(self.replicas)
        losses = [forward(recipe, r, number, rank) for rank, r in enumerate(self.replicas)]
        for rank, loss in enumerate(losses):
            (loss * weight_of(rank, world)).backward()
        for together in zip(*(r.parameters() for r in self.replicas), strict=True):
            if together[0].grad is None:
                continue
            total = sum(p.grad.clone() for p in together)
            for p in together:
                p.grad = total.clone()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return [loss.detach() for loss in losses]


def weight_of(rank: int, world: int) -> float:
    """What a rank's loss counts in the sum of gradients."""
    return 0.5 if world == 2 else float(rank == 0)


def whole(of: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {}
    for name, parameter in of.named_parameters():
        tensor = parameter.detach()
        found[name] = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def assert_resharded(of: torch.nn.Module) -> None:
    """Nothing that was gathered has memory, not the root's parameters either."""
    for module in of.modules():
        if not isinstance(module, FSDPModule):
            continue
        module.reshard()
        group = module._get_fsdp_state()._fsdp_param_group
        for held in [] if group is None else group.fsdp_params:
            for tensor in (*held.all_gather_outputs, *held._unsharded_inner_tensors):
                assert tensor.untyped_storage().size() == 0


def live_bytes() -> int:
    """Memory of all tensors that Python can see, each storage once."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter, octet.QuantizedTensor):
            if isinstance(thing, octet.QuantizedTensor):
                continue  # its buffers are seen one by one
            storage = thing.untyped_storage()
            found[storage._cdata] = storage.size()
    return sum(found.values())


def settled_bytes(before: list[int]) -> int:
    """live_bytes, once gloo's threads have let go of what they have sent: if it is more than
    before, it must stay so for three seconds."""
    for _ in range(30):
        found = live_bytes()
        if not before or found <= min(before):
            return found
        time.sleep(0.1)
    return found


# ---- steps -----------------------------------------------------------------------------------


class Case:
    """One model under fully_shard beside the same in one process."""

    def __init__(
        self,
        mesh: DeviceMesh,
        made: torch.nn.Module,
        change: Callable[[torch.nn.Module], Any] | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        self.rank, self.world = mesh.get_local_rank(), mesh.size()
        self.one = OneProcess(made, self.world)
        if change is not None:  # of what is sharded alone
            change(made)
        self.made = sharded(made, mesh, **options)
        for module in self.made.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # as gloo can
        self.optimizer = torch.optim.SGD(self.made.parameters(), lr=0.5)
        self.left: list[int] = []

    def run(self, recipe: octet.recipe.Recipe | None, steps: int = STEPS) -> None:
        for number in range(steps):
            loss = forward(recipe, self.made, number, self.rank)
            (loss * weight_of(self.rank, self.world)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            wanted = self.one.step(recipe, number)
            assert torch.equal(loss.detach(), wanted[self.rank]), number
            assert_same(whole(self.made), dict(self.one.replicas[0].named_parameters()))
            del loss, wanted
            assert_resharded(self.made)
            self.left.append(settled_bytes(self.left))
        assert self.left[1:] == self.left[1:2] * (steps - 1), self.left


def steps_job(mesh: DeviceMesh, name: str) -> None:
    Case(mesh, model(name)).run(RECIPES[name])


@pytest.mark.parametrize("name", RECIPES)
def test_fsdp__steps_are_those_of_one_process(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(steps_job, 2, name)


@pytest.mark.parametrize("name", ["delayed", "mxfp8", "nvfp4"])
def test_fsdp__shards_may_be_uneven(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(steps_job, 3, name)


def test_fsdp__four_ranks(workers: Workers) -> None:  # noqa: F811
    workers.run(steps_job, 4, "current")


def compiled_job(mesh: DeviceMesh, name: str) -> None:
    """Blocks are compiled: what fully_shard does around them is not traced."""
    counter = CompileCounterWithBackend("aot_eager")
    case = Case(mesh, model(name))
    for block in case.made[:2]:
        block.compile(backend=counter, fullgraph=True)
    case.run(RECIPES[name])
    assert counter.frame_count > 0


@pytest.mark.parametrize("name", RECIPES)
def test_fsdp__compiled_steps_are_those_of_one_process(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(compiled_job, 2, name)


def settings_job(mesh: DeviceMesh, name: str) -> None:
    """Settings of fully_shard that change when and what is gathered."""
    for options in ({"reshard_after_forward": False}, {"reshard_after_forward": True}):
        Case(mesh, model(name), **options).run(RECIPES[name], 2)


@pytest.mark.parametrize("name", RECIPES)
def test_fsdp__resharding_changes_nothing(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(settings_job, 2, name)


def overrides_job(mesh: DeviceMesh) -> None:
    for kind in (octet.recipe.Float8CurrentScaling, octet.recipe.NVFP4BlockScaling):
        for override in ("high_precision", "dequantized"):
            Case(mesh, model("none")).run(kind(backward_override=override), 2)


def test_fsdp__backward_overrides(workers: Workers) -> None:  # noqa: F811
    workers.run(overrides_job, 2)


# ---- mixed precision -------------------------------------------------------------------------


def mixed_job(mesh: DeviceMesh, name: str) -> None:
    """Weights are float32 and gathered as bfloat16: a step is that of bfloat16 copies."""
    rank, recipe = mesh.get_local_rank(), RECIPES[name]
    made = model(name)
    start = copy.deepcopy(made)
    low = copy.deepcopy(made).bfloat16()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    sharded(made, mesh, mp_policy=policy)
    grads = []
    for of in (made, low):
        torch.manual_seed(rank)
        with octet.autocast(enabled=recipe is not None, recipe=recipe):
            y = of(torch.randn(6, 70).to(torch.float32 if of is made else torch.bfloat16))
        assert y.dtype == torch.bfloat16
        y.float().square().mean().backward()
        grads.append([p.grad for p in of.parameters()])
    for (key, before), gathered, own in zip(start.named_parameters(), *grads, strict=True):
        total = own.float()
        dist.all_reduce(total, group=mesh.get_group())
        assert gathered.dtype == before.dtype == torch.float32
        assert torch.equal(gathered.full_tensor(), total / mesh.size()), key
    assert_resharded(made)


@pytest.mark.parametrize("name", RECIPES)
def test_fsdp__mixed_precision_quantizes_what_is_gathered(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(mixed_job, 2, name)


# ---- memory ----------------------------------------------------------------------------------


def memory_job(mesh: DeviceMesh, name: str, compiled: bool) -> tuple[int, int]:
    """Bytes that forward saves for backward beside memory that fully_shard has freed, and
    bytes of that memory."""
    torch.manual_seed(1)
    made = torch.nn.Sequential(*(octet.Linear(512, 512, device="cpu") for _ in range(3)))
    if name == "delayed":
        octet.prepare(made, RECIPES[name])
    for layer in made:
        if compiled:
            layer.compile(backend="aot_eager")
        fully_shard(layer, mesh=mesh)
    fully_shard(made, mesh=mesh)
    saved: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    x = torch.randn(1, 512, requires_grad=True)
    with hooks, octet.autocast(enabled=name != "none", recipe=RECIPES[name]):
        y = made(x)
    sizes = [storage.size() for storage in saved.values()]
    y.sum().backward()
    assert made[0].weight.grad is not None
    return sum(sizes), sum(size == 0 for size in sizes)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", RECIPES)
def test_fsdp__nothing_gathered_is_saved(workers: Workers, name: str, compiled: bool) -> None:  # noqa: F811
    for size, freed in workers.run(memory_job, 2, name, compiled):
        assert size < 512 * 512 // 8
        assert freed == 3  # the weights themselves: gathered again before backward


# ---- what a layer caches ---------------------------------------------------------------------


def cache_job(mesh: DeviceMesh, name: str) -> None:
    """A cached weight is that of the shard: another gather changes nothing, a step does."""
    recipe = RECIPES[name]
    made, other = model(name), model(name)
    sharded(made, mesh)
    x = torch.randn(6, 70)

    def call(of: torch.nn.Module, first: bool | None) -> torch.Tensor:
        with octet.autocast(recipe=recipe), torch.no_grad():
            return of[2](x, is_first_microbatch=first)

    for module in (made, made[0], made[1]):
        module.reshard()
    made.unshard()
    first = call(made, True)
    cached = made[2]._weight_cache.tensor
    assert torch.equal(first, call(other, None))
    made.reshard()
    made.unshard()
    assert torch.equal(first, call(made, False))
    assert made[2]._weight_cache.tensor is cached
    made.reshard()
    with torch.no_grad():
        made[2].weight.mul_(2)
        other[2].weight.mul_(2)
    made.unshard()
    assert torch.equal(call(made, False), call(other, None))
    assert made[2]._weight_cache.tensor is not cached
    with octet.constant_weights():
        call(made, None)
        cached = made[2]._weight_cache.tensor
        made.reshard()
        made.unshard()
        call(made, None)
        assert made[2]._weight_cache.tensor is cached


def test_fsdp__a_cached_weight_is_the_shards(workers: Workers) -> None:  # noqa: F811
    for name in ("current", "mxfp8", "nvfp4"):
        workers.run(cache_job, 2, name)


# ---- other layers ----------------------------------------------------------------------------


class Halves(octet.Quantizer):
    """A quantizer of a user's."""

    def quantize(self, tensor: torch.Tensor, *, out: Any = None) -> torch.Tensor:  # noqa: ANN401
        return (tensor * 64).round() / 64


def others_job(mesh: DeviceMesh) -> None:
    """A weight in parts, and quantizers of a user's."""
    options = {"parameters_split": ("query", "key"), "device": "cpu"}
    made = model("mxfp8")
    made[1] = torch.nn.Sequential(octet.Linear(70, 70, **options))
    Case(mesh, made).run(RECIPES["mxfp8"], 2)
    custom = octet.recipe.CustomRecipe(lambda role: Halves())
    Case(mesh, model("none")).run(custom, 2)


def test_fsdp__weights_in_parts_and_quantizers_of_a_user(workers: Workers) -> None:  # noqa: F811
    workers.run(others_job, 2)


# ---- refused ---------------------------------------------------------------------------------


def refused_job(mesh: DeviceMesh) -> None:
    for option in ("fuse_wgrad_accumulation", "delay_wgrad_compute"):
        layer = octet.Linear(70, 44, device="cpu", **{option: True})
        fully_shard(layer, mesh=mesh)
        words = rf"octet.Linear \(70 -> 44\): {option} .* leave out {option}"
        with pytest.raises(ValueError, match=words):
            layer(torch.randn(3, 70))
        with pytest.raises(ValueError, match=words), octet.autocast():
            layer(torch.randn(3, 70))


def test_fsdp__main_grad_and_later_gradients_are_refused(workers: Workers) -> None:  # noqa: F811
    workers.run(refused_job, 2)
