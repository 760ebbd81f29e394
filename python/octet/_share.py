"""A layer's share of a linear layer that is split over ranks: made, drawn, marked."""

import warnings
from typing import Any

import torch
from octet import _ops, _parallel
from octet._constant import traced_as_constant
from octet._parameters import Parameters
from octet._signatures import Options
from octet.state.active import no_dispatch_modes

_NORM = ("layer_norm_weight", "layer_norm_bias")  # every rank has all of them


class Share(Parameters):
    """The rank's share of a layer; the whole of it where there is one rank."""

    # Of a layer that is not split; so are those that others make without a constructor.
    parallel_mode: str | None = None
    tp_size: int = 1
    sequence_parallel: bool = False
    _parallel_options: Options = ()
    _chunks: tuple[int, int, int] = (1, 1, 1)  # of output, input's gradient, gathered rows
    _rng: tuple[Any, Any] = (None, None)  # get_rng_state_tracker, rng_tracker_name
    _agreed: set[Any]  # calls that all ranks were found to make alike

    def _split_over_ranks(
        self,
        mode: str | None,
        group: Any,  # noqa: ANN401
        size: int,
        sequence: bool,
    ) -> None:
        """Makes in_features and out_features those of the rank's share."""
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
        """Gives the layer the group that it is split over, before its first call.

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
        """The process group that the layer is split over; None where there is none."""
        return _parallel.resolve(self._tp_group) if self._tp_group else None

    def _ranks(self) -> tuple[str, int] | None:
        """The group's name and size; None where the layer is not split."""
        if self.tp_size == 1:
            return None
        if not self._tp_group:
            raise ValueError(
                f"{self._label()}: it is split over {self.tp_size} ranks, but has no group; "
                "call set_tensor_parallel_group, or make it with tp_group"
            )
        return self._tp_group, self.tp_size

    def _agree(self, shared: str, sizes: Any, device: torch.device, scaled: bool) -> None:  # noqa: ANN401
        """All ranks make the same call, where they are `scaled` by the same scales; eager
        code."""
        if not _parallel.is_new(self._agreed, (self._tp_group, shared)):
            return
        place = self._tp_group, device, self._label()
        text = f"{shared}, input {tuple(sizes)}{self._shared_scales() if scaled else ''}"
        _parallel.check_agreement(text, place)
        self._agreed.add((self._tp_group, shared))

    @traced_as_constant
    def _agree_in_graph(
        self, words: str, shared: str, device: torch.device, scaled: bool
    ) -> bool:
        """The same while a graph is traced, which all ranks do at the same call. Its sizes,
        which may be symbols, are known where the call's first op is described."""

        def compare(sizes: list[int]) -> None:
            with no_dispatch_modes():
                self._agree(shared, sizes[:-1], device, scaled)

        _ops.AWAITING.clear()  # of a trace that failed
        if _parallel.is_new(self._agreed, (self._tp_group, shared)):
            _ops.AWAITING[words] = compare
        return True

    def _shared_scales(self) -> str:
        """The scales that ranks have in common, where delayed scaling has them gather bytes."""
        held = [(name, self._buffers.get(name)) for name in ("fp8_scale", "fp8_grad_scale")]
        return "".join(f", {name} {s.tolist()}" for name, s in held if s is not None)

    # ---- parameters ------------------------------------------------------------------------

    def _rank(self) -> int | None:
        """The rank's number in the group, where there is one."""
        return _parallel.group_rank(self._tp_group) if self._tp_group else None

    def _draw_share(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Draws the share: by a tracker of random states, the share itself; otherwise all of
        the layer, of which the rank takes its share. So one seed makes one layer, however many
        ranks share it."""
        column = self.parallel_mode == "column"
        inputs = self.in_features * (1 if column else self.tp_size)
        outputs = self.out_features * (self.tp_size if column else 1)
        get_tracker, name = self._rng
        if weight.is_meta:
            return
        if get_tracker is not None:
            with get_tracker().fork(*([name] if name is not None else [])):
                self._draw_parameters(weight, bias if column else None, inputs)
            if not column:  # every rank has the whole bias, so all draw the same
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
        """Copies the rank's share of the whole into the parameters. In column mode each part
        (parameters_split) is split by itself."""
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
        """Tells others, by TransformerEngine's attributes, how parameters are split."""
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
