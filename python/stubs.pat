# How nanobind's stub generator prints what it would print otherwise than a type checker wants it (syntax: nanobind's "pattern files").
girih._girih.__version__:
    __version__: str

girih._girih.Expr.__hash__:
    __hash__: None  # type: ignore[assignment]

# Behind typed functions of girih/*.py: what these return follows their arguments.
girih._girih.(sample|top_k|chain_speculative_sample|rope|rope_cos_sin|segment_packbits)$:
    \from typing import Any
    def \1(*args: Any) -> Any: ...
