"""SVG text for pictures: the palette of the documentation's figures, blue against orange with patterns beside colours, so that no reader
depends on hue. _show_mask.py and _show_plan.py draw with it.
"""

from __future__ import annotations

import os

__all__ = ["Canvas", "Svg", "count", "shortened"]

INK, SOFT, LINE = "#1f2430", "#5b6270", "#8a92a0"
BLUE, ORANGE = "#3a67ad", "#b06a1a"
SANS = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def _escaped(text: str) -> str:
    # xml.sax.saxutils has it too, and brings half of the network library along.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Svg:
    """A picture as SVG text. Notebooks show it; save(path) writes it; str() is the text."""

    def __init__(self, text: str, width: int, height: int) -> None:
        self.text, self.width, self.height = text, width, height

    def _repr_svg_(self) -> str:
        return self.text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Svg {self.width} x {self.height}>"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text)


class Canvas:
    """SVG elements in the order in which they are drawn."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 12,
        anchor: str = "start",
        color: str = INK,
        mono: bool = False,
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="bold"' if bold else ""
        self.parts.append(
            f'<text x="{x:.5g}" y="{y:.5g}" font-size="{size}" font-family="{MONO if mono else SANS}" text-anchor="{anchor}" '
            f'fill="{color}"{weight}>{_escaped(text)}</text>'
        )

    def rect(
        self, x: float, y: float, w: float, h: float, fill: str, stroke: str = "none", extra: str = "", hover: str = ""
    ) -> None:
        inside = f"><title>{_escaped(hover)}</title></rect>" if hover else "/>"
        edge = "" if stroke == "none" else f' stroke="{stroke}"'
        self.parts.append(
            f'<rect x="{x:.6g}" y="{y:.6g}" width="{w:.6g}" height="{h:.6g}" fill="{fill}"{edge}{extra}{inside}'
        )

    def path(self, data: str, fill: str = "none", stroke: str = "none", width: float = 1, extra: str = "") -> None:
        if data:
            edge = "" if stroke == "none" else f' stroke="{stroke}" stroke-width="{width:g}"'
            self.parts.append(f'<path d="{data}" fill="{fill}"{edge}{extra}/>')

    def svg(self, width: float, height: float) -> Svg:
        w, h = round(width), round(height)
        # Stripes for what kernels decide, crosses of two directions for what nobody knows yet.
        patterns = "".join(
            f'<pattern id="girih-{name}" width="6" height="6" patternUnits="userSpaceOnUse"><path d="{d}" stroke="{color}" '
            f'stroke-width="1.1"/></pattern>'
            for name, d, color in (
                ("depends", "M-1 1l2 -2M0 6l6 -6M5 7l2 -2", ORANGE),
                ("unknown", "M0 6l6 -6M0 0l6 6", SOFT),
            )
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img">\n'
            f"<title>{_escaped(self.title)}</title>\n<defs>{patterns}</defs>\n"
            f'<rect width="{w}" height="{h}" fill="#ffffff"/>\n'
        )
        return Svg(head + "\n".join(self.parts) + "\n</svg>\n", w, h)


def count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
