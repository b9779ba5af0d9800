#!/usr/bin/env python3
"""Times FlashInfer and PyTorch on the problems of `girih bench attention --backend cuda` and puts them beside girih's rows.

    girih bench attention --backend cuda --json ours.json
    girih bench attention --backend cuda --list --json cases.json
    bench/peers/gpu.py --cases cases.json --results ours.json --json bench/results/h200/attention.json

Run the three on one machine, one after the other. The protocol is girih's: the call in a CUDA graph, 256 MB overwritten before each replay,
the median between events. What a peer does not do, or does not do here, is written to "peers_skipped" with the reason. `--preload M` imports
a module first, for installations of FlashInfer that lack some of what it imports. Ratio: the peer's seconds over girih's.
"""

import argparse
import importlib
import json
import statistics
import time

import torch

DEVICE = "cuda"
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn}


class Skip(Exception):
    """Why a peer has no figure for a case."""


class Clock:
    def __init__(self):
        self.cold = torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)

    def __call__(self, call, repeats):
        call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(10):
            call()
        host = (time.perf_counter() - begin) / 10
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        seconds = []
        for _ in range(repeats):
            self.cold.fill_(1)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            seconds.append(begin.elapsed_time(end) / 1e3)
        return {"seconds": statistics.median(seconds), "host_seconds": host}


def time_plan(plan):
    plan()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(5):
        plan()
    torch.cuda.synchronize()
    return {"plan_seconds": (time.perf_counter() - begin) / 5}


def ints(values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def sums(values):
    return ints([0, *torch.tensor(values).cumsum(0).tolist()])


class Pages:
    """Shuffled pages of all requests, as CSR."""

    def __init__(self, lens, size):
        counts = [-(-n // size) for n in lens]
        self.size, self.counts, self.total = size, counts, sum(counts)
        self.indptr = sums(counts)
        self.indices = torch.randperm(self.total, dtype=torch.int32).to(DEVICE)
        self.last = ints([(n - 1) % size + 1 for n in lens])


def normal(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


class FlashInfer:
    def __init__(self, module, clock):
        self.m, self.clock = module, clock
        self.workspace = torch.zeros(512 << 20, dtype=torch.uint8, device=DEVICE)

    def usual(self, case):
        if (case["head_dim_qk"], case["head_dim_vo"], case["q_dtype"]) != (128, 128, "bf16"):
            raise Skip("timed for bf16 queries of 128 dims only")
        if case["logits"] != "none" or case["sinks"] or case["packed_mask"]:
            raise Skip("timed without logits rules, sinks and packed masks only")
        return case["num_qo_heads"], case["num_kv_heads"], 128

    def decode_fa2(self, case):
        heads = self.usual(case)
        kv_type = TYPES.get(case["kv_dtype"])
        if kv_type is None:
            raise Skip(f"no {case['kv_dtype']} keys")
        pages = Pages(case["kv_lens"], case["page_size"])
        kv = normal(pages.total, 2, pages.size, heads[1], 128).to(kv_type)
        q = normal(len(case["kv_lens"]), heads[0], 128)
        w = self.m.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "NHD", use_tensor_cores=True, backend="fa2")
        plan = time_plan(lambda: w.plan(pages.indptr, pages.indices, pages.last, *heads, pages.size, q_data_type=q.dtype, kv_data_type=kv_type))
        return {**self.clock(lambda: w.run(q, kv), 20), **plan}

    def decode_xqa(self, case):
        heads = self.usual(case)
        if case["kv_dtype"] != "bf16" or case["page_size"] != 16:
            raise Skip("timed with bf16 keys in pages of 16 only")
        lens, pages = case["kv_lens"], Pages(case["kv_lens"], 16)
        table = torch.zeros(len(lens), max(pages.counts), dtype=torch.int32, device=DEVICE)
        for row, (begin, count) in enumerate(zip(pages.indptr.tolist(), pages.counts)):
            table[row, :count] = pages.indices[begin : begin + count]
        kv, q = normal(pages.total, 2, heads[1], 16, 128), normal(len(lens), heads[0], 128)
        self.workspace.zero_()
        call = self.m.decode.trtllm_batch_decode_with_kv_cache
        seq_lens, longest = ints(lens, DEVICE), max(lens)
        return self.clock(
            lambda: call(q, kv, self.workspace, table, seq_lens, longest, bmm1_scale=128**-0.5, bmm2_scale=1.0, kv_layout="HND"), 20)

    def prefill_fa2(self, case):
        heads = self.usual(case)
        name, _, rest = case["mask"].partition(":size=")
        if name not in ("causal", "full", "sliding_window") or case["kv_dtype"] != "bf16":
            raise Skip(f"timed for bf16 keys, causal, full and window only, not {case['mask']}")
        options = {"causal": name != "full", "window_left": int(rest) - 1 if rest else -1,
                   "q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
        indptr, q = sums(case["qo_lens"]), normal(sum(case["qo_lens"]), heads[0], 128)
        if case["page_size"]:
            pages = Pages(case["kv_lens"], case["page_size"])
            kv = normal(pages.total, 2, pages.size, heads[1], 128)
            w = self.m.BatchPrefillWithPagedKVCacheWrapper(self.workspace, "NHD", backend="fa2")
            plan = time_plan(lambda: w.plan(indptr, pages.indptr, pages.indices, pages.last, *heads, pages.size, **options))
            return {**self.clock(lambda: w.run(q, kv), 15), **plan}
        k, v = (normal(sum(case["kv_lens"]), heads[1], 128) for _ in range(2))
        w = self.m.BatchPrefillWithRaggedKVCacheWrapper(self.workspace, "NHD", backend="fa2")
        plan = time_plan(lambda: w.plan(indptr, sums(case["kv_lens"]), *heads, **options))
        return {**self.clock(lambda: w.run(q, k, v), 15), **plan}

    def mla(self, case, backend):
        if case["kv_dtype"] != "bf16":
            raise Skip("timed with bf16 keys only")
        pages, heads, batch = Pages(case["kv_lens"], case["page_size"]), case["num_qo_heads"], len(case["kv_lens"])
        ckv, kpe = normal(pages.total, pages.size, 512) * 0.1, normal(pages.total, pages.size, 64) * 0.1
        q_nope, q_pe = normal(batch, heads, 512) * 0.1, normal(batch, heads, 64) * 0.1
        w = self.m.mla.BatchMLAPagedAttentionWrapper(self.workspace, backend=backend)
        arguments = (ints(list(range(batch + 1)), DEVICE), pages.indptr.to(DEVICE), pages.indices, ints(case["kv_lens"], DEVICE), heads, 512, 64,
                     pages.size, False, case["sm_scale"], torch.bfloat16, torch.bfloat16)
        plan = time_plan(lambda: w.plan(*arguments))
        return {**self.clock(lambda: w.run(q_nope, q_pe, ckv, kpe), 20), **plan}

    def cascade(self, case):
        heads, batch, size = self.usual(case), len(case["kv_lens"]), case["page_size"]
        shared = case["shared_prefix"] // size
        own = Pages([n - case["shared_prefix"] for n in case["kv_lens"]], size)
        kv, q = normal(shared + own.total, 2, size, heads[1], 128), normal(batch, heads[0], 128)
        w = self.m.MultiLevelCascadeAttentionWrapper(2, self.workspace, "NHD")
        levels = ([ints([0, batch], DEVICE), ints(list(range(batch + 1)), DEVICE)], [ints([0, shared], DEVICE), own.indptr.to(DEVICE)],
                  [ints(list(range(shared)), DEVICE), own.indices + shared], [ints([size], DEVICE), own.last.to(DEVICE)])
        plan = time_plan(lambda: w.plan(*levels, *heads, size, q_data_type=torch.bfloat16))
        return {**self.clock(lambda: w.run(q, kv), 20), **plan}

    def of(self, case):
        if case["v_is_k"]:
            return [("fa2", lambda: self.mla(case, "fa2")), ("fa3", lambda: self.mla(case, "fa3"))]
        if case["cascade"]:
            return [("cascade", lambda: self.cascade(case))]
        if max(case["qo_lens"]) == 1:
            return [("fa2", lambda: self.decode_fa2(case)), ("xqa", lambda: self.decode_xqa(case))]
        return [("fa2", lambda: self.prefill_fa2(case))]


class Sdpa:
    """PyTorch's fused kernels on dense tensors: requests of one length, no cache."""

    def __init__(self, clock):
        self.clock = clock

    def run(self, case, backend):
        lens = case["qo_lens"]
        if case["mask"] not in ("causal", "full") or case["logits"] != "none" or case["sinks"] or case["packed_mask"] or lens != case["kv_lens"] or len(set(lens)) != 1:
            raise Skip("timed for plain causal and full prefill of one length only")
        batch, n, dim = len(lens), lens[0], case["head_dim_qk"]
        q = normal(batch, case["num_qo_heads"], n, dim)
        k, v = (normal(batch, case["num_kv_heads"], n, dim) for _ in range(2))
        with torch.nn.attention.sdpa_kernel(backend):
            call = torch.nn.functional.scaled_dot_product_attention
            return self.clock(lambda: call(q, k, v, is_causal=case["mask"] == "causal", enable_gqa=True), 15)

    def of(self, case):
        if max(case["qo_lens"]) == 1 or case["v_is_k"] or case["page_size"]:
            return []
        kinds = torch.nn.attention.SDPBackend
        return [("SDPA cuDNN", lambda: self.run(case, kinds.CUDNN_ATTENTION)), ("SDPA FA2", lambda: self.run(case, kinds.FLASH_ATTENTION))]


class FlexAttention:
    """Compiled by torch.compile, ten seconds a case, on dense tensors; its plan is the block mask."""

    def __init__(self, clock):
        self.clock = clock

    @staticmethod
    def visible(case):
        name, _, rest = case["mask"].partition(":size=")
        size = int(rest or 1)
        rules = {"causal": lambda: lambda batch, head, row, key: row >= key,
                 "sliding_window": lambda: lambda batch, head, row, key: (row >= key) & (row - key < size),
                 "document": lambda: lambda batch, head, row, key: row // size == key // size}
        if name not in rules:
            raise Skip(f"this script has no {name}")
        return rules[name]()

    @staticmethod
    def rule(case):
        name, _, rest = case["logits"].partition(":cap=")
        cap = float(rest or 1)
        slopes = torch.tensor([2 ** (-8 * (h + 1) / case["num_qo_heads"]) for h in range(case["num_qo_heads"])], device=DEVICE)
        rules = {"none": lambda: None,
                 "soft_cap": lambda: lambda score, batch, head, row, key: cap * torch.tanh(score / cap),
                 "alibi": lambda: lambda score, batch, head, row, key: score + slopes[head] * (key - row)}
        if name not in rules or case["sinks"]:
            raise Skip(f"this script has no {'sinks' if case['sinks'] else name}")
        return rules[name]()

    def run(self, case):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        lens = case["qo_lens"]
        if lens != case["kv_lens"] or set(lens) != {8192} or case["mask"] == "full":
            raise Skip("timed for masked prefill of 8192 tokens only")
        if (case["head_dim_qk"], case["q_dtype"], case["kv_dtype"]) != (128, "bf16", "bf16"):
            raise Skip("timed for bf16 of 128 dims only")
        visible, rule = self.visible(case), self.rule(case)
        n, dim = lens[0], case["head_dim_qk"]
        q = normal(len(lens), case["num_qo_heads"], n, dim)
        k, v = (normal(len(lens), case["num_kv_heads"], n, dim) for _ in range(2))
        torch._dynamo.reset()
        make_mask = torch.compile(create_block_mask, dynamic=False)
        plan = time_plan(lambda: make_mask(visible, None, None, n, n, device=DEVICE))
        mask = make_mask(visible, None, None, n, n, device=DEVICE)
        call = torch.compile(flex_attention, dynamic=False)
        with torch.no_grad():
            return {**self.clock(lambda: call(q, k, v, score_mod=rule, block_mask=mask, enable_gqa=True), 15), **plan}

    def of(self, case):
        if max(case["qo_lens"]) == 1 or case["v_is_k"] or case["page_size"]:
            return []
        return [("FlexAttention", lambda: self.run(case))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--cases", "--results", "--json"):
        parser.add_argument(name, required=True)
    parser.add_argument("--preload", action="append", default=[])
    parser.add_argument("--limit", type=float, default=300, help="seconds, after which no further case is begun")
    arguments = parser.parse_args()
    for module in arguments.preload:
        importlib.import_module(module)
    clock = Clock()
    torch_name = f"torch {torch.__version__.split('+')[0]}"
    peers = [(torch_name, Sdpa(clock)), (torch_name, FlexAttention(clock))]
    try:
        flashinfer = importlib.import_module("flashinfer")
        peers.insert(0, (f"flashinfer {flashinfer.__version__}", FlashInfer(flashinfer, clock)))
    except ImportError as error:
        print(f"without FlashInfer: {error}", flush=True)
    with open(arguments.results, encoding="utf-8") as file:
        results = json.load(file)
    with open(arguments.cases, encoding="utf-8") as file:
        cases = {case["case"]: case for case in json.load(file)["cases"]}
    begin = time.time()
    rows = {row["case"]: row for row in results["rows"]}
    for row in results["rows"]:
        found, skipped = [], []
        problem = rows.get(row["case"].removesuffix("-mma"), row)
        if problem is not row:  # of another kernel family: the peers are those of the problem
            found = [{**peer, "ratio": peer["seconds"] / row["seconds"]} for peer in problem["peers"]]
            skipped = problem.get("peers_skipped", [])
        for version, peer in peers if problem is row else []:
            for kind, measure in peer.of(cases[row["case"]]):
                name = f"{version} {kind}"
                try:
                    if time.time() - begin > arguments.limit:
                        raise Skip("no time left")
                    timed = measure()
                    found.append({"name": name, **timed, "ratio": timed["seconds"] / row["seconds"]})
                except Skip as reason:
                    skipped.append({"name": name, "reason": str(reason)})
                except Exception as error:  # a peer's failure is a result, and the next case goes on
                    skipped.append({"name": name, "reason": f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"})
                torch.cuda.empty_cache()
        row["peers"] = found
        if skipped:
            row["peers_skipped"] = skipped
        print(f"{row['case']:<32} {row['seconds'] * 1e6:10.1f} us  " + ", ".join(f"{p['ratio']:.2f}x {p['name']}" for p in found), flush=True)
        with open(arguments.json, "w", encoding="utf-8") as file:
            file.write(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
