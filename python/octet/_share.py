"""A rank's share of a layer that is split over ranks: sizes, initialization, attributes."""

import warnings
from typing import Any

from torch._dispatch.python import no_python_dispatcher

import torch
from octet import _ops, _parallel
from octet._constant import traced_as_constant
from octet._parameters import Parameters
from octet._signatures import Options
from octet.state.active import no_dispatch_modes
from octet.state.scaling import PARTS

_NORM = ("layer_norm_weight", "layer_norm_bias")  # each rank has these whole


class Share(Parameters):
    """A rank's share of a layer; the whole layer if it is not split."""

    # Defaults for a layer that is not split; also for layers made without the constructor.
    parallel_mode: str | None = None
    tp_size: int = 1
    sequence_parallel: bool = False
    _parallel_options: Options = ()
    # chunks of the output, of the input's gradient, of gathered rows
    _chunks: tuple[int, int, int] = (1, 1, 1)
    _rng: tuple[Any, Any] = (None, None)  # get_rng_state_tracker, rng_tracker_name
    _agreed: set[Any]  # calls that all ranks have compared

    def _split_over_ranks(
        self,
        mode: str | None,
        group: Any,  # noqa: ANN401
        size: int,
        sequence: bool,
    ) -> None:
        """Sets in_features and out_features to those of the rank's share."""
        if mode not in (None, *_parallel.MODES):
            raise ValueError(f"Linear(parallel_mode={mode!r}): it is 'column', 'row' or None")
        if type(size) is not int or size < 1:
            raise ValueError(f"{self._label()}: tp_size is {size!r}; it is at least 1")
        if group is not None and mode is not None:
            name = _parallel.group_name(group, self._label())
            ranks = _parallel.group_size(name)
            if size not in (1, ranks):
                raise ValueError(
                    f"{self._label()}: tp_size is {size}, but tp_group has {ranks} ranks; "
                    "leave out tp_size"
                )
            size = ranks
            if ranks > 1:
                self._tp_group = name
        if mode is not None:
            self.parallel_mode = mode
        if mode is None or size == 1:
            if mode is None and size > 1:
                raise ValueError(
                    f"{self._label()}: tp_size is {size} without a parallel_mode; choose "
                    "'column' or 'row', or leave out tp_size"
                )
            return
        sizes = self.in_features, self.out_features
        local = _parallel.local_features(sizes, mode, size, self._label())
        self.in_features, self.out_features = local
        self.tp_size, self.sequence_parallel, self._agreed = size, sequence, set()
        self._parallel_options = _parallel.options_of(mode, size, sequence, self._chunks)

    def set_tensor_parallel_group(self, tp_group: Any) -> None:  # noqa: ANN401
        """Sets the group that the layer is split over, before its first call.

        A process group, a DeviceMesh of one dimension, a pair of mesh and dimension, or a
        group's name. It has as many ranks as ``tp_size`` says."""
        if tp_group is None:
            self._tp_group = ""
        elif self.tp_size > 1:
            name = _parallel.group_name(tp_group, self._label())
            ranks = _parallel.group_size(name)
            if ranks != self.tp_size:
                raise ValueError(
                    f"{self._label()}: tp_group has {ranks} ranks, but tp_size is "
                    f"{self.tp_size}"
                )
            self._tp_group = name
            self._agreed.clear()
        self._calls.decided = None

    @property
    def tp_group(self) -> Any:  # noqa: ANN401
        """The process group that the layer is split over; None if it is not split."""
        return _parallel.resolve(self._tp_group) if self._tp_group else None

    def _ranks(self) -> tuple[str, int] | None:
        """Name and size of the group; None if the layer is not split."""
        if self.tp_size == 1:
            return None
        if not self._tp_group:
            raise ValueError(
                f"{self._label()}: it is split over {self.tp_size} ranks, but has no group; "
                "call set_tensor_parallel_group, or make it with tp_group"
            )
        return self._tp_group, self.tp_size

    def _check_group(self) -> None:
        """The group that the layer was given is still there."""
        if self._tp_group and not _parallel.exists(self._tp_group):
            raise ValueError(
                f"{self._label()}: its tp_group {self._tp_group!r} has been destroyed; give it "
                "another by set_tensor_parallel_group"
            )

    def _agree(self, shared: str, sizes: Any, device: torch.device, scaled: bool) -> None:  # noqa: ANN401
        """Compares an eager call over all ranks, once for each kind of call. `scaled`: compares
        the scales, too."""
        if not _parallel.is_new(self._agreed, (self._tp_group, shared)):
            return
        place = self._tp_group, device, self._label()
        # What ranks compare is no part of a graph. Tracing turns on the Python dispatcher, and
        # that holds the GIL while gloo waits for a thread that wants it.
        with no_dispatch_modes(), no_python_dispatcher():
            text = f"{shared}, input {tuple(sizes)}{self._shared_scales() if scaled else ''}"
            _parallel.check_agreement(text, place)
        self._agreed.add((self._tp_group, shared))

    @traced_as_constant
    def _agree_in_graph(
        self, words: str, shared: str, device: torch.device, scaled: bool
    ) -> bool:
        """The same during tracing, which all ranks do at the same call. Sizes may be symbols;
        they are known when the fake kernel of the call's first op runs."""

        def compare(sizes: list[int]) -> None:
            self._agree(shared, sizes[:-1], device, scaled)

        _ops.AWAITING.clear()  # left over from a trace that failed
        if _parallel.is_new(self._agreed, (self._tp_group, shared)):
            _ops.AWAITING[words] = compare
        return True

    def _shared_scales(self) -> str:
        """The scales, which must be equal if ranks gather bytes of delayed scaling."""
        held = [(parts[0], self._buffers.get(name)) for name, parts in PARTS.items()]
        return "".join(f", {name} {s[0].tolist()}" for name, s in held if s is not None)

    # ---- parameters ------------------------------------------------------------------------

    def _rank(self) -> int | None:
        """This rank's number in the group; None if there is no group yet."""
        return _parallel.group_rank(self._tp_group) if self._tp_group else None

    def _draw_share(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Initializes the share. With a tracker of random states, the rank draws only its
        share. Otherwise it draws the whole layer and takes its share. So one seed gives the
        same layer for any number of ranks."""
        column = self.parallel_mode == "column"
        inputs = self.in_features * (1 if column else self.tp_size)
        outputs = self.out_features * (self.tp_size if column else 1)
        get_tracker, name = self._rng
        if weight.is_meta:
            return
        if get_tracker is not None:
            with get_tracker().fork(*([name] if name is not None else [])):
                self._draw_parameters(weight, bias if column else None, inputs)
            if not column:  # every rank holds the whole bias, so all must draw the same
                self._draw_parameters(None, bias, inputs)
            self._spread("weight", weight)
            self._spread("bias", bias)
            return
        rank = self._rank()
        if rank is None:
            warnings.warn(
                f"{self._label()} has no tp_group yet, so this rank draws its share by its own "
                "generator: give tp_group or get_rng_state_tracker, or load the parameters",
                stacklevel=5,
            )
            self._draw_parameters(weight, bias, inputs)
            self._spread("weight", weight)
            self._spread("bias", bias)
            return
        whole = weight.new_empty(outputs, inputs)
        whole_bias = None if bias is None else bias.new_empty(outputs)
        self._draw_parameters(whole, whole_bias, inputs)
        self._take_share("weight", whole, rank)
        self._take_share("bias", whole_bias, rank)

    def _take_share(self, kind: str, whole: torch.Tensor | None, rank: int) -> None:
        """Copies the rank's share of the whole into the parameters. In column mode each part of
        parameters_split is split separately."""
        if whole is None:
            return
        column, at = self.parallel_mode == "column", 0
        for prefix, rows in self._parts:
            part = getattr(self, prefix + kind)
            if column:
                start = at + rank * rows
                at += rows * self.tp_size
                part.copy_(whole[start : start + rows])
            else:
                found = whole[at : at + rows]
                at += rows
                if kind == "weight":
                    first = rank * self.in_features
                    found = found[:, first : first + self.in_features]
                part.copy_(found)

    def _mark_parameters(self) -> None:
        """Sets TransformerEngine's attributes that tell how parameters are split."""
        if self.tp_size == 1:
            return
        for name, parameter in self._parameters.items():
            if parameter is None or name in _NORM:
                continue
            if name.endswith("bias") and self.parallel_mode == "row":
                parameter.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
                continue
            parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
            is_row = self.parallel_mode == "row"
            parameter.partition_dim = 1 if is_row else 0  # type: ignore[attr-defined]
            parameter.partition_stride = 1  # type: ignore[attr-defined]
