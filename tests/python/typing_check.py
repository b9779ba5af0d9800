"""What type checkers must see of the package: read by test_types.py, never run."""

import girih

context: girih.Context = girih.Context("cpu", num_workers=2)
same: girih.Context = girih.default_context()
workers: int = context.num_workers
names: list[str] = girih.available_cpu_targets()
model: str = girih.cpu_info().model

# A wrong type is an error; mypy reports comments that ignore nothing.
wrong: int = girih.__version__  # type: ignore[assignment]
girih.Context("cpu", num_workers="2")  # type: ignore[arg-type]
girih.Context("cpu", 2)  # type: ignore[call-arg]
girih.no_such_name  # type: ignore[attr-defined]
