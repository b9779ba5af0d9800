"""Pictures of masks and plans: their facts against brute force, and that they are well-formed and saved."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import girih
from girih import _girih, variants

SVG = "{http://www.w3.org/2000/svg}"
IDS = np.repeat(np.arange(9, dtype=np.int32), [5, 13, 1, 8, 20, 3, 3, 7, 4])


def parse(svg: girih.Svg) -> ET.Element:
    root = ET.fromstring(str(svg))
    assert root.tag == SVG + "svg" and root.get("viewBox") == f"0 0 {svg.width} {svg.height}"
    return root


def group(root: ET.Element, name: str) -> ET.Element:
    (found,) = [g for g in root.iter(SVG + "g") if g.get("class") == name]
    return found


def tile_classes(root: ET.Element) -> list[list[str]]:
    """The classes that are drawn, row by row, from the rectangles."""
    rows: dict[int, list[str]] = {}
    for rect in group(root, "tiles").iter(SVG + "rect"):
        if rect.get("data-row") is not None:
            rows.setdefault(int(rect.get("data-row", "")), []).extend(
                [rect.get("class", "")] * int(rect.get("data-tiles", ""))
            )
    return [rows[r] for r in sorted(rows)]


def exact_classes(mask: np.ndarray, tile: tuple[int, int]) -> list[list[str]]:
    """never, always or depends of each tile, by looking at every key."""
    classes = []
    for r in range(0, mask.shape[0], tile[0]):
        row = []
        for c in range(0, mask.shape[1], tile[1]):
            part = mask[r : r + tile[0], c : c + tile[1]]
            row.append("always" if part.all() else "depends" if part.any() else "never")
        classes.append(row)
    return classes


def positions(q_len: int, kv_len: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(kv_len - q_len, kv_len)[:, None], np.arange(kv_len)[None, :]


MASKS: dict[str, tuple[girih.Expr, dict[str, Any], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "causal": (variants.causal(), {}, lambda q, k: k <= q),
    "window": (variants.window(9, 4), {}, lambda q, k: (q - k <= 9) & (k - q <= 4)),
    "chunked": (variants.chunked_local(16), {}, lambda q, k: (k <= q) & (k // 16 == q // 16)),
    "streaming": (
        variants.causal() & (variants.window(7) | variants.first_tokens(6)),
        {},
        lambda q, k: (k <= q) & ((q - k <= 7) | (k < 6)),
    ),
    "document": (variants.document(), {"document_id": IDS}, lambda q, k: IDS[k] == IDS[q]),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(
    ("q_len", "kv_len", "tile"), [(8, 8, (4, 4)), (64, 64, (8, 8)), (20, 61, (3, 7)), (1, 50, (1, 8))]
)
def test_tiles_and_keys_equal_brute_force(name: str, q_len: int, kv_len: int, tile: tuple[int, int]) -> None:
    mask, params, reference = MASKS[name]
    exact = np.broadcast_to(reference(*positions(q_len, kv_len)), (q_len, kv_len))
    root = parse(girih.Variant(mask=mask).show(q_len, kv_len, params=params, tile=tile))
    shown, expected = tile_classes(root), exact_classes(exact, tile)
    counts = Counter(kind for row in shown for kind in row)
    tiles = group(root, "tiles")
    assert {k: int(tiles.get(f"data-{k}", "-1")) for k in ("never", "always", "depends")} == {
        k: counts[k] for k in ("never", "always", "depends")
    }
    if name == "document":  # hulls of ids: what is proven is true, but not all that is true is proven
        for a, b in zip((k for row in shown for k in row), (k for row in expected for k in row)):
            assert a in (b, "depends")
        if q_len == 64:
            assert counts["never"] > 30
    else:
        assert shown == expected
    assert int(group(root, "cells").get("data-visible", "")) == int(exact.sum())
    assert group(root, "cells").get("data-unknown") == "0"


def test_area_of_the_tiles_is_that_of_the_mask() -> None:
    root = parse(girih.Variant(mask=variants.causal()).show(100, 300, tile=(16, 64)))
    area: Counter[str] = Counter()
    for rect in group(root, "tiles").iter(SVG + "rect"):
        area[rect.get("class", "pattern")] += float(rect.get("width", "")) * float(rect.get("height", ""))
    exact = exact_classes(np.broadcast_to(np.less_equal(*positions(100, 300)[::-1]), (100, 300)), (16, 64))
    sizes = [[min(16, 100 - 16 * r) * min(64, 300 - 64 * c) for c in range(5)] for r in range(7)]
    pixels = (area["never"] + area["always"] + area["depends"]) / (100 * 300)
    for kind in ("never", "always", "depends"):
        keys = sum(sizes[r][c] for r in range(7) for c in range(5) if exact[r][c] == kind)
        assert area[kind] == pytest.approx(keys * pixels, rel=1e-3)


def test_parameters_decide_what_is_known() -> None:
    bits = np.random.default_rng(5).integers(0, 2, (6, 10)).astype(bool)
    custom = girih.Variant(mask=variants.custom_mask(), name="custom")
    params = {"custom_mask": np.packbits(bits.ravel(), bitorder="little"), "custom_mask_start": [0]}
    known, unknown = custom.show(6, 10, params=params), custom.show(6, 10)
    # Run-time parameters prove nothing, whether they are known or not.
    assert {k for row in tile_classes(parse(known)) for k in row} == {"depends"}
    assert group(parse(known), "cells").get("data-visible") == str(int(bits.sum()))
    assert group(parse(unknown), "cells").get("data-unknown") == "60"
    assert "unknown without custom_mask_start, custom_mask" in str(unknown)
    # A plan-time parameter without a value; what does not depend on it is still proven.
    prefix = girih.Variant(mask=variants.causal() & (variants.first_tokens(4) | variants.document()))
    shown = parse(prefix.show(8, 8, tile=4))
    assert tile_classes(shown) == [["depends", "never"], ["always", "depends"]]
    assert "unknown without document_id" in str(prefix.show(8, 8))


def test_cuda_text_is_unknown_within_its_bounds() -> None:
    text = girih.cuda_code(bool, "return q_pos % 3 == 0;", [girih.q_pos()])
    root = parse(girih.Variant(mask=variants.causal() & text).show(8, 8, tile=4))
    assert tile_classes(root) == [["depends", "never"], ["depends", "depends"]]
    assert group(root, "cells").get("data-unknown") == "36"


def test_heads() -> None:
    @girih.variant
    def by_head(q_pos, kv_pos, q_head):
        return (kv_pos <= q_pos) & (q_pos - kv_pos < 2 + 2 * q_head)

    for head, window in ((0, 2), (3, 8)):
        svg = by_head.show(12, 12, q_head=head)
        q, k = positions(12, 12)
        assert group(parse(svg), "cells").get("data-visible") == str(int(((k <= q) & (q - k < window)).sum()))
        assert f"query head {head}" in str(svg) and "by_head" in str(svg)


@pytest.mark.parametrize("length", [3000, 131072, 1 << 33])
def test_long_extents_stay_readable(length: int) -> None:
    svg = girih.Variant(mask=variants.sliding_window(1024)).show(length, length)
    root = parse(svg)
    shown = tile_classes(root)
    assert 4 <= len(shown) <= 48 and all(len(row) == len(shown) for row in shown)
    assert not [g for g in root.iter(SVG + "g") if g.get("class") == "cells"]
    assert len(str(svg)) < 120_000 and svg.width < 800 and svg.height < 900


def test_svg_is_saved_and_shown(tmp_path: Path) -> None:
    svg = girih.Variant(mask=variants.causal(), name="a < b & c").show(8, 8)
    svg.save(tmp_path / "mask.svg")
    assert (tmp_path / "mask.svg").read_text(encoding="utf-8") == str(svg) == svg._repr_svg_()
    assert "a &lt; b &amp; c" in str(svg)
    assert repr(svg) == f"<Svg {svg.width} x {svg.height}>"
    parse(girih.Variant().show(4, 6))


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "text"),
    [
        ((0, 8), {}, ValueError, "q_len=0"),
        ((8, 0), {}, ValueError, "kv_len=0"),
        ((8, 8), {"tile": 0}, ValueError, r"tile\[0\]=0"),
        ((8, 8), {"tile": (4, -1)}, ValueError, r"tile\[1\]=-1"),
        ((8, 8), {"tile": "4"}, TypeError, "tile"),
        ((8, 8), {"tile": (1, 2, 3)}, TypeError, "tile"),
        ((1 << 20, 1 << 20), {"tile": 64}, ValueError, "larger"),
        ((8, 8), {"q_head": -1}, ValueError, "q_head=-1"),
        ((8, 8), {"params": {"nothing": 1}}, ValueError, r"\['nothing'\] is not a parameter.*document_id"),
        ((8, 8), {"params": {"document_id": np.zeros(8, np.float32)}}, ValueError, "document_id.*f32.*i32"),
    ],
)
def test_bad_arguments_are_refused(arguments: Any, keywords: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        girih.Variant(mask=variants.document()).show(*arguments, **keywords)


# ---------------------------------------------------------------------------------------------------------------- plans


def planned(num_units: int = 6) -> girih.Attention:
    spec = girih.AttentionSpec(
        num_qo_heads=8, num_kv_heads=2, head_dim_qk=32, q_dtype="f32", variant=girih.Variant(mask=variants.causal())
    )
    limits = girih.AttentionLimits(max_tokens=1024, max_requests=8, max_kv_len=8192)
    attention = girih.Attention(spec, limits, num_units=num_units)
    kv_len = np.array([4000, 300, 700])
    attention.plan(
        [0, 1, 301, 302], girih.Segment(kv_indptr=np.cumsum([0, *-(-kv_len // 16)]), kv_len=kv_len, page_size=16)
    )
    return attention


PLANNED: list[tuple[girih.Expr, dict[str, Any]]] = [
    (variants.causal(), {}),
    (variants.sliding_window(300), {}),
    (variants.causal() & (variants.window(130) | variants.first_tokens(70)), {}),
    (
        variants.causal() & variants.document(),
        {"document_id": np.repeat(np.arange(4, dtype=np.int32), [130, 200, 300, 70])},
    ),
    (variants.prefix_lm(), {"prefix_len": np.array([200], np.int32)}),
]


@pytest.mark.parametrize(("mask", "params"), PLANNED)
def test_picture_shows_what_the_plan_does(mask: girih.Expr, params: dict[str, Any]) -> None:
    """With the tiles of a real plan: what it leaves out is shown as never, what it runs without mask code as always."""
    q_len, kv_len, block = 400, 700, 64
    variant = girih.Variant(mask=mask)
    spec = girih.AttentionSpec(num_qo_heads=1, num_kv_heads=1, head_dim_qk=32, q_dtype="f32", variant=variant)
    limits = girih.AttentionLimits(max_tokens=q_len, max_requests=1, max_kv_len=kv_len)
    attention = girih.Attention(spec, limits, num_units=1)
    attention.plan([0, q_len], girih.Segment(kv_indptr=[0, kv_len], page_size=0), params=params)
    plan = girih.Plan(attention.schedule)
    plan.load(attention.blob())
    items = _girih.plan_items(plan)
    height = items[0]["row_count"]
    assert all(item["row_begin"] % height == 0 for item in items)
    expected = [["never"] * -(-kv_len // block) for _ in range(-(-q_len // height))]
    for item in items:
        row = expected[item["row_begin"] // height]
        for c in range(len(row)):
            begin, end = c * block, min(c * block + block, kv_len)
            if item["full_begin"] <= begin and end <= item["full_end"]:
                row[c] = "always"
            elif item["kv_begin"] <= begin and end <= item["kv_end"]:
                row[c] = "depends"
    shown = tile_classes(parse(variant.show(q_len, kv_len, tile=(height, block), params=params)))
    assert shown == expected
    assert len({kind for row in shown for kind in row}) > 1


def test_plan_picture_shows_every_item() -> None:
    attention = planned()
    svg = girih.show_plan(attention)
    root = parse(svg)
    bars = [rect for rect in root.iter(SVG + "rect") if rect.get("data-unit") is not None]
    info = attention.plan_info
    assert sum(int(bar.get("data-items", "")) for bar in bars) == info.num_items
    costs: Counter[int] = Counter()
    right: dict[int, float] = {}
    for bar in bars:
        unit, cost = int(bar.get("data-unit", "")), int(bar.get("data-cost", ""))
        costs[unit] += cost
        x, width = float(bar.get("x", "")), float(bar.get("width", ""))
        assert x >= right.get(unit, 0) - 0.02
        right[unit] = x + width
    assert sum(costs.values()) == info.total_cost and max(costs.values()) == info.max_unit_cost
    balance = info.max_unit_cost / max(info.total_cost / 6, info.max_piece_cost)
    assert f"balance {balance:.3f}" in str(svg)
    # One fill a request.
    fills = {bar.get("fill") for bar in bars}
    assert len(fills) == 3
    plan = girih.Plan(attention.schedule)
    plan.load(attention.blob())
    assert str(girih.show_plan(plan)) == str(svg)


def test_lists_of_a_plan_are_balanced_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU small and large tiles have kernels and blocks of their own; here a CPU's plan is read as if it were one."""
    attention = planned()
    monkeypatch.setattr("girih._show_plan.plan_lists", lambda plan: [("small", 0, 2), ("large", 2, 6)])
    svg = girih.show_plan(attention)
    root = parse(svg)
    costs: Counter[int] = Counter()
    for rect in root.iter(SVG + "rect"):
        if rect.get("data-unit") is not None:
            costs[int(rect.get("data-unit", ""))] += int(rect.get("data-cost", ""))
    means = [path for path in root.iter(SVG + "path") if path.get("class") == "mean"]
    assert len(means) == 2 and "small tiles" in str(svg) and "large tiles" in str(svg)
    worst = max(
        max(costs[u] for u in units) / (sum(costs[u] for u in units) / len(units)) for units in ((0, 1), (2, 3, 4, 5))
    )
    shown = float(str(svg).split("balance ")[1][:5])
    assert 1 <= shown <= worst + 5e-4


def test_plan_picture_of_many_units() -> None:
    svg = girih.show_plan(planned(264))
    parse(svg)
    assert svg.height < 1400


def test_empty_plan_is_refused() -> None:
    attention = girih.Attention(
        girih.AttentionSpec(num_qo_heads=1, num_kv_heads=1, head_dim_qk=16),
        girih.AttentionLimits(max_tokens=4, max_requests=1, max_kv_len=8),
    )
    with pytest.raises(ValueError, match="plan is empty"):
        girih.show_plan(attention)
    with pytest.raises(TypeError, match="Attention or a Plan"):
        girih.show_plan(3)  # type: ignore[arg-type]
