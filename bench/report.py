"""Runs every benchmark in one go, prints the tables and writes them to bench/RESULTS.md."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHAPES = [(2048, 1024, 4096), (512, 2048, 2048)]
RECIPES = ["none", "delayed", "current", "block", "mxfp8", "nvfp4"]
PARTS = {"cpu": "CPU", "host": "Host"}  # marks in RESULTS.md, and the headings above them


def output(*command: str | Path) -> str:
    """What a program prints; at a terminal a line says which one runs, since it takes long."""
    words = [str(word) for word in command]
    if sys.stderr.isatty():
        short = " ".join(word.rpartition("/")[2] for word in words)
        print(f"\r\033[K{short[:78]}", end="", file=sys.stderr, flush=True)
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def octet_us(program: Path, problem: str, threads: int) -> float:
    """Forward and backward together, in microseconds."""
    table = output(program, "bench", "--threads", str(threads), problem)
    rows = re.findall(r"^ {2}(forward|backward) +([0-9.]+)", table, re.MULTILINE)
    return sum(float(us) for _, us in rows)


def linear_table(program: Path, threads: int) -> str:
    """Octet's Linear beside torch's, each shape measured in one go."""
    has_torch = importlib.util.find_spec("torch") is not None
    lines = [
        "| M, K, N | Linear | ms | GFLOP/s | vs torch bf16 | vs torch f32 | vs `_scaled_mm` |",
        "|---|---|---|---|---|---|---|",
    ]
    for m, k, n in SHAPES:
        flop = 6.0 * m * k * n
        others: list[float] = []
        if has_torch:
            sizes = [str(size) for size in (m, k, n, threads)]
            others = [
                float(us)
                for us in output(sys.executable, HERE / "torch_linear.py", *sizes).split()
            ]
        rows = [
            (f"octet {r}", octet_us(program, problem(m, k, n, r), threads)) for r in RECIPES
        ]
        names = ["torch bf16", "torch f32", "torch `_scaled_mm`"]
        rows += list(zip(names, others, strict=False))
        for name, us in rows:
            ratios = " | ".join(f"{other / us:.2f}" for other in others) or "- | - | -"
            rate = flop / us / 1e3
            lines.append(f"| {m}, {k}, {n} | {name} | {us / 1e3:.1f} | {rate:.0f} | {ratios} |")
    return "\n".join(lines)


def problem(m: int, k: int, n: int, recipe: str) -> str:
    words = f"linear m={m} k={k} n={n} in=bf16"
    return words if recipe == "none" else f"{words} recipe={recipe}"


def decoding_table(program: Path, threads: int) -> str:
    """One to sixteen rows against a cached weight: the weight's bytes over the time."""
    lines = ["| M | recipe | weight bytes read, GB/s |", "|---|---|---|"]
    for m in (1, 4, 16):
        for recipe, bits in (("none", 16), ("current", 8), ("mxfp8", 8.25), ("nvfp4", 4.5)):
            cache = "" if recipe == "none" else " cache=read"
            line = f"{problem(m, 4096, 14336, recipe)}{cache} grad=none"
            us = octet_us(program, line, threads)
            lines.append(f"| {m} | {recipe} | {4096 * 14336 * bits / 8 / us / 1e3:.1f} |")
    return "\n".join(lines)


def machine(program: Path, threads: int) -> str:
    torch_version = "not installed"
    if importlib.util.find_spec("torch") is not None:
        torch_version = output(sys.executable, "-c", "import torch; print(torch.__version__)")
    doctor = output(program, "doctor")
    kernels = re.search(r"^ *kernels +(\S+)", doctor, re.MULTILINE)
    return (
        f"`make bench` on {platform.machine()}, {os.cpu_count()} CPUs, {threads} threads, "
        f"torch {torch_version.strip()}, kernels {kernels.group(1) if kernels else '?'}."
    )


def fenced(text: str) -> str:
    return f"```\n{text.rstrip()}\n```"


def cpu_part(build: Path, threads: int) -> str:
    program = build / "octet"
    sections = [
        machine(program, threads),
        "### Linear, forward and backward",
        linear_table(program, threads),
        "### Decoding",
        decoding_table(program, threads),
    ]
    for name in ("quantize", "gemm", "plan"):
        sections += [f"### {name}", fenced(output(build / "bench" / name))]
    return "\n\n".join(sections)


def host_part(rounds: int) -> str:
    """What a call costs besides its arithmetic, next to torch's own layer."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed."
    return output(sys.executable, HERE / "host.py", "--first-rounds", str(rounds)).strip()


def write(part: str, text: str) -> None:
    """Puts a part into the page, between its marks; a new one at the end."""
    results = HERE / "RESULTS.md"
    begin, end = f"<!-- {part} -->", f"<!-- /{part} -->"
    page = results.read_text() if results.exists() else "# Results\n"
    if begin not in page:
        page = f"{page}\n## {PARTS[part]}\n\n{begin}\n{end}\n"
    before, after = page.split(begin)[0], page.split(end)[1]
    results.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--first-rounds", type=int, default=3, help="of bench/host.py")
    parser.add_argument("--part", choices=PARTS, help="only this one")
    choice = parser.parse_args()
    for part in [choice.part] if choice.part else PARTS:
        if part == "cpu":
            text = cpu_part(choice.build, choice.threads)
        else:
            text = host_part(choice.first_rounds)
        if sys.stderr.isatty():
            print(file=sys.stderr)
        print(text)
        write(part, text)


if __name__ == "__main__":
    main()
