"""octet layout against numbers worked out by hand."""

import pytest
from program import bad, good

# quantizer, shape: each buffer's dtype, dimensions, shape, bytes
LAYOUTS: dict[tuple[str, str], dict[str, tuple[str, str, str, int]]] = {
    ("mxfp8:e4m3", "300x129"): {
        "_rowwise_data": ("u8", "M x K", "300x129", 38700),
        "_rowwise_scale_inv": (
            "u8",
            "roundup(M, 128) x roundup(ceil(K / 32), 4)",
            "384x8",
            3072,
        ),
        "_columnwise_data": ("u8", "M x K", "300x129", 38700),
        "_columnwise_scale_inv": (
            "u8",
            "roundup(ceil(M / 32), 4) x roundup(K, 128)",
            "12x256",
            3072,
        ),
    },
    ("fp8-tensor:e4m3", "300x129"): {
        "_data": ("u8", "M x K", "300x129", 38700),
        "_transpose": ("u8", "K x M", "129x300", 38700),
        "_scale_inv": ("f32", "1", "1", 4),
    },
    ("fp8-block:e4m3", "300x129"): {
        "_rowwise_data": ("u8", "M x K", "300x129", 38700),
        "_rowwise_scale_inv": ("f32", "ceil(K / 128) x roundup(M, 4)", "2x300", 2400),
        "_columnwise_data": ("u8", "K x M", "129x300", 38700),
        "_columnwise_scale_inv": ("f32", "ceil(M / 128) x roundup(K, 4)", "3x132", 1584),
    },
    ("fp8-block:e4m3/128x128+row", "300x129"): {
        "_rowwise_data": ("u8", "M x K", "300x129", 38700),
        "_rowwise_scale_inv": ("f32", "ceil(M / 128) x roundup(ceil(K / 128), 4)", "3x4", 48),
    },
    ("nvfp4:e2m1+rht", "300x129"): {
        "_rowwise_data": ("u8", "M x ceil(K / 2)", "300x65", 19500),
        "_rowwise_scale_inv": (
            "u8",
            "roundup(M, 128) x roundup(ceil(K / 16), 4)",
            "384x12",
            4608,
        ),
        "_columnwise_data": ("u8", "K x roundup(ceil(M / 2), 8)", "129x152", 19608),
        "_columnwise_scale_inv": (
            "u8",
            "roundup(K, 128) x roundup(ceil(M / 16), 4)",
            "256x20",
            5120,
        ),
        "_amax_rowwise": ("f32", "1", "1", 4),
        "_amax_columnwise": ("f32", "1", "1", 4),
    },
    ("nvfp4:e2m1+rowscaled+row", "2x3x5"): {
        "_rowwise_data": ("u8", "leading x ceil(K / 2)", "2x3x3", 18),
        "_rowwise_scale_inv": (
            "u8",
            "roundup(M, 128) x roundup(ceil(K / 16), 4)",
            "128x4",
            512,
        ),
        "_amax_rowwise": ("f32", "M", "6", 24),
    },
    ("fp8-tensor:e4m3+col", "2x3x5"): {
        "_transpose": ("u8", "K x leading", "5x2x3", 30),
        "_scale_inv": ("f32", "1", "1", 4),
    },
    ("mxfp8:e4m3+row", "0x64"): {
        "_rowwise_data": ("u8", "M x K", "0x64", 0),
        "_rowwise_scale_inv": ("u8", "roundup(M, 128) x roundup(ceil(K / 32), 4)", "0x4", 0),
    },
    ("fp8-tensor:e4m3+row", "7"): {
        "_data": ("u8", "K", "7", 7),
        "_scale_inv": ("f32", "1", "1", 4),
    },
    ("fp8-tensor:e4m3+row", "scalar"): {
        "_data": ("u8", "K", "1", 1),
        "_scale_inv": ("f32", "1", "1", 4),
    },
}


@pytest.mark.parametrize(("quantizer", "shape"), LAYOUTS)
def test_layout__buffers_are_those_worked_out_by_hand(quantizer: str, shape: str) -> None:
    known = LAYOUTS[quantizer, shape]
    rows = good("layout", quantizer, shape).rows()
    shown = {name: row for name, row in rows.items() if name.startswith("_")}
    assert list(shown) == list(known)
    for name, (dtype, dims, numbers, size) in known.items():
        assert shown[name][:4] == [dtype, dims, numbers, str(size)]
    assert rows["total"][0] == str(sum(row[3] for row in known.values()))


def test_layout__begins_with_the_canonical_text() -> None:
    done = good("layout", "mxfp8:e4m3", "300x129")
    assert done.out.splitlines()[0] == "mxfp8:e4m3/1x32+row+col"


def test_layout__plain_bytes_and_ratio_follow_the_dtype() -> None:
    rows = good("layout", "mxfp8:e4m3", "300x129").rows()
    assert rows["total"] == ["83544", "81.6 KiB"]
    assert rows["plain"] == ["bf16", "300x129", "77400", "75.6 KiB"]
    assert rows["ratio"] == ["1.079"]
    rows = good("layout", "--dtype", "f32", "mxfp8:e4m3", "300x129").rows()
    assert rows["plain"] == ["f32", "300x129", "154800", "151.2 KiB"]
    assert rows["ratio"] == ["0.540"]
    assert good("layout", "mxfp8:e4m3", "300x129", "--dtype=f32").rows() == rows


def test_layout__of_nothing_has_no_ratio() -> None:
    rows = good("layout", "mxfp8:e4m3", "0x64").rows()
    assert rows["total"] == ["0"]
    assert "ratio" not in rows


def test_layout__extents_are_the_leading_product_and_the_last_axis() -> None:
    assert "\n  M = 24, K = 5\n" in good("layout", "mxfp8:e4m3", "2x3x4x5").out
    assert "\n  M = 1, K = 5\n" in good("layout", "mxfp8:e4m3", "5").out
    assert "\n  M = 1, K = 1\n" in good("layout", "mxfp8:e4m3", "scalar").out


def test_layout__units_change_at_powers_of_1024() -> None:
    for shape, unit in [("1023", []), ("1024", ["1.0 KiB"]), ("1048576", ["1.0 MiB"])]:
        assert good("layout", "fp8-tensor:e4m3+row", shape).rows()["_data"][4:] == unit
    # 1023.97 KiB must not be shown as 1024.0 KiB.
    assert good("layout", "fp8-tensor:e4m3+row", "1048550").rows()["_data"][4] == "1.0 MiB"


def test_layout__rank_is_at_most_16() -> None:
    assert good("layout", "mxfp8:e4m3", "x".join("2" * 16)).rows()["plain"][2] == "131072"
    assert "16 axes" in bad(1, "layout", "mxfp8:e4m3", "x".join("2" * 17)).err
