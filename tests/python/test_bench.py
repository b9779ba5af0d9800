"""girih.bench on the CPU: calls take turns, medians are medians, the table has a line a call."""

import pytest
from girih import bench


def test_calls_take_turns_after_a_first_one() -> None:
    order: list[str] = []
    result = bench.compare({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3)
    assert "".join(order) == "aabb" + "ab" * 3
    assert list(result) == ["a", "b"]
    assert result["a"].repeats == 3


def test_figures_are_of_the_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([9.0, 0.003, 0.001, 0.002])  # the first only says how long a call takes
    monkeypatch.setattr(bench, "_timed", lambda call: next(seconds))
    timing = bench.measure(lambda: None, repeats=3)
    assert (timing.seconds, timing.low, timing.high, timing.host_seconds) == (0.002, 0.001, 0.003, 0.002)
    assert str(timing) == "2.00 ms (1.00 ms to 3.00 ms, 3 repeats)"


def test_ratios_are_to_the_first() -> None:
    timings = {"one": bench.Timing(1.0, 1.0, 1.0, 1.0, 1), "two": bench.Timing(2.0, 2.0, 2.0, 2.0, 1)}
    result = bench.Comparison(timings)
    assert result.ratio("two") == 2.0
    assert [line.split()[0] for line in str(result).splitlines()[1:]] == ["one", "two"]
    assert str(result).splitlines()[2].endswith("2.00")


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="calls.*empty"):
        bench.compare({})
    with pytest.raises(ValueError, match="repeats.*-1"):
        bench.measure(lambda: None, repeats=-1)

    def fails() -> None:
        raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        bench.measure(fails)
