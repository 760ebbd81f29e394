"""fully_shard of quantized weights: bytes travel, and they are the whole's."""

import copy
from typing import Any

import octet
import pytest
from fsdp_workers import Workers, workers  # noqa: F401
from laws import RECIPES
from octet._shard import QuantizedShard
from test_fsdp import Case, assert_same, model, sharded
from torch.distributed.device_mesh import DeviceMesh

import torch

QUANTIZED = [name for name in RECIPES if name != "none"]


def quantized(name: str, **options: Any) -> torch.nn.Module:  # noqa: ANN401
    with octet.quantized_model_init(recipe=RECIPES[name]):
        return model(name, **options)


def gathered_job(mesh: DeviceMesh, name: str) -> None:
    made = quantized(name)
    wanted = copy.deepcopy(made)
    sharded(made, mesh)
    assert_same(
        {k: p.full_tensor() for k, p in made.named_parameters() if p.dim() == 2},
        {k: p.dequantize() for k, p in wanted.named_parameters() if p.dim() == 2},
    )
    for module in (made, made[0], made[1]):
        module.unshard()
    for (key, found), whole in zip(made.named_parameters(), wanted.parameters(), strict=True):
        if not isinstance(whole, octet.QuantizedTensor):
            continue
        assert isinstance(found, octet.QuantizedTensor), key
        assert found._text == whole._text
        for one, two in zip(found.buffers(), whole.buffers(), strict=True):
            assert torch.equal(one, two), key


@pytest.mark.parametrize("world", [1, 2, 3])
def test_quantized__what_is_gathered_is_the_whole(workers: Workers, world: int) -> None:  # noqa: F811
    for name in QUANTIZED:
        workers.run(gathered_job, world, name)


# ---- steps -----------------------------------------------------------------------------------


def steps_job(mesh: DeviceMesh, name: str, options: dict[str, Any]) -> None:
    case = Case(mesh, quantized(name), **options)
    case.run(RECIPES[name])
    for layer in case.made.modules():
        if isinstance(layer, octet.Linear):
            shard = layer.weight.to_local()
            assert isinstance(shard, QuantizedShard)
            assert shard._memory.values is None  # bytes are all that is stored


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized__steps_are_those_of_one_process(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(steps_job, 2, name, {})


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized__shards_may_be_uneven(workers: Workers, name: str) -> None:  # noqa: F811
    workers.run(steps_job, 3, name, {})


def test_quantized__weights_may_stay_gathered(workers: Workers) -> None:  # noqa: F811
    for name in ("current", "mxfp8"):
        workers.run(steps_job, 2, name, {"reshard_after_forward": False})
