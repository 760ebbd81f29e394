"""Tables as text and HTML, for octet.explain, octet.stats and octet.advise."""

import html
from typing import NamedTuple

_STYLE = (
    "border-collapse:collapse;font:13px/1.5 ui-monospace,Menlo,Consolas,monospace",
    "border:1px solid #bbb;padding:2px 8px;text-align:left;white-space:nowrap",
)


def bytes_text(count: int) -> str:
    """A count of bytes for people: 900 B, 64.0 KiB, 3.5 MiB."""
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

    def without_common(self, columns: tuple[str, ...]) -> "Table":
        """The same, with those of the columns that all rows agree on in the title."""
        if len(self.lines) < 2:
            return self
        cells = dict(zip(self.head, zip(*self.lines, strict=True), strict=True))
        common = {name: cells[name][0] for name in columns if len(set(cells[name])) == 1}
        if not common:
            return self
        left = [i for i, name in enumerate(self.head) if name not in common]
        said = "; ".join(f"{name} {cell}" for name, cell in common.items())
        return self._replace(
            title=f"{self.title}\nall rows: {said}",
            head=tuple(self.head[i] for i in left),
            lines=[tuple(line[i] for i in left) for line in self.lines],
        )

    def text(self) -> str:
        """The table in aligned columns."""
        rows = [self.head, *self.lines]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.head))]
        found = [self.title]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            found.append("  ".join(cells).rstrip())
        return "\n".join([*found, *self._grouped(), *self.below])

    def _grouped(self) -> list[str]:
        """Groups the rows that share a note. A note that begins with the names of its rows, as
        in "q, k, v read one tensor", is printed once for the first such group."""
        by_note: dict[str, list[str]] = {}
        for name, notes in self.notes.items():
            for note in notes:
                by_note.setdefault(note, []).append(name)
        by_rest: dict[str, list[str]] = {}
        for note, names in by_note.items():
            own = ", ".join(names) + " "
            if note.startswith(own):
                by_rest.setdefault(note.removeprefix(own), []).append(own.strip())
            else:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                by_rest[": " + note] = [", ".join(names[:3]) + more]
        found = []
        for rest, groups in by_rest.items():
            more = f" (so do {len(groups) - 1} more groups)" if len(groups) > 1 else ""
            found.append(groups[0] + ("" if rest.startswith(": ") else " ") + rest + more)
        return found

    def html(self) -> str:
        """The table as an HTML fragment without scripts or files."""
        table, cell = _STYLE
        rows = []
        for tag, lines in (("th", [self.head]), ("td", self.lines)):
            for line in lines:
                cells = "".join(f'<{tag} style="{cell}">{html.escape(c)}</{tag}>' for c in line)
                rows.append(f"<tr>{cells}</tr>")
        notes = [*self._grouped(), *self.below]
        items = "".join(f"<li>{html.escape(each)}</li>" for each in notes)
        title = f"<p>{html.escape(self.title)}</p>".replace("\n", "</p><p>")
        made = f'<table style="{table}">{"".join(rows)}</table>'
        return f'{title}<div style="overflow-x:auto">{made}</div><ul>{items}</ul>'
