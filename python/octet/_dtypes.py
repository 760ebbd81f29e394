"""Names of dtypes: the C core's words, torch's dtypes and TransformerEngine's names."""

import enum

import torch

TORCH_DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "u8": torch.uint8,
    "i64": torch.int64,
}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}
HIGH_PRECISION = (torch.float32, torch.bfloat16, torch.float16)


class DType(enum.Enum):
    """A dtype, by the names that users of TransformerEngine know. Values are the core's words.

    Quantizers take the element formats: kFloat8E4M3, kFloat8E5M2 and kFloat4E2M1.

    >>> octet.MXFP8Quantizer(octet.DType.kFloat8E4M3)
    MXFP8Quantizer('mxfp8:e4m3/1x32+row+col')
    """

    kByte = "u8"  # noqa: N815
    kInt16 = "i16"  # noqa: N815
    kInt32 = "i32"  # noqa: N815
    kInt64 = "i64"  # noqa: N815
    kFloat32 = "f32"  # noqa: N815
    kFloat16 = "f16"  # noqa: N815
    kBFloat16 = "bf16"  # noqa: N815
    kFloat8E4M3 = "e4m3"  # noqa: N815
    kFloat8E5M2 = "e5m2"  # noqa: N815
    kFloat8E8M0 = "e8m0"  # noqa: N815
    kFloat4E2M1 = "e2m1"  # noqa: N815


_FORMATS: dict[object, str] = {
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    DType.kFloat8E4M3: "e4m3",
    DType.kFloat8E5M2: "e5m2",
    DType.kFloat4E2M1: "e2m1",
    "e4m3": "e4m3",
    "e5m2": "e5m2",
    "e2m1": "e2m1",
}


def format_name(dtype: object) -> str:
    """The C core's word for a format: a DType, a torch dtype, or the word itself."""
    name = _FORMATS.get(dtype)
    if name is None:
        raise ValueError(
            f"{dtype} is not an element format; use octet.DType.kFloat8E4M3, kFloat8E5M2 or "
            "kFloat4E2M1, a torch float8 dtype, or 'e4m3', 'e5m2', 'e2m1'"
        )
    return name


def dtype_name(dtype: torch.dtype) -> str:
    """The C core's word for the torch dtype of a tensor that is not quantized: "bf16"."""
    name = NAMES.get(dtype)
    if name is None or dtype not in HIGH_PRECISION:
        raise ValueError(
            f"{dtype} is not a dtype that Octet uses; use float32, bfloat16 or float16"
        )
    return name
