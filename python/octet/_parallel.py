"""Layers split over ranks: the group, the arguments, and what ranks must agree on."""

import hashlib
import os
import warnings
from typing import Any

import torch
from octet import _C
from octet._constant import traced_as_constant
from octet._signatures import Options

MODES = ("column", "row")
_SYMMETRIC = ("multimem_all_reduce", "two_shot", "one_shot")  # TransformerEngine's values


# ---- groups ----------------------------------------------------------------------------------


def resolve(name: str) -> Any:  # noqa: ANN401
    """The process group with this name."""
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)


def exists(name: str) -> bool:
    """Whether there is a process group of this name."""
    try:
        return resolve(name) is not None
    except RuntimeError:
        return False


def _mesh_group(group: Any) -> Any:  # noqa: ANN401
    """The group of a one-dimensional mesh, or of one dimension of a mesh: (mesh, "tp")."""
    mesh, dim = group if isinstance(group, tuple) and len(group) == 2 else (group, None)
    if not hasattr(mesh, "get_group"):
        return group
    if dim is None and mesh.ndim != 1:
        raise ValueError(
            f"{mesh} has {mesh.ndim} dimensions; give one of them: mesh['tp'] or (mesh, 'tp')"
        )
    return mesh.get_group() if dim is None else mesh.get_group(dim)


def group_name(group: Any, label: str, argument: str = "tp_group") -> str:  # noqa: ANN401
    """The name of a process group, of a DeviceMesh dimension, or the name itself."""
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(
            f"{label}: {argument} is given, but torch.distributed is not initialized; call "
            "torch.distributed.init_process_group first"
        )
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"{label}: this rank is not in {argument}; give a group that has it")
    try:
        group = _mesh_group(group)
        found = resolve(group) if isinstance(group, str) else group
        if not isinstance(found, dist.ProcessGroup):
            raise TypeError(f"it is a {type(group).__name__}")
        if dist.get_rank(found) < 0:
            raise ValueError("this rank is not in it")
        return found.group_name
    except (RuntimeError, TypeError, ValueError, KeyError) as error:
        raise ValueError(
            f"{label}: {argument}={group!r}: {error}; give a process group that has this rank, "
            "a DeviceMesh of one dimension, (mesh, dimension), or a group's name"
        ) from None


def group_size(name: str) -> int:
    """How many ranks a group has."""
    return resolve(name).size()


def group_rank(name: str) -> int:
    """This rank's number in a group."""
    return resolve(name).rank()


@traced_as_constant
def gathers_alone(name: str, device: str) -> bool:
    """Whether no other collective may run beside a gather of traced code.

    Gloo corrupts the heap then (seen with torch 2.13), in all_gather_into_tensor alone. The
    variant of that op with out= does not, but Inductor does not overlap it. Of tensors on a GPU
    it reads the address as if it were the host's, so those are refused."""
    is_gloo = resolve(name)._get_backend(torch.device(device)).name() == "gloo"
    if is_gloo and device != "cpu":
        raise ValueError(
            f"tp_group {name!r} gathers by gloo, which cannot gather {device} tensors in "
            "compiled code; give a group of NCCL, or call the layer in eager code"
        )
    return is_gloo


def _check_device(name: str, device: torch.device, label: str) -> None:
    """Raises if the group has no backend for tensors on this device."""
    try:
        resolve(name)._get_backend(device)
    except RuntimeError as error:
        raise ValueError(
            f"{label}: tp_group {name!r} has no backend for tensors on {device.type}: {error}; "
            "give the group of the layer's device"
        ) from None


# ---- arguments -------------------------------------------------------------------------------


def chunks_of(name: str, value: object) -> int:
    """The number of chunks that ub_overlap_ag, ub_overlap_rs or ub_overlap_rs_dgrad asks for. A
    product is computed in chunks, and each is gathered or scattered while another is computed.
    True means as many as possible."""
    most = _C.MOST_CHUNKS
    if isinstance(value, bool) or value is None:
        return most if value else 1
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(
            f"Linear({name}={value!r}): it is True, False, or the number of chunks, 1 to {most}"
        )
    return value


def check_symmetric(kind: str | None) -> None:
    """Checks symmetric_ar_type."""
    if kind is None:
        return
    if kind not in _SYMMETRIC:
        words = ", ".join(map(repr, _SYMMETRIC))
        raise ValueError(f"Linear(symmetric_ar_type={kind!r}): it is None or one of {words}")
    warnings.warn(
        f"Linear(symmetric_ar_type={kind!r}): this version adds up ranks by the group's own "
        "all_reduce, to the same result",
        stacklevel=3,
    )


def local_features(
    sizes: tuple[int, int], mode: str | None, ranks: int, label: str
) -> tuple[int, int]:
    """(in_features, out_features) of each rank's share."""
    if ranks == 1 or mode is None:
        return sizes
    at = 1 if mode == "column" else 0
    if sizes[at] % ranks:
        raise ValueError(
            f"{label}: {('in', 'out')[at]}_features is {sizes[at]}, which {ranks} ranks cannot "
            f"share equally (parallel_mode={mode!r}); pad it to a multiple of {ranks}"
        )
    found = list(sizes)
    found[at] //= ranks
    return found[0], found[1]


def options_of(
    mode: str | None, ranks: int, sequence: bool, chunks: tuple[int, int, int]
) -> Options:
    """The options of a split layer. Chunks are for the output (scattered in row mode), the
    input's gradient (scattered in column mode), and the gathered tensor: the input in column
    mode, grad_output in row mode."""
    if ranks == 1 or mode is None:
        return ()
    found: Options = (("parallel", mode), ("tp_size", ranks))
    if not sequence:
        return found
    count = chunks[0 if mode == "row" else 1]
    found = (*found, ("sequence_parallel", True))
    found = (*found, ("chunks", count)) if count > 1 else found
    return (*found, ("gather_chunks", chunks[2])) if chunks[2] > 1 else found


# ---- what ranks must agree on ----------------------------------------------------------------


def is_new(seen: set[Any], key: Any) -> bool:  # noqa: ANN401
    """Whether ranks compare a call. OCTET_CHECK_RANKS=0: never; 1 (default): each kind of call
    once; 2: every eager call."""
    mode = os.environ.get("OCTET_CHECK_RANKS", "1")
    return mode == "2" or (mode != "0" and key not in seen)


def _gathered_digests(text: str, group: Any, device: torch.device) -> list[int]:  # noqa: ANN401
    import torch.distributed as dist

    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    own = torch.tensor([int.from_bytes(digest, "little", signed=True)], device=device)
    found = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(found, own, group=group)
    return [int(one) for one in found]


def disagreement(text: str, shown: Any, name: str, device: torch.device) -> list[Any]:  # noqa: ANN401
    """What every rank of a group shows, if the ranks' texts differ; else nothing. All ranks
    compare at once, so all of them know."""
    import torch.distributed as dist

    group = resolve(name)
    digests = _gathered_digests(text, group, device)
    if all(digest == digests[0] for digest in digests):
        return []
    found: list[Any] = [None] * group.size()
    dist.all_gather_object(found, shown, group=group)
    return found


def check_agreement(text: str, place: tuple[str, torch.device, str]) -> None:
    """Compares what the ranks of a group are about to do; a place is the group's name, the
    device, and the layer's label.

    A rank that disagrees would wait for ever, or be given bytes that mean something else. All
    ranks compare at once, so all of them raise."""
    name, device, label = place
    _check_device(name, device, label)
    texts = disagreement(text, (label, text), name, device)
    if texts:
        lines = "".join(f"\n  rank {i}: {who}: {what}" for i, (who, what) in enumerate(texts))
        raise ValueError(
            f"{label}: the ranks of tp_group {name!r} call it differently; they must agree in "
            f"shapes, recipe and options:{lines}"
        )
