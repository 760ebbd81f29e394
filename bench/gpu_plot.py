"""bench/gpu.json as a picture, bench/gpu.svg: TFLOP/s of each Linear at each shape."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
BAR, GAP, LEFT, TOP, HEIGHT = 15, 26, 60, 46, 260
COLORS = ["#888888", "#1b6ca8", "#3aa0d8", "#2e8b57", "#d08c2e", "#b5533c"]
ROWS = ["bf16 nn.Linear", "delayed", "current", "block", "mxfp8", "nvfp4"]


def text(x: float, y: float, words: str, anchor: str = "middle", size: int = 11) -> str:
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {at}>{words}</text>"


def bars(left: float, rows: dict[str, dict[str, float]], top: float) -> list[str]:
    """Eager as a bar; the same work as one CUDA graph as a tick."""
    drawn: list[str] = []
    for index, name in enumerate(ROWS):
        x, row = left + index * BAR, rows[name]
        high = row["eager"] / top * HEIGHT
        drawn.append(
            f'<rect x="{x}" y="{TOP + HEIGHT - high:.1f}" width="{BAR - 3}" '
            f'height="{high:.1f}" fill="{COLORS[index]}"/>'
        )
        y = TOP + HEIGHT - row["graph"] / top * HEIGHT
        drawn.append(f'<path d="M{x - 1} {y:.1f}h{BAR - 1}" stroke="#000" stroke-width="1.5"/>')
    return drawn


def picture(found: dict[str, dict[str, dict[str, float]]]) -> str:
    shapes = {title: rows for title, rows in found.items() if title.startswith("TFLOP/s")}
    top = 1400.0
    group = len(ROWS) * BAR + GAP
    width = LEFT + group * len(shapes) + 20
    drawn = [
        text(
            LEFT, 18, "Linear forward and backward, TFLOP/s (tick: one CUDA graph)", "start", 13
        )
    ]
    for level in range(0, int(top) + 1, 200):
        y = TOP + HEIGHT - level / top * HEIGHT
        drawn.append(f'<path d="M{LEFT} {y:.1f}H{width - 20}" stroke="#ddd"/>')
        drawn.append(text(LEFT - 6, y + 4, str(level), "end"))
    for index, (title, rows) in enumerate(shapes.items()):
        left = LEFT + 8 + index * group
        drawn += bars(left, rows, top)
        name = title.removeprefix("TFLOP/s at ").strip("()")
        drawn.append(text(left + len(ROWS) * BAR / 2, TOP + HEIGHT + 16, name))
    for index, name in enumerate(ROWS):
        x = LEFT + index * 105
        y = TOP + HEIGHT + 30
        drawn.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{COLORS[index]}"/>')
        drawn.append(text(x + 14, y + 9, name, "start"))
    size = f'width="{max(width, LEFT + 105 * len(ROWS))}" height="{TOP + HEIGHT + 50}"'
    body = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


def main() -> None:
    found = json.loads((HERE / "gpu.json").read_text())
    (HERE / "gpu.svg").write_text(picture(found))


if __name__ == "__main__":
    main()
