# How nanobind's stub generator prints what it would print otherwise than a type checker wants it (syntax: nanobind's "pattern files").
girih._girih.__version__:
    __version__: str

# Comparisons of expressions are expressions.
girih._girih.Expr.__(eq|ne)__:
    def __\1__(self, other: girih._typing.ExprLike) -> Expr: ...  # type: ignore[override]

girih._girih.Expr.__hash__:
    __hash__: None  # type: ignore[assignment]
