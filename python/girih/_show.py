"""Pictures: what the planner proves of a variant's mask (Variant.show), and how a plan spreads its work (show_plan). Plain SVG text with
the palette of the documentation's figures; blue against orange, and patterns beside colours, so that no reader depends on hue.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import groupby
from typing import Any
from xml.sax.saxutils import escape

from ._girih import Attention, Plan, Variant, mask_picture, plan_items, plan_lists

__all__ = ["Svg", "show_mask", "show_plan"]

INK, SOFT, LINE = "#1f2430", "#5b6270", "#8a92a0"
_SANS = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
_MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

_NEVER, _ALWAYS, _DEPENDS = 0, 1, 2
_CLASS_NAMES = ("never", "always", "depends")
_CLASS_FILLS = ("#f3f4f6", "#cfe0fb", "#fde0bd")
_CLASS_INKS = ("#c3c8d0", "#3a67ad", "#b06a1a")
_MAX_CELLS = 128  # extent up to which single keys are drawn


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


class _Canvas:
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
            f'<text x="{x:.5g}" y="{y:.5g}" font-size="{size}" font-family="{_MONO if mono else _SANS}" text-anchor="{anchor}" '
            f'fill="{color}"{weight}>{escape(text)}</text>'
        )

    def rect(
        self, x: float, y: float, w: float, h: float, fill: str, stroke: str = "none", extra: str = "", hover: str = ""
    ) -> None:
        inside = f"><title>{escape(hover)}</title></rect>" if hover else "/>"
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
                ("depends", "M-1 1l2 -2M0 6l6 -6M5 7l2 -2", _CLASS_INKS[_DEPENDS]),
                ("unknown", "M0 6l6 -6M0 0l6 6", SOFT),
            )
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img">\n'
            f"<title>{escape(self.title)}</title>\n<defs>{patterns}</defs>\n"
            f'<rect width="{w}" height="{h}" fill="#ffffff"/>\n'
        )
        return Svg(head + "\n".join(self.parts) + "\n</svg>\n", w, h)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


# ---------------------------------------------------------------------------------------------------------------- masks


def _default_tile(extent: int) -> int:
    """64 as in kernels; smaller where there would be too few tiles to see, larger where too many to tell apart."""
    tile = 64
    while tile > 4 and extent < 4 * tile:
        tile //= 2
    while extent > 48 * tile:
        tile *= 2
    return tile


class _MaskFigure:
    """The picture of one mask: geometry, then the layers from the ground up."""

    left, top = 74, 112

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
        self.canvas = _Canvas(f"Mask {variant.name or ''}: {q_len} queries, {kv_len} keys")

    def draw(self) -> Svg:
        self.draw_tiles()
        self.draw_grid()
        if self.cells is not None:
            self.draw_cells(self.cells)
        c = self.canvas
        c.path(self.box(0, 0, self.width, self.height), stroke=LINE, width=1.2)
        self.draw_axes()
        self.draw_title()
        bottom = self.draw_legend(self.top + self.height + 26)
        return c.svg(max(self.left + self.width + 24, 560), bottom + 10)

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
        visible: list[list[str]] = [[], [], []]
        unknown = []
        gap = min(self.sx, self.sy) * 0.14
        w, h = self.sx - 2 * gap, self.sy - 2 * gap
        for i in range(self.q_len):
            tiles = self.tiles[i // self.tile[0] * self.columns : (i // self.tile[0] + 1) * self.columns]
            for k in range(self.kv_len):
                value = cells[i * self.kv_len + k]
                if value == 0:
                    continue
                mark = self.box(k * self.sx + gap, i * self.sy + gap, w, h)
                (unknown if value == 2 else visible[tiles[k // self.tile[1]]]).append(mark)
        total = sum(map(len, visible))
        self.canvas.parts.append(f'<g class="cells" data-visible="{total}" data-unknown="{len(unknown)}">')
        for marks, ink in zip(visible, _CLASS_INKS):
            self.canvas.path("".join(marks), fill=ink)
        self.canvas.path("".join(unknown), fill="url(#girih-unknown)", stroke=LINE, width=0.7)
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
            f'<text transform="translate(16 {middle:.5g}) rotate(-90)" font-size="12" font-family="{_SANS}" text-anchor="middle" '
            f'fill="{SOFT}">query position</text>'
        )

    def draw_title(self) -> None:
        c, mask = self.canvas, self.variant.mask
        c.text(16, 24, self.variant.name or "mask", size=13, bold=True)
        c.text(
            16,
            42,
            _shortened("every key is visible" if mask is None else repr(mask), 88),
            size=11,
            mono=True,
            color=SOFT,
        )
        counts = [self.tiles.count(bytes([k])) for k in range(3)]
        text = f"{self.q_len} queries, {self.kv_len} keys, tiles of {self.tile[0]} x {self.tile[1]}"
        if self.by_head:
            text += f", query head {self.head[0]}, KV head {self.head[1]}"
        if self.cells is not None and 2 not in self.cells:
            text += f"; {sum(self.cells) / len(self.cells):.0%} of the pairs visible"
        c.text(16, 60, text, color=SOFT)
        text = f"{_count(len(self.tiles), 'tile')}: {counts[0]:,} never, {counts[1]:,} always, {counts[2]:,} depend"
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
            c.text(self.left + 24, y + 10, _shortened(why, 70))
            y += 19
        elif self.missing:
            c.text(self.left, y + 10, _shortened(f"without values: {', '.join(self.missing)}", 76), color=SOFT)
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
    return _MaskFigure(variant, q_len, kv_len, (tile[0], tile[1]), (q_head, kv_head), params).draw()


# ---------------------------------------------------------------------------------------------------------------- plans

#: Fills that colour-blind readers tell apart (after Okabe and Ito), each with an ink for its text.
_REQUEST_COLORS = (
    ("#8fbce6", INK),
    ("#f0b35a", INK),
    ("#7fcbb0", INK),
    ("#d68fb5", INK),
    ("#f3e27a", INK),
    ("#3a67ad", "#ffffff"),
    ("#b5541c", "#ffffff"),
    ("#5b6270", "#ffffff"),
)


class _PlanFigure:
    """The picture of one plan: a band per list of work (one on the CPU; on a GPU small and large tiles have kernels of their own)."""

    left, right, top = 64, 20, 78

    def __init__(self, plan: Plan, items: list[dict[str, Any]]) -> None:
        self.plan, self.items = plan, items
        self.lists = plan_lists(plan)
        self.num_units = self.lists[-1][2]
        self.row = min(22.0, max(4.0, 1100 / self.num_units))
        self.costs = [0] * self.num_units
        for item in items:
            self.costs[item["unit"]] += item["cost"]
        self.width = 1120.0
        self.scale = self.width / max(1, *self.costs)
        info = plan.info
        self.canvas = _Canvas(f"Plan: {info.num_items} items on {self.num_units} units")

    def draw(self) -> Svg:
        c, y = self.canvas, float(self.top)
        for name, begin, end in self.lists:
            if len(self.lists) > 1:
                c.text(self.left, y + 10, f"{name} tiles", bold=True)
                y += 18
            y = self.draw_list(begin, end, y) + 14
        y = self.draw_axis(y - 8)
        self.draw_title()
        y = self.draw_legend(y + 16)
        return c.svg(self.left + self.width + self.right, y + 8)

    def draw_list(self, begin: int, end: int, y: float) -> float:
        c, top = self.canvas, y
        every = max(1, round(14 / self.row))
        bars = [item for item in self.items if begin <= item["unit"] < end]
        for unit in range(begin, end):
            if (unit - begin) % every == 0:
                c.text(self.left - 8, y + self.row / 2 + 4, str(unit), size=11, anchor="end", color=SOFT, mono=True)
            at = 0
            # Bars too narrow to see go together with their right neighbours of the same request.
            run: list[dict[str, Any]] = []
            for item in [bar for bar in bars if bar["unit"] == unit]:
                if run and (item["request"] != run[0]["request"] or self.cost(run) * self.scale >= 0.5):
                    at = self.draw_bar(run, at, y)
                    run = []
                run.append(item)
            if run:
                self.draw_bar(run, at, y)
            y += self.row
        mean = self.left + sum(self.costs[begin:end]) / (end - begin) * self.scale
        c.path(
            f"M{mean:.6g} {top - 4}V{y + 2:.6g}", stroke=INK, width=1.2, extra=' stroke-dasharray="4 3" class="mean"'
        )
        return y

    @staticmethod
    def cost(run: list[dict[str, Any]]) -> int:
        return int(sum(item["cost"] for item in run))

    def draw_bar(self, run: list[dict[str, Any]], at: int, y: float) -> int:
        first, cost = run[0], self.cost(run)
        fill, ink = _REQUEST_COLORS[first["request"] % len(_REQUEST_COLORS)]
        hover = (
            f"request {first['request']}, KV head {first['kv_head']}, segment {first['segment']}, {first['tile_class']} tile: rows "
            f"{first['row_begin']}..{first['row_begin'] + first['row_count'] - 1}, keys {first['kv_begin']}..{first['kv_end'] - 1}, "
            f"cost {cost:,}"
        )
        hover += f" with {len(run) - 1} more" if len(run) > 1 else ""
        hover += "; a part, merged later" if first["split"] else ""
        x, width = self.left + at * self.scale, max(cost * self.scale, 0.1)
        gap = 1 if self.row > 8 else 0.3
        extra = f' stroke-width="{min(0.8, width / 4):.3g}" data-unit="{first["unit"]}" data-items="{len(run)}" data-cost="{cost}"'
        self.canvas.rect(x, y + gap, width, self.row - 2 * gap, fill, "#ffffff", extra, hover)
        label = str(first["request"])
        if self.row >= 14 and width >= 8 * len(label) + 6:
            self.canvas.text(x + width / 2, y + self.row / 2 + 4, label, size=11, anchor="middle", color=ink, mono=True)
        return at + cost

    def draw_axis(self, y: float) -> float:
        c, longest = self.canvas, max(1, *self.costs)
        c.path(f"M{self.left} {y:.6g}h{self.width:.6g}", stroke=LINE)
        step = 10 ** (len(str(longest)) - 1)
        step = next((step // d for d in (5, 2) if step % d == 0 and longest // (step // d) <= 10), step)
        for value in range(0, longest + 1, step):
            x = self.left + value * self.scale
            c.path(f"M{x:.6g} {y:.6g}v4", stroke=LINE)
            c.text(x, y + 17, f"{value:,}", size=11, anchor="middle", color=SOFT, mono=True)
        c.text(self.left, y + 34, "cost, in the planner's units; the dashed line is the mean", color=SOFT)
        return y + 34

    def draw_title(self) -> None:
        c, info = self.canvas, self.plan.info
        c.text(16, 24, f"balance {self.balance():.3f}", size=13, bold=True)
        c.text(110, 24, "largest share of a unit over the least possible; 1 is perfect", color=SOFT)
        requests = len({item["request"] for item in self.items})
        c.text(
            16,
            43,
            f"{_count(info.num_items, 'work item')} of {_count(requests, 'request')} on {_count(self.num_units, 'unit')}, "
            f"{_count(info.num_merges, 'merge')}; cost {info.total_cost:,}, largest share {info.max_unit_cost:,}",
            color=SOFT,
        )
        c.text(16, 61, _shortened(self.plan.schedule.key, 150), size=11, mono=True, color=SOFT)

    def balance(self) -> float:
        """Over the lists: the least possible is the mean, or a piece that cannot be cut."""
        if len(self.lists) == 1:
            info = self.plan.info
            bound = max(info.total_cost / self.num_units, info.max_piece_cost)
            return info.max_unit_cost / bound if bound > 0 else 1.0
        worst = 1.0
        for _, begin, end in self.lists:
            costs = self.costs[begin:end]
            bound = max(
                sum(costs) / len(costs), max((i["cost"] for i in self.items if begin <= i["unit"] < end), default=0)
            )
            worst = max(worst, max(costs) / bound if bound > 0 else 1.0)
        return worst

    def draw_legend(self, y: float) -> float:
        c, x = self.canvas, float(self.left)
        requests = sorted({item["request"] for item in self.items})
        for request in requests[:16]:
            fill, _ = _REQUEST_COLORS[request % len(_REQUEST_COLORS)]
            c.rect(x, y, 16, 12, fill)
            c.text(x + 21, y + 10, f"request {request}")
            x += 96
            if x > self.width - 40:
                x, y = float(self.left), y + 19
        if len(requests) > 16:
            c.text(x, y + 10, f"and {len(requests) - 16:,} more: colours repeat", color=SOFT)
        return y + 19


def show_plan(plan: Attention | Plan) -> Svg:
    """A picture of a plan: a row per unit (CPU worker, block of a GPU), a bar per work item as long as its cost, coloured by request, and
    the mean as a dashed line. The title tells the balance: the largest share over the least possible, 1 is perfect.

    plan: an Attention after plan(), or a Plan after update(). Raises ValueError where nothing is planned.
    """
    if isinstance(plan, Attention):
        blob, planned = plan.blob(), Plan(plan.schedule)
        if blob:
            planned.load(blob)
        plan = planned
    items = plan_items(plan)
    if not items:
        raise ValueError("show_plan: the plan is empty; call plan() (of a Plan: update()) with a batch first")
    return _PlanFigure(plan, items).draw()
