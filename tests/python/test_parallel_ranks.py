"""What ranks of a split layer agree on: scales, parameters, calls; and what they refuse."""

import time
from collections.abc import Iterator
from typing import Any

import octet
import parallel_jobs as jobs
import parallel_refusals as refusals
import pytest
from parallel_jobs import SIZES, Case
from ranks import Ranks

import torch

# ---- delayed scaling -------------------------------------------------------------------------


def test_parallel__amaxes_of_a_step_are_found_by_one_collective(two: Ranks) -> None:
    """All layers, forward and backward; in compiled code, too, to the same bits."""
    wanted = two.run(jobs.delayed, "eager", 4)
    assert [one.pop("peaks") for one in wanted] == [1, 1]
    for where in ("inside", "around") if jobs.COMPILES_DELAYED else ():
        for one, other in zip(two.run(jobs.delayed, where, 4), wanted, strict=True):
            one.pop("peaks")
            assert one.keys() == other.keys()
            assert all(torch.equal(one[key], other[key]) for key in one), where
    keys = [key for key in wanted[0] if key.endswith("_state")]
    assert len(keys) == 4
    for key in keys:  # the amaxes of the current step are a rank's own until then
        for rows in (slice(0, 1), slice(2, None)):
            assert torch.equal(wanted[0][key][rows], wanted[1][key][rows]), key


def unsplit_scales(steps: int) -> list[octet.Linear]:
    torch.manual_seed(7)
    layers = [octet.Linear(64, 128, device="cpu"), octet.Linear(128, 64, device="cpu")]
    for number in range(steps):
        x, grad = jobs.delayed_tensors(number)
        with octet.autocast(recipe=octet.recipe.DelayedScaling(amax_history_len=4)):
            y = layers[1](layers[0](x))
        y.backward(grad)
    return layers


def test_parallel__scales_are_those_of_the_unsplit_layer(two: Ranks) -> None:
    """Input, weight and gradient of a first layer: nothing before them was added up otherwise.
    Scales of gradients move at the end of the next step."""
    found = two.run(jobs.delayed, "eager", 4)[0]
    assert torch.equal(found["first fp8_state"][0], unsplit_scales(4)[0].fp8_scale)
    second = unsplit_scales(3)[1]
    assert torch.equal(found["second fp8_grad_state"][0], second.fp8_grad_scale)


def test_parallel__replicas_reduce_where_they_are_told_to(two: Ranks) -> None:
    both = two.run(jobs.replicas, True, True)
    for name in ("fp8_state", "fp8_grad_state"):
        assert torch.equal(both[0][name][0], both[1][name][0])
    for grouped, reduces in ((False, True), (True, False)):
        apart = two.run(jobs.replicas, grouped, reduces)
        assert not torch.equal(apart[0]["fp8_state"][0], apart[1]["fp8_state"][0])
        scales = apart[1]["fp8_state"][0], both[1]["fp8_state"][0]
        assert torch.equal(*scales)  # it has the larger


def test_parallel__ranks_that_run_other_layers_are_told(two: Ranks) -> None:
    """Their amaxes would not fit together."""
    for text in two.errors(jobs.other_layers):
        assert "ValueError: the ranks of group" in text
        assert "reduce amaxes of different layers of delayed scaling" in text
        assert "rank 0: octet.Linear 'fc1' (64 -> 64), octet.Linear 'fc2' (64 -> 64)\n" in text
        assert "rank 1: octet.Linear 'fc1' (64 -> 64)\n" in text
    two.run(jobs.replicas, True, True)  # and the group goes on


def test_parallel__a_checkpoint_updates_the_same_scales(two: Ranks) -> None:
    wanted = two.run(jobs.checkpointed_steps, "")
    for way in ("in", "out"):
        for one, other in zip(two.run(jobs.checkpointed_steps, way), wanted, strict=True):
            assert all(torch.equal(one[key], other[key]) for key in other)


# ---- what is refused -------------------------------------------------------------------------

REFUSED = {
    "missing group": "split over 2 ranks, but has no group; call set_tensor_parallel_group",
    "size of group": "tp_size is 3, but tp_group has 2 ranks",
    "autocast": "call it differently",
    "other group": "tp_size is 2, but tp_group has 1 ranks",
    "not a group": "tp_group=5: it is a int",
    "shape": "call it differently",
    "recipe": "call it differently",
    "option": "call it differently",
    "rows": "sequence_parallel shares its first axis among 2 ranks",
    "no rows": "sequence_parallel shares its first axis among 2 ranks",
    "own scales": "reduce_amax=False, so ranks would have scales of their own",
    "few scales": "amax_reduction_group lacks rank",
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_parallel__every_rank_refuses(what: str, two: Ranks) -> None:
    """In time, by an exception that names the layer and the rule."""
    two.run(jobs.ready)
    before = time.monotonic()
    for text in two.errors(refusals.refused, what):
        assert text.startswith("ValueError: octet.Linear 'fc1' (")
        assert REFUSED[what] in text
    assert time.monotonic() - before < 20
    two.run(jobs.train, Case())  # and the group goes on


def test_parallel__a_disagreement_shows_every_rank(two: Ranks) -> None:
    for text in two.errors(refusals.refused, "recipe"):
        assert "rank 0: octet.Linear 'fc1'" in text
        assert "recipe=current" in text
        assert "rank 1: octet.Linear 'fc1'" in text
        assert "recipe=mxfp8" in text
    for text in two.errors(refusals.refused, "shape"):
        assert "input (64, 256)" in text
        assert "input (128, 256)" in text


@pytest.mark.parametrize("what", ["shape", "recipe"])
def test_parallel__compiled_code_refuses_on_every_rank(what: str, two: Ranks) -> None:
    for text in two.errors(refusals.refused_compiled, what):
        assert "octet.Linear 'fc1' (" in text
        assert "call it differently" in text


def test_parallel__comparisons_are_no_part_of_graphs(two: Ranks) -> None:
    plain = ["_c10d_functional.all_reduce.default", "_c10d_functional.wait_tensor.default"]
    for graphs in two.run(refusals.traced_by_hand):
        assert graphs == [plain] * 8


def test_parallel__fake_tensors_send_nothing(two: Ranks) -> None:
    one, other = two.run(refusals.faked)
    assert one == [256, 256] * 2
    assert other == [256, 256]


def test_parallel__comparisons_are_counted(two: Ranks) -> None:
    """Each kind of call once, by default; never, or always, where the environment says so."""
    assert two.run(refusals.compared, None) == [2, 2]
    assert two.run(refusals.compared, "0") == [0, 0]
    assert two.run(refusals.compared, "2") == [6, 6]


def test_parallel__scales_that_ranks_do_not_share_are_found(two: Ranks) -> None:
    """As where each rank has loaded a checkpoint of its own."""
    for text in two.errors(refusals.strange_scales):
        assert "call it differently" in text
        assert "fp8_scale [3.0, 3.0, 3.0]" in text


def test_parallel__a_group_may_be_destroyed_and_another_be_given(two: Ranks) -> None:
    for made in two.run(refusals.regrouped):
        assert made["error"].startswith("octet.Linear 'fc1' (")
        assert "has been destroyed; give it another by set_tensor_parallel" in made["error"]
        assert torch.equal(made["after"], made["before"])


@pytest.fixture
def doomed() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.close()


@pytest.mark.parametrize(
    "case", [Case("row"), Case("column", True, options=(("ub_overlap_ag", True),))]
)
def test_parallel__a_rank_that_dies_ends_the_others(case: Case, doomed: Ranks) -> None:
    doomed.run(jobs.train, case)
    before = time.monotonic()
    doomed.start(refusals.die, case)
    assert doomed.answer(0, 90)[0] == "raised"
    assert time.monotonic() - before < 80


SIZES_REFUSED = [
    ({"parallel_mode": "column", "tp_size": 3}, "out_features is 512, which 3 ranks cannot"),
    ({"parallel_mode": "row", "tp_size": 3}, "in_features is 256, which 3 ranks cannot"),
    ({"parallel_mode": "depth"}, "'column', 'row' or None"),
    ({"parallel_mode": "row", "tp_size": 0}, "tp_size is 0; it is at least 1"),
    ({"sequence_parallel": True, "tp_size": 2}, "tp_size is 2 without a parallel_mode"),
    ({"parallel_mode": "row", "tp_group": "tp"}, "torch.distributed is not initialized"),
    (
        {"parallel_mode": "column", "tp_size": 4, "parameters_split": {"q": 510, "k": 2}},
        "q_weight has 510 rows, which 4 ranks cannot share",
    ),
    ({"symmetric_ar_type": "three_shot"}, "it is None or one of 'multimem_all_reduce'"),
]


@pytest.mark.parametrize(("options", "rule"), SIZES_REFUSED, ids=str)
def test_parallel__constructors_refuse(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        octet.Linear(SIZES["in"], SIZES["out"], device="cpu", **options)


def test_parallel__a_layer_without_a_group_says_how_it_is_drawn() -> None:
    with pytest.warns(UserWarning, match="has no tp_group yet"):
        octet.Linear(64, 32, device="cpu", parallel_mode="row", tp_size=2)
    with pytest.warns(UserWarning, match="the group's own all_reduce"):
        octet.Linear(64, 32, device="cpu", symmetric_ar_type="two_shot")


# ---- parameters ------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [None, ("q", "k"), {"q": 384, "k": 128}], ids=str)
@pytest.mark.parametrize("mode", ["column", "row"])
def test_parallel__one_seed_makes_one_layer(mode: str, split: Any, two: Ranks) -> None:  # noqa: ANN401
    found = two.run(jobs.parameters, mode, {"parameters_split": split})
    torch.manual_seed(7)
    options = {"device": "cpu", "params_dtype": torch.bfloat16, "parameters_split": split}
    whole = octet.Linear(SIZES["in"], SIZES["out"], **options)
    after = torch.rand(3)
    for name, parameter in whole.named_parameters():
        parts = [one[name] for one in found]
        if name.endswith("bias") and mode == "row":
            assert all(torch.equal(part, parameter) for part in parts)
        else:
            assert torch.equal(torch.cat(parts, 0 if mode == "column" else 1), parameter)
    assert all(torch.equal(one["next"], after) for one in found)  # torch's generator, too


def test_parallel__a_tracker_draws_the_shares(two: Ranks) -> None:
    for mode in ("column", "row"):
        first, second = two.run(jobs.parameters, mode, {"tracker": True})
        assert not torch.equal(first["weight"], second["weight"])
        assert torch.equal(first["bias"], second["bias"]) == (mode == "row")
        bound = SIZES["in"] ** -0.5  # of the whole layer's inputs
        assert 0.9 * bound < first["weight"].abs().max() <= 1.01 * bound


def test_parallel__parameters_say_how_they_are_split(two: Ranks) -> None:
    column = two.run(jobs.parameters, "column", {})[0]
    assert column["marks"] == {"weight": [True, 0, 1, None], "bias": [True, 0, 1, None]}
    assert column["sizes"] == [SIZES["in"], SIZES["out"] // 2]
    row = two.run(jobs.parameters, "row", {"sequence_parallel": True})[0]
    assert row["marks"] == {"weight": [True, 1, 1, None], "bias": [None, None, None, True]}
    assert row["sizes"] == [SIZES["in"] // 2, SIZES["out"]]


def test_parallel__ranks_share_the_products(two: Ranks) -> None:
    """Forward and both gradients, counted over all ranks: those of the unsplit layer."""
    whole = 3 * 2 * 256 * SIZES["in"] * SIZES["out"]
    for mode in ("column", "row"):
        for sequence in (False, True):
            assert sum(two.run(jobs.flops, Case(mode, sequence))) == whole


def test_parallel__protos_tell_the_shape_of_a_share() -> None:
    options = {"device": "cpu", "tp_size": 2, "sequence_parallel": True}
    x = octet.TensorProto((4, 64, 64), torch.bfloat16, requires_grad=True, device="cpu")
    options["params_dtype"] = torch.bfloat16
    for mode, rows, columns in (("column", 8, 64), ("row", 2, 128)):
        inputs = 64 * (1 if mode == "column" else 2)
        with pytest.warns(UserWarning, match="no tp_group yet"):
            layer = octet.Linear(inputs, 128, parallel_mode=mode, **options)
        found = layer.protos(x, recipe=octet.recipe.MXFP8BlockScaling())
        assert found.forward.outputs["output"].shape == (rows, 64, columns)
        assert found.backward.outputs["grad_input"].shape == (4, 64, 64)


def test_parallel__groups_have_many_names(two: Ranks) -> None:
    for made in two.run(jobs.groups):
        assert len(made) == 8
        assert all(torch.equal(y, made[0]) for y in made)
