#!/usr/bin/env python3
"""What calls from Python take the host on a GPU machine: girih's native API, its drop-in, its PyTorch ops, and FlashInfer and PyTorch beside them.

    bench/peers/python_gpu.py --json bench/results/h200/python.json
    bench/peers/python_gpu.py --json bench/results/h200/python.json --docs docs/python.md    # the table there, from results that exist

Eager calls of small problems on one stream, a hundred in a row, all ways in turns; a way's figure is the median of its rounds' means. The
device is waited for between rounds, so that a call's time is what it takes to queue the work. `plan` rows are of plan() likewise, with page
tables whose indptr is on the host. What is not installed, or cannot be run here, is written to "peers_skipped" with the reason. Ratio: the
peer's seconds over girih's. `--preload M` imports a module first, for installations of FlashInfer that lack some of what it imports.
"""

import argparse
import importlib
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import torch

import girih
import girih.flashinfer
from girih import torch_ops

DEVICE = "cuda"
HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16


#: What is to be reached: a way's seconds at most, by case.
BARS = (
    ("decode_", "girih", 12e-6),
    ("plan_b256", "girih.flashinfer", 40e-6),
    ("rms_norm", "girih", 8e-6),
    ("add_rms_norm", "girih", 8e-6),
    ("top_k_top_p", "girih", 8e-6),
)
WAYS = ("girih", "girih, out allocated", "girih.flashinfer", "girih.torch_ops", "flashinfer", "torch")


def rand(*shape, dtype=None):
    return torch.randn(*shape, device=DEVICE).to(dtype or torch.bfloat16)


def ints(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


class Skip(Exception):
    """Why a way has no figure."""


class Batch:
    """Requests of equal lengths over shuffled pages."""

    def __init__(self, requests, kv_len):
        self.requests, self.pages = requests, -(-kv_len // PAGE)
        self.kv_len = kv_len
        self.indptr = torch.arange(requests + 1, dtype=torch.int32) * self.pages
        self.ids = torch.randperm(requests * self.pages, dtype=torch.int32).to(DEVICE)
        self.last = torch.full((requests,), (kv_len - 1) % PAGE + 1, dtype=torch.int32)
        self.cache = rand(requests * self.pages, 2, PAGE, KV_HEADS, DIM)
        self.q = rand(requests, HEADS, DIM)
        self.out = torch.empty_like(self.q)
        self.workspace = torch.zeros(256 << 20, dtype=torch.uint8, device=DEVICE)

    def native(self):
        spec = girih.AttentionSpec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim_qk=DIM, q_dtype=torch.bfloat16)
        limits = girih.AttentionLimits(max_tokens=self.requests, max_requests=self.requests, max_kv_len=self.kv_len)
        attention = girih.Attention(spec, limits, device=DEVICE)
        rows, lens = list(range(self.requests + 1)), self.last.new_full((self.requests,), self.kv_len)
        rows = torch.tensor(rows, dtype=torch.int32)
        segment = girih.Segment(kv_indptr=self.indptr, kv_len=lens, page_size=PAGE)
        attention.plan(rows, segment)
        return attention, lambda: attention.plan(
            rows, girih.Segment(kv_indptr=self.indptr, kv_len=lens, page_size=PAGE)
        )

    def wrapper(self, module):
        """The decode wrapper of girih.flashinfer or FlashInfer, planned, and its plan()."""
        if module is girih.flashinfer:
            wrapper = module.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "NHD")
        else:
            wrapper = module.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "NHD", use_tensor_cores=True, backend="fa2")

        def plan():
            wrapper.plan(
                self.indptr, self.ids, self.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16
            )

        plan()
        return wrapper, plan


def decode(requests, kv_len, peer):
    batch = Batch(requests, kv_len)
    attention, plan = batch.native()
    store = girih.KvStore.paged_combined(batch.cache)
    data = girih.SegmentData(store, batch.ids)
    planned = torch_ops.Planned(attention)
    wrapper, wrapper_plan = batch.wrapper(girih.flashinfer)
    k, v = batch.cache.unbind(1)
    yield f"decode_b{requests}_kv{kv_len}", {
        "girih": lambda: attention.run(batch.q, data, out=batch.out),
        "girih, out allocated": lambda: attention.run(batch.q, data),
        "girih.flashinfer": lambda: wrapper.run(batch.q, batch.cache),
        "girih.torch_ops": lambda: planned(batch.q, k, v, kv_indices=batch.ids),
        "flashinfer": peer(lambda m: (lambda w: lambda: w.run(batch.q, batch.cache))(batch.wrapper(m)[0])),
    }
    yield f"plan_b{requests}_kv{kv_len}", {
        "girih": plan,
        "girih.flashinfer": wrapper_plan,
        "flashinfer": peer(lambda m: batch.wrapper(m)[1]),
    }


def norm(rows, dim, peer):
    x, w, out, r = rand(rows, dim), rand(dim), rand(rows, dim), rand(rows, dim)
    functional = torch.nn.functional.rms_norm
    yield f"rms_norm_{dim}_r{rows}", {
        "girih": lambda: girih.rms_norm(x, w, out=out),
        "girih, out allocated": lambda: girih.rms_norm(x, w),
        "girih.flashinfer": lambda: girih.flashinfer.rmsnorm(x, w, 1e-6, out=out),
        "girih.torch_ops": lambda: torch_ops.rms_norm(x, w),
        "flashinfer": peer(lambda m: lambda: m.rmsnorm(x, w, 1e-6, out=out)),
        "torch": lambda: functional(x, (dim,), w, 1e-6),
    }
    yield f"add_rms_norm_{dim}_r{rows}", {
        "girih": lambda: girih.rms_norm(x, w, residual=r, residual_out=r, out=x),
        "girih.flashinfer": lambda: girih.flashinfer.fused_add_rmsnorm(x, r, w, 1e-6),
        "girih.torch_ops": lambda: torch_ops.add_rms_norm(x, r, w),
        "flashinfer": peer(lambda m: lambda: m.fused_add_rmsnorm(x, r, w, 1e-6)),
    }


def activation(rows, dim, peer):
    x, out = rand(rows, 2 * dim), rand(rows, dim)
    yield f"silu_and_mul_{dim}_r{rows}", {
        "girih": lambda: girih.silu_and_mul(x, out=out),
        "girih.flashinfer": lambda: girih.flashinfer.silu_and_mul(x, out),
        "girih.torch_ops": lambda: torch_ops.activate(x),
        "flashinfer": peer(lambda m: lambda: m.silu_and_mul(x, out)),
    }


def rope(rows, peer):
    q, k = rand(rows, HEADS, DIM), rand(rows, KV_HEADS, DIM)
    table = torch.as_tensor(girih.rope_cos_sin(DIM, 4096)).cuda()
    positions = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    args = (positions, q.view(rows, -1), k.view(rows, -1), DIM, table)
    yield f"rope_r{rows}", {
        "girih": lambda: girih.rope(q, k, table, positions=positions, inplace=True),
        "girih.flashinfer": lambda: girih.flashinfer.apply_rope_with_cos_sin_cache_inplace(*args),
        "girih.torch_ops": lambda: torch_ops.rope(q, k, table, positions),
        "flashinfer": peer(lambda m: lambda: m.apply_rope_with_cos_sin_cache_inplace(*args)),
    }


def append(requests, peer):
    batch = Batch(requests, 1024)
    attention, _ = batch.native()
    store = girih.KvStore.paged_combined(batch.cache)
    k, v = rand(requests, KV_HEADS, DIM), rand(requests, KV_HEADS, DIM)
    indptr, last = batch.indptr.to(DEVICE), batch.last.to(DEVICE)
    request, position = ints(range(requests), DEVICE), ints([batch.kv_len - 1] * requests, DEVICE)
    args = (k, v, request, position, batch.cache, batch.ids, indptr, last)
    yield f"append_b{requests}", {
        "girih": lambda: girih.append_planned(attention, store, k, v, kv_indices=batch.ids),
        "girih.flashinfer": lambda: girih.flashinfer.append_paged_kv_cache(*args),
        "flashinfer": peer(lambda m: lambda: m.append_paged_kv_cache(*args)),
    }


def merge(rows, peer):
    states = (rand(rows, HEADS, DIM), rand(rows, HEADS, dtype=torch.float32)) * 2
    yield f"merge_state_r{rows}", {
        "girih": lambda: girih.merge_state(*states),
        "girih.flashinfer": lambda: girih.flashinfer.merge_state(*states),
        "girih.torch_ops": lambda: torch_ops.merge_state(*states),
        "flashinfer": peer(lambda m: lambda: m.merge_state(*states)),
    }


def sampling(rows, vocab, peer):
    logits = rand(rows, vocab, dtype=torch.float32)
    probs = logits.softmax(-1)
    tokens = torch.empty(rows, dtype=torch.int32, device=DEVICE)
    seed = torch.ones(1, dtype=torch.int64, device=DEVICE)
    yield f"top_k_top_p_{rows}x{vocab}", {
        "girih": lambda: girih.sample(logits, top_k=50, top_p=0.9, seed=seed, tokens=tokens),
        "girih.flashinfer": lambda: girih.flashinfer.sampling.top_k_top_p_sampling_from_probs(probs, 50, 0.9),
        "girih.torch_ops": lambda: torch_ops.sample(logits, top_k=50, top_p=0.9, seed=1, offset=0),
        "flashinfer": peer(lambda m: lambda: m.sampling.top_k_top_p_sampling_from_probs(probs, 50, 0.9)),
    }


def time_ways(ways, rounds, calls):
    """Seconds of a call by way, and why others have none."""
    skipped = {}
    for name, call in list(ways.items()):
        try:
            if isinstance(call, str):
                raise Skip(call)
            for _ in range(5):
                call()
            torch.cuda.synchronize()
        except Exception as error:  # of a peer's installation as much as of a refusal
            first = (str(error) or type(error).__name__).strip().splitlines()[0]
            skipped[name] = first[:200]
            del ways[name]
    means = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            means[name].append((time.perf_counter() - begin) / calls)
    torch.cuda.synchronize()
    return {name: statistics.median(m) for name, m in means.items()}, skipped


def import_seconds(module, preload):
    code = f"import time; s = time.perf_counter(); {f'import {preload}; ' if preload else ''}import {module}; print(time.perf_counter() - s)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(3)]
    times = [float(run.stdout) for run in runs if run.returncode == 0 and run.stdout]
    return statistics.median(times) if times else None


def table(result):
    """The results in Markdown: microseconds by way; what a bar is about says whether it is met."""
    ways = [w for w in WAYS if any(w == "girih" or w in (p["name"] for p in row["peers"]) for row in result["rows"])]
    machine = result["machine"]
    versions = ", ".join(f"{name} {machine[key]}" for name, key in (("Python", "python"), ("PyTorch", "torch"), ("FlashInfer", "flashinfer")) if machine[key])
    lines = [f"{machine['gpu']}, {machine['date']}, {versions}, commit {result['commit']}. Microseconds of the host a call.", ""]
    lines += ["| call | " + " | ".join(ways) + " |", "|---|" + "--:|" * len(ways)]
    for row in result["rows"]:
        seconds = {"girih": row["host_seconds"], **{p["name"]: p["seconds"] for p in row["peers"]}}
        cells = []
        for way in ways:
            bars = [most for case, of, most in BARS if row["case"].startswith(case) and of == way]
            text = f"{seconds[way] * 1e6:.1f}" if seconds.get(way) else ""
            if text and bars:
                text += f" ({'met' if seconds[way] <= bars[0] else 'missed'}: {bars[0] * 1e6:.0f})"
            cells.append(text)
        lines.append(f"| `{row['case']}` | " + " | ".join(cells) + " |")
    imports = {name: seconds for name, seconds in result.get("import_seconds", {}).items() if seconds}
    if imports:
        lines += ["", "Imports: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in imports.items()) + "."]
    return "\n".join(lines)


def write_docs(result, path):
    begin, end = "<!-- table:python -->", "<!-- /table:python -->"
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(begin)
    path.write_text(f"{before}{begin}\n{table(result)}\n{end}{rest.split(end)[1]}", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write results here, after each case")
    parser.add_argument("--commit", default="", help="of girih, for the results")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--case", default="", help="only groups whose name holds this")
    parser.add_argument("--preload", help="a module to import before flashinfer")
    parser.add_argument("--imports", action="store_true", help="time imports too")
    parser.add_argument("--docs", type=pathlib.Path, help="write the table of --json's results there and measure nothing")
    args = parser.parse_args()
    if args.docs:
        return write_docs(json.loads(pathlib.Path(args.json).read_text()), args.docs)
    measure(args)


def measure(args):
    try:
        if args.preload:
            importlib.import_module(args.preload)
        module = importlib.import_module("flashinfer")
    except Exception as error:
        module, reason = None, f"cannot be imported: {error}"[:200]

    def peer(make):
        if module is None:
            return reason
        try:
            return make(module)
        except Exception as error:
            return (str(error) or type(error).__name__).strip().splitlines()[0][:200]

    groups = {
        "decode_b8": lambda: decode(8, 128, peer),
        "decode_b256": lambda: decode(256, 256, peer),
        "norm": lambda: norm(8, 4096, peer),
        "activation": lambda: activation(8, 4096, peer),
        "rope": lambda: rope(8, peer),
        "append": lambda: append(8, peer),
        "merge": lambda: merge(8, peer),
        "sampling": lambda: sampling(8, 32000, peer),
    }
    result = {
        "machine": {
            "gpu": torch.cuda.get_device_name(),
            "cpu": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "flashinfer": getattr(module, "__version__", None),
            "date": time.strftime("%Y-%m-%d"),
        },
        "version": girih.__version__,
        "commit": args.commit,
        "rows": [],
    }

    def write():
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=1)
                file.write("\n")

    if args.imports:
        for name, preload in (("girih", ""), ("girih.flashinfer", ""), ("torch", ""), ("flashinfer", args.preload)):
            result.setdefault("import_seconds", {})[name] = import_seconds(name, preload)
        print(result["import_seconds"], flush=True)
    for name, group in groups.items():
        if args.case not in name:
            continue
        try:
            for case, ways in group():
                seconds, skipped = time_ways(ways, args.rounds, args.calls)
                row = {"op": "python", "case": case, "backend": "cuda", "host_seconds": seconds.pop("girih", None)}
                row["peers"] = [
                    {"name": way, "seconds": s, "ratio": s / row["host_seconds"] if row["host_seconds"] else None}
                    for way, s in seconds.items()
                ]
                row["peers_skipped"] = [{"name": way, "reason": why} for way, why in skipped.items()]
                result["rows"].append(row)
                figures = [f"{way} {s * 1e6:.1f}" for way, s in {"girih": row["host_seconds"] or float("nan"), **seconds}.items()]
                print(f"{case}: " + ", ".join(figures) + " us" + "".join(f"; {w}: {r}" for w, r in skipped.items()), flush=True)
                write()
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
    write()


if __name__ == "__main__":
    main()
