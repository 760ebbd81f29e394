"""Shards of quantized weights: their bytes, what is saved of them, what is refused."""

import copy
import gc
from pathlib import Path
from typing import Any

import octet
import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fsdp_workers import Workers, workers  # noqa: F401
from laws import QUANTIZERS, RECIPES
from octet import _row_form, _texts
from octet._shard import QuantizedShard
from test_fsdp import Case, assert_resharded, forward, model, sharded
from test_fsdp_models import Checkpointed, train
from test_fsdp_quantized import QUANTIZED, quantized
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import torch

# ---- the row form ----------------------------------------------------------------------------

PLAIN = [q for q in QUANTIZERS if "rht" not in q.text]  # a transform joins rows


@pytest.mark.parametrize("quantizer", PLAIN, ids=lambda q: q.text)
@pytest.mark.parametrize("shape", [(44, 70), (300, 200), (1, 16), (64, 96)])
def test_row_form__lines_give_the_buffers_back(quantizer: Any, shape: tuple[int, int]) -> None:  # noqa: ANN401
    given = quantizer(torch.randn(shape, dtype=torch.bfloat16))
    form = _row_form.form_of(given._text, shape)
    lines = _row_form.to_rows(form, given)
    assert lines.shape == (shape[0], form.width)
    found = _row_form.empty(form, torch.bfloat16, lines.device, shape[0])
    for buffer in found.buffers():
        buffer.fill_(7)
    _row_form.into_buffers(form, lines, found, form.parts)
    for one, two in zip(found.buffers(), given.buffers(), strict=True):
        assert torch.equal(one, two)
    if _texts.usages(given._text)[0]:
        for start in (0, 13, 40):
            part = _row_form.decode(form, lines[start : start + 20], start, torch.bfloat16)
            assert torch.equal(part, given.dequantize()[start : start + 20])


# ---- checkpoints -----------------------------------------------------------------------------


def bytes_of(of: torch.nn.Module) -> dict[str, list[torch.Tensor]]:
    """The buffers of quantized weights, gathered."""
    for module in of:
        if hasattr(module, "unshard"):
            module.unshard()
    of.unshard()
    found = {
        name: [buffer.clone() for buffer in parameter.buffers()]
        for name, parameter in of.named_parameters()
        if isinstance(parameter, octet.QuantizedTensor)
    }
    assert_resharded(of)
    return found


def save_job(mesh: DeviceMesh, folder: str, name: str) -> dict[str, Any]:
    made = sharded(quantized(name), mesh, reshard_after_forward=False)
    train(name, made, range(2), 0)
    state = {"model": get_model_state_dict(made)}
    dcp.save(state, checkpoint_id=f"{folder}/{name}", process_group=mesh.get_group())
    return bytes_of(made)


def load_job(mesh: DeviceMesh, folder: str, name: str) -> dict[str, Any]:
    made = quantized(name)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(1)
    sharded(made, mesh, reshard_after_forward=False)
    state = {"model": get_model_state_dict(made)}
    dcp.load(state, checkpoint_id=f"{folder}/{name}", process_group=mesh.get_group())
    set_model_state_dict(made, state["model"])
    return bytes_of(made)


@pytest.mark.parametrize("name", ["current", "block", "mxfp8", "nvfp4"])
def test_shards__bytes_load_on_another_world_size(
    workers: Workers,  # noqa: F811
    name: str,
    tmp_path: Path,
) -> None:
    saved = workers.run(save_job, 2, str(tmp_path), name)[0]
    for world in (3, 1):
        for found in workers.run(load_job, world, str(tmp_path), name):
            assert found.keys() == saved.keys()
            for key, buffers in saved.items():
                assert all(map(torch.equal, found[key], buffers)), key


def loaded_job(mesh: DeviceMesh, name: str) -> None:
    """state_dict and load_state_dict, and a copy."""
    made, other = quantized(name), quantized(name)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    for of in (made, other):
        sharded(of, mesh, reshard_after_forward=False)
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    one, two = bytes_of(made), bytes_of(other)
    for key, buffers in one.items():
        assert all(map(torch.equal, two[key], buffers)), key


def test_shards__a_state_dict_loads(workers: Workers) -> None:  # noqa: F811
    for world in (2, 3):
        workers.run(loaded_job, world, "nvfp4")


def freed_job(mesh: DeviceMesh) -> None:
    """A model that was given up after its weights were written; ranks collect garbage when
    they like."""
    gc.collect()
    gc.disable()
    try:
        given_up = sharded(quantized("nvfp4"), mesh)
        forward(RECIPES["nvfp4"], given_up, 0, 0)
        with torch.no_grad():
            given_up[0].up.weight.mul_(2)
            given_up[1].up.weight.mul_(2)
        del given_up
        if mesh.get_local_rank() == 0:
            gc.collect()
        Case(mesh, quantized("nvfp4")).run(RECIPES["nvfp4"], 2)
    finally:
        gc.enable()


def test_shards__may_be_freed_on_one_rank_first(workers: Workers) -> None:  # noqa: F811
    workers.run(freed_job, 2)


# ---- meta, recomputation, mixed precision ----------------------------------------------------


def meta_job(mesh: DeviceMesh, name: str) -> None:
    with octet.quantized_model_init(recipe=RECIPES[name]):
        made = torch.nn.Sequential(*(octet.Linear(70, 70, device="meta") for _ in range(2)))
    for part in (*made, made):
        fully_shard(part, mesh=mesh)
    made.to_empty(device="cpu")
    for layer in made:
        layer.reset_parameters()
        assert isinstance(layer.weight.to_local(), QuantizedShard)
    with octet.autocast(recipe=RECIPES[name]):
        made(torch.randn(4, 70)).sum().backward()
    for layer in made:
        found = layer.weight.full_tensor()
        assert found.abs().max() <= 1.1 / 70**0.5
        assert found.std() > 0


def test_shards__meta_init(workers: Workers) -> None:  # noqa: F811
    for name in ("current", "mxfp8"):
        workers.run(meta_job, 3, name)


def recompute_job(mesh: DeviceMesh, name: str) -> None:
    made = quantized(name)
    for index in range(2):
        made[index] = Checkpointed(made[index])
    Case(mesh, made).run(RECIPES[name], 2)


def test_shards__blocks_are_recomputed(workers: Workers) -> None:  # noqa: F811
    for name in ("current", "mxfp8"):
        workers.run(recompute_job, 2, name)


def mixed_job(mesh: DeviceMesh, name: str) -> None:
    """Weights that stand for float32 are gathered as such of bfloat16: the same bytes."""
    recipe, rank = RECIPES[name], mesh.get_local_rank()
    made = quantized(name)
    low = copy.deepcopy(made).bfloat16()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    sharded(made, mesh, mp_policy=policy)
    for of in (made, low):
        torch.manual_seed(rank)
        x = torch.randn(6, 70).to(torch.float32 if of is made else torch.bfloat16)
        with octet.autocast(recipe=recipe):
            of(x).float().square().mean().backward()
    for found, wanted in zip(made.parameters(), low.parameters(), strict=True):
        total = wanted.grad.float()
        dist.all_reduce(total, group=mesh.get_group())
        assert found.grad.dtype == torch.float32
        assert torch.equal(found.grad.full_tensor(), total / mesh.size())


@pytest.mark.parametrize("name", QUANTIZED)
def test_shards__mixed_precision(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(mixed_job, 2, name)


def eval_job(mesh: DeviceMesh) -> None:
    made = quantized("mxfp8")
    wanted = copy.deepcopy(made).eval()
    sharded(made, mesh).eval()
    with torch.no_grad():
        assert torch.equal(*(forward(RECIPES["mxfp8"], of, 0, 0) for of in (made, wanted)))


def test_shards__evaluation(workers: Workers) -> None:  # noqa: F811
    workers.run(eval_job, 2)


# ---- refused ---------------------------------------------------------------------------------


def refused_job(mesh: DeviceMesh) -> None:
    delayed = octet.Float8Quantizer(torch.ones(1), torch.zeros(1), "e4m3")
    for quantizer, words in (
        (octet.NVFP4Quantizer(with_rht=True), "leave out rht, sr"),
        (octet.NVFP4Quantizer(row_scaled_nvfp4=True), "rows do not stand alone"),
        (octet.MXFP8Quantizer("e4m3", rowwise=False), "rows do not stand alone"),
        (delayed, "rows do not stand alone"),
        (octet.NVFP4Quantizer(nvfp4_use_4over6=True), "multiples of 16, or leave out 4over6"),
    ):
        layer = octet.Linear(70, 44, device="cpu")
        layer.weight = torch.nn.Parameter(quantizer(layer.weight.detach()))
        with pytest.raises(ValueError, match=rf"weight \(44, 70\) of .*{words}"):
            fully_shard(layer, mesh=mesh)
    made = quantized("mxfp8")
    sharded(made, mesh)
    forward(RECIPES["mxfp8"], made, 0, 0).backward()
    made[0].set_reshard_after_forward(False)
    with pytest.raises(RuntimeError, match="before the first forward"):
        forward(RECIPES["mxfp8"], made, 0, 0)


def test_shards__what_they_cannot_hold_is_refused(workers: Workers) -> None:  # noqa: F811
    workers.run(refused_job, 2)


def one_direction_job(mesh: DeviceMesh) -> None:
    """Weights with bytes of both directions, as GPUs store them: one travels, and gives the
    other."""
    for quantizer, name in (
        (octet.Float8CurrentScalingQuantizer("e4m3"), "current"),
        (octet.Float8BlockQuantizer("e4m3"), "block"),
        (octet.NVFP4Quantizer(with_2d_quantization=True), "nvfp4"),
        (octet.MXFP4Quantizer(with_2d_quantization=True), "mxfp4"),
    ):
        made = quantized(name)
        for layer in made.modules():
            if isinstance(layer, octet.Linear):
                whole = quantizer(layer.weight.detach().dequantize())
                assert whole.get_usages() == {"rowwise": True, "columnwise": True}
                layer.weight = torch.nn.Parameter(whole)
        case = Case(mesh, made)
        case.run(RECIPES[name], 2)
        case.made[0].unshard()
        found = case.made[0].up.weight.get_usages()
        assert found == {"rowwise": True, "columnwise": False}


def test_shards__one_direction_gives_the_other(workers: Workers) -> None:  # noqa: F811
    workers.run(one_direction_job, 2)


def recompute_in_graph_job(mesh: DeviceMesh) -> None:
    def case_of(name: str, made: torch.nn.Module) -> Case:
        for index in range(2):
            made[index] = Checkpointed(made[index])
        case = Case(mesh, made)
        for block in case.made[:2]:
            block.compile(backend="aot_eager", fullgraph=True)
        return case

    for name, made in (
        ("mxfp8", model("mxfp8")),
        ("nvfp4", model("nvfp4")),
        ("current", quantized("current")),
    ):
        torch._dynamo.reset()
        case_of(name, made).run(RECIPES[name], 2)


def test_shards__compiled_blocks_are_recomputed(workers: Workers) -> None:  # noqa: F811
    workers.run(recompute_in_graph_job, 2)
