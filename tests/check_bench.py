#!/usr/bin/env python3
"""Checks the scripts of bench/ on made-up results: check_bench.py ROOT GIRIH.

The cases that bars and tables name must be cases of the tool, verdicts must follow the numbers, README's block must be replaced and
nothing else, and the figure must be XML. The tables in the documents must be those of the results.
"""
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

root, girih = sys.argv[1:3]
sys.path.insert(0, os.path.join(root, "bench"))
sys.dont_write_bytecode = True
import bars  # noqa: E402
import table  # noqa: E402

NAMES = subprocess.run([girih, "bench", "attention", "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
GPU_NAMES = subprocess.run([girih, "bench", "attention", "--backend", "cuda", "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def row(case, seconds=0.01, flops=1e9, **more):
    return {"op": "attention", "case": case, "backend": "cpu", "seconds": seconds, "bytes": 1e6, "flops": flops, "roofline_fraction": 0.5,
            "plan_seconds": 1e-6, "host_seconds": 1e-6, "read_bytes_per_second": 5e10, "peak_flops": 1e12, "peers": [], **more}


def verdicts(*rows):
    """The last words of each bar's line by case."""
    return [(line[51:85].strip(), line.split("  ")[-1]) for line in bars.report(list(rows)) if not line.endswith("no row") and line[51:85].strip()]


def check_tables():
    """The documents show what table.py makes of the committed results."""
    for page, block, files, more in (("README.md", "cpu", ("cpu/attention.json", "cpu/plan.json"), ()), ("README.md", "h200", ("h200/attention.json",), ()),
                                     ("docs/performance.md", "h200", ("h200/attention.json",), ("--all",))):
        results = [os.path.join(root, "bench", "results", name) for name in files]
        made = subprocess.run([sys.executable, "-B", os.path.join(root, "bench", "table.py"), "--print", "--block", block, *more, *results],
                              stdout=subprocess.PIPE, text=True, check=True).stdout
        with open(os.path.join(root, page), encoding="utf-8") as file:
            shown = file.read().split(f"<!-- table:{block} -->\n")[1].split(f"<!-- /table:{block} -->")[0]
        assert shown == made, f"{page}: the table `{block}` is not that of {', '.join(files)}; renew it with bench/table.py"


def main():
    check_tables()
    named = {case for _, cases, *_ in bars.BARS for case in cases} | set(table.HEADLINES)
    assert named <= set(NAMES), f"no such cases: {sorted(named - set(NAMES))}"
    named = {case for _, cases, *_ in bars.GPU_BARS for case in cases} | set(table.GPU_HEADLINES)
    assert named <= set(GPU_NAMES), f"no such cases: {sorted(named - set(GPU_NAMES))}"

    listed = set()
    for op in bars.OPERATORS:
        listed |= set(subprocess.run([girih, "bench", op, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout.split())
    named = {case for _, cases, *_ in bars.OPERATOR_BARS for case in cases}
    named |= {case for parts in bars.FUSED.values() for case in bars.at_rows(parts, 2048)}
    assert named <= listed, f"no such cases: {sorted(named - listed)}"

    assert verdicts(row("decode-mha-bf16-b2-kv4096", roofline_fraction=0.849))[0][1] == "MISS"
    assert verdicts(row("decode-mha-bf16-b2-kv4096", roofline_fraction=0.85))[0][1] == "ok"
    twin = {"case": "prefill-bf16-causal-2048", "seconds": 0.01, "flops": 2e9, "roofline_fraction": 0.5, "ratio": 1.7}
    slow = row("prefill-bf16-softcap-2048", flops=1e9, twins=[twin])        # half the pairs in 1 / 1.7 of the time: 1.18 a pair
    assert verdicts(slow) == [("prefill-bf16-softcap-2048", "MISS")], verdicts(slow)
    twin["ratio"] = 1.75
    assert verdicts(slow) == [("prefill-bf16-softcap-2048", "ok")], verdicts(slow)
    peers = [{"name": "torch 2.0 SDPA", "seconds": 1, "ratio": 30.0}, {"name": "torch 2.0 FlexAttention", "seconds": 1, "ratio": 19.9},
             {"name": "torch 2.0 SDPA heads as rows", "seconds": 1, "ratio": 2.0}]
    gqa = row("decode-gqa-bf16-b16-kv2048", roofline_fraction=0.7, peers=peers)
    assert [v for _, v in verdicts(gqa)] == ["ok", "MISS", "for comparison"], verdicts(gqa)

    gpu = {"backend": "cuda", "upload_seconds": 5e-6}
    flex = [{"name": "torch 2.0 FlexAttention", "seconds": 1, "ratio": 1.04}, {"name": "flashinfer 1.0 fa2", "seconds": 1, "ratio": 1.07}]
    causal = row("prefill-causal-8192", seconds=1e-3, flops=380e9, peers=flex, **gpu)
    capped = row("prefill-causal-8192-softcap", seconds=2e-3, flops=760e9, **gpu)  # twice the pairs in twice the time
    assert [v for _, v in verdicts(causal, capped)] == ["ok", "MISS", "MISS", "ok", "ok"], verdicts(causal, capped)
    few = row("decode-b256-uniform1024", plan_seconds=21e-6, **gpu)
    assert [v for _, v in verdicts(few)] == ["not measured: no peer", "MISS", "ok"], verdicts(few)

    cuda = {"op": "norm", "backend": "cuda"}
    fast = row("rms_4096_r2048", seconds=1e-5, peers=[{"name": "a", "seconds": 1, "ratio": 1.2}, {"name": "b", "seconds": 1, "ratio": 1.1}], **cuda)
    codes = row("rms_4096_e4m3_token_r2048", seconds=1.2e-5, **cuda)
    longer = row("e4m3_token_r2048", seconds=1.15e-5, **{**cuda, "op": "quant"})
    assert [v for _, v in verdicts(fast, codes, longer)] == ["MISS", "not measured: no peer", "ok"], verdicts(fast, codes, longer)
    lines = table.operator_table([fast, {**fast, "case": "rms_4096_r16384", "peers": []}])
    assert lines[2] == "| rms_4096 | 10 us, 1.10x (b) | 10 us | 50 % |", lines

    with tempfile.TemporaryDirectory() as folder:
        results, readme, figure = (os.path.join(folder, name) for name in ("results.json", "README.md", "figure.svg"))
        machine = {"cpu": "a < b & c", "workers": 2, "target": "avx3", "date": "2026-01-02T03:04:05Z"}
        with open(results, "w", encoding="utf-8") as file:
            json.dump({"machine": machine, "commit": "abc", "rows": [gqa, slow, row("prefill-bf16-causal-2048")]}, file)
        with open(readme, "w", encoding="utf-8") as file:
            file.write("before\n<!-- table:cpu -->\nold\n<!-- /table:cpu -->\nafter\n")
        run = [sys.executable, "-B"]
        subprocess.run([*run, os.path.join(root, "bench", "table.py"), "--readme", readme, results], check=True)
        with open(readme, encoding="utf-8") as file:
            text = file.read()
        assert text.startswith("before\n<!-- table:cpu -->\n") and text.endswith("\n<!-- /table:cpu -->\nafter\n") and "old" not in text, text
        assert "| prefill-bf16-softcap-2048 | 10 ms | 100 GFLOP/s | 50 % | |" in text, text
        gpu = row("decode-b1", backend="cuda", seconds=2e-5, upload_seconds=4e-6, peers=[{"name": "peer 1.0 fa2", "seconds": 3e-5, "ratio": 1.5}])
        lines = table.gpu_table([gpu, {**gpu, "case": "other", "peers": []}])
        assert lines[2] == "| decode-b1 | 20 us | 50 TFLOP/s | 50 % | 5 us | 1.0 us |  | fa2 1.50x |", lines
        assert lines[3].endswith("| 1.0 us |  |  |") and "peer 1.0" in lines[5] and "JIT" not in lines[5], lines
        lines = table.gpu_table([{**gpu, "kernels_compiled": 2, "schedule_seconds": 2.46}])
        assert lines[2].endswith("| 1.0 us | 2.5 s (2 kernels) | fa2 1.50x |") and lines[4].startswith("JIT: "), lines
        subprocess.run([*run, os.path.join(root, "bench", "figure.py"), "--out", figure, results], check=True)
        words = "".join(xml.etree.ElementTree.parse(figure).getroot().itertext())
        assert "prefill-bf16-causal-2048" in words and "a < b & c" in words, words


main()
