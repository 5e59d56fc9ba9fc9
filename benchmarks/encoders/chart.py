"""A bar chart as an SVG that follows the reader's light or dark theme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _LABELS, _NOTES, _ROW, _TOP = 840, 250, 190, 34, 64
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600;font-size:15px}.quiet{fill:#59636e}"
    ".bar{fill:#8c959f}.ours{fill:#0969da}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.quiet{fill:#9198a1}"
    ".bar{fill:#656c76}.ours{fill:#4493f8}}"
)


@dataclass(frozen=True)
class Bar:
    """One bar: its label, its value, the text after it, and whether it stands out."""

    label: str
    value: float
    note: str
    highlighted: bool = False


def bar_chart(title: str, caption: str, bars: Sequence[Bar]) -> str:
    """Return the chart; the longest bar has the largest value, and all begin at zero."""
    largest, height = max(bar.value for bar in bars), _TOP + _ROW * len(bars) + 8
    words = f"{title}: " + "; ".join(f"{bar.label}: {bar.note}" for bar in bars)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(words)}</title><style>{_STYLE}</style>",
        f'<text class="title" x="8" y="22">{escape(title)}</text>',
        f'<text class="quiet" x="8" y="44">{escape(caption)}</text>',
    ]
    for row, bar in enumerate(bars):
        y, width = _TOP + row * _ROW, bar.value / largest * (_WIDTH - _LABELS - _NOTES)
        parts += [
            f'<text x="{_LABELS - 10}" y="{y + 17}" text-anchor="end">{escape(bar.label)}</text>',
            f'<rect class="{"ours" if bar.highlighted else "bar"}" x="{_LABELS}" y="{y}" width="{width:.1f}" '
            f'height="24" rx="2"/>',
            f'<text x="{_LABELS + width + 8:.1f}" y="{y + 17}">{escape(bar.note)}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
