"""The extension module where Python has no memory for an object, by count: a MemoryError or the
right answer, nothing left behind, and the next call works. And what it refuses, in words."""

import gc
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from octet import _C

_testcapi = pytest.importorskip("_testcapi", reason="this Python has no allocator that fails")

BF16 = ("bf16", "bf16", None)
WORDS = "in=bf16 recipe=mxfp8 bias"
COLUMN = "in=bf16 recipe=mxfp8 parallel=column tp=2 sequence"
QUANTIZER = "mxfp8:e4m3/1x32+row+col"
SIZES = (32, 64, 48)

# Calls of every function that makes objects.
CALLS: dict[str, tuple[Any, ...]] = {
    "algorithms": (),
    "backward_signature": (WORDS, True),
    "buffers": ((8, 64), "bf16", QUANTIZER),
    "cached_plans": (),
    "canonical": ("recipe", "nvfp4"),
    "check_argument": ("linear", WORDS, SIZES, 0, "bf16", (32, 64)),
    "column_step": (QUANTIZER,),
    "cpu_name": (),
    "custom_recipe": ({"weight": QUANTIZER},),
    "describe": ("linear_backward", WORDS, SIZES),
    "equal": ("recipe", "mxfp8", "block"),
    "explain": ("linear", WORDS, SIZES),
    "fields": ("linear", "linear m=16 k=32 n=48 in=bf16 recipe=delayed bias"),
    "gradient_words": (WORDS, "f32", "mxfp8:e5m2"),
    "hash": ("linear", "linear m=16 k=32 n=48 in=bf16"),
    "input_words": (WORDS, QUANTIZER, True),
    "largest_code": (QUANTIZER,),
    "layout": (QUANTIZER,),
    "linear_signature": ("in=bf16 recipe=delayed bias main_grad=add", False),
    "linear_words": (
        BF16,
        (None, QUANTIZER),
        "mxfp8",
        (True, True, False),
        (("device", "cpu"),),
    ),
    "make": ("recipe", "delayed", {"margin": 1}),
    "measure": ("linear", WORDS, SIZES),
    "parameter_quantizer": ("in=bf16 recipe=mxfp8",),
    "phases": (1, COLUMN),
    "product_facts": ("linear_backward", WORDS, SIZES),
    "products": ("linear_backward", WORDS, SIZES),
    "replays": (),
    "role_quantizer": ("mxfp8", "weight"),
    "row_step": (QUANTIZER,),
    "saved_tensors_hooks": (lambda _: None, len, len),
    "scale_exponents": (QUANTIZER,),
    "shared_quantizer": ("in=bf16 recipe=mxfp8", False),
    "support": (QUANTIZER, "cpu"),
    "takes_scale": (QUANTIZER,),
    "tensor_words": ("bf16", QUANTIZER),
    "transposable": (QUANTIZER,),
    "version": (),
    "with_usage": (QUANTIZER, True, False),
    "words_on_cpu": (WORDS,),
}
LINEAR = "linear m=16 k=32 n=48 in=bf16"
NORMED = (("bf16",) * 5, (None, None), "mxfp8", (True,) * 3)
# Other ways through some of them.
MORE: list[tuple[str, tuple[Any, ...]]] = [
    ("canonical", ("linear", LINEAR)),
    ("equal", ("linear", LINEAR, LINEAR)),
    ("equal", ("quantizer", QUANTIZER, "mxfp8:e5m2")),
    ("hash", ("recipe", "nvfp4")),
    ("hash", ("quantizer", QUANTIZER)),
    ("make", ("linear", f"{LINEAR} bias", {"threads": 2, "return_bias": True})),
    ("make", ("quantizer", "fp8-tensor:e4m3", {"epsilon": 0.5})),
    ("linear_words", (*NORMED, (("prologue", "layernorm"), ("eps", 1e-5)))),
    (
        "linear_words",
        (BF16, (None, None), "mxfp8", (True, True, False), (("prologue", "swiglu"),)),
    ),
    (
        "linear_words",
        (BF16, (None, None), "delayed", (True, True, False), (("raise_amax", True),)),
    ),
    (
        "linear_words",
        (BF16, (None, None), "mxfp8", (True, True, False), (("raise_amax", True),)),
    ),
    ("gradient_words", (WORDS, None, None)),
    ("input_words", (WORDS, QUANTIZER, False)),
    ("phases", (1, f"{COLUMN} chunks=2")),
    ("phases", (0, f"{COLUMN} gather_chunks=2")),
    ("phases", (2, f"{COLUMN} delay_wgrad")),
    ("describe", ("quantize", "bf16 fp8-tensor:e4m3+row", (8, 32))),
    ("describe", ("linear_backward", "in=bf16 recipe=delayed raise_amax main_grad=add", SIZES)),
    ("describe", ("linear_wgrad", f"{WORDS} delay_wgrad", SIZES)),
    ("measure", ("linear", "in=bf16 recipe=mxfp8 prologue=gelu save=memory", SIZES)),
    ("products", ("linear_backward", f"{COLUMN} chunks=2", (64, 64, 64))),
    ("scale_exponents", ("fp8-tensor:e4m3",)),
    ("scale_exponents", ("nvfp4:e2m1",)),
    ("takes_scale", ("none",)),
    ("takes_scale", ("fp8-delayed:e4m3",)),
    ("buffers", ((8, 64), "f32", "none")),
    ("check_argument", ("linear", WORDS, SIZES, 99, "u8", (7,))),
    ("check_argument", ("linear", WORDS, SIZES, -1, None, ())),
    ("check_argument", ("linear", WORDS, (-1, 64, -1), 0, "bf16", (-1, 64))),
    ("check_argument", ("linear", WORDS, (1,), 0, "bf16", (5, 7))),
    ("check_argument", ("quantize", f"bf16 {QUANTIZER}", (8, -1), 0, "bf16", (8, 5))),
    ("shared_quantizer", ("in=bf16 recipe=mxfp8", True)),
    ("linear_signature", (f"{WORDS} delay_wgrad", True)),
    ("linear_signature", ("in=bf16 recipe=none", True)),
    ("backward_signature", ("in=bf16 recipe=delayed raise_amax main_grad=add grad=xw", False)),
    ("custom_recipe", ({},)),
]
OTHERS = {"allow_replays", "cuda_device", "register_ops", "use_cuda"}  # of the whole process


def functions() -> set[str]:
    return {name for name in dir(_C) if callable(getattr(_C, name)) and name[0] != "_"}


def test_every_function_is_called_here() -> None:
    assert set(CALLS) | OTHERS == functions() - {"LiveValue"}


def without_memory(call: Callable[..., Any], args: tuple[Any, ...], at: int) -> Any:  # noqa: ANN401
    """What a call gives whose allocation `at` fails; MemoryError where it says so."""
    _testcapi.set_nomemory(at, at + 1)
    try:
        return call(*args)
    except MemoryError:
        return MemoryError
    finally:
        _testcapi.remove_mem_hooks()


def sweep(call: Callable[..., Any], args: tuple[Any, ...], right: Any) -> int:  # noqa: ANN401
    """Each allocation fails once; gives how many did. Some are never needed."""
    failed, good, at = 0, 0, 0
    while good < 30:
        found = without_memory(call, args, at)
        assert found is MemoryError or found == right, (at, found)
        failed, good = (failed + 1, 0) if found is MemoryError else (failed, good + 1)
        at += 1
    return failed


@pytest.mark.parametrize("case", [*CALLS.items(), *MORE], ids=lambda case: case[0])
def test_an_object_that_cannot_be_made_is_a_memory_error(
    case: tuple[str, tuple[Any, ...]],
) -> None:
    call, args = getattr(_C, case[0]), case[1]
    right = call(*args)
    first = sweep(call, args, right)
    blocks = sys.getallocatedblocks()
    assert sweep(call, args, right) <= first + 5
    assert sys.getallocatedblocks() - blocks < 20, "objects are left behind"
    assert call(*args) == right


INIT = """
import _imp, _testcapi, importlib.util, sys
spec = importlib.util.spec_from_file_location("octet._C", sys.argv[1])
at, made = 0, None
while made is None:
    _testcapi.set_nomemory(at, at + 1)
    try:
        made = _imp.create_dynamic(spec)
    except (MemoryError, SystemError):  # the latter: Python forgot to say why
        pass
    finally:
        _testcapi.remove_mem_hooks()
    at += 1
print(at, made.version(), len(made.OVERLOADS))
"""


def test_a_module_that_cannot_be_made_can_be_made_later() -> None:
    command = [sys.executable, "-c", INIT, _C.__file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    at, version, overloads = done.stdout.split()
    assert int(at) > 20
    assert (version, int(overloads)) == (_C.version(), len(_C.OVERLOADS))


# ---- refusals ------------------------------------------------------------------

REFUSED: list[tuple[str, tuple[Any, ...], Any, str | None]] = [
    ("canonical", ("color", "red"), ValueError, "'color' is not quantizer, recipe or linear"),
    ("canonical", ("recipe", "red"), ValueError, "'red' is not a recipe"),
    ("fields", ("recipe", "red"), ValueError, "'red' is not a recipe"),
    ("hash", ("recipe", "red"), ValueError, "'red' is not a recipe"),
    ("equal", ("recipe", "red", "mxfp8"), ValueError, "'red' is not a recipe"),
    ("equal", ("recipe", "mxfp8", "red"), ValueError, "'red' is not a recipe"),
    ("make", ("recipe", "red", {}), ValueError, "'red' is not a recipe"),
    ("make", ("recipe", "mxfp8", []), TypeError, "fields are a dict"),
    ("make", ("recipe", "mxfp8", {1: 1}), TypeError, "argument"),
    ("make", ("recipe", "mxfp8", {"red": 1}), ValueError, "there is no field 'red'"),
    ("make", ("recipe", "delayed", {"margin": "x"}), TypeError, "integer"),
    ("make", ("recipe", "delayed", {"history": "x"}), TypeError, "int"),
    ("make", ("recipe", "delayed", {"history": 2**70}), OverflowError, "too"),
    ("make", ("recipe", "delayed", {"history": 2**40}), ValueError, "cannot be 1099511627776"),
    ("make", ("recipe", "delayed", {"history": -1}), ValueError, "cannot be -1"),
    ("make", ("recipe", "delayed", {"kind": "red"}), ValueError, "'red'; allowed: "),
    ("make", ("recipe", "delayed", {"kind": 1}), TypeError, None),
    ("with_usage", ("red", True, True), ValueError, "is not a scheme"),
    ("with_usage", (QUANTIZER, False, False), ValueError, None),
    ("role_quantizer", ("mxfp8", "red"), ValueError, "'red' is not a role of a Linear"),
    ("role_quantizer", ("red", "weight"), ValueError, "'red' is not a recipe"),
    ("parameter_quantizer", ("in=red",), ValueError, "dtype"),
    ("shared_quantizer", ("in=red", True), ValueError, "dtype"),
    ("custom_recipe", ({"weight": "red"},), ValueError, "is not a scheme"),
    ("custom_recipe", ({"weight": 1},), TypeError, None),
    ("layout", ("red",), ValueError, "is not a scheme"),
    ("takes_scale", ("red",), ValueError, "is not a scheme"),
    ("support", ("red", "cpu"), ValueError, "is not a scheme"),
    ("support", (QUANTIZER, "red"), ValueError, "red"),
    ("largest_code", ("red",), ValueError, "is not a scheme"),
    ("largest_code", ("none",), ValueError, "'none' makes no codes"),
    ("scale_exponents", ("red",), ValueError, "is not a scheme"),
    ("row_step", ("red",), ValueError, "is not a scheme"),
    ("column_step", ("red",), ValueError, "is not a scheme"),
    ("transposable", ("red",), ValueError, "is not a scheme"),
    ("buffers", (1, "bf16", QUANTIZER), TypeError, None),
    ("buffers", ((1,) * 17, "bf16", QUANTIZER), ValueError, "a tensor of 17 axes; at most 16"),
    ("buffers", (("x",), "bf16", QUANTIZER), TypeError, "int"),
    ("buffers", ((4,), "red", QUANTIZER), ValueError, "'red' is not a dtype"),
    ("buffers", ((4,), "bf16", "red"), ValueError, "is not a scheme"),
    ("buffers", ((-4, 4), "bf16", QUANTIZER), ValueError, "-4"),
    ("describe", ("red", WORDS, SIZES), ValueError, "'red' is not a kind of plan"),
    ("describe", ("linear", "in=red", SIZES), ValueError, "dtype"),
    ("describe", ("linear", WORDS, 1), TypeError, None),
    ("describe", ("linear", WORDS, (1,) * 18), ValueError, "18 sizes; at most 16 axes"),
    ("describe", ("linear", WORDS, ("x", 1, 1)), TypeError, "int"),
    ("measure", ("linear", "in=red", SIZES), ValueError, "dtype"),
    ("products", ("linear", "in=red", SIZES), ValueError, "dtype"),
    ("product_facts", ("linear", "in=red", SIZES), ValueError, "dtype"),
    ("explain", ("linear", "in=red", SIZES), ValueError, "dtype"),
    ("explain", ("linear_wgrad", WORDS, SIZES), ValueError, "nothing for a later wgrad"),
    ("check_argument", ("red", WORDS, SIZES, 0, "bf16", (1,)), ValueError, "kind of plan"),
    ("check_argument", ("linear", WORDS, SIZES, 0, "f32", (32, 64)), ValueError, "not bf16"),
    ("check_argument", ("linear", WORDS, SIZES, 0, None, (32, 64)), ValueError, "not bf16"),
    (
        "check_argument",
        ("linear", WORDS, SIZES, 0, "bf16", (-1, 63)),
        ValueError,
        r"\(\?, 63\)",
    ),
    ("check_argument", ("linear", WORDS, SIZES, 0, "bf16", ("x",)), TypeError, "int"),
    (
        "check_argument",
        ("linear_wgrad", WORDS, SIZES, 0, "bf16", (1, 1)),
        ValueError,
        "nothing for a later wgrad",
    ),
    ("linear_words", (BF16, (None, None), "red", (1, 1, 1), ()), ValueError, "not a recipe"),
    (
        "linear_words",
        (("red", "bf16", None), (None, None), "mxfp8", (1, 1, 1), ()),
        ValueError,
        "red",
    ),
    ("linear_words", (BF16, ("red", None), "mxfp8", (1, 1, 1), ()), ValueError, "not a scheme"),
    ("linear_words", (BF16, (None, None), "mxfp8", (1, 1, 1), (1,)), TypeError, None),
    (
        "linear_words",
        (BF16, (None, None), "mxfp8", (1, 1, 1), (("device", "red"),)),
        ValueError,
        "red",
    ),
    (
        "linear_words",
        (BF16, (None, None), "mxfp8", (1, 1, 1), (("device", 1),)),
        TypeError,
        None,
    ),
    ("linear_words", (BF16, (None,), "mxfp8", (1, 1, 1), ()), TypeError, None),
    *(
        ("linear_words", (dtypes, (None, None), "mxfp8", (1, 1, 1), ()), ValueError, "red")
        for dtypes in (
            ("bf16", "red", None),
            ("bf16", "bf16", "red"),
            ("bf16", "bf16", None, "red"),
            ("bf16", "bf16", None, "bf16", "red"),
        )
    ),
    ("linear_words", (1, (None, None), "mxfp8", (1, 1, 1), ()), TypeError, None),
    (
        "linear_words",
        (BF16, (None, None), "mxfp8", (1, 1, 0), (("chunks", 99),)),
        ValueError,
        "chunks is 99",
    ),
    ("describe", ("quantize", "bf16 " + "x" * 5000, (8, 32)), ValueError, "of 5000 characters"),
    ("describe", ("quantize", f"bf16 {QUANTIZER}", (1,) * 17), ValueError, "17 axes"),
    ("describe", ("linear", WORDS, (5,)), ValueError, None),
    ("gradient_words", ("in=red", None, None), ValueError, "dtype"),
    ("gradient_words", (WORDS, "red", None), ValueError, "red"),
    ("input_words", (WORDS, "red", True), ValueError, "is not a scheme"),
    ("words_on_cpu", ("in=red",), ValueError, "dtype"),
    ("linear_signature", ("in=red", True), ValueError, "dtype"),
    ("backward_signature", ("in=red", True), ValueError, "dtype"),
    ("phases", (0, "in=red"), ValueError, "dtype"),
    ("phases", (2, COLUMN), ValueError, "nothing for"),
    ("phases", (-1, COLUMN), ValueError, None),
    ("cuda_device", (-1,), (RuntimeError, ValueError, NotImplementedError), None),
    ("register_ops", ("/nowhere",), RuntimeError, "cannot open /nowhere"),
    ("use_cuda", ("/nowhere", ""), NotImplementedError, "/nowhere has no aoti_torch"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[0])
def test_what_is_wrong_is_said(case: tuple[str, tuple[Any, ...], Any, str | None]) -> None:
    name, args, error, words = case
    with pytest.raises(error, match=words):
        getattr(_C, name)(*args)


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name]] + sorted(OTHERS))
def test_arguments_of_no_kind_are_type_errors(name: str) -> None:
    with pytest.raises(TypeError):
        getattr(_C, name)()
    if name != "allow_replays":
        with pytest.raises(TypeError):
            getattr(_C, name)(*[object()] * max(1, len(CALLS.get(name, ()))))


class Unclear:
    def __bool__(self) -> bool:
        raise ArithmeticError


def test_what_is_neither_true_nor_false_stays_its_own_error() -> None:
    with pytest.raises(ArithmeticError):
        _C.allow_replays(Unclear())
    with pytest.raises(ArithmeticError):
        _C.make("linear", "linear m=1 k=1 n=1 in=bf16", {"return_bias": Unclear()})


@pytest.mark.parametrize("letters", range(3))
def test_a_text_that_is_cut_in_a_letter_is_a_refusal_like_others(letters: int) -> None:
    text = "bf16 mxfp8:e4m3 " + "x" * letters + "é" * 300
    with pytest.raises(ValueError, match="follows the quantizer") as caught:
        _C.describe("quantize", text, (8, 32))
    assert type(caught.value) is ValueError


class Hooks:
    """A stack of pairs, as torch has one, whose functions may fail once."""

    def __init__(self, fails: str = "", at: int = 0) -> None:
        self.pairs: list[tuple[int, int]] = [(1, 2), (3, 4), (5, 6)]
        self.fails, self.at = fails, at

    def _count(self, name: str) -> None:
        self.at -= name == self.fails
        if name == self.fails and self.at < 0:
            self.fails = ""
            raise KeyError(name)

    def top(self, _: bool) -> tuple[int, int] | None:
        self._count("top")
        return self.pairs[-1] if self.pairs else None

    def pop(self) -> None:
        self._count("pop")
        self.pairs.pop()

    def push(self, pack: int, unpack: int) -> None:
        self.pairs.append((pack, unpack))
        self._count("push")


def test_hooks_are_seen_and_stay() -> None:
    hooks = Hooks()
    found = _C.saved_tensors_hooks(hooks.top, hooks.pop, hooks.push)
    assert found == [(5, 6), (3, 4), (1, 2)]
    assert hooks.pairs == [(1, 2), (3, 4), (5, 6)]
    for name in ("top", "pop", "push"):
        for at in range(3):
            hooks = Hooks(name, at)
            with pytest.raises(KeyError, match=name):
                _C.saved_tensors_hooks(hooks.top, hooks.pop, hooks.push)
            assert hooks.pairs == [(1, 2), (3, 4), (5, 6)]
    with pytest.raises(TypeError):
        _C.saved_tensors_hooks(hooks.top)


def test_a_live_value_knows_what_it_holds() -> None:
    def read() -> int:
        return 3

    def write(value: int) -> None:
        del value

    made = _C.LiveValue(read, write)
    for held in (read, write, _C.LiveValue):
        assert any(found is made for found in gc.get_referrers(held))


def test_a_live_value_says_what_it_cannot() -> None:
    fixed = _C.LiveValue(lambda: 3)
    with pytest.raises(AttributeError, match="read-only"):
        fixed.value = 4
    with pytest.raises(AttributeError, match="read-only"):
        del fixed.value
    with pytest.raises(TypeError):
        _C.LiveValue()
    assert _C.LiveValue.__new__(_C.LiveValue).value is None
    failing = _C.LiveValue(lambda: 3, lambda value: 1 / value)
    with pytest.raises(ZeroDivisionError):
        failing.value = 0
    failing.__init__(lambda: 5)  # type: ignore[misc]
    assert failing.value == 5
