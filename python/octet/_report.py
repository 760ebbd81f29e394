"""Tables as text and as HTML, for what looks into a model."""

import html
from typing import NamedTuple

_STYLE = (
    "border-collapse:collapse;font:13px/1.5 ui-monospace,Menlo,Consolas,monospace",
    "border:1px solid #bbb;padding:2px 8px;text-align:left",
)


def bytes_text(count: int) -> str:
    """900 B, 64.0 KiB, 3.5 MiB."""
    if count < 10240:
        return f"{count} B"
    power = min(4, (count.bit_length() - 1) // 10)
    return f"{count / 1024**power:.1f} {('', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


class Table(NamedTuple):
    """A title, a table, notes by row, and lines below."""

    title: str
    head: tuple[str, ...]
    lines: list[tuple[str, ...]]
    notes: dict[str, list[str]]
    below: list[str]

    def text(self) -> str:
        """In columns."""
        rows = [self.head, *self.lines]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.head))]
        found = [self.title]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            found.append("  ".join(cells).rstrip())
        found += [f"{name}: {note}" for name, notes in self._grouped() for note in notes]
        return "\n".join(found + self.below)

    def _grouped(self) -> list[tuple[str, list[str]]]:
        """Notes that many rows share are said once."""
        by_note: dict[str, list[str]] = {}
        for name, notes in self.notes.items():
            for note in notes:
                by_note.setdefault(note, []).append(name)
        found = []
        for note, names in by_note.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            found.append((", ".join(names[:3]) + more, [note]))
        return found

    def html(self) -> str:
        """A fragment without scripts or files."""
        table, cell = _STYLE
        rows = []
        for tag, lines in (("th", [self.head]), ("td", self.lines)):
            for line in lines:
                cells = "".join(f'<{tag} style="{cell}">{html.escape(c)}</{tag}>' for c in line)
                rows.append(f"<tr>{cells}</tr>")
        notes = [f"{name}: {n}" for name, found in self._grouped() for n in found]
        items = "".join(f"<li>{html.escape(each)}</li>" for each in notes + self.below)
        return (
            f"<p>{html.escape(self.title)}</p>"
            f'<table style="{table}">{"".join(rows)}</table><ul>{items}</ul>'
        )
