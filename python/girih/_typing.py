"""What arguments may be, for readers and type checkers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from ._girih import Expr

__all__ = ["ArrayLike", "DTypeLike", "DeviceLike", "ExprLike", "IndicesLike", "Params", "StreamLike", "SupportsDLPack"]


@runtime_checkable
class SupportsDLPack(Protocol):
    """An array of any library, by the DLPack protocol."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


#: torch.Tensor, numpy.ndarray, or anything with `__dlpack__` or `__cuda_array_interface__`.
ArrayLike: TypeAlias = Any
#: "bf16", "bfloat16", torch.bfloat16, numpy.float32, ...
DTypeLike: TypeAlias = Any
#: "cpu", "cuda", "cuda:1", a torch.device.
DeviceLike: TypeAlias = Any
#: A CUstream as an int, or an object with `cuda_stream` or `__cuda_stream__`.
StreamLike: TypeAlias = Any
#: An expression, or a constant in one: bool, int, float, a scalar of NumPy or PyTorch.
ExprLike: TypeAlias = "Expr | bool | int | float | Any"
#: An int32 or int64 array in host memory (numpy.ndarray, torch.Tensor on the CPU), or a sequence of ints.
IndicesLike: TypeAlias = Any
#: Values of a variant's parameters by name: numbers and arrays.
Params: TypeAlias = "Mapping[str, float | ArrayLike]"
