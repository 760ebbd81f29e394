"""Layers that are split over ranks, compiled: the bits of eager, and the plan's collectives."""

from typing import Any

import parallel_jobs as jobs
import pytest
from laws import RECIPES
from parallel_jobs import COMPILES_DELAYED, SIZES, Case
from ranks import Ranks

import torch

LAWS = [name for name in RECIPES if name != "delayed" or COMPILES_DELAYED]
MODES = [("column", False), ("column", True), ("row", False), ("row", True)]
SPLIT = [(mode, sequence, name) for mode, sequence in MODES for name in LAWS]


@pytest.mark.parametrize(("mode", "sequence", "name"), SPLIT, ids=str)
def test_parallel__compiled_is_eager(mode: str, sequence: bool, name: str, two: Ranks) -> None:
    case = Case(mode, sequence, name, steps=3)
    wanted = two.run(jobs.train, case)
    found = two.run(jobs.train, case._replace(compiled="aot_eager"))
    assert_same(found, wanted)


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        one.pop("graphs", None)
        assert one.keys() == other.keys()
        for key in one:
            assert torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("name", [*LAWS, "nvfp4-nearest"])
def test_parallel__symbolic_sizes_are_eager(name: str, two: Ranks) -> None:
    """Three sizes are one graph where rows of a rank stay whole blocks."""
    for mode in ("column", "row"):
        sequences = (True,) if name != "mxfp8" else (True, False)
        for sequence in sequences:
            case = Case(mode, sequence, name, rows=(384, 2), compiled="none dynamic", steps=3)
            wanted = two.run(jobs.train, case)
            found = two.run(jobs.train, case._replace(compiled="aot_eager dynamic"))
            assert [one.pop("graphs") for one in found] == [1, 1]
            assert_same(found, wanted)


@pytest.mark.parametrize(
    ("mode", "name"), [("column", "mxfp8"), ("row", "delayed")][: 1 + COMPILES_DELAYED], ids=str
)
def test_parallel__inductor_is_eager(mode: str, name: str, two: Ranks) -> None:
    case = Case(mode, True, name, steps=2)
    wanted = two.run(jobs.train, case)
    found = two.run(jobs.train, case._replace(compiled="inductor"))
    assert_same(found, wanted)


# ---- graphs ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "sequence", "name"), SPLIT, ids=str)
def test_parallel__graphs_hold_the_collectives_of_the_plan(
    mode: str, sequence: bool, name: str, two: Ranks
) -> None:
    for made in two.run(jobs.graphs, Case(mode, sequence, name)):
        for seen, planned in zip(made["seen"], made["planned"], strict=True):
            found = sorted((kind, dtype) for kind, dtype, _ in seen)
            assert found == sorted(tuple(p) for p in planned)
        directions = {("column", False): (0, 1), ("row", False): (1, 0)}
        if not sequence:
            assert tuple(map(len, made["seen"])) == directions[mode, sequence]


def test_parallel__backwards_collectives_run_beside_products(two: Ranks) -> None:
    """The input is gathered while its gradient is computed, which is scattered while the
    weight's is."""
    for made in two.run(jobs.overlapped, Case("column", True, "mxfp8")):
        order = made["order"][1]
        assert order.count("phase") == 2
        first, last = order.index("phase"), len(order) - 1 - order[::-1].index("phase")
        assert order[:first] == ["gather"] * 2
        assert order[first + 1 : last] == ["scatter"] + ["wait for gather"] * 2
        assert order[last + 1 :] == ["wait for scatter"]


@pytest.mark.parametrize("mode", ["column", "row"])
def test_parallel__nothing_runs_beside_a_gather_over_gloo(mode: str, two: Ranks) -> None:
    """Gloo corrupts the heap then."""
    case = Case(mode, True, "mxfp8", options=(("ub_overlap_ag", True),))
    for made in two.run(jobs.graphs, case):
        for order in made["order"]:
            running: list[str] = []
            for word in order:
                if word.startswith("wait for "):
                    running.remove(word.removeprefix("wait for "))
                elif word != "phase":
                    assert not running or "gather" not in (word, *running), order
                    running.append(word)
            assert not running


BITS = {"current": 8, "delayed": 8, "block": 8, "mxfp8": 8, "nvfp4": 4, "mxfp4": 4}


@pytest.mark.parametrize("name", [name for name in BITS if name in LAWS])
def test_parallel__what_is_gathered_is_quantized(name: str, two: Ranks) -> None:
    """Bytes a rank sends: its elements and scales of 8 bits or fewer, an f32 a block of 128."""
    rows = 256 // two.world
    for mode, size in (("column", SIZES["in"]), ("row", SIZES["out"])):
        for made in two.run(jobs.graphs, Case(mode, True, name)):
            seen = [tuple(one) for graph in made["seen"] for one in graph]
            gathers = [one for one in seen if one[0] == "all_gather"]
            elements = rows * size * (BITS[name] / 8)
            directions = 1 if name in ("current", "delayed") else 2
            sent = sum(count for _, _, count in gathers)
            assert {dtype for _, dtype, _ in gathers} <= {"torch.uint8", "torch.float32"}
            twice = 2 if mode == "column" else directions  # the input again, for wgrad
            assert twice * elements <= sent <= twice * elements * 1.25, (mode, sent)
            peaks = [one for one in seen if one[0] == "max"]
            assert all(count == 4 for _, _, count in peaks)


# ---- calls -----------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [jobs.microbatches, jobs.quantized_parameters])
@pytest.mark.parametrize("name", ["mxfp8", "delayed"][: 1 + COMPILES_DELAYED])
def test_parallel__calls_of_a_kind_are_eager(job: Any, name: str, two: Ranks) -> None:  # noqa: ANN401
    for mode in ("column", "row"):
        case = Case(mode, True, name)
        assert_same(two.run(job, case._replace(compiled="aot_eager")), two.run(job, case))


@pytest.mark.parametrize("name", ["current", "mxfp8", "delayed"])
def test_parallel__gradients_arrive_quantized(name: str, two: Ranks) -> None:
    """From a layer that hands its gradient on in 8 bits."""
    for mode, sequence in MODES:
        case = Case(mode, sequence, name)
        for one in two.run(jobs.quantized_gradients, case):
            assert one["kind"] == "QuantizedTensor"
            apart = (one["weight"].float() - one["other weight"].float()).norm()
            if sequence:  # quantized anew, by blocks of its own or by one scale of all ranks
                assert apart <= 0.05 * one["weight"].float().norm()
            else:
                assert apart == 0
            if mode == "row" and not sequence:
                assert torch.equal(one["dx"], one["other dx"])


def test_parallel__calibration_computes_unquantized(two: Ranks) -> None:
    for mode, sequence in MODES:
        case = Case(mode, sequence, "delayed")
        plain = two.run(jobs.train, case._replace(recipe="none"))
        for compiled in ("", "aot_eager"):
            found = two.run(jobs.calibrated, case._replace(compiled=compiled))
            for one, other in zip(found, plain, strict=True):
                assert torch.equal(one["y"], other["y0"])
                assert one["fp8_state"][0, 0] != 1


def test_parallel__delayed_gradients_are_added_to_main_grad(two: Ranks) -> None:
    for mode in ("column", "row"):
        case = Case(mode, True, "mxfp8")
        usual = two.run(jobs.microbatches, case)
        later = case._replace(options=(("delay_wgrad_compute", True),))
        assert_same(two.run(jobs.microbatches, later), usual)
        assert_same(two.run(jobs.microbatches, later._replace(compiled="aot_eager")), usual)


OPTIONS: list[dict[str, Any]] = [
    {"delay_wgrad_compute": True},
    {"return_bias": True},
    {"bias": False},
    {"save_original_input": True},
    {"parameters_split": ("q", "k")},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_parallel__options_are_eager(options: dict[str, Any], two: Ranks) -> None:
    """And gradients are those of a layer without the option."""
    for mode in ("column", "row"):
        case = Case(mode, True, "nvfp4-nearest", options=tuple(options.items()))
        wanted = two.run(jobs.train, case)
        assert_same(two.run(jobs.train, case._replace(compiled="aot_eager")), wanted)
        for one, usual in zip(
            wanted, two.run(jobs.train, case._replace(options=())), strict=True
        ):
            if "parameters_split" not in options:  # it shares each part by itself
                assert torch.equal(one["dx0"], usual["dx0"])
                assert torch.equal(one["weight"], usual["weight"])


def test_parallel__a_checkpoint_runs_collectives_again(two: Ranks) -> None:
    for mode in ("column", "row"):
        for name in ("mxfp8", "current"):
            case = Case(mode, True, name)
            again, usual = two.run(jobs.checkpointed, case), two.run(jobs.train, case)
            for one, other in zip(again, usual, strict=True):
                assert all(torch.equal(one[key], other[key]) for key in one)


def test_parallel__outputs_leave_quantized_in_the_shape_of_plain_ones(two: Ranks) -> None:
    for mode in ("column", "row"):
        case = Case(mode, True, "current", rows=(4, 64))
        for compiled in ("", "aot_eager"):
            for one in two.run(jobs.quantized_ends, case._replace(compiled=compiled)):
                assert one["shape"] == one["given"]


def test_parallel__copies_are_split_alike(two: Ranks) -> None:
    for one in two.run(jobs.copied, Case("row", True)):
        assert torch.equal(one["y"], one["copied"])
        assert torch.equal(one["y"], one["loaded"])
