"""flashinfer.utils: enumerations, device queries and checks that code around FlashInfer asks for.

What concerns FlashInfer's choice among its own kernels is answered for Girih's one kernel set: nothing is compiled ahead of use, so there is
no package of prebuilt kernels to miss, and features do not depend on a back end.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Sequence

import torch

log2e = math.log2(math.e)
ln2 = math.log(2.0)
LSE_BASES = ("log2", "ln")
LSE_LAYOUTS = ("NH", "HN")


class PosEncodingMode(Enum):
    """How positions enter attention: not at all, by Llama's rotation, or as ALiBi's bias."""

    NONE = 0
    ROPE_LLAMA = 1
    ALIBI = 2


class MaskMode(Enum):
    """Which keys a query sees."""

    NON_CAUSAL = 0
    CAUSAL = 1
    CUSTOM = 2
    MULTIITEMSCORING = 3


class TensorLayout(Enum):
    """Order of a page's dimensions: [page_size, heads, dim] or [heads, page_size, dim]."""

    NHD = 0
    HND = 1


class GPUArchitectureError(Exception):
    """A feature that the device's architecture lacks."""


class LibraryError(Exception):
    """A library that is needed and missing."""


class BackendSupportedError(Exception):
    """A back end that does not take a problem."""


def check_lse_base(lse_base: str) -> None:
    """Raises ValueError unless `lse_base` is one of LSE_BASES."""
    if lse_base not in LSE_BASES:
        raise ValueError(f"lse_base={lse_base!r}; must be one of {LSE_BASES}")


def check_lse_layout(lse_layout: str) -> None:
    """Raises ValueError unless `lse_layout` is one of LSE_LAYOUTS."""
    if lse_layout not in LSE_LAYOUTS:
        raise ValueError(f"lse_layout={lse_layout!r}; must be one of {LSE_LAYOUTS}")


def next_positive_power_of_2(x: int) -> int:
    """The smallest power of two >= x, at least 1."""
    return 1 if x < 1 else 1 << (x - 1).bit_length()


def last_positive_power_of_2(x: int) -> int:
    """The largest power of two <= x; 0 below 1, as FlashInfer has it."""
    return 0 if x < 1 else 1 << (x.bit_length() - 1)


def ceil_div(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def round_up(x: int, y: int) -> int:
    """The smallest multiple of y that is >= x."""
    return ceil_div(x, y) * y


def is_float8(x: torch.Tensor) -> bool:
    """Whether x is of e4m3 or e5m2."""
    return x.dtype in (torch.float8_e4m3fn, torch.float8_e5m2)


def get_indptr(x: torch.Tensor) -> torch.Tensor:
    """Lengths [n] as offsets [n + 1], int64."""
    return torch.nn.functional.pad(x.to(torch.int64).cumsum(0), (1, 0))


def get_alibi_slopes(n_heads: int, device: torch.device | None = None) -> torch.Tensor:
    """f32 [n_heads]: slopes of ALiBi's bias (Press et al. 2021, section 3)."""
    even = 1 << (n_heads.bit_length() - 1)
    exponents = [-8.0 * (i + 1) / even for i in range(even)]
    exponents += [-4.0 * (2 * i + 1) / even for i in range(n_heads - even)]
    return torch.tensor([2.0**e for e in exponents], dtype=torch.float32, device=device)


def canonicalize_torch_dtype(dtype: torch.dtype | str) -> torch.dtype:
    """A dtype or its name ("float16")."""
    if isinstance(dtype, torch.dtype):
        return dtype
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else None
    if not isinstance(found, torch.dtype):
        raise TypeError(f"dtype={dtype!r}; must be a torch.dtype or the name of one")
    return found


def check_shape_dtype_device(
    x: torch.Tensor,
    expected_shape: Sequence[int] | None,
    expected_dtype: torch.dtype | None,
    expected_device: torch.device | None,
    name: str,
) -> None:
    """Raises ValueError naming `name` where x is not as expected; None expects nothing."""
    if expected_shape is not None and x.shape != torch.Size(expected_shape):
        raise ValueError(f"Invalid shape of {name}: expected {tuple(expected_shape)}, got {tuple(x.shape)}")
    if expected_dtype is not None and x.dtype != expected_dtype:
        raise ValueError(f"Invalid dtype of {name}: expected {expected_dtype}, got {x.dtype}")
    if expected_device is not None and x.device != expected_device:
        raise ValueError(f"Invalid device of {name}: expected {expected_device}, got {x.device}")


def get_compute_capability(device: torch.device) -> tuple[int, int]:
    """(major, minor) of a CUDA device."""
    if device.type != "cuda":
        raise ValueError(f"device={device}; must be a cuda device")
    major, minor = torch.cuda.get_device_capability(device)
    return int(major), int(minor)


def get_device_sm_count(device: torch.device) -> int:
    """How many multiprocessors a CUDA device has."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def device_support_pdl(device: torch.device) -> bool:
    """Whether the device can launch a kernel before its predecessor ends."""
    return device.type == "cuda" and get_compute_capability(device)[0] >= 9


def _is_sm(device: torch.device, major: int, minor: int | None = None) -> bool:
    capability = get_compute_capability(device)
    return capability[0] == major and minor in (None, capability[1])


def is_sm90a_supported(device: torch.device) -> bool:
    """Whether the device is of compute capability 9.0."""
    return _is_sm(device, 9)


def is_sm100a_supported(device: torch.device) -> bool:
    """Whether the device is of compute capability 10.x."""
    return _is_sm(device, 10)


def is_sm100f_supported(device: torch.device) -> bool:
    """Whether the device is of compute capability 10.x."""
    return _is_sm(device, 10)


def is_sm110a_supported(device: torch.device) -> bool:
    """Whether the device is of compute capability 11.x."""
    return _is_sm(device, 11)


def is_sm120a_supported(device: torch.device) -> bool:
    """Whether the device is of compute capability 12.0."""
    return _is_sm(device, 12, 0)


def is_sm120f_supported(device: torch.device) -> bool:
    """Whether the device is of compute capability 12.0."""
    return _is_sm(device, 12, 0)


def is_sm121a_supported(device: torch.device) -> bool:
    """Whether the device is of compute capability 12.1."""
    return _is_sm(device, 12, 1)


def is_sm12x_supported(device: torch.device) -> bool:
    """Whether the device is of compute capability 12.x."""
    return _is_sm(device, 12)


def has_flashinfer_jit_cache() -> bool:
    """True: nothing has to be compiled before a module of this package can be used."""
    return True
