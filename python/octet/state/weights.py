"""A cached quantized weight. It is cached only if the user asks; eager and compiled code share
it.

The user asks with ``is_first_microbatch`` or ``constant_weights()``. Octet never guesses that a
weight has not changed, since writes through ``.data`` leave no trace. A change that does leave
a trace is noticed, and the weight is cast again: another parameter, other memory, another
version counter, or a step of an optimizer (fused ones count no versions). Compiled code checks
this in its guards, before each call.

An address may be used again after its memory was freed. So the cache holds a weak reference to
the weight's memory, and never takes other memory for it.
"""

import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from torch.compiler import is_compiling
from torch.multiprocessing.reductions import StorageWeakRef

import torch
from octet._sharded import is_dtensor, shard_of
from octet.quantizers import from_text
from octet.state import optimizers, registry
from octet.state.active import CONSTANT_WEIGHTS, ConstantWeights, Live, no_dispatch_modes
from octet.tensor import QuantizedTensor

if TYPE_CHECKING:
    from octet.state.layer import LayerState


class WeightCache:
    """The quantized weight that a layer has cached. A copied layer begins without one.

    ``fresh.value`` says whether the cache is the present weight's. Setting it True stores the
    weight's version, setting it False has the next call cast again."""

    def __init__(self, layer: "LayerState | None" = None) -> None:
        self.tensor: QuantizedTensor | None = None
        self.text = "none"  # text of its quantizer
        self.memory: list[
            torch.Tensor
        ] = []  # the buffers of `tensor`, which traced code writes
        self.user_quantizer = ""  # the user's quantizer that made it, if one did
        self.user_tensor: torch.Tensor | None = None  # what that quantizer returned
        self.fresh = Live(self._is_fresh, self._set_fresh)
        self._cast_of: tuple[Any, ...] | None = None
        self._held: list[Any] = []  # weak references, so that the addresses are not used again
        self.cast_in: Any = None  # the step of delayed scaling in which it was cast
        # cast under delayed scaling by a call that recorded no amax, such as one in eval()
        self.unrecorded = False
        self._layer = weakref.ref(layer) if layer is not None else None

    def _weights(self, held: list[Any] | None = None) -> tuple[Any, ...] | None:
        """Identifies the layer's present weights: which tensors, where, which versions. None if
        each call computes the weight. Adds weak references to their memory to `held`."""
        layer = self._layer() if self._layer is not None else None
        if layer is None:
            return None
        found: list[Any] = []
        parameters = layer._parameters
        for name in layer._weight_names():
            weight = parameters.get(name)
            shard = shard_of(layer, name)
            if shard is not None:  # gathered weights have new memory each time
                found.append((id(shard), shard._version))
                weight = shard._local_tensor
            elif is_dtensor(weight):
                found.append((id(weight), weight._version))
                weight = weight._local_tensor
            if weight is None:  # torch's parametrizations compute it at each call
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
            optimizers.follow(_cast_again)

    def clear(self) -> None:
        """Drops the cache and its memory."""
        self.tensor, self.text, self.memory, self.user_tensor, self.user_quantizer = (
            None,
            "none",
            [],
            None,
            "",
        )
        self._cast_of = None

    def store(self, buffers: list[torch.Tensor], text: str, weight: torch.Tensor) -> None:
        """Takes the buffers of an eager cast as they are. The old buffers are not overwritten:
        an earlier call may have saved them for its backward."""
        self._hold(QuantizedTensor(buffers, text, weight.dtype, weight.shape))
        self.fresh.value = True

    def _hold(self, tensor: QuantizedTensor) -> None:
        self.tensor, self.text, self.memory = tensor, tensor._text, tensor.buffers()

    def make_memory(self, text: str, weight: torch.Tensor) -> None:
        """Makes memory for a cast, unless it is there. Runs while code is traced: compiled code
        then writes into it. Memory that a graph itself made would be overwritten by CUDA graph
        replays."""
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
        """Sets the layer whose weight this is; called for copies."""
        self._layer = weakref.ref(layer)


def _cast_again() -> None:
    """Has every layer cast its weight again."""
    for layer in registry.all_layers():
        layer._weight_cache.fresh.value = False


class constant_weights:  # noqa: N801
    """Inside this context each weight is cast once, at its first use, and then reused.

    Use it for the microbatches of a step, or for generation. Eager and compiled code share the
    cast weights. If a weight changes by an optimizer's step, an assignment or an in-place op,
    it is cast again. A write through ``weight.data`` cannot be noticed: do not write so inside.
    A call with ``is_first_microbatch`` follows that argument instead.

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
