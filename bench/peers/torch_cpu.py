#!/usr/bin/env python3
"""Times the cases of `girih bench attention` and the same problems in PyTorch, in one run, and writes one result file.

    bench/peers/torch_cpu.py --girih build/release/bin/girih --python VENV/bin/python --json bench/results/cpu/attention.json

The list of cases comes from the tool (`--list --json -`), so shapes cannot drift apart. Per case girih runs, then PyTorch, then girih
again (`--rounds` times in all), and the medians of girih's rounds make the row. PyTorch lives in a process of its own, which is ended
when a peer takes longer than `--limit`; what could not be timed is written to the row's "peers_skipped" with the reason. This side needs
Python alone, the interpreter named by --python needs torch. The file is renewed after every case: an interrupted run keeps its rows.
"""

import argparse
import json
import logging
import os
import pathlib
import selectors
import statistics
import subprocess
import sys
import time

KINDS = ("SDPA", "SDPA per request", "SDPA heads as rows", "FlexAttention")


# ------------------------------------------------------------------------------------------------ girih's side

def bench(arguments, *more):
    command = [arguments.girih, "bench", "attention", "--json", "-", *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr.strip()}")
    return json.loads(done.stdout)


def combine(values):
    """Medians of equally shaped results, number by number; what is no number is taken from the first."""
    first = values[0]
    if isinstance(first, dict):
        return {key: combine([value[key] for value in values]) for key in first}
    if isinstance(first, list):
        return [combine(list(items)) for items in zip(*values)]
    if isinstance(first, float):
        return statistics.median(values)
    return first


class Torch:
    """The process that has PyTorch: one line of JSON asks, one answers. Started when it is needed, and again after it was ended."""

    def __init__(self, python, limit):
        self.python, self.limit = python, limit
        self.process, self.version = None, ""

    def start(self, threads):
        command = [self.python, __file__, "--serve", str(threads), str(self.limit)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        answer = self.read(120)
        if "version" not in answer:
            sys.exit(f"{' '.join(command)}: {answer['skipped']}")
        self.version = answer["version"]

    def read(self, seconds):
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                self.stop()
                return {"skipped": f"took longer than {seconds:g} s"}
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.stop()
        return {"skipped": "the process ended"}

    def stop(self):
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def ask(self, case, kind, threads):
        if self.process is None:
            self.start(threads)
        self.process.stdin.write(json.dumps({"case": case, "kind": kind}) + "\n")
        return self.read(self.limit)


def measure(arguments, torch, case):
    results, peers, skipped = [], [], []
    for i in range(arguments.rounds):
        results.append(bench(arguments, "--case", case["case"], "--workers", str(arguments.workers), "--repeats", str(arguments.repeats)))
        for kind in KINDS if i == 0 else ():
            answer = torch.ask(case, kind, threads=results[0]["machine"]["workers"])
            name = f"torch {torch.version} {kind}"
            if "seconds" in answer:
                peers.append({"name": name, **answer})
            elif "skipped" in answer:
                skipped.append({"name": name, "reason": answer["skipped"]})
    row = combine([result["rows"][0] for result in results])
    row["rounds"] = len(results)
    row["peers"] = [{**peer, "ratio": peer["seconds"] / row["seconds"]} for peer in peers]
    if not peers and len({skip["reason"] for skip in skipped}) == 1:
        skipped = [{"name": f"torch {torch.version}", "reason": skipped[0]["reason"]}]
    if skipped:
        row["peers_skipped"] = skipped
    return results, row


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)


def drive(arguments):
    torch, results, rows = Torch(arguments.python, arguments.limit), [], []
    for case in bench(arguments, "--list", "--case", arguments.case)["cases"]:
        new, row = measure(arguments, torch, case)
        results += new
        rows.append(row)
        out = {**results[0], "rows": rows}
        ceilings = combine([result["machine"] for result in results])
        out["machine"] = {**results[0]["machine"], **{key: ceilings[key] for key in ("read_bytes_per_second", "f32_flops", "bf16_flops")}}
        write(pathlib.Path(arguments.json), json.dumps(out, indent=1) + "\n")
        peers = ", ".join(f"{peer['ratio']:.2f}x {peer['name'].split(' ', 2)[2]}" for peer in row["peers"])
        print(f"{row['case']:<34} {row['seconds'] * 1e3:10.3f} ms {row['roofline_fraction'] * 100:6.1f} %  {peers}", flush=True)
        for skip in row.get("peers_skipped", []):
            print(f"{'':34} skipped {skip['name']}: {skip['reason']}", flush=True)
    torch.stop()


# ------------------------------------------------------------------------------------------------ PyTorch's side

class Skip(Exception):
    pass


class NotForThisCase(Exception):
    """The kind says nothing here: not worth a line in the results."""


def parse_call(text):
    name, _, rest = text.partition(":")
    return name, {key: float(value) for key, value in (pair.split("=") for pair in rest.split(",") if pair)}


class Problem:
    """A case as dense tensors [batch, heads, length, dim], padded to the longest request."""

    def __init__(self, torch, case):
        self.torch, self.case = torch, case
        if case["sinks"]:
            raise Skip("has no sinks")
        if case["kv_dtype"] not in ("bf16", "f32"):
            raise Skip("has no attention over 8-bit keys and values")
        dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[case["kv_dtype"]]
        self.qo_lens, self.kv_lens = case["qo_lens"], case["kv_lens"]
        self.batch, self.qo_len, self.kv_len = len(self.qo_lens), max(self.qo_lens), max(self.kv_lens)
        self.ragged = min(self.qo_lens) != self.qo_len or min(self.kv_lens) != self.kv_len
        self.heads, self.kv_heads = case["num_qo_heads"], case["num_kv_heads"]
        self.group = self.heads // self.kv_heads
        self.scale = case["sm_scale"] or case["head_dim_qk"] ** -0.5
        self.mask, self.mask_arguments = parse_call(case["mask"])
        self.logits, self.logits_arguments = parse_call(case["logits"])
        torch.manual_seed(1)
        self.q = torch.randn(self.batch, self.heads, self.qo_len, case["head_dim_qk"], dtype=dtype)
        self.k = torch.randn(self.batch, self.kv_heads, self.kv_len, case["head_dim_qk"], dtype=dtype)
        self.v = (self.k[..., :case["head_dim_vo"]] if case["v_is_k"] else
                  torch.randn(self.batch, self.kv_heads, self.kv_len, case["head_dim_vo"], dtype=dtype))
        self.slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / self.heads) for h in range(self.heads)])

    def visible(self):
        """The mask as f(batch, head, row, key), for dense masks and for FlexAttention; None where every row sees every key."""
        torch, mask, arguments = self.torch, self.mask, self.mask_arguments
        if not self.ragged and (mask == "full" or (mask == "causal" and self.qo_len == 1)):
            return None
        qo_lens, kv_lens = torch.tensor(self.qo_lens), torch.tensor(self.kv_lens)
        one_qo, one_kv = (0, 0) if self.ragged else (self.qo_len, self.kv_len)
        ragged, size = self.ragged, int(arguments.get("size", 0))

        def f(b, h, row, key):
            own_kv = kv_lens[b] if ragged else one_kv
            pos = row + (own_kv - (qo_lens[b] if ragged else one_qo))
            seen = key < own_kv
            if mask in ("causal", "sliding_window"):
                seen = seen & (key <= pos)
            if mask == "sliding_window":
                seen = seen & (pos - key < size)
            if mask == "document":
                seen = seen & (pos // size == key // size)
            return seen

        if mask not in ("full", "causal", "sliding_window", "document"):
            raise Skip(f"this script has no mask {mask}")
        return f

    def dense_mask(self):
        torch, f = self.torch, self.visible()
        if self.logits not in ("none", "alibi"):
            raise Skip(f"has no {self.logits}")
        if f is None and self.logits == "none":
            return None
        batch = torch.arange(self.batch if self.ragged else 1).view(-1, 1, 1, 1)
        rows, keys = torch.arange(self.qo_len).view(-1, 1), torch.arange(self.kv_len)
        seen = f(batch, 0, rows, keys)
        seen = seen.expand(batch.shape[0], 1, self.qo_len, self.kv_len)
        if self.logits == "none":
            return seen.contiguous()
        bias = self.slopes.view(-1, 1, 1) * (keys - (rows + self.kv_len - self.qo_len))
        return bias.masked_fill(~seen, float("-inf")).to(self.q.dtype)

    def sdpa(self, q, k, v, **more):
        return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=self.scale, **more)

    def full_rows(self, out):
        """The rows of a padded output that are no padding, one tensor a request."""
        return [out[b, :, :n] for b, n in enumerate(self.qo_lens)]

    # Each kind returns (description, call, outputs of one call) in every way that could be the fastest.

    def ways_sdpa(self):
        square = not self.ragged and self.qo_len == self.kv_len
        how = {"is_causal": True} if square and self.mask == "causal" and self.logits == "none" else {"attn_mask": self.dense_mask()}
        if self.group == 1:
            return [("", lambda: self.sdpa(self.q, self.k, self.v, **how), self.full_rows)]
        if self.kv_heads == 1:
            wide = [x.expand(-1, self.heads, -1, -1) for x in (self.k, self.v)]
        else:
            wide = [x.repeat_interleave(self.group, dim=1) for x in (self.k, self.v)]
        return [("enable_gqa", lambda: self.sdpa(self.q, self.k, self.v, enable_gqa=True, **how), self.full_rows),
                ("expanded KV", lambda: self.sdpa(self.q, *wide, **how), self.full_rows)]

    def ways_per_request(self):
        if not self.ragged:
            raise NotForThisCase
        if any(q not in (1, kv) for q, kv in zip(self.qo_lens, self.kv_lens)) or self.mask != "causal" or self.logits != "none":
            raise NotForThisCase
        parts = [(self.q[b:b + 1, :, :q].contiguous(), self.k[b:b + 1, :, :kv].contiguous(), self.v[b:b + 1, :, :kv].contiguous(), q > 1)
                 for b, (q, kv) in enumerate(zip(self.qo_lens, self.kv_lens))]
        gqa = {"enable_gqa": True} if self.group > 1 else {}
        return [("", lambda: [self.sdpa(q, k, v, is_causal=causal, **gqa) for q, k, v, causal in parts],
                 lambda outs: [out[0] for out in outs])]

    def ways_heads_as_rows(self):
        """Decode alone: the query heads of one KV head become rows of one product, as a serving engine would arrange them."""
        if self.qo_len != 1 or self.group == 1:
            raise NotForThisCase
        q = self.q.view(self.batch, self.kv_heads, self.group, -1)
        mask = self.dense_mask()
        return [("", lambda: self.sdpa(q, self.k, self.v, attn_mask=mask),
                 lambda out: self.full_rows(out.reshape(self.batch, self.heads, 1, -1)))]

    def ways_flex(self):
        torch = self.torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        f = self.visible()
        slopes, shift, cap = self.slopes, self.kv_len - self.qo_len, self.logits_arguments.get("cap", 0.0)
        rules = {"none": None, "soft_cap": lambda s, b, h, row, key: cap * torch.tanh(s / cap),
                 "alibi": lambda s, b, h, row, key: s + slopes[h] * (key - (row + shift))}
        if self.logits not in rules:
            raise Skip(f"this script has no {self.logits}")
        block_mask = None
        if f is not None:
            block_mask = create_block_mask(f, self.batch if self.ragged else None, None, self.qo_len, self.kv_len, device="cpu")
        torch._dynamo.reset()
        compiled = torch.compile(flex_attention, dynamic=False)
        return [("compiled", lambda: compiled(self.q, self.k, self.v, score_mod=rules[self.logits], block_mask=block_mask, scale=self.scale,
                                              enable_gqa=self.group > 1), self.full_rows)]

    def ways(self, kind):
        return {"SDPA": self.ways_sdpa, "SDPA per request": self.ways_per_request, "SDPA heads as rows": self.ways_heads_as_rows,
                "FlexAttention": self.ways_flex}[kind]()


def time_calls(call, flush, limit, most=9, seconds=2.0, least=3):
    """The median under the protocol of `girih bench`: caches evicted before each run; fewer runs where they would not fit the limit."""
    times = []
    while len(times) < most and (sum(times) < seconds or len(times) < least):
        if times and sum(times) + times[-1] > limit / 3:
            break
        flush()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def serve(threads, limit):
    import torch
    torch.set_num_threads(threads)
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it misses a GPU
    cold = torch.zeros(1 << 26)  # 256 MiB
    print(json.dumps({"version": torch.__version__.split("+")[0]}), flush=True)
    problem, reference = None, None
    for line in sys.stdin:
        request = json.loads(line)
        answer = {}
        try:
            with torch.inference_mode():
                if problem is None or problem.case != request["case"]:
                    problem = reference = None  # frees the memory first
                    problem = Problem(torch, request["case"])
                for way, call, rows in problem.ways(request["kind"]):
                    out = rows(call())
                    if reference is None:
                        reference = out
                    worst = max((a.float() - b.float()).abs().max().item() for a, b in zip(out, reference))
                    if not worst < 0.05:
                        raise Skip(f"differs from the other kinds by {worst:.3g}")
                    seconds = time_calls(call, cold.sum, limit)
                    if "seconds" not in answer or seconds < answer["seconds"]:
                        answer = {"seconds": seconds, **({"way": way} if way else {})}
        except NotForThisCase:
            pass
        except Skip as skip:
            answer = {"skipped": str(skip)}
        except Exception as error:  # whatever PyTorch cannot do is a line of the results
            answer = {"skipped": f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:200]}
        print(json.dumps(answer), flush=True)


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), float(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser.add_argument("--girih", default=str(root / "build/release/bin/girih"), help="the tool")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch")
    parser.add_argument("--json", required=True, help="the result file")
    parser.add_argument("--case", default="*", help="a case's name, or a pattern with * and ?")
    parser.add_argument("--workers", type=int, default=0, help="girih's workers and PyTorch's threads; 0 = all CPUs")
    parser.add_argument("--repeats", type=int, default=9, help="runs per round of girih")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of girih; PyTorch comes after the first")
    parser.add_argument("--limit", type=float, default=60, help="seconds a peer may take per case, compilation included")
    drive(parser.parse_args())


if __name__ == "__main__":
    main()
