"""Contexts from Python: options, errors, the log callback, one default per thread."""

import threading

import pytest

import girih


def test_options_are_taken() -> None:
    context = girih.Context("cpu", num_workers=2, target="scalar")
    assert (context.device, context.num_workers, context.target) == ("cpu", 2, "scalar")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"target": "sse9"}, ValueError, "target.*sse9.*avx2"),
        ({"device": "tpu"}, ValueError, "device.*tpu"),
        ({"jit": "perhaps"}, ValueError, "jit.*perhaps.*allow"),
        ({"num_workers": -1}, ValueError, "num_workers"),
        ({"cpus": [100000]}, ValueError, "cpus"),
        ({"log": 3}, TypeError, "log"),
    ],
)
def test_bad_options_are_refused(options: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        girih.Context(**options)


def test_default_context_is_per_thread() -> None:
    here = girih.default_context()
    assert girih.default_context("cpu") is here
    there: list[girih.Context] = []
    thread = threading.Thread(target=lambda: there.append(girih.default_context()))
    thread.start()
    thread.join()
    assert there[0] is not here
