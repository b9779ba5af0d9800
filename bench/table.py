#!/usr/bin/env python3
"""Renews the tables of benchmark results in README.md and, with every case, in docs/performance.md.

    bench/table.py [--readme README.md] [--block cpu] [--all] RESULTS.json...
    bench/table.py --bars RESULTS.json...

The lines between `<!-- table:BLOCK -->` and `<!-- /table:BLOCK -->` are replaced by a table made from the rows of the given result files
(the form of bench/README.md). With --print the table goes to stdout and no file is changed; with --bars each bar of bars.py, what was
measured and whether it is met. Needs Python 3 alone.
"""

import argparse
import json
import pathlib
import sys

import bars

FIGURE = "docs/figures/cpu_roofline.svg"  # of bench/figure.py
HEADLINES = (
    "decode-mha-bf16-b16-kv2048", "decode-mha-e4m3-b16-kv2048", "decode-mha-i8-b16-kv2048", "decode-mha-f32-b16-kv2048",
    "decode-gqa-bf16-b16-kv2048", "decode-gqa-e4m3-b16-kv2048", "decode-gqa-i8-b16-kv2048", "decode-gqa-f32-b16-kv2048",
    "decode-gqa-bf16-skewed-b32", "decode-mla-bf16-b16-kv2048", "decode-gpt-oss-b16",
    "prefix4096-gqa-bf16-b16-flat", "prefix4096-gqa-bf16-b16-cascade", "append-gqa-bf16-64-kv4096", "mixed-gqa-bf16-b8",
    "prefill-bf16-causal-2048", "prefill-bf16-causal-8192", "prefill-bf16-full-8192", "prefill-f32-causal-8192",
    "prefill-bf16-window1024-16384", "prefill-bf16-document8-8192", "prefill-bf16-softcap-2048", "prefill-bf16-alibi-2048",
)
GPU_HEADLINES = (
    "decode-b64-kv8192", "decode-b32-kv4096", "decode-b64-kv1024", "decode-b64-uniform4096", "decode-b64-zipf4096", "decode-b16-zipf1024",
    "decode-b1-kv131072", "decode-b1-kv8192", "decode-b32-kv4096-page1", "decode-b64-kv8192-e4m3", "decode-b64-kv8192-invariant",
    "prefill-causal-8192", "prefill-causal-8192-page16", "prefill-full-16384", "prefill-window1024-b4-8192", "prefill-causal-8192-softcap",
    "prefill-causal-8192-alibi", "append256-b16-kv4096", "append16-b16-kv4096", "mixed-b32", "mla128-b64-kv5120", "mla16-b64-kv5120",
    "prefix8192-b64-cascade",
)


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


def bound_by_memory(row):
    return row["bytes"] / row["read_bytes_per_second"] > row["flops"] / row["peak_flops"]


def rate_text(row):
    """GB/s where memory bounds the case on that machine, GFLOP/s where arithmetic does; on a GPU TB/s and TFLOP/s."""
    if row["backend"] == "cuda":
        if bound_by_memory(row):
            return f"{row['bytes'] / row['seconds'] / 1e12:.2f} TB/s"
        return f"{row['flops'] / row['seconds'] / 1e12:.0f} TFLOP/s"
    if bound_by_memory(row):
        return f"{row['bytes'] / row['seconds'] / 1e9:.1f} GB/s"
    return f"{row['flops'] / row['seconds'] / 1e9:.0f} GFLOP/s"


def fastest_peer(row):
    return min(row.get("peers", []), key=lambda peer: peer["ratio"], default=None)


def headline_rows(rows, headlines):
    """The rows of the headlines in their order; all rows where a file has none of them."""
    by_name = {row["case"]: row for row in rows}
    return [by_name[name] for name in headlines if name in by_name] or rows


def ratio_text(ratio):
    return f"{ratio:.0f}x" if ratio >= 20 else f"{ratio:.1f}x"


def attention_table(rows):
    peers = [peer for row in rows for peer in row.get("peers", [])]
    name = " ".join(peers[0]["name"].split()[:2]) if peers else ""
    lines = ["| case | time | rate | of roofline |" + (f" faster than {name} |" if peers else ""),
             "|---|--:|--:|--:|" + ("--:|" if peers else "")]
    for row in rows:
        line = f"| {row['case']} | {seconds_text(row['seconds'])} | {rate_text(row)} | {100 * row['roofline_fraction']:.0f} % |"
        if peers:
            peer = fastest_peer(row)
            line += f" {ratio_text(peer['ratio'])} ({' '.join(peer['name'].split()[2:])}) |" if peer else " |"
        lines.append(line)
    if peers:
        lines += ["", f"The last column is the fastest way found to compute the same in {name} on the same threads; empty: it has none."]
    return lines


def jit_text(row):
    """What a process without a cache waits for once; the case that needs a kernel first has it compiled."""
    if not row.get("kernels_compiled"):
        return ""
    count = row["kernels_compiled"]
    return f"{row['schedule_seconds']:.1f} s ({count} kernel{'s' if count > 1 else ''})"


def gpu_table(rows):
    """Peers are named by their way of computing; a peer's figure is its time over girih's."""
    lines = ["| case | time | rate | of roofline | plan + upload | host | JIT | peers |", "|---|--:|--:|--:|--:|--:|--:|---|"]
    versions = []
    for row in rows:
        ratios = []
        for peer in row.get("peers", []):
            product, version, way = peer["name"].split(" ", 2)
            versions += [f"{product} {version}"] if f"{product} {version}" not in versions else []
            ratios.append(f"{way} {peer['ratio']:.2f}x")
        lines.append(f"| {row['case']} | {seconds_text(row['seconds'])} | {rate_text(row)} | {100 * row['roofline_fraction']:.0f} % | "
                     f"{1e6 * (row['plan_seconds'] + row['upload_seconds']):.0f} us | {1e6 * row['host_seconds']:.1f} us | {jit_text(row)} | {', '.join(ratios)} |")
    notes = []
    if any(jit_text(row) for row in rows):
        notes.append("JIT: the first `schedule()`, with kernels compiled side by side; empty: those of a case before served.")
    if versions:
        notes.append(f"Peers ({', '.join(versions)}): their time over girih's in the same run; above 1, girih is faster. Empty: not timed.")
    return lines + (["", " ".join(notes)] if notes else [])


def operator_table(rows):
    """Operators on a GPU: a line for each, by rows; a cell is the time and the fastest peer's over it."""
    counts = sorted({int(row["case"].rsplit("_r", 1)[1]) for row in rows})
    by_operator = {}
    for row in rows:
        name, count = row["case"].rsplit("_r", 1)
        by_operator.setdefault(name, {})[int(count)] = row
    lines = ["| rows | " + " | ".join(f"{count:,}" for count in counts) + " | of the copy |", "|---|" + "--:|" * (len(counts) + 1)]
    for name, cells in by_operator.items():
        texts = []
        for count in counts:
            row = cells.get(count)
            peer = fastest_peer(row) if row else None
            texts.append("" if row is None else seconds_text(row["seconds"]) + (f", {peer['ratio']:.2f}x ({peer['name']})" if peer else ""))
        largest = cells[max(cells)]
        lines.append(f"| {name} | {' | '.join(texts)} | {100 * largest['roofline_fraction']:.0f} % |")
    lines += ["", "Beside a time: the fastest peer's over it in the same run; above 1, girih is faster. The last column is of the largest row count:"
              " bytes a second beside those of the fastest copy of that run."]
    return lines


def sampling_table(rows):
    """Sampling on a GPU: a line for each operator and distribution, by rows x vocabulary; a cell is the time and the fastest peer's over it."""
    by_name, shapes = {}, []
    for row in rows:
        words = row["case"].split("-")
        at = next(i for i, word in enumerate(words) if word[0].isdigit() and "x" in word)
        name = "-".join(words[:at]) + (f", {'-'.join(words[at + 1:])} rows" if words[at + 1:] else "")
        by_name.setdefault(name, {})[words[at]] = row
        shapes += [words[at]] if words[at] not in shapes else []
    lines = ["| f32 | " + " | ".join(shapes) + " |", "|---|" + "--:|" * len(shapes)]
    for name, cells in by_name.items():
        texts = []
        for row in (cells.get(shape) for shape in shapes):
            peer = fastest_peer(row) if row else None
            texts.append("" if row is None else seconds_text(row["seconds"]) + (f", {peer['ratio']:.2f}x ({peer['name']})" if peer else ""))
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return lines + ["", "Beside a time: the fastest peer's over it in the same run; above 1, girih is faster."]


def plan_table(rows):
    lines = ["| plan of | units | time | bar | balance | allocations |", "|---|--:|--:|--:|--:|--:|"]
    for row in rows:
        bar = seconds_text(row["bar_seconds"]) if "bar_seconds" in row else ""
        lines.append(f"| {row['case']} | {row['num_units']} | {seconds_text(row['seconds'])} | {bar} | {row['balance']:.3f} | "
                     f"{row['allocations_per_repeat']:g} |")
    return lines


def make_table(machine, commits, rows, every):
    if rows and all(row["op"] in bars.OPERATORS and row["backend"] == "cuda" for row in rows):
        head = (f"{machine['target']}, {machine['date'][:10]}, commit {', '.join(commits)}. A copy moves "
                f"{machine['read_bytes_per_second'] / 1e12:.2f} TB/s. Cold L2, CUDA graphs.")
        return "\n".join([head, "", *operator_table(rows)])
    if rows and all(row["op"] == "sampling" and row["backend"] == "cuda" for row in rows):
        head = (f"{machine['target']}, {machine['date'][:10]}, commit {', '.join(commits)}. Memory is read at "
                f"{machine['read_bytes_per_second'] / 1e12:.2f} TB/s. Cold L2, CUDA graphs.")
        return "\n".join([head, "", *sampling_table(rows)])
    if any(row["backend"] == "cuda" and row["op"] != "plan" for row in rows):  # lists for a GPU are planned by the CPU
        lines = [f"{machine['target']}, {machine['date'][:10]}, commit {', '.join(commits)}. Ceilings: memory "
                 f"{machine['read_bytes_per_second'] / 1e12:.2f} TB/s, mma.sync {machine['bf16_flops'] / 1e12:.0f} TFLOP/s. Cold L2, CUDA graphs."]
        chosen = rows if every else headline_rows(rows, GPU_HEADLINES)
        ceilings = {"read_bytes_per_second": machine["read_bytes_per_second"], "peak_flops": machine["bf16_flops"]}
        return "\n".join([*lines, "", *gpu_table([{**ceilings, **row} for row in chosen])])
    lines = [f"{machine['cpu']}, {machine['workers']} workers, target {machine['target']}, {machine['date'][:10]}, commit {', '.join(commits)}."]
    if machine.get("read_bytes_per_second"):
        lines[0] += (f" Ceilings: memory {machine['read_bytes_per_second'] / 1e9:.0f} GB/s, f32 {machine['f32_flops'] / 1e9:.0f} GFLOP/s, "
                     f"bf16 dot {machine['bf16_flops'] / 1e9:.0f} GFLOP/s.")
    for op, table in (("attention", attention_table), ("plan", plan_table)):
        chosen = [row for row in rows if row["op"] == op]
        if op == "attention" and not every:
            chosen = headline_rows(chosen, HEADLINES)
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
    parser.add_argument("--all", action="store_true", help="every case instead of the headlines")
    parser.add_argument("--bars", action="store_true", help="print the bars instead")
    arguments = parser.parse_args()
    results = load(arguments.results)
    if arguments.bars:
        print("\n".join(bars.report(results[2])))
        return
    table = make_table(*results, arguments.all)
    if arguments.block == "cpu" and (pathlib.Path(arguments.readme).parent / FIGURE).exists():
        table = f"![Part of the roofline reached per case]({FIGURE})\n\n{table}"
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
