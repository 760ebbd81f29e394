"""octet quantizer and octet recipe: canonical text, and what the fields say."""

import re

import pytest
from program import good

QUANTIZERS = {
    "fp8-tensor:e4m3": "fp8-tensor:e4m3+row+col",
    "fp8-tensor:e5m2+col+pow2+row": "fp8-tensor:e5m2+row+col+pow2",
    "fp8-tensor:e4m3+eps=1e-12": "fp8-tensor:e4m3+row+col+eps=1e-12",
    "fp8-delayed:e4m3+row": "fp8-delayed:e4m3+row",
    "fp8-block:e4m3": "fp8-block:e4m3/1x128+row+col",
    "fp8-block:e4m3/128x128+nopow2": "fp8-block:e4m3/128x128+row+col+nopow2",
    "mxfp8:e4m3": "mxfp8:e4m3/1x32+row+col",
    "mxfp8:e5m2/32x32+col+swizzled": "mxfp8:e5m2/32x32+col+swizzled",
    "nvfp4:e2m1": "nvfp4:e2m1/1x16+row+col",
    "nvfp4:e2m1/16x16": "nvfp4:e2m1/16x16+row+col",
    "nvfp4:e2m1+sr+rht=plain": "nvfp4:e2m1/1x16+row+col+rht=plain+sr",
    "nvfp4:e2m1+rowscaled+row": "nvfp4:e2m1/1x16+row+rowscaled",
    "nvfp4:e2m1+4over6=mse+max256": "nvfp4:e2m1/1x16+row+col+4over6=mse+max256",
}


def head(text: str) -> str:
    return text.splitlines()[0]


def hash_of(text: str) -> str:
    found = re.search(r"^hash ([0-9a-f]{16})$", text, re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.parametrize("text", QUANTIZERS)
def test_quantizer__canonical_text_is_a_fixpoint(text: str) -> None:
    out = good("quantizer", text).out
    assert head(out) == QUANTIZERS[text]
    assert good("quantizer", head(out)).out == out


def test_quantizer__hash_tells_values_apart() -> None:
    hashes = [hash_of(good("quantizer", text).out) for text in QUANTIZERS]
    assert len(set(hashes)) == len(hashes)


def test_quantizer__fields_are_those_of_the_scheme_with_their_values() -> None:
    rows = good("quantizer", "fp8-tensor:e5m2+row+eps=0.25").rows()
    assert {name: row[0] for name, row in rows.items() if name != "field"} == {
        "scheme": "fp8-tensor",
        "format": "e5m2",
        "rowwise": "yes",
        "columnwise": "no",
        "pow2": "no",
        "epsilon": "0.25",
    }
    rows = good("quantizer", "nvfp4:e2m1+rht=plain").rows()
    assert rows["block_cols"][0] == "16"
    assert rows["hadamard"][:2] == ["plain", "rht"]
    assert all(len(row[-1]) > 5 for row in rows.values()), "each field has a meaning"


@pytest.mark.parametrize(
    ("text", "is_transpose"),
    [
        ("fp8-tensor:e4m3", True),
        ("fp8-delayed:e4m3", True),
        ("fp8-block:e4m3", False),
        ("fp8-block:e4m3/128x128", True),
        ("mxfp8:e4m3", False),
        ("nvfp4:e2m1/16x16", True),
        ("nvfp4:e2m1/16x16+sr", False),
    ],
)
def test_quantizer__says_whether_columnwise_is_the_transpose(
    text: str, is_transpose: bool
) -> None:
    last = good("quantizer", text).out.splitlines()[-1]
    assert ("transpose" in last) == is_transpose
    assert last.startswith("columnwise bytes are ")


RECIPES = {
    "none": "none",
    "delayed": "delayed",
    "delayed:history=16,algo=most_recent": "delayed:algo=most_recent,history=16",
    "current": "current",
    "block": "block",
    "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
    "nvfp4+norht": "nvfp4+norht",
    "nvfp4+norht:4over6=weights": "nvfp4+norht:4over6=weights",
    "custom:input=mxfp8:e4m3": "custom:input=mxfp8:e4m3/1x32+row+col",
}


@pytest.mark.parametrize("text", RECIPES)
def test_recipe__canonical_text_is_a_fixpoint(text: str) -> None:
    out = good("recipe", text).out
    assert head(out) == RECIPES[text]
    assert good("recipe", head(out)).out == out


def test_recipe__roles_get_the_quantizers_of_the_recipe() -> None:
    rows = good("recipe", "nvfp4").rows()
    assert rows["input"] == ["nvfp4:e2m1/1x16+row+col+rht"]
    assert rows["weight"] == ["nvfp4:e2m1/16x16+row+col"]
    assert rows["output"] == rows["input"]
    assert rows["grad_output"] == ["nvfp4:e2m1/1x16+row+col+rht+sr"]
    assert rows["grad_input"] == rows["grad_output"]
    rows = good("recipe", "current").rows()
    assert rows["input"] == ["fp8-tensor:e4m3+row+col"]
    assert rows["grad_output"] == ["fp8-tensor:e5m2+row+col"]
    roles = ["input", "weight", "output", "grad_output", "grad_input", "grad_weight"]
    rows = good("recipe", "none").rows()
    assert {rows[role][0] for role in roles} == {"none"}


def test_recipe__accumulation_and_override_are_shown() -> None:
    rows = good("recipe", "mxfp8:override=dequantized").rows()
    modes = [rows[f"{gemm} accumulation"][0] for gemm in ("fprop", "dgrad", "wgrad")]
    assert modes == ["fast", "split", "split"]
    assert rows["backward override"] == ["dequantized"]
    assert good("recipe", "block").rows()["fprop accumulation"] == ["split"]


def test_recipe__fields_of_a_group_carry_its_word() -> None:
    rows = good("recipe", "block").rows()
    assert rows["weight.two_d"][:2] == ["yes", "w.2d"]
    assert rows["input.two_d"][:2] == ["no", "x.2d"]
    assert "history" not in rows
    assert good("recipe", "delayed:history=16").rows()["history"][0] == "16"
