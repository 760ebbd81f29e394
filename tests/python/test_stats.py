"""octet.stats: numbers of the casts, the same in eager and compiled code, at no one's cost."""

import copy
import time
from typing import Any

import octet
import pytest
from laws import RECIPES, CompileCounterWithBackend
from octet import _stats_ops
from octet._gathering import GATHERING
from torch.utils.checkpoint import checkpoint

import torch

QUANTIZING = {name: recipe for name, recipe in RECIPES.items() if recipe is not None}
MXFP8 = QUANTIZING["mxfp8"]


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    bf16 = {"device": "cpu", "params_dtype": torch.bfloat16}
    first, second = octet.Linear(64, 48, **bf16), octet.LayerNormLinear(48, 32, **bf16)
    return torch.nn.Sequential(first, torch.nn.ReLU(), second)


def x() -> torch.Tensor:
    return torch.randn(32, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(3))


def train(
    made: torch.nn.Module,
    run: Any,  # noqa: ANN401
    recipe: Any,  # noqa: ANN401
    steps: int = 4,
) -> list[torch.Tensor]:
    """Steps of training; all that they left."""
    optimizer = torch.optim.SGD(made.parameters(), 0.01)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        with octet.autocast(recipe=recipe):
            y = run(x())
        loss = y.float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *made.state_dict().values(), torch.get_rng_state()]


# ---- numbers ---------------------------------------------------------------------------------


def gathered(tensor: torch.Tensor, text: str, scale: float | None = None) -> Any:  # noqa: ANN401
    from octet._stats import _stats_of

    row = _stats_ops.new_row(tensor.device)
    states = [] if scale is None else [torch.tensor([[7.0, scale], [3.0, 5.0]])]
    _stats_ops.gather(row, tensor, states, 1, text)
    return _stats_of(row.tolist())


def test_stats__numbers_are_those_of_the_cast() -> None:
    tensor = torch.zeros(4, 64)
    tensor[0, :32] = 448 * 2.0**3  # a block of the largest code, scale 2^3
    tensor[1, 32:] = 448 * 2.0**-5
    tensor[2, 0], tensor[2, 1:32] = 448.0, 2.0**-12  # underflows: below half of 2^-9
    found = gathered(tensor, "mxfp8:e4m3/1x32+row")
    assert (found.calls, found.elements) == (1, 256)
    assert found.saturation == 65 / 256
    assert found.underflow == 31 / 96
    assert (found.scale_min, found.scale_max) == (-5, 3)
    power = 32 * (448 * 8) ** 2 + 32 * (448 / 32) ** 2 + 448**2 + 31 * 2.0**-24
    assert found.error == pytest.approx((31 * 2.0**-24 / power) ** 0.5)
    assert found.nonfinite == 0


def test_stats__delayed_scales_are_read_from_their_slot() -> None:
    tensor = torch.tensor([[1.0, 2.0, 448.0, 1000.0]])
    found = gathered(tensor, "fp8-delayed:e4m3+row", scale=1.0)
    assert found.saturation == 0.5
    assert (found.scale_min, found.scale_max) == (0, 0)
    assert found.error == pytest.approx(552 / (5 + 448**2 + 1000**2) ** 0.5)
    assert gathered(tensor, "fp8-delayed:e4m3+row", scale=0.25).saturation == 0
    assert gathered(tensor, "fp8-delayed:e4m3+row", scale=0.25).scale_max == 2


def test_stats__fp4_counts_both_codes_of_a_byte() -> None:
    tensor = torch.zeros(1, 32)
    tensor[0, 0], tensor[0, 3], tensor[0, 4] = 6.0, -6.0, 0.2
    found = gathered(tensor, "nvfp4:e2m1/1x16+row")
    assert found.saturation == 2 / 32
    assert found.underflow == 1 / 3


def test_stats__what_is_not_finite_is_counted_apart() -> None:
    tensor = torch.ones(2, 32)
    tensor[0, 0], tensor[1, 1] = torch.nan, 2.0
    found = gathered(tensor, "mxfp8:e4m3/1x32+row")
    assert 0 < found.nonfinite <= 0.5
    assert found.error == 0


def test_stats__many_rows_are_sampled() -> None:
    torch.manual_seed(0)
    tensor = torch.randn(4096, 256)
    found = gathered(tensor, "mxfp8:e4m3/1x32+row")
    assert found.elements == _stats_ops.MOST_ELEMENTS
    back = octet.MXFP8Quantizer("e4m3")(tensor).dequantize()
    error = float((tensor - back).norm() / tensor.norm())
    assert found.error == pytest.approx(error, rel=0.03)


# ---- eager and compiled ----------------------------------------------------------------------


@pytest.mark.parametrize("name", QUANTIZING)
def test_stats__compiled_code_gathers_what_eager_does(name: str) -> None:
    torch._dynamo.reset()
    found: list[Any] = []
    for compiles in (False, True):
        made, got = model(), []
        counter = CompileCounterWithBackend("aot_eager")
        run = torch.compile(made, backend=counter, fullgraph=True) if compiles else made
        with octet.stats(made, every=2, to=lambda step, r, got=got: got.append((step, r))):
            left = train(made, run, QUANTIZING[name], 6)
        found.append((got, left))
        if compiles:
            assert counter.frame_count == 2  # one graph gathers, one does not
    assert found[0][0] == found[1][0]
    assert [step for step, _ in found[0][0]] == [0, 2, 4]
    assert set(found[0][0][1][1]) == {"0", "2"}
    for roles in found[0][0][1][1].values():
        assert list(roles) == ["input", "weight", "grad_output"]
        assert all(stats.calls == 1 and 0 < stats.error < 0.3 for stats in roles.values())


@pytest.mark.parametrize("name", ["delayed", "nvfp4"])
def test_stats__training_is_bit_for_bit_what_it_is_without(name: str) -> None:
    plain = model()
    left = train(plain, plain, QUANTIZING[name])
    watched = model()
    with octet.stats(watched, every=1):
        for a, b in zip(left, train(watched, watched, QUANTIZING[name]), strict=True):
            assert torch.equal(a, b)


def test_stats__of_steps_that_are_not_sampled_nothing_is_gathered() -> None:
    made = model()
    with octet.stats(made, every=3) as stats:
        train(made, made, MXFP8, 1)
        first = stats.last
        assert not GATHERING.active
        train(made, made, MXFP8, 2)  # two steps later the fourth one begins
        assert stats.last is first
        assert GATHERING.active


@pytest.mark.parametrize("reentrant", [False, True])
def test_stats__a_recomputed_call_counts_once(reentrant: bool) -> None:
    made = model()
    with octet.stats(made) as stats, octet.autocast(recipe=MXFP8):
        y = checkpoint(made, x().requires_grad_(), use_reentrant=reentrant)
        y.sum().backward()
        stats.step()
    for roles in stats.last.values():
        assert [roles[role].calls for role in roles] == [1, 1, 1]
        assert len(roles) == 3


def test_stats__an_evaluation_in_between_is_not_counted() -> None:
    made = model()
    with octet.stats(made) as stats, octet.autocast(recipe=MXFP8):
        made(x()).sum().backward()
        made.eval()
        made(x())
        made.train()
        stats.step()
    assert stats.last["0"]["input"].calls == 1


def test_stats__calls_that_explain_and_advise_make_are_not_counted() -> None:
    made = model()
    with octet.stats(made) as stats, octet.autocast(recipe=MXFP8):
        octet.explain(made, x())
        octet.advise(made, x(), lambda y: y.float().square().mean())
        made(x()).sum().backward()
        octet.explain(made, x())
        stats.step()
    assert {s.calls for roles in stats.last.values() for s in roles.values()} == {1}


def test_stats__microbatches_add_up_and_plain_calls_do_not() -> None:
    made = model()
    with octet.stats(made) as stats:
        for _ in range(3):
            with octet.autocast(recipe=MXFP8):
                made(x()).sum().backward()
        made(x()).sum().backward()  # nothing is quantized
        stats.step()
    assert stats.last["0"]["grad_output"].calls == 3
    assert stats.last["0"]["grad_output"].elements == 3 * 32 * 48


# ---- logging ---------------------------------------------------------------------------------


class Writer:
    def __init__(self) -> None:
        self.scalars: dict[tuple[str, int], float] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars[tag, step] = value


def test_stats__writers_get_scalars_and_functions_get_results() -> None:
    made, writer, got = model(), Writer(), []
    with octet.stats(made, every=2, to=[writer, lambda *args: got.append(args)]):
        train(made, made, MXFP8)
    assert {step for _, step in writer.scalars} == {0, 2} == {step for step, _ in got}
    error = writer.scalars["octet/error/2/grad_output", 2]
    assert error == got[1][1]["2"]["grad_output"].error
    assert ("octet/scale_min/0/input", 0) in writer.scalars
    assert len(writer.scalars) == 2 * 2 * 3 * 6


def test_stats__the_first_optimizer_of_the_model_counts_steps() -> None:
    made, other = model(), torch.nn.Linear(2, 2)
    foreign = torch.optim.SGD(other.parameters(), 0.1)
    mine = [
        torch.optim.SGD(made[0].parameters(), 0.1),
        torch.optim.SGD(made[2].parameters(), 1),
    ]
    with octet.stats(made) as stats:
        foreign.step()
        assert stats.steps == 0
        for _ in range(2):
            mine[0].step()
            mine[1].step()
        assert stats.steps == 2


# ---- the end ---------------------------------------------------------------------------------


def test_stats__leaves_nothing_behind() -> None:
    made = model()
    before = [dict(vars(module)) for module in made.modules()]
    with pytest.raises(RuntimeError, match="mine"), octet.stats(made):
        raise RuntimeError("mine")
    assert [dict(vars(module)) for module in made.modules()] == before
    assert not GATHERING.active
    assert GATHERING.handles == []
    stats = octet.stats(made)
    copied = copy.deepcopy(made)
    stats.close()
    stats.close()
    train(copied, copied, MXFP8, 1)

    assert stats.last == {}


def test_stats__what_is_left_at_the_end_is_logged() -> None:
    made, got = model(), []
    with octet.stats(made, to=lambda *args: got.append(args)), octet.autocast(recipe=MXFP8):
        made(x())
    assert list(got[0][1]["0"]) == ["input", "weight"]


def test_stats__bad_input_names_the_fix() -> None:
    made = model()
    for every in (0, -1, 1.5, True, None):
        with pytest.raises(ValueError, match="it is a number of steps, 1 or more"):
            octet.stats(made, every=every)
    with pytest.raises(TypeError, match="to is a str; it is a function of step and results"):
        octet.stats(made, to="runs/1")
    with pytest.raises(ValueError, match="convert it first"):
        octet.stats(torch.nn.Linear(2, 2))
    with octet.stats(made), pytest.raises(ValueError, match="0 is watched already; close"):
        octet.stats(made)
    assert made[0]._watch is None
    assert not GATHERING.active


@pytest.mark.long
def test_stats__cost_at_most_a_hundredth_of_a_step() -> None:
    bf16 = {"device": "cpu", "params_dtype": torch.bfloat16, "bias": False}
    made = torch.nn.Sequential(*(octet.Linear(512, 512, **bf16) for _ in range(8)))
    rows, times = torch.randn(1024, 512, dtype=torch.bfloat16), {True: [], False: []}
    with octet.stats(made, every=2) as stats:
        for _ in range(40):
            samples, start = stats.samples, time.perf_counter()
            with octet.autocast(recipe=MXFP8):
                made(rows).float().square().mean().backward()
            stats.step()
            times[samples].append(time.perf_counter() - start)
    more = min(times[True]) - min(times[False])
    assert more / 100 <= 0.01 * min(times[False])  # by default one step in 100
