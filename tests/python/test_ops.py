"""The ops: what torch demands of one, and that fakes and kernels agree, size by size."""

import itertools
from typing import Any

import octet
import pytest
from octet import _C, _ops, _plans
from torch._subclasses.fake_tensor import FakeTensorMode

import torch

SIZES = (3, 13, 70, 44)
PROBLEM = "in=bf16 recipe=mxfp8 bias"
DELAYED = "in=bf16 recipe=delayed:history=4 bias raise_amax"
ROUNDED = "in=bf16 recipe=nvfp4"


def operands(sizes: tuple[int, ...] = SIZES) -> tuple[list[Any], torch.Tensor]:
    *leading, k, n = sizes
    x = torch.randn(*leading, k, dtype=torch.bfloat16)
    w = torch.randn(n, k, dtype=torch.bfloat16)
    return [x, w, torch.randn(n, dtype=torch.bfloat16)], torch.randn(*leading, n).bfloat16()


def phase() -> tuple[Any, ...]:
    """The first phase of a row-parallel call: a product, which ranks then add up."""
    x, w = torch.randn(*SIZES[:-1]), torch.randn(SIZES[-1], SIZES[-2])
    rows = x.numel() // SIZES[-2]
    words = "in=f32 recipe=mxfp8 parallel=row tp=2 grad=none"
    return [torch.zeros(rows, SIZES[-1])], [x, w], [], SIZES, words, 0, 0


def fresh(rows: int, slots: int, amax: float) -> torch.Tensor:
    """A state of delayed scaling: scales 1, and rows of one amax."""
    return torch.cat([torch.ones(1, slots), torch.full((rows, slots), amax)])


def cases() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    torch.manual_seed(0)
    args, grad = operands()
    x = args[0]
    bytes_of_x = _ops.quantize(x, [], "bf16 mxfp8:e4m3")
    seed, scale = torch.tensor([8]), torch.ones(1)
    block = _ops.linear(args, SIZES, PROBLEM)[1]
    late = f"{PROBLEM} delay_wgrad"
    late_block = _ops.linear(args, SIZES, late)[1]
    late_rest = _ops.linear_backward([grad, late_block], SIZES, late)[-1]
    into = f"{PROBLEM} main_grad=add"
    state, grad_state = fresh(4, 3, 0.5), fresh(4, 2, 0.5)
    delayed = DELAYED
    scaled = _ops.linear_into[2]([state], args, SIZES, delayed)[1]
    rounded = _ops.linear(args[:2], SIZES, ROUNDED)[1]
    return {
        "quantize": (_ops.quantize, (x, [], "bf16 fp8-block:e4m3/1x128")),
        "quantize, stochastic": (_ops.quantize, (x, [seed], "bf16 nvfp4:e2m1+sr")),
        "quantize, delayed": (_ops.quantize, (x, [scale], "bf16 fp8-delayed:e4m3")),
        "quantize_into": (_ops.quantize_into, (bytes_of_x, x, [], "bf16 mxfp8:e4m3")),
        "dequantize": (_ops.dequantize, (bytes_of_x, SIZES[:3], "f32 mxfp8:e4m3")),
        "linear": (_ops.linear, (args, SIZES, PROBLEM)),
        "linear_backward": (_ops.linear_backward, ([grad, block], SIZES, PROBLEM)),
        "linear_into": (
            _ops.linear_into[2],
            ([state], args, SIZES, delayed),
        ),
        "linear_into, no graph": (
            _ops.linear_into[1],
            ([state], args, SIZES, f"{delayed} grad=none"),
        ),
        "linear_backward_into": (
            _ops.linear_backward_into[2],
            ([torch.zeros(44, 70)], [grad, block], SIZES, into, ""),
        ),
        "linear_backward_into, bias": (
            _ops.linear_backward_into[1],
            (
                [torch.zeros(44, 70), torch.zeros(44)],
                [grad, block],
                SIZES,
                f"{into} bias_main_grad=add",
                "",
            ),
        ),
        "linear_backward_into, amaxes": (
            _ops.linear_backward_into[3],
            ([grad_state], [grad, scaled], SIZES, delayed, ""),
        ),
        "linear_backward_into, scales": (
            _ops.linear_backward_into[3],
            ([grad_state], [grad, scaled], SIZES, delayed, "delayed:history=4"),
        ),
        "linear_seeded": (_ops.linear_seeded, (args[:2], seed, SIZES, ROUNDED)),
        "linear_backward, stochastic": (
            _ops.linear_backward,
            ([grad, seed, rounded], SIZES, ROUNDED),
        ),
        "linear_backward_into, nothing": (
            _ops.linear_backward_into[0],
            (
                [torch.zeros(44, 70)],
                [grad, _ops.linear(args, SIZES, f"{PROBLEM} grad=w")[1]],
                SIZES,
                f"{into} grad=w",
                "",
            ),
        ),
        "linear_wgrad": (_ops.linear_wgrad, ([late_block, late_rest], SIZES, late)),
        "linear_wgrad_into": (
            _ops.linear_wgrad_into,
            (torch.zeros(44, 70), [late_block, late_rest], SIZES, f"{late} main_grad=add"),
        ),
        "linear_phase": (_ops.linear_phase, phase()),
        "delayed_record": (_ops.delayed_record, (state, torch.rand(3))),
        "delayed_update": (
            _ops.delayed_update,
            ([state, grad_state], "input delayed:history=4"),
        ),
    }


CASES = cases()


@pytest.mark.parametrize("name", CASES)
def test_ops__opcheck(name: str) -> None:
    op, args = CASES[name]
    torch.library.opcheck(op, args)


def test_ops__the_seed_of_a_graph_is_drawn_as_torch_draws() -> None:
    op, x = torch.ops.octet.draw_seed_after.default, torch.ones(3)
    torch.library.opcheck(op, (x, []), test_utils=("test_schema", "test_faketensor"))
    torch.manual_seed(4)
    found = [torch.ops.octet.draw_seed(x), op(x, [])]
    torch.manual_seed(4)
    wanted = [torch.empty(1, dtype=torch.int64).random_() for _ in range(2)]
    assert found == wanted
    assert found[0] != found[1]


@pytest.mark.parametrize("quantized", [False, True])
def test_ops__a_linear_that_draws_is_linear_and_a_seed(quantized: bool) -> None:
    words = "in=bf16 recipe=nvfp4"
    x = torch.randn(16, 64, dtype=torch.bfloat16)
    weight = torch.randn(32, 64, dtype=torch.bfloat16)
    if quantized:
        words += " qw=nvfp4:e2m1/16x16"
        weight = octet.quantizers.from_text("nvfp4:e2m1/16x16")(weight)
    op, sizes = torch.ops.octet.linear_drawn.default, [16, 64, 32]
    if not quantized:
        args = (x, [weight], [], sizes, words)
        torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor"))
    torch.manual_seed(4)
    *found, seed = op(x, [weight], [], sizes, words)
    torch.manual_seed(4)
    assert torch.equal(seed, torch.empty(1, dtype=torch.int64).random_())
    wanted = _ops.linear([x, weight], sizes, words)
    assert len(found) == len(wanted)
    assert all(map(torch.equal, found, wanted))


def test_ops__a_phase_refuses_what_it_does_not_take() -> None:
    written, read, after, sizes, words, plan, number = phase()
    for args, why in (
        (([], read, after, sizes, words, plan, number), "0 tensors to write and 2 to read"),
        ((written, read[:1], after, sizes, words, plan, number), "1 tensors to write and 1"),
        (
            (written, [*read, read[0]], after, sizes, words, plan, number),
            "phase 0 uses 1 and 2",
        ),
        (([written[0][:1]], read, after, sizes, words, plan, number), "elements; the plan has"),
        ((written, read[::-1], after, sizes, words, plan, number), "argument 0, input"),
        ((written, read, after, sizes, words, 3, number), "plan 3, phase 0: there is none"),
        ((written, read, after, sizes, words, plan, -1), "plan 0, phase -1: there is none"),
        ((written, read, after, sizes, words, plan, 9), "tensors to write"),
    ):
        with pytest.raises(ValueError, match=why):
            _ops.linear_phase(*args)


def test_ops__opcheck_covers_every_op() -> None:
    names = {op._schema.name.removeprefix("octet::") for op, _ in CASES.values()}
    listed = ("linear_into", "linear_backward_into")
    assert names == {n for n, op in vars(_ops).items() if hasattr(op, "_schema")} | set(listed)


def test_ops__an_overload_for_every_number_of_outputs() -> None:
    for overloads in (_ops.linear_into, _ops.linear_backward_into):
        assert [len(op._schema.returns) for op in overloads] == list(range(9))
        assert all(op._schema.is_mutable for op in overloads)


RECIPES = ["none", "delayed", "current", "block", "mxfp8", "nvfp4", "nvfp4+norht+nosr"]
OPTIONS = ["", " quantize_output", " cache=write", " grad=w", " grad=none", " return_bias"]
EDGES = [(0, 64, 32), (1, 1, 1), (2, 5, 33, 17), (129, 130, 127)]


def live(recipe: str, slots: int) -> list[torch.Tensor]:
    return [torch.ones(slots)] if recipe == "delayed" else []


@pytest.mark.parametrize(
    ("recipe", "option"),
    [
        (r, o)
        for r, o in itertools.product(RECIPES, OPTIONS)
        if r != "none" or "quantize" not in o
    ],
)
def test_ops__fakes_are_what_kernels_make(recipe: str, option: str) -> None:
    words = f"in=bf16 recipe={recipe} bias{option}".replace(" bias grad=w", " grad=w")
    for sizes in EDGES:
        args, _ = operands(sizes)
        args = args[: 2 if option == " grad=w" else 3] + live(recipe, 3)
        real = _ops.linear(args, sizes, words)
        with FakeTensorMode() as mode:
            fake = _ops.linear([mode.from_tensor(arg) for arg in args], sizes, words)
        assert [(t.shape, t.dtype, t.stride()) for t in real] == [
            (t.shape, t.dtype, t.stride()) for t in fake
        ]


@pytest.mark.parametrize("before", [0.0, -1.0, float("nan"), 1e30])
def test_ops__amaxes_are_raised_as_they_are_recorded(before: float) -> None:
    args, grad = operands()
    pure, rule = DELAYED.removesuffix(" raise_amax"), "delayed:history=4"
    raised, recorded = fresh(4, 3, before), fresh(4, 3, before)
    amax, y, block = _ops.linear([*args, torch.ones(3)], SIZES, pure)
    assert all(
        map(torch.equal, _ops.linear_into[2]([raised], args, SIZES, DELAYED), (y, block))
    )
    _ops.delayed_record(recorded, amax)
    assert torch.equal(raised[:2, :2], recorded[:2, :2])
    assert torch.equal(raised[0], torch.ones(3))
    assert torch.equal(raised[1:, 2].isnan(), torch.full((4,), before).isnan())  # not measured

    raised, recorded = fresh(4, 2, before), fresh(4, 2, before)
    amax, *grads = _ops.linear_backward([grad, torch.ones(2), block], SIZES, pure)
    for updates in (False, True):
        args = [raised], [grad, block], SIZES, DELAYED, rule * updates
        found = _ops.linear_backward_into[3](*args)
        assert all(map(torch.equal, found, grads))
        _ops.delayed_record(recorded, amax)
        if updates:
            _ops.delayed_update([recorded], f"grad_output {rule}")
        assert torch.equal(raised[:, 0].nan_to_num(-7.0), recorded[:, 0].nan_to_num(-7.0))
    assert raised[0, 0] != 1


@pytest.mark.parametrize("option", ["", " quantize_output quantize_grad_input"])
def test_ops__without_amaxes_bytes_are_the_same(option: str) -> None:
    args, grad = operands()
    pure = DELAYED.removesuffix(" raise_amax") + option
    args.append(torch.tensor([2.0, 4.0, 8.0]))
    _, *want = _ops.linear(args, SIZES, pure)
    state = torch.cat([args[3][None], torch.full((2, 3), 9.0)])  # whose scales are read
    for scales in (args[3], state):
        found = _ops.linear([*args[:3], scales], SIZES, pure + " skip_amax")
        assert len(found) == len(want)
        assert all(map(torch.equal, found, want))

    backward = [grad, torch.tensor([0.5, 4.0]), want[-1]]
    _, *want = _ops.linear_backward(backward, SIZES, pure)
    found = _ops.linear_backward(backward, SIZES, pure + " skip_amax")
    assert len(found) == len(want)
    assert all(map(torch.equal, found, want))
    plan = _plans.describe("linear", pure + " skip_amax")
    assert all(port.name != "amax" for port in (*plan.args, *plan.outs))


@pytest.mark.parametrize("other", ["raise_amax", "calibrate"])
def test_ops__amaxes_that_are_not_measured_cannot_be_recorded(other: str) -> None:
    args, _ = operands()
    with pytest.raises(ValueError, match="skip_amax measures no amax"):
        _ops.linear(args, SIZES, f"in=bf16 recipe=delayed bias skip_amax {other}")


def test_ops__the_bias_gradient_goes_to_its_main_grad() -> None:
    args, grad = operands()
    block = _ops.linear(args, SIZES, PROBLEM)[1]
    dx, dw, db = _ops.linear_backward([grad, block], SIZES, PROBLEM)
    main_grad = torch.full((44,), float("nan"))
    for count, how in enumerate(("overwrite", "add"), 1):
        found = _ops.linear_backward_into[2](
            [main_grad], [grad, block], SIZES, f"{PROBLEM} bias_main_grad={how}", ""
        )
        assert all(map(torch.equal, found, (dx, dw)))
        assert torch.equal((main_grad / count).bfloat16(), db)


def test_ops__many_states_are_updated_as_each_would_be() -> None:
    torch.manual_seed(3)
    states = [torch.rand(7, 3) + 1 for _ in range(300)]
    ones = [state.clone() for state in states]
    rule = "weight delayed:history=5"
    _ops.delayed_update(states, rule)
    for state, one in zip(states, ones, strict=True):
        _ops.delayed_update([one], rule)
        assert torch.equal(state, one)


def test_ops__arena_bytes_are_the_plans() -> None:
    for recipe, sizes in itertools.product(RECIPES, EDGES):
        words = f"in=bf16 recipe={recipe} bias"
        plan = _plans.describe("linear", words)
        at = _plans.axes("linear", sizes)
        assert _plans.arena_bytes(plan, at) == _C.measure("linear", words, sizes)[0]


def test_ops__strides_do_not_change_bytes() -> None:
    (x, w, b), _ = operands((13, 70, 44))
    views = [
        x.t().contiguous().t(),
        torch.cat([x, x], 1)[:, :70],
        x.unsqueeze(1).expand(13, 2, 70)[:, 0],
    ]
    plain = _ops.linear([x, w, b], (13, 70, 44), PROBLEM)
    for view in views:
        assert all(map(torch.equal, plain, _ops.linear([view, w, b], (13, 70, 44), PROBLEM)))
    summed = torch.ones(()).bfloat16().expand(13, 44)
    for a, b in zip(
        _ops.linear_backward([summed, plain[1]], (13, 70, 44), PROBLEM),
        _ops.linear_backward([summed.contiguous(), plain[1]], (13, 70, 44), PROBLEM),
        strict=True,
    ):
        assert torch.equal(a, b)


def refusals() -> dict[str, tuple[Any, str]]:
    (x, w, b), _ = operands()
    linear = _ops.linear

    def into(state: torch.Tensor, outputs: int) -> Any:  # noqa: ANN401
        return _ops.linear_into[outputs]([state], [x, w, b], SIZES, DELAYED)

    return {
        "count": (lambda: linear([x, w], SIZES, PROBLEM), "the plan has 3 arguments"),
        "dtype": (lambda: linear([x.float(), w, b], SIZES, PROBLEM), r"input.*dtype"),
        "shape": (lambda: linear([x, w, b], (3, 13, 71, 44), PROBLEM), r"input.*elements"),
        "word": (lambda: linear([x, w, b], SIZES, f"{PROBLEM} fast"), "fast"),
        "recipe": (lambda: linear([x, w, b], SIZES, "in=bf16 recipe=fp2 bias"), "fp2"),
        "sizes": (lambda: linear([x, w, b], (70,), PROBLEM), "sizes"),
        "dtype word": (lambda: _ops.quantize(x, [], "i4 mxfp8:e4m3"), "dtype"),
        "arena": (
            lambda: _ops.linear_backward([x[..., :44], x.view(torch.uint8)], SIZES, PROBLEM),
            "arena",
        ),
        "written": (
            lambda: _ops.linear_backward_into[2](
                [torch.zeros(70, 44).t()],
                [x[..., :44], _ops.linear([x, w, b], SIZES, PROBLEM)[1]],
                SIZES,
                f"{PROBLEM} main_grad=add",
                "",
            ),
            "contiguous",
        ),
        "too many written": (
            lambda: _ops.linear_backward_into[3](
                [torch.ones(2)] * 5,
                [x[..., :44], _ops.linear([x, w, b], SIZES, PROBLEM)[1]],
                SIZES,
                PROBLEM,
                "",
            ),
            "5 tensors to write; the plan writes 0",
        ),
        "outputs": (lambda: into(torch.zeros(4, 3), 3), "2 outputs; this overload returns 3"),
        "slots": (lambda: into(torch.zeros(4, 2), 2), r"state.*\(4, 2\).*\(1 \+ rows, 3\)"),
        "no history": (
            lambda: into(torch.zeros(1, 3), 2),
            r"state.*\(1, 3\).*one row of amaxes",
        ),
        "scales alone": (lambda: into(torch.zeros(3), 2), r"state.*\(3\).*\(1 \+ rows, 3\)"),
        "scales beside their state": (
            lambda: _ops.linear_into[2](
                [torch.zeros(4, 3)], [x, w, b, torch.ones(3)], SIZES, DELAYED
            ),
            "4 tensors; the plan takes 3",
        ),
        "no state": (
            lambda: _ops.linear_backward_into[3]([], [x], SIZES, DELAYED, "delayed"),
            "a rule updates a state",
        ),
        "a state of forward": (
            lambda: _ops.linear_backward_into[3](
                [torch.zeros(4, 3)], [x], SIZES, DELAYED, "delayed:history=2"
            ),
            "has 3 columns; a rule updates a state, which has 2",
        ),
        "a history of none": (
            lambda: _ops.delayed_update([torch.ones(3)], "input delayed:history=1"),
            "a history of 0 rows; the recipe uses 1",
        ),
        "amaxes": (
            lambda: _ops.delayed_record(torch.ones(4, 3), torch.ones(2)),
            "2 amaxes for a history of 3 slots",
        ),
        "role": (lambda: _ops.delayed_update([torch.ones(4, 3)], "x delayed"), "not a role"),
        "rows": (
            lambda: _ops.delayed_update([torch.ones(5, 3)], "input delayed"),
            "a history of 4 rows; the recipe uses 1024",
        ),
    }


def test_ops__a_text_may_name_the_device() -> None:
    text = "bf16 mxfp8:e4m3"
    here, there = (_C.explain("quantize", text + on, (8, 32)) for on in ("", " device=cuda:1"))
    assert "cuda:1" in there
    assert "cuda" not in here
    assert _C.describe("quantize", text, (8, 32)) == _C.describe(
        "quantize", f"{text} device=cpu", (8, 32)
    )
    for on, pattern in ((" device=gpu", "not a device"), (" fast", "fast"), (" ", "follows")):
        with pytest.raises(ValueError, match=pattern):
            _C.describe("dequantize", text + on, (8, 32))
    x = torch.randn(8, 32).bfloat16()
    with pytest.raises(ValueError, match="another device"):
        _ops.quantize(x, [], f"{text} device=cuda:0/90")


@pytest.mark.parametrize("name", refusals())
def test_ops__a_wrong_call_is_a_value_error(name: str) -> None:
    call, pattern = refusals()[name]
    with pytest.raises(ValueError, match=pattern):
        call()


def test_ops__memory_that_is_not_there_is_told_and_the_next_call_works() -> None:
    x = torch.zeros(1, 32)
    with pytest.raises(
        MemoryError, match=f"torch cannot allocate a f32 tensor of {2**48} elements"
    ):
        _ops.quantize(x.expand(2**43, 32), [], "f32 fp8-tensor:e4m3+row")
    assert len(_ops.quantize(x, [], "f32 fp8-tensor:e4m3+row")) > 0


def test_ops__fakes_refuse_what_kernels_refuse() -> None:
    (x, w, _), _ = operands()
    with FakeTensorMode() as mode, pytest.raises(ValueError, match="3"):
        _ops.linear([mode.from_tensor(x), mode.from_tensor(w)], SIZES, PROBLEM)


def test_ops__run_on_as_many_threads_as_torch_has() -> None:
    args, _ = operands((257, 130, 96))
    before, results = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append(_ops.linear(args, (257, 130, 96), PROBLEM))
    torch.set_num_threads(before)
    assert all(map(torch.equal, *results))
