"""octet.checkpoint: torch's checkpoint, with the first run's autocast in the recomputation."""

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

from torch.compiler import is_dynamo_compiling

from octet.state.active import Region, Step, activate, current, entered


class _FirstRunAutocast:
    """The autocast of a first run, entered again for its recomputation. It counts as entered in
    the forward, so layers repeat their first run, scales included. The training step is that of
    the autocast around the backward, if there is one."""

    def __init__(self, region: Region) -> None:
        self._first = region

    def __enter__(self) -> None:
        self._before, now, first = entered(), current(), self._first
        step = now.step if now.enabled or now.calibrating else Step(False)
        activate(Region(first.enabled, first.recipe, first.calibrating, step))

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401
        activate(self._before)


class _FirstRunRandomStates:
    """A tracker's random states of a first run, set again for its recomputation. The states of
    the backward come back at the end."""

    def __init__(self, tracker: Any) -> None:  # noqa: ANN401
        self._tracker, self._states = tracker, tracker.get_states()

    def __enter__(self) -> None:
        self._before = self._tracker.get_states()
        self._tracker.set_states(self._states)

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401
        self._tracker.set_states(self._before)


class _All:
    """Several context managers, entered one inside the other."""

    def __init__(self, *contexts: Any) -> None:  # noqa: ANN401
        self._contexts = contexts

    def __enter__(self) -> None:
        with ExitStack() as entered_so_far:
            for context in self._contexts:
                entered_so_far.enter_context(context)
            self._stack = entered_so_far.pop_all()

    def __exit__(self, *error: Any) -> None:  # noqa: ANN401
        self._stack.__exit__(*error)


def _first_run_contexts(get_rng_state_tracker: Callable[[], Any] | None) -> list[Any]:
    """What the recomputation of a call that begins now must run in."""
    found: list[Any] = [_FirstRunAutocast(current())]
    if get_rng_state_tracker is not None:
        found.append(_FirstRunRandomStates(get_rng_state_tracker()))
    return found


def checkpoint(
    function: Callable[..., Any],
    *args: Any,  # noqa: ANN401
    use_reentrant: bool = False,
    preserve_rng_state: bool = True,
    context_fn: Callable[[], tuple[Any, Any]] | None = None,
    determinism_check: str = "default",
    distribute_saved_activations: bool = False,
    get_rng_state_tracker: Callable[[], Any] | None = None,
    tp_group: Any = None,  # noqa: ANN401
    **kwargs: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """``torch.utils.checkpoint`` that recomputes under the autocast of the first run, in eager
    and in compiled code, even if that autocast has been left.

    ``use_reentrant`` (here False by default), ``preserve_rng_state``, ``context_fn`` and
    ``determinism_check`` are torch's. ``get_rng_state_tracker`` is TransformerEngine's: a
    function that returns a tracker of random states with ``get_states`` and ``set_states``,
    which are restored for the recomputation. ``tp_group`` is accepted and not needed. All
    other keywords are the function's.

    >>> x = torch.randn(4, 8, requires_grad=True)
    >>> layer = octet.Linear(8, 8, device="cpu")
    >>> with octet.autocast():
    ...     y = octet.checkpoint(layer, x)
    >>> y.sum().backward()
    """
    del tp_group
    if distribute_saved_activations:
        raise NotImplementedError(
            "octet.checkpoint(distribute_saved_activations=True): what is saved is not split "
            "over ranks; leave it out, or use layers with sequence_parallel, whose inputs are"
        )
    from torch.utils.checkpoint import checkpoint as torch_checkpoint

    if is_dynamo_compiling():  # the compiler repeats it by itself, inside this autocast
        if get_rng_state_tracker is not None:
            raise NotImplementedError(
                "octet.checkpoint(get_rng_state_tracker=...): in compiled code random numbers "
                "are the compiler's; call it in eager code"
            )
        own = {} if context_fn is None else {"context_fn": context_fn}
        return torch_checkpoint(
            function,
            *args,
            use_reentrant=False,
            preserve_rng_state=preserve_rng_state,
            **own,
            **kwargs,
        )
    if use_reentrant:
        again = _first_run_contexts(get_rng_state_tracker)
        is_first = [True]

        def repeated(*inputs: Any) -> Any:  # noqa: ANN401
            first, is_first[0] = is_first[0], False
            with nullcontext() if first else _All(*again):
                return function(*inputs, **kwargs)

        return torch_checkpoint(
            repeated, *args, use_reentrant=True, preserve_rng_state=preserve_rng_state
        )

    def contexts() -> tuple[Any, Any]:
        first, other = (nullcontext(), nullcontext()) if context_fn is None else context_fn()
        return first, _All(other, *_first_run_contexts(get_rng_state_tracker))

    return torch_checkpoint(
        function,
        *args,
        use_reentrant=False,
        preserve_rng_state=preserve_rng_state,
        context_fn=contexts,
        determinism_check=determinism_check,
        **kwargs,
    )
