"""A pytest plugin that runs FlashInfer's own test files, in place and unchanged, over girih.flashinfer; script/flashinfer-tests is its driver.

Three things stand between those files and this machine. They say `import flashinfer`: the name is bound to girih.flashinfer before they are
collected. They hard-code "cuda": without a GPU a torch-function mode maps that device to the CPU, and torch.cuda answers as one device of
the capability given (what cannot be mapped, such as CUDA graphs, skips). They are many and sized for a GPU: of each parametrised test a
fixed number of cases is taken, in the order of a hash of their names, tensors above a size skip, and a test that runs too long is stopped.
NotImplementedError is counted as `refused`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import signal
import subprocess
import sys
import types
from collections import Counter
from typing import Any, Callable, Iterator, NoReturn

import pytest
import torch
from torch.overrides import TorchFunctionMode

#: Cases with a larger value of a parameter are left out without a GPU (--fi-sizes=all: none are).
LIMITS = {
    "batch_size": 99,
    "kv_len": 600,
    "seq_len": 600,
    "shared_kv_len": 600,
    "vocab_size": 32000,
    "num_speculate_tokens": 5,
    "num_rows": 256,
    "hidden_size": 8192,
    "num_elements": 10**6,
}
#: Of batch_size times vocab_size.
LARGEST_BATCH = 10**6
#: Loops that repeat one call to catch rare faults, and counts of draws: local variables of that name.
REPEATS = {"num_trails": 10, "num_trials": 300_000}
#: Tests that count draws of millions of rows.
COUNTING_VOCAB = 111


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("flashinfer")
    group.addoption("--fi-report", default=None, help="append a JSON line for each test to this file")
    group.addoption("--fi-max", type=int, default=0, help="cases of each parametrised test, 0: all")
    group.addoption("--fi-timeout", type=int, default=60, help="seconds a test may take, 0: any")
    group.addoption(
        "--fi-elements", type=int, default=1 << 23, help="without a GPU: skip tests that make larger tensors"
    )
    group.addoption(
        "--fi-sizes",
        choices=("cpu", "all"),
        default="cpu",
        help="cpu: leave out cases beyond LIMITS where there is no GPU",
    )
    group.addoption("--fi-capability", default="9.0", help="what torch.cuda reports without a GPU")


# ---- flashinfer is girih.flashinfer


def bind_names() -> None:
    import girih.flashinfer

    package = girih.flashinfer.__name__
    for name in [n for n in sys.modules if n == package or n.startswith(package + ".")]:
        sys.modules[name.removeprefix("girih.")] = sys.modules[name]
    # Their conftest asks it while collecting.
    sys.modules[f"{package}.moe_ep"].available_backends = list  # type: ignore[attr-defined]


bind_names()  # their conftest says `import flashinfer` before plugins are configured


# ---- cuda is cpu


FACTORIES = {"empty", "ones", "rand", "randint", "randn", "randperm", "zeros"}


def asked_elements(name: str, args: Any, kwargs: Any) -> int:
    """How large a tensor a factory is to make; 0 where its arguments do not show it."""
    if name not in FACTORIES or kwargs.get("dtype") in (torch.uint8, torch.int8):
        return 0
    size = kwargs.get("size", args)
    lengths = (
        [size] if isinstance(size, int) else [n for a in size for n in (a if isinstance(a, (tuple, list)) else (a,))]
    )
    return math.prod(n for n in lengths if isinstance(n, int)) if name != "randint" else 0


def mapped(x: Any) -> Any:
    if isinstance(x, torch.device):
        return torch.device("cpu") if x.type == "cuda" else x
    if isinstance(x, str) and (x == "cuda" or x.startswith("cuda:")):
        return "cpu"
    return x


class CudaOnCpu(TorchFunctionMode):
    """Tensors that are asked for on "cuda" are made on the CPU, up to a size."""

    def __init__(self, max_elements: int) -> None:
        super().__init__()
        self.max_elements = max_elements

    def __torch_function__(self, func: Callable[..., Any], types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "cuda":
            return args[0]
        if name == "pin_memory":
            return args[0]
        kwargs.pop("pin_memory", None)
        if "device" in kwargs:
            device = kwargs["device"]
            kwargs["device"] = "cpu" if isinstance(device, int) else mapped(device)
        if name == "to":
            args = (args[0], *("cpu" if type(a) is int else mapped(a) for a in args[1:]))
        elements = asked_elements(name, args, kwargs)
        if elements > self.max_elements:
            pytest.skip(f"makes a tensor of {elements} elements")
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.numel() > self.max_elements:
            workspace = result.ndim == 1 and result.itemsize == 1
            if not workspace and result.untyped_storage().nbytes() > self.max_elements * result.itemsize // 2:
                pytest.skip(f"makes a tensor of {result.numel()} elements")
        return result


def needs_gpu(what: str, why: str = "") -> Callable[..., NoReturn]:
    def skip(*args: Any, **kwargs: Any) -> NoReturn:
        pytest.skip(f"needs a GPU: {why or f'torch.cuda.{what}'}")

    return skip


def own_process(*args: Any, **kwargs: Any) -> NoReturn:
    pytest.skip("starts a process of its own, to which flashinfer is another package")


class Stream:
    """One queue, which is always done."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cpu")

    def synchronize(self) -> None: ...

    def wait_stream(self, stream: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...


@contextlib.contextmanager
def no_context(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def replace_cuda(capability: tuple[int, int]) -> None:
    cuda: Any = torch.cuda
    properties = types.SimpleNamespace(
        name="CPU",
        major=capability[0],
        minor=capability[1],
        multi_processor_count=132,
        total_memory=1 << 34,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
    )
    generator = torch.default_generator
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_capability": lambda device=None: capability,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: "CPU",
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "mem_get_info": lambda device=None: (1 << 34, 1 << 34),
        "is_current_stream_capturing": lambda: False,
        "is_bf16_supported": lambda *a, **k: True,
        "manual_seed": lambda seed: generator.manual_seed(seed),
        "manual_seed_all": lambda seed: generator.manual_seed(seed),
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "Stream": Stream,
        "stream": no_context,
        "device": no_context,
        "default_generators": (generator,),
        "CUDAGraph": needs_gpu("CUDAGraph"),
        "graph": needs_gpu("graph"),
        "make_graphed_callables": needs_gpu("make_graphed_callables"),
        "Event": needs_gpu("Event"),
    }
    for name, answer in answers.items():
        setattr(cuda, name, answer)
    # torch.manual_seed() seeds every device; here they are one.
    cuda._is_in_bad_fork = lambda: True
    torch.version.cuda = "12.9"
    set_default_device = torch.set_default_device
    torch.set_default_device = lambda device: set_default_device(mapped(device))

    class Generator(torch.Generator):
        def __new__(cls, device: Any = "cpu") -> Generator:
            return super().__new__(cls, device=mapped(device))

    torch.Generator = Generator  # type: ignore[misc]

    import girih.flashinfer.utils as utils

    utils.get_compute_capability = lambda device: capability
    utils.get_device_sm_count = lambda device: properties.multi_processor_count
    utils.device_support_pdl = lambda device: capability[0] >= 9


# ---- which tests, and how long


def chosen(items: list[pytest.Item], count: int) -> list[pytest.Item]:
    """Up to `count` cases of each test function, by a hash of their names so that every parameter varies."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(item.nodeid.split("[")[0], []).append(item)
    kept: set[str] = set()
    for group in groups.values():
        group.sort(key=lambda i: hashlib.sha256(i.nodeid.encode()).digest())
        kept.update(i.nodeid for i in group[:count])
    return [i for i in items if i.nodeid in kept]


def small(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if "_freq" in item.name and parameters.get("vocab_size", 0) > COUNTING_VOCAB:
        return False
    sizes = [parameters.get(name, 1) for name in ("batch_size", "vocab_size")]
    if all(isinstance(n, int) for n in sizes) and math.prod(sizes) > LARGEST_BATCH:
        return False
    return all(not isinstance(parameters.get(name), int) or parameters[name] <= limit for name, limit in LIMITS.items())


def shorten(function: Any) -> None:
    """Replaces the constants that REPEATS' variables are set to."""
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for name, value in REPEATS.items():
        if name in code.co_varnames:
            constants = tuple(value if type(c) is int and c >= 1000 else c for c in code.co_consts)
            function.__code__ = code = code.replace(co_consts=constants)


def file_of(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0]


class Plugin:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.report_path: str | None = config.getoption("--fi-report")
        self.has_gpu = torch.cuda.is_available()
        self.mode: CudaOnCpu | None = None
        if not self.has_gpu:
            major, _, minor = config.getoption("--fi-capability").partition(".")
            replace_cuda((int(major), int(minor)))
            self.mode = CudaOnCpu(config.getoption("--fi-elements"))
            self.mode.__enter__()
        # Each worker of pytest-xdist collects all.
        self.counts_for_all = getattr(config, "workerinput", {"workerid": "gw0"})["workerid"] == "gw0"

    def write(self, **line: Any) -> None:
        if self.report_path:
            with open(self.report_path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        collected = Counter(file_of(i) for i in items)
        if not self.has_gpu and self.config.getoption("--fi-sizes") == "cpu":
            items[:] = [i for i in items if small(i)]
            for function in {getattr(i, "function", None) for i in items}:
                shorten(function)
        if self.config.getoption("--fi-max"):
            items[:] = chosen(items, self.config.getoption("--fi-max"))
        selected = Counter(file_of(i) for i in items)
        if self.counts_for_all:
            for file, count in collected.items():
                self.write(file=file, collected=count, selected=selected[file])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.counts_for_all:
            self.write(file=report.nodeid, outcome="uncollected", reason=str(report.longrepr).strip().splitlines()[-1])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        seconds = self.config.getoption("--fi-timeout")

        def stop(*_: object) -> NoReturn:
            raise TimeoutError(f"longer than {seconds} s")

        run = subprocess.run
        subprocess.run = own_process  # type: ignore[assignment]
        previous = signal.signal(signal.SIGALRM, stop)
        signal.alarm(seconds)
        try:
            return (yield)
        finally:
            subprocess.run = run
            signal.alarm(0)
            signal.signal(signal.SIGALRM, previous)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        outcome = report.outcome
        if isinstance(error, NotImplementedError):
            outcome = "refused"
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"refused: {error}")
        elif isinstance(error, TimeoutError):
            outcome = "stopped"
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, str(error))
        if report.when == "call" or outcome not in ("passed",):
            reason = "" if outcome == "passed" else (str(error) or type(error).__name__).strip()
            if outcome == "failed":
                reason = f"{type(error).__name__}: {reason}"
            self.write(
                file=file_of(item),
                test=item.nodeid,
                when=report.when,
                outcome=outcome,
                seconds=round(report.duration, 3),
                reason=reason[:300],
            )
        return report


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Plugin(config), "flashinfer_plugin_state")
