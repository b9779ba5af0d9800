"""show_plan(): how a plan spreads its work over units."""

from __future__ import annotations

from typing import Any

from ._girih import Attention, Plan, plan_items, plan_lists
from ._svg import BLUE, INK, LINE, SOFT, Canvas, Svg, count, shortened

__all__ = ["show_plan"]

#: Fills that colour-blind readers tell apart (after Okabe and Ito), each with an ink for its text.
_REQUEST_COLORS = (
    ("#8fbce6", INK),
    ("#f0b35a", INK),
    ("#7fcbb0", INK),
    ("#d68fb5", INK),
    ("#f3e27a", INK),
    (BLUE, "#ffffff"),
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
        self.canvas = Canvas(f"Plan: {info.num_items} items on {self.num_units} units")

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
            f"{count(info.num_items, 'work item')} of {count(requests, 'request')} on {count(self.num_units, 'unit')}, "
            f"{count(info.num_merges, 'merge')}; cost {info.total_cost:,}, largest share {info.max_unit_cost:,}",
            color=SOFT,
        )
        c.text(16, 61, shortened(self.plan.schedule.key, 150), size=11, mono=True, color=SOFT)

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
    if not isinstance(plan, Plan):
        raise TypeError(f"show_plan: takes an Attention or a Plan, not a {type(plan).__name__}")
    items = plan_items(plan)
    if not items:
        raise ValueError("show_plan: the plan is empty; call plan() (of a Plan: update()) with a batch first")
    return _PlanFigure(plan, items).draw()
