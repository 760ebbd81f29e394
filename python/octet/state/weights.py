"""A cached quantized weight: cached on the user's word only, one memory for eager and compiled.

The user's word is ``is_first_microbatch`` or ``constant_weights()``. A cache is never used on a
guess that a weight has not changed: writes through ``.data`` leave no trace. A change that does
leave one is noticed, and the weight is cast again: another parameter, other memory, a version
that is not the one of the cast. Compiled code notices it in its guards, before each call.
Addresses come again once memory is freed, so a cache holds a weak reference to that of its
weight: no other memory is taken for it.
"""

import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch.compiler import is_compiling
from torch.multiprocessing.reductions import StorageWeakRef

import torch
from octet._sharded import is_dtensor, shard_of
from octet.quantizers import from_text
from octet.state import registry
from octet.state.active import CONSTANT_WEIGHTS, ConstantWeights, Live, no_dispatch_modes
from octet.tensor import QuantizedTensor

if TYPE_CHECKING:
    from octet.state.layer import LayerState


class WeightCache:
    """The quantized weight that a layer has cached. A copy of a layer begins without one.

    ``fresh.value`` says whether the cache is the present weight's. Setting it True stores the
    weight's version, setting it False has the next call cast again."""

    def __init__(self, layer: "LayerState | None" = None) -> None:
        self.tensor: QuantizedTensor | None = None
        self.text = "none"  # its quantizer's
        self.memory: list[
            torch.Tensor
        ] = []  # the buffers of `tensor`, which traced code writes
        self.user_quantizer = ""  # where a user's quantizer made it: which
        self.user_tensor: torch.Tensor | None = None  # what that one made
        self.fresh = Live(self._is_fresh, self._set_fresh)
        self._cast_of: tuple[Any, ...] | None = None
        self._held: list[Any] = []  # weak references: addresses of these do not come again
        self.cast_in: Any = None  # the step of delayed scaling, by whose scales it was cast
        self._layer = weakref.ref(layer) if layer is not None else None

    def _weights(self, held: list[Any] | None = None) -> tuple[Any, ...] | None:
        """The layer's weights as they are now: which, where, and how often written to; None
        for those that each call computes. Adds weak references to their memory to `held`."""
        layer = self._layer() if self._layer is not None else None
        if layer is None:
            return None
        found: list[Any] = []
        parameters = layer._parameters
        for name in layer._weight_names():
            weight = parameters.get(name)
            shard = shard_of(layer, name)
            if shard is not None:  # what is gathered has other memory each time
                found.append((id(shard), shard._version))
                weight = shard._local_tensor
            elif is_dtensor(weight):
                found.append((id(weight), weight._version))
                weight = weight._local_tensor
            if weight is None:  # torch's parametrizations have taken it away
                return None
            if isinstance(weight, QuantizedTensor):
                found.append(
                    (id(weight), *((b.data_ptr(), b._version) for b in weight.buffers()))
                )
                continue
            version = None if weight.is_inference() else weight._version
            memory = weight.untyped_storage()
            found.append((id(weight), memory._cdata, weight.data_ptr(), version))
            if held is not None:
                held.append(StorageWeakRef(memory))
        return tuple(found)

    def _is_fresh(self) -> bool:
        return self._cast_of is not None and self._cast_of == self._weights()

    def _set_fresh(self, fresh: bool) -> None:
        held: list[Any] = []
        self._cast_of = self._weights(held) if fresh else None
        self._held = held
        layer = self._layer() if self._layer is not None else None
        if fresh and layer is not None:
            self.cast_in = layer._pending.step

    def clear(self) -> None:
        """Forgets the cache and its memory."""
        self.tensor, self.text, self.memory, self.user_tensor, self.user_quantizer = (
            None,
            "none",
            [],
            None,
            "",
        )
        self._cast_of = None

    def store(self, buffers: list[torch.Tensor], text: str, weight: torch.Tensor) -> None:
        """Takes the buffers of a cast in eager code, as they are: an earlier call may have
        saved those that were held for its backward."""
        self._hold(QuantizedTensor(buffers, text, weight.dtype, weight.shape))
        self.fresh.value = True

    def _hold(self, tensor: QuantizedTensor) -> None:
        self.tensor, self.text, self.memory = tensor, tensor._text, tensor.buffers()

    def make_memory(self, text: str, weight: torch.Tensor) -> None:
        """Memory for a cast, unless it is there. Runs while code is traced that will write it:
        what a graph makes and hands out, a CUDA graph of it would overwrite."""
        held = self.tensor
        same_kind = held is not None and self.text == text and held.dtype == weight.dtype
        if same_kind and held.device == weight.device and held.shape == weight.shape:
            return
        with no_dispatch_modes(), torch.no_grad(), torch.inference_mode(False):
            made = from_text(text).make_empty(
                weight.shape, dtype=weight.dtype, device=weight.device
            )
        self._hold(made)
        self._cast_of = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "WeightCache":
        return WeightCache()

    def __reduce__(self) -> tuple[Any, ...]:
        return WeightCache, ()

    def bind(self, layer: "LayerState") -> None:
        """Says whose weight it is; of a copy."""
        self._layer = weakref.ref(layer)


def _cast_again() -> None:
    for layer in registry.all_layers():
        layer._weight_cache.fresh.value = False


class constant_weights:  # noqa: N801
    """Weights stay as they are inside: each is cast at its first use and then reused.

    For the microbatches of a step, or for generation. Eager and compiled code share the cast
    weights. A change that leaves a trace (an optimizer's step, an assignment, an in-place op)
    is noticed and cast again; a write through ``weight.data`` leaves none: do not make one
    inside. ``is_first_microbatch``, where a call says it, wins.

    >>> layer = octet.Linear(64, 32, device="cpu")
    >>> with octet.autocast(), octet.constant_weights(), torch.no_grad():
    ...     tokens = [layer(torch.randn(1, 64)) for _ in range(4)]
    """

    def __enter__(self) -> "constant_weights":
        outer, traced = CONSTANT_WEIGHTS.value, is_compiling()
        CONSTANT_WEIGHTS.value = ConstantWeights(traced, outer)
        if outer is None and not traced:
            _cast_again()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        outer = CONSTANT_WEIGHTS.value.outer
        CONSTANT_WEIGHTS.value = outer
        if outer is None and not is_compiling():
            _cast_again()
