"""Who takes texts apart: the C core alone. Python passes them on, and asks what they mean."""

import re
from pathlib import Path

import pytest
from tree import ROOT, files

# A text or words by their letters, or a part of one that is looked for in it.
READS = re.compile(
    r"\b\w*(text|words)\b\.(split|partition|rpartition|startswith|endswith|find|index|replace"
    r"|removeprefix|removesuffix)\(|[\"'] in \w*\.?_?(text|words)\b"
)
# A quantizer's or recipe's text that is put together.
WRITES = re.compile(r"f[\"'](fp8-|mxfp|nvfp|delayed|current|block|custom)[\w-]*[:+]?\{")

# Whether a traced call is delayed scaling's, and by a function of a user's.
READERS = {"python/octet/_linear_run.py"}


def matching(root: Path, pattern: re.Pattern[str]) -> set[str]:
    return {
        path.relative_to(root).as_posix()
        for path in files(root, ".py", folders=["python/octet"])
        if pattern.search(path.read_text())
    }


def test_texts__python_reads_none() -> None:
    assert matching(ROOT, READS) <= READERS


def test_texts__python_writes_none() -> None:
    assert not matching(ROOT, WRITES)


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ('if text.startswith("delayed"):', READS),
        ('kind, _, rest = self._text.partition(":")', READS),
        ('if "callback" in text:', READS),
        ("for word in call.words.split():", READS),
        ('text = f"mxfp8:{name}/{block}"', WRITES),
        ('text = f"fp8-block:{name}"', WRITES),
    ],
)
def test_texts__a_rule_by_letters_is_caught(
    tmp_path: Path, line: str, pattern: re.Pattern[str]
) -> None:
    file = tmp_path / "python/octet/a.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"{line}\n")
    assert matching(tmp_path, pattern) == {"python/octet/a.py"}
