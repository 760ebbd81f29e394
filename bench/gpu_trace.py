"""Where a training step's time goes on a GPU: its kernels, one after another, and the gaps."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

import torch

STEPS = 10


def kernels(step: Callable[[], Any]) -> list[tuple[str, float, float]]:
    """What a step puts on the GPU in order: name, microseconds, and those until the next.

    The step should be a captured graph: the profiler itself slows an eager host down."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(STEPS + 1):
            step()
        torch.cuda.synchronize()
    events = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in found.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    count = len(events) // (STEPS + 1)
    rows: list[tuple[str, float, float]] = []
    for at in range(count):
        places = [at + count * i for i in range(STEPS)]
        times = [events[i][1] - events[i][0] for i in places]
        gaps = [events[i + 1][0] - events[i][1] for i in places]
        rows.append((events[at][2], statistics.median(times), statistics.median(gaps)))
    return rows


def table(title: str, rows: list[tuple[str, float, float]]) -> str:
    """Kernels as they ran; the last line is the step's sum."""
    lines = [f"| {title} | us | gap |", "|---|---|---|"]
    lines += [f"| {name[:48]} | {us:.1f} | {gap:.1f} |" for name, us, gap in rows]
    us, gap = sum(row[1] for row in rows), sum(row[2] for row in rows)
    lines.append(f"| {len(rows)} launches | {us:.1f} | {gap:.1f} |")
    return "\n".join(lines)
