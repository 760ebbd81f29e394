"""State dicts of plain tensors for safetensors: a quantized weight is stored as its buffers.

``weight`` becomes ``weight._rowwise_data``, ... (its buffers) and ``weight._octet``, a uint8
tensor. That tensor holds a text with dtype, shape and quantizer, such as ``bf16 44x70
mxfp8:e4m3/1x32+row+col``.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from octet import _plans, _texts
from octet._dtypes import HIGH_PRECISION, NAMES, TORCH_DTYPES
from octet.tensor import QuantizedTensor

_MARK = "._octet"
_TEXT = re.compile(r"(\w+) (scalar|\d+(?:x\d+)*) (\S+)", re.ASCII)
_LONGEST = 4096  # longest accepted text in bytes; real ones have about forty
# One quantizer of each scheme, to recognize buffers even if the text is missing.
_SCHEMES = ("fp8-tensor:e4m3", "fp8-block:e4m3", "mxfp8:e4m3", "nvfp4:e2m1", "mxfp4:e2m1")
_SIDES = ((True, False), (False, True))


def _describe(tensor: QuantizedTensor) -> torch.Tensor:
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    text = f"{NAMES[tensor.dtype]} {shape} {tensor._text}"
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def flatten_state_dict(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state dict of plain, contiguous tensors, which safetensors can save.

    A quantized tensor becomes its buffers (``weight._rowwise_data``, ...) and a small uint8
    tensor that says what they are (``weight._octet``). Names that share memory (tied weights)
    each keep their own entry, and each but the first a copy, since safetensors saves no memory
    twice.

    >>> from safetensors.torch import load_file, save_file  # doctest: +SKIP
    >>> save_file(octet.flatten_state_dict(model.state_dict()), path)  # doctest: +SKIP
    >>> model.load_state_dict(octet.unflatten_state_dict(load_file(path)))  # doctest: +SKIP
    """
    flat: dict[str, torch.Tensor] = {}
    seen: set[int] = set()

    def add(key: str, tensor: torch.Tensor) -> None:
        if key in flat:
            raise ValueError(
                f"flatten_state_dict: there are two tensors for {key!r}; rename one"
            )
        tensor = tensor.contiguous()
        storage = tensor.untyped_storage()._cdata
        flat[key] = tensor.clone() if storage in seen else tensor
        seen.add(storage)

    for key, value in state_dict.items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"flatten_state_dict: {key!r} is a {type(value).__name__}, not a tensor; leave "
                "it out"
            )
        tensor = value.detach()
        if isinstance(tensor, QuantizedTensor):
            names = _texts.buffer_names(tensor._text)
            for name, buffer in zip(names, tensor.buffers(), strict=True):
                add(f"{key}.{name}", buffer)
            add(key + _MARK, _describe(tensor))
        elif type(tensor) is torch.Tensor:
            add(key, tensor)
        else:
            raise ValueError(
                f"flatten_state_dict: {key!r} is a {type(tensor).__name__}; make it a plain "
                "tensor before (full_tensor() of a DTensor)"
            )
    return flat


def _parsed(key: str, tensor: torch.Tensor) -> tuple[torch.dtype, list[int], str]:
    """Dtype, shape and quantizer from the bytes of the text."""

    def fail(why: str) -> ValueError:
        return ValueError(f"unflatten_state_dict: {key!r} {why}: the file is damaged")

    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.uint8 or tensor.dim() != 1:
        raise fail("is not a uint8 tensor of one axis")
    if tensor.is_meta:
        raise ValueError(f"unflatten_state_dict: {key!r} is on meta: load its bytes first")
    if len(tensor) > _LONGEST:
        raise fail(f"has {len(tensor)} bytes, more than {_LONGEST}")
    words = bytes(tensor.tolist()).decode("ascii", "replace")
    found = _TEXT.fullmatch(words)
    if found is None:
        raise fail(f"reads {words!r}, not dtype, shape and quantizer")
    dtype, sizes, text = found.groups()
    if TORCH_DTYPES.get(dtype) not in HIGH_PRECISION:
        raise fail(f"says dtype {dtype!r}, which is none of f32, bf16, f16")
    try:
        if _texts.scheme(text) == "none" or _texts.canonical(text) != text:
            raise ValueError("it is not written as Octet writes it")
        shape = [] if sizes == "scalar" else [int(size) for size in sizes.split("x")]
    except ValueError as error:
        raise fail(f"says {words!r}: {error}") from None
    return TORCH_DTYPES[dtype], shape, text


def _restored(tensors: Mapping[str, Any], key: str) -> tuple[QuantizedTensor, list[str]]:
    """The quantized tensor of a name, and the keys of its parts."""
    dtype, shape, text = _parsed(key + _MARK, tensors[key + _MARK])
    at, buffers, keys = _plans.axes("dequantize", shape), [], [key + _MARK]
    for name, _, kind, dims in _texts.layout(text):
        part = f"{key}.{name}"
        keys.append(part)
        if part not in tensors:
            raise ValueError(
                f"unflatten_state_dict: there is no {part!r}, which {text} has: the file is "
                "damaged, or a part of it was left out"
            )
        buffer, wanted = tensors[part], (TORCH_DTYPES[kind], _plans.shape(dims, at))
        if not isinstance(buffer, torch.Tensor):
            raise ValueError(
                f"unflatten_state_dict: {part!r} is a {type(buffer).__name__}, not a tensor: "
                "the file is damaged"
            )
        if (buffer.dtype, list(buffer.shape)) != wanted:
            raise ValueError(
                f"unflatten_state_dict: {part!r} is {buffer.dtype} {tuple(buffer.shape)}, but "
                f"{text} of {tuple(shape)} has {wanted[0]} {tuple(wanted[1])}: the file is "
                "damaged"
            )
        if buffers and buffer.device != buffers[0].device:
            raise ValueError(
                f"unflatten_state_dict: {part!r} is on {buffer.device}, {keys[1]!r} on "
                f"{buffers[0].device}; load both to one"
            )
        buffers.append(buffer)
    try:
        return QuantizedTensor(buffers, text, dtype, shape), keys
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes that no tensor can have
        raise ValueError(
            f"unflatten_state_dict: {key + _MARK!r} says shape {tuple(shape)}: {error}"
        ) from None


def unflatten_state_dict(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The state dict that ``flatten_state_dict`` flattened, its quantized tensors bit for bit.

    What is not whole, or not what its text says, is a ValueError that names the key. Tensors
    that are plain stay as they are.

    >>> state = {"weight": octet.MXFP8Quantizer("e4m3")(torch.randn(4, 64))}
    >>> octet.unflatten_state_dict(octet.flatten_state_dict(state))["weight"].shape
    torch.Size([4, 64])
    """
    made, parts = {}, set()
    for key in tensors:
        if not key.endswith(_MARK):
            continue
        name = key.removesuffix(_MARK)
        if name in tensors:
            raise ValueError(f"unflatten_state_dict: {name!r} is there plain and quantized")
        made[name], keys = _restored(tensors, name)
        parts.update(keys)
    _check_rest([key for key in tensors if key not in parts], made)
    result: dict[str, torch.Tensor] = {}
    for key, value in tensors.items():
        name = key.rpartition(".")[0] if key in parts else key
        result[name] = made[name] if key in parts else value
    return result


def _check_rest(keys: list[str], made: Mapping[str, QuantizedTensor]) -> None:
    """Raises for buffers that belong to no quantized tensor, or not to the one of their
    name."""
    groups: dict[str, set[str]] = {}
    for key in keys:
        name, _, last = key.rpartition(".")
        groups.setdefault(name, set()).add(last)
        if name in made and last in _texts.buffer_names(_texts.kind(made[name]._text)):
            raise ValueError(
                f"unflatten_state_dict: {key!r} is there, but {made[name]._text} has no such "
                "buffer: the file is damaged"
            )
    sides = [_texts.with_usage(t, *side) for t in _SCHEMES for side in _SIDES]
    for name, found in groups.items():
        if name not in made and any(found.issuperset(_texts.buffer_names(t)) for t in sides):
            raise ValueError(
                f"unflatten_state_dict: there are buffers of {name!r}, but no {name + _MARK!r} "
                "that says what they are: the file is damaged, or a part of it was left out"
            )


def restored_under(state_dict: dict[str, Any], prefix: str) -> dict[str, Any]:
    """One layer's state dict; if it is a flat one, its quantized tensors are restored."""
    own = {key: state_dict[key] for key in state_dict if key.startswith(prefix)}
    if not any(key.endswith(_MARK) for key in own):
        return state_dict
    others = {key: value for key, value in state_dict.items() if key not in own}
    return {**others, **unflatten_state_dict(own)}


def restore_before_loading(
    module: torch.nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    *args: Any,  # noqa: ANN401
) -> None:
    """A load hook with which any module accepts flat state dicts."""
    del module, args
    restored = restored_under(state_dict, prefix)
    if restored is not state_dict:
        state_dict.clear()
        state_dict.update(restored)
