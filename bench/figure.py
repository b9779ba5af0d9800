#!/usr/bin/env python3
"""Draws a result file as one SVG: how much of the roofline each headline case reaches, and how much faster than PyTorch it is.

    bench/figure.py [--out docs/figures/cpu_roofline.svg] RESULTS.json...

A bar's length is the fraction of the roofline; what limits the case (memory or arithmetic) is its colour. Needs Python 3 alone.
"""

import argparse
import pathlib
from xml.sax.saxutils import escape

import table

INK, SOFT, GRID = "#1f2430", "#5b6270", "#dfe3e8"
MEMORY, COMPUTE = ("#3a67ad", "memory bandwidth"), ("#b06a1a", "arithmetic peak")
FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
WIDTH, LEFT, RIGHT, TOP, STEP, BAR, GAP = 900, 262, 180, 92, 24, 15, 12   # GAP: above a new group of cases


def text(x, y, words, size=12.5, anchor="start", color=INK, bold=False):
    weight = ' font-weight="bold"' if bold else ""
    return (f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-family="{FONT}" text-anchor="{anchor}" fill="{color}"{weight}>'
            f'{escape(words)}</text>')


def group(row):
    stem = row["case"].split("-")[0]
    return stem if stem in ("decode", "prefix4096") else "more rows"


def draw(machine, commits, rows):
    scale = (WIDTH - LEFT - RIGHT) / 100
    parts, y, before = [], TOP, None
    for row in rows:
        if before is not None and group(row) != before:
            y += GAP
        before = group(row)
        percent = 100 * row["roofline_fraction"]
        color = (MEMORY if table.bound_by_memory(row) else COMPUTE)[0]
        length = min(percent, 100) * scale
        middle = y + BAR / 2 + 4.5
        parts.append(text(LEFT - 10, middle, row["case"], anchor="end"))
        parts.append(f'<rect x="{LEFT}" y="{y:g}" width="{length:.1f}" height="{BAR}" rx="2" fill="{color}"/>')
        peer = table.fastest_peer(row)
        parts.append(text(LEFT + length + 6, middle, f"{percent:.0f} %", bold=True, size=12))
        if peer:
            parts.append(text(LEFT + max(length + 44, 44), middle, f"{table.ratio_text(peer['ratio'])} PyTorch", size=12, color=SOFT))
        y += STEP
    bottom = y - STEP + BAR + 8
    axis = []
    for percent in range(0, 101, 20):
        x = LEFT + percent * scale
        axis.append(f'<line x1="{x:g}" y1="{TOP - 8}" x2="{x:g}" y2="{bottom:g}" stroke="{GRID}"/>')
        axis.append(text(x, bottom + 16, f"{percent} %", size=11.5, anchor="middle", color=SOFT))
    head = [text(16, 28, "Attention on the CPU: part of the roofline reached", size=17, bold=True),
            text(16, 48, f"{machine['cpu']}, {machine['workers']} workers, {machine['date'][:10]}, commit {', '.join(commits)}; bar = roofline "
                         "time / measured time", color=SOFT)]
    x = 16
    for color, words in (MEMORY, COMPUTE):
        head.append(f'<rect x="{x}" y="60" width="12" height="12" rx="2" fill="{color}"/>')
        head.append(text(x + 18, 70.5, f"limited by {words}", size=12, color=SOFT))
        x += 190
    peers = [peer for row in rows for peer in row.get("peers", [])]
    if peers:
        name = peers[0]["name"].split()[1]
        head.append(text(x, 70.5, f"beside a bar: speed over the fastest way in PyTorch {name}, same threads", size=12, color=SOFT))
    height = bottom + 30
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}" role="img">',
                      "<title>Part of the roofline that attention reaches on the CPU</title>",
                      f'<rect width="{WIDTH}" height="{height:g}" fill="#ffffff"/>', *head, *axis, *parts, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+")
    parser.add_argument("--out", default=str(pathlib.Path(__file__).resolve().parent.parent / table.FIGURE))
    arguments = parser.parse_args()
    machine, commits, rows = table.load(arguments.results)
    rows = table.headline_rows([row for row in rows if row["op"] == "attention"], table.HEADLINES)
    if not rows:
        parser.error("no attention rows in the results")
    pathlib.Path(arguments.out).write_text(draw(machine, commits, rows), encoding="utf-8")


if __name__ == "__main__":
    main()
