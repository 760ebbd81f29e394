"""Runs every fuzz target for its share of the seconds, and says what was found."""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What a target gets of the seconds: the parsers are shallow, runs are deep and slow.
SHARES = {"values": 1, "problem": 2, "structs": 2, "run": 3}
EXECUTIONS = re.compile(r"(?:number_of_executed_units:\s*(\d+))|(?:(\d+) executions)")


def options(program: Path, seconds: int, found: Path, seed: int) -> list[str]:
    """libFuzzer's words or our driver's: its help tells which it is."""
    shared = [f"-dict={HERE / 'octet.dict'}", f"-seed={seed}"]
    if is_libfuzzer(program):
        shared += [f"-max_total_time={seconds}", f"-artifact_prefix={found}/"]
        return [*shared, "-print_final_stats=1", "-timeout=60", "-max_len=4096", "-verbosity=0"]
    return [*shared, f"-seconds={seconds}", f"-out={found}"]


def is_libfuzzer(program: Path) -> bool:
    return (
        b"-artifact_prefix" in program.read_bytes()
        or b"artifact_prefix" in program.read_bytes()
    )


def fuzz(program: Path, seconds: int, args: argparse.Namespace) -> tuple[int, bool]:
    """How often the target ran, and whether it ended well."""
    name = program.name.removeprefix("fuzz_")
    found, grown = args.out / name, args.out / "corpus" / name
    found.mkdir(parents=True, exist_ok=True)
    grown.mkdir(parents=True, exist_ok=True)
    folders = [str(HERE / "corpus" / name)]
    if is_libfuzzer(program):
        folders.insert(0, str(grown))  # libFuzzer adds to the first one what reaches new code
    command = [str(program), *options(program, seconds, found, args.seed), *folders]
    settings = {
        "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=1:quarantine_size_mb=16",
        "UBSAN_OPTIONS": "abort_on_error=1:print_stacktrace=1",
    }
    done = subprocess.run(
        command,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        errors="replace",
    )
    text = done.stdout + done.stderr
    runs = [int(a or b) for a, b in EXECUTIONS.findall(text)]
    (args.out / f"{name}.log").write_text(text)
    if done.returncode:
        print(text[-6000:])
    print(f"fuzz {name}: {sum(runs)} executions in {seconds} s", flush=True)
    return sum(runs), done.returncode == 0


def findings(out: Path) -> list[Path]:
    kinds = ("crash-*", "leak-*", "timeout-*", "oom-*")
    return sorted(path for kind in kinds for path in out.glob(f"*/{kind}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="the folder of findings")
    parser.add_argument("targets", nargs="*", default=list(SHARES))
    args = parser.parse_args()
    args.out = args.out.resolve()
    total, good = 0, True
    whole = sum(SHARES[name] for name in args.targets)
    for name in args.targets:
        program = args.build / "tests" / "fuzz" / f"fuzz_{name}"
        runs, ended_well = fuzz(program, max(1, args.seconds * SHARES[name] // whole), args)
        total, good = total + runs, good and ended_well
    found = findings(args.out)
    for path in found:
        print(f"finding: {path}\n    mend it, and keep the input as a seed:")
        print(f"    cp {path} {HERE.relative_to(HERE.parents[1])}/corpus/{path.parent.name}/")
    print(f"fuzz: {total} executions, {len(args.targets)} targets, {len(found)} findings")
    return 0 if good and not found else 1


if __name__ == "__main__":
    sys.exit(main())
