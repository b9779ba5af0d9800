#!/usr/bin/env python3
"""Renews README.md's table of benchmark results.

    bench/table.py [--readme README.md] [--block cpu] RESULTS.json...

The lines between `<!-- table:BLOCK -->` and `<!-- /table:BLOCK -->` are replaced by a table made from the rows of the given result files
(the form of bench/README.md). With --print the table goes to stdout and no file is changed. Needs Python 3 alone.
"""

import argparse
import json
import pathlib
import sys


def load(paths):
    """The (machine, commit, rows) of all files; files of one table must come from one machine."""
    machine, commits, rows = None, [], []
    for path in paths:
        try:
            result = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
            current, commit = result["machine"], result["commit"]
            rows += result["rows"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            sys.exit(f"{path}: not a result file: {error!r}")
        if machine is not None and (machine["cpu"], machine["workers"]) != (current["cpu"], current["workers"]):
            sys.exit(f"{path}: measured on another machine than the files before")
        if machine is None or "read_bytes_per_second" in current:
            machine = current
        if commit not in commits:
            commits.append(commit)
    return machine, commits, rows


def seconds_text(seconds):
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds:.4g} s"


def rate_text(amount, seconds):
    return f"{amount / seconds / 1e9:.1f}" if amount > 0 and seconds > 0 else ""


def peers_text(row):
    return ", ".join(f"{peer['ratio']:.2f}x {peer['name']}" for peer in row.get("peers", []))


def attention_table(rows):
    has_peers = any(row.get("peers") for row in rows)
    lines = ["| case | time | GB/s | GFLOP/s | of roofline | plan |" + (" faster than |" if has_peers else ""),
             "|---|--:|--:|--:|--:|--:|" + ("---|" if has_peers else "")]
    for row in rows:
        line = (f"| {row['case']} | {seconds_text(row['seconds'])} | {rate_text(row['bytes'], row['seconds'])} | "
                f"{rate_text(row['flops'], row['seconds'])} | {100 * row['roofline_fraction']:.0f} % | "
                f"{seconds_text(row['plan_seconds'])} |")
        lines.append(line + (f" {peers_text(row)} |" if has_peers else ""))
    return lines


def plan_table(rows):
    lines = ["| plan of | units | time | bar | balance | allocations |", "|---|--:|--:|--:|--:|--:|"]
    for row in rows:
        bar = seconds_text(row["bar_seconds"]) if "bar_seconds" in row else ""
        lines.append(f"| {row['case']} | {row['num_units']} | {seconds_text(row['seconds'])} | {bar} | {row['balance']:.3f} | "
                     f"{row['allocations_per_repeat']:g} |")
    return lines


def make_table(machine, commits, rows):
    lines = [f"{machine['cpu']}, {machine['workers']} workers, target {machine['target']}, {machine['date'][:10]}, "
             f"commit {', '.join(commits)}."]
    if machine.get("read_bytes_per_second"):
        lines[0] += (f" Ceilings: memory {machine['read_bytes_per_second'] / 1e9:.0f} GB/s, f32 {machine['f32_flops'] / 1e9:.0f} GFLOP/s, "
                     f"bf16 dot {machine['bf16_flops'] / 1e9:.0f} GFLOP/s.")
    for op, table in (("attention", attention_table), ("plan", plan_table)):
        chosen = [row for row in rows if row["op"] == op]
        if chosen:
            lines += [""] + table(chosen)
    return "\n".join(lines)


def replace_block(text, block, table):
    """`text` with the lines between the block's markers replaced; None where the markers are not there once and in order."""
    begin, end = f"<!-- table:{block} -->", f"<!-- /table:{block} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        return None
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    return f"{before}{begin}\n{table}\n{end}{after}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+")
    parser.add_argument("--readme", default=str(pathlib.Path(__file__).resolve().parent.parent / "README.md"))
    parser.add_argument("--block", default="cpu")
    parser.add_argument("--print", action="store_true", dest="show")
    arguments = parser.parse_args()
    table = make_table(*load(arguments.results))
    if arguments.show:
        print(table)
        return
    readme = pathlib.Path(arguments.readme)
    text = replace_block(readme.read_text(encoding="utf-8"), arguments.block, table)
    if text is None:
        sys.exit(f"{readme}: needs one `<!-- table:{arguments.block} -->` and, after it, one `<!-- /table:{arguments.block} -->`")
    readme.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
