"""Variant.show(): what the planner proves of a mask, tile by tile, and at small sizes the keys themselves."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from ._girih import Variant, mask_picture
from ._svg import BLUE, LINE, ORANGE, SANS, SOFT, Canvas, Svg, count, shortened

__all__ = ["show_mask"]

_ALWAYS, _DEPENDS = 1, 2  # 0 is never
_UNKNOWN, _HIDDEN = 3, 4  # of single keys, beside the class of their tile
_CLASS_NAMES = ("never", "always", "depends")
_CLASS_FILLS = ("#f3f4f6", "#cfe0fb", "#fde0bd")
_CLASS_INKS = ("#c3c8d0", BLUE, ORANGE)
_MAX_CELLS = 128  # extent up to which single keys are drawn


def _default_tile(extent: int) -> int:
    """64 as in kernels; smaller where there would be too few tiles to see, larger where too many to tell apart."""
    tile = 64
    while tile > 4 and extent < 4 * tile:
        tile //= 2
    while extent > 48 * tile:
        tile *= 2
    return min(tile, extent)


class _MaskFigure:
    """The picture of one mask: geometry, then the layers from the ground up."""

    left, top = 74, 130

    def __init__(
        self,
        variant: Variant,
        q_len: int,
        kv_len: int,
        tile: tuple[int, int],
        head: tuple[int, int],
        params: Mapping[str, Any] | None,
    ) -> None:
        self.variant, self.q_len, self.kv_len, self.tile = variant, q_len, kv_len, tile
        with_cells = max(q_len, kv_len) <= _MAX_CELLS
        self.tiles, self.cells, self.missing, self.by_head = mask_picture(
            variant,
            q_len,
            kv_len,
            tile[0],
            tile[1],
            with_cells,
            head[0],
            head[1],
            None if params is None else dict(params),
        )
        self.head = head
        self.rows, self.columns = -(-q_len // tile[0]), -(-kv_len // tile[1])
        scale = min(28.0, 560 / max(q_len, kv_len))
        # A long extent beside a short one is not drawn to scale: decode rows would vanish.
        self.sx = max(scale, min(28.0, 112 / kv_len))
        self.sy = max(scale, min(28.0, 112 / q_len))
        self.width, self.height = kv_len * self.sx, q_len * self.sy
        self.canvas = Canvas(f"Mask {variant.name or ''}: {q_len} queries, {kv_len} keys")

    def draw(self) -> Svg:
        self.draw_tiles()
        if self.cells is not None:
            self.draw_cells(self.cells)
        self.draw_grid()
        c = self.canvas
        c.path(self.box(0, 0, self.width, self.height), stroke=LINE, width=1.2)
        self.draw_axes()
        self.draw_title()
        bottom = self.draw_legend(self.top + self.height + 26)
        return c.svg(self.canvas_width(), bottom + 10)

    def canvas_width(self) -> float:
        return max(self.left + self.width + 24, 560)

    def box(self, x: float, y: float, w: float, h: float) -> str:
        return f"M{self.left + x:.6g} {self.top + y:.6g}h{w:.6g}v{h:.6g}h{-w:.6g}z"

    def draw_tiles(self) -> None:
        """Neighbours of one class in a row of tiles make one rectangle."""
        c, (tq, tk) = self.canvas, self.tile
        counts = [self.tiles.count(bytes([k])) for k in range(3)]
        facts = " ".join(f'data-{name}="{n}"' for name, n in zip(_CLASS_NAMES, counts))
        c.parts.append(f'<g class="tiles" {facts} stroke="none">')
        for r in range(self.rows):
            first, last = r * tq, min(r * tq + tq, self.q_len)
            column = 0
            for kind, run in groupby(self.tiles[r * self.columns : (r + 1) * self.columns]):
                n = len(list(run))
                begin, end = column * tk, min((column + n) * tk, self.kv_len)
                column += n
                place = (
                    self.left + begin * self.sx,
                    self.top + first * self.sy,
                    (end - begin) * self.sx,
                    (last - first) * self.sy,
                )
                name = _CLASS_NAMES[kind]
                origin = self.kv_len - self.q_len
                hover = f"queries {origin + first}..{origin + last - 1}, keys {begin}..{end - 1}: {_CLASS_HOVER[kind]}"
                c.rect(
                    *place, _CLASS_FILLS[kind], extra=f' class="{name}" data-row="{r}" data-tiles="{n}"', hover=hover
                )
                if kind == _DEPENDS and self.cells is None:
                    c.rect(*place, "url(#girih-depends)", extra=' pointer-events="none"')
        c.parts.append("</g>")

    def draw_grid(self) -> None:
        """Borders of tiles, as far as they can be told apart."""
        (tq, tk), x0, y0 = self.tile, self.left, self.top
        lines = ""
        if tk * self.sx >= 5:
            lines += "".join(f"M{x0 + i * tk * self.sx:.6g} {y0}v{self.height:.6g}" for i in range(1, self.columns))
        if tq * self.sy >= 5:
            lines += "".join(f"M{x0} {y0 + i * tq * self.sy:.6g}h{self.width:.6g}" for i in range(1, self.rows))
        wide = self.cells is not None
        self.canvas.path(lines, stroke=LINE if wide else "#ffffff", width=0.9 if wide else 0.8)

    def draw_cells(self, cells: bytes) -> None:
        """A square a key; where squares would be small, neighbours of a row make one bar."""
        marks: tuple[list[str], ...] = ([], [], [], [])  # by class of the tile; those unknown
        counts = [0, 0, 0, 0]
        whole = min(self.sx, self.sy) < 9
        gap = 0 if whole else min(self.sx, self.sy) * 0.14
        for i in range(self.q_len):
            tiles = self.tiles[i // self.tile[0] * self.columns : (i // self.tile[0] + 1) * self.columns]
            row = cells[i * self.kv_len : (i + 1) * self.kv_len]
            kinds = [_HIDDEN if v == 0 else _UNKNOWN if v == 2 else tiles[k // self.tile[1]] for k, v in enumerate(row)]
            k = 0
            for kind, run in groupby(kinds):
                n = len(list(run))
                if kind != _HIDDEN:
                    counts[kind] += n
                    for begin, count in [(k, n)] if whole else [(k + j, 1) for j in range(n)]:
                        marks[kind].append(
                            self.box(
                                begin * self.sx + gap, i * self.sy + gap, count * self.sx - 2 * gap, self.sy - 2 * gap
                            )
                        )
                k += n
        self.canvas.parts.append(
            f'<g class="cells" data-visible="{sum(counts[:3])}" data-unknown="{counts[_UNKNOWN]}">'
        )
        for kind, ink in enumerate(_CLASS_INKS):
            self.canvas.path("".join(marks[kind]), fill=ink)
        self.canvas.path("".join(marks[_UNKNOWN]), fill="url(#girih-unknown)", stroke=LINE, width=0.7)
        self.canvas.parts.append("</g>")

    def draw_axes(self) -> None:
        c, origin = self.canvas, self.kv_len - self.q_len
        c.text(self.left, self.top - 26, "key position", color=SOFT)
        for p in _ticks(0, self.kv_len, self.sx, 9 * len(str(self.kv_len)) + 8):
            x = self.left + (p + 0.5) * self.sx
            c.path(f"M{x:.6g} {self.top - 4}v4", stroke=LINE)
            c.text(x, self.top - 8, str(p), size=11, anchor="middle", color=SOFT, mono=True)
        for p in _ticks(origin, self.kv_len, self.sy, 18):
            y = self.top + (p - origin + 0.5) * self.sy
            c.path(f"M{self.left - 4} {y:.6g}h4", stroke=LINE)
            c.text(self.left - 7, y + 4, str(p), size=11, anchor="end", color=SOFT, mono=True)
        middle = self.top + self.height / 2
        c.parts.append(
            f'<text transform="translate(16 {middle:.5g}) rotate(-90)" font-size="12" font-family="{SANS}" text-anchor="middle" '
            f'fill="{SOFT}">query position</text>'
        )

    def draw_title(self) -> None:
        c, mask = self.canvas, self.variant.mask
        c.text(16, 24, self.variant.name or "mask", size=13, bold=True)
        c.text(
            16,
            42,
            shortened("every key is visible" if mask is None else repr(mask), 88),
            size=11,
            mono=True,
            color=SOFT,
        )
        counts = [self.tiles.count(bytes([k])) for k in range(3)]
        queries = f"{self.q_len:,} {'query' if self.q_len == 1 else 'queries'}"
        text = f"{queries}, {count(self.kv_len, 'key')}, tiles of {self.tile[0]:,} x {self.tile[1]:,}"
        if self.by_head:
            text += f", query head {self.head[0]}, KV head {self.head[1]}"
        if self.cells is not None and 2 not in self.cells:
            text += f"; {sum(self.cells) / len(self.cells):.0%} of the pairs visible"
        c.text(16, 60, text, color=SOFT)
        text = f"{count(len(self.tiles), 'tile')}: {counts[0]:,} never, {counts[1]:,} always, {counts[2]:,} depend"
        c.text(16, 76, text, color=SOFT)

    def draw_legend(self, y: float) -> float:
        c = self.canvas
        rows = [(_CLASS_FILLS[k], _CLASS_INKS[k], "", _CLASS_LEGEND[k]) for k in range(3)]
        if self.cells is None:
            fill, ink, _, text = rows[_DEPENDS]
            rows[_DEPENDS] = (fill, ink, "url(#girih-depends)", text)
        for fill, ink, pattern, text in rows:
            c.rect(self.left, y, 16, 12, fill, ink)
            if pattern:
                c.rect(self.left, y, 16, 12, pattern)
            c.text(self.left + 24, y + 10, text)
            y += 19
        if self.cells is not None:
            c.rect(self.left, y + 1, 10, 10, _CLASS_INKS[_ALWAYS])
            c.rect(self.left + 12, y + 1, 10, 10, _CLASS_INKS[_DEPENDS])
            c.text(self.left + 30, y + 10, "a key that the query sees")
            y += 19
        if self.cells is not None and 2 in self.cells:
            c.rect(self.left, y, 16, 12, "url(#girih-unknown)", LINE)
            why = f"unknown without {', '.join(self.missing)}" if self.missing else "unknown: CUDA text decides"
            c.text(self.left + 24, y + 10, shortened(why, 70))
            y += 19
        elif self.missing:
            c.text(self.left, y + 10, shortened(f"without values: {', '.join(self.missing)}", 76), color=SOFT)
            y += 19
        return y


_CLASS_HOVER = ("never visible, skipped", "always visible, no mask code", "the kernel evaluates the mask")
_CLASS_LEGEND = (
    "never: no query sees a key, the planner skips the tile",
    "always: every query sees every key, the tile runs without mask code",
    "depends: the kernel evaluates the mask",
)


def _ticks(begin: int, end: int, scale: float, apart: float) -> list[int]:
    """Multiples of a power of two in [begin, end), at least `apart` pixels from one another."""
    step = 1
    while step * scale < apart and step < end - begin:
        step *= 2
    return list(range(-(-begin // step) * step, end, step))


def show_mask(
    variant: Variant,
    q_len: int,
    kv_len: int,
    *,
    params: Mapping[str, Any] | None = None,
    tile: int | tuple[int, int] | None = None,
    q_head: int = 0,
    kv_head: int = 0,
) -> Svg:
    """Variant.show(); see there."""
    if tile is None:
        tile = (_default_tile(q_len), _default_tile(kv_len))
    elif isinstance(tile, int):
        tile = (tile, tile)
    elif not isinstance(tile, tuple) or len(tile) != 2:
        raise TypeError("show: tile must be an int, a pair (queries, keys) or None")
    return _MaskFigure(variant, q_len, kv_len, tile, (q_head, kv_head), params).draw()
