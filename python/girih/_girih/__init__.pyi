"""The compiled part of girih."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from girih._girih import variants as variants
import girih._svg
import girih._typing


__version__: str

class Context:
    """
    What operators run on and with: a device, worker threads, how kernels are compiled, where messages go.

    One context serves one thread at a time (runs on it do not overlap); make one per thread, or let default_context() do it.
    Survives fork().
    """

    def __init__(self, device: object = 'cpu', *, num_workers: int = 0, cpus: Sequence[int] = [], target: str = 'best', log: object | None = None, jit: str | None = None, nvrtc: str | None = None, cache_dir: str | None = None, packs: Sequence[str] | None = None, nvrtc_options: Sequence[str] = [], max_threads: int = 0) -> None:
        """
        device: "cpu", "cuda", "cuda:1" or a torch.device.
        num_workers: CPU worker threads including the caller; 0 = the CPUs this process may use.
        cpus: CPUs that workers are bound to (Linux); worker w to cpus[w % len(cpus)], the caller to none.
        target: SIMD instruction set: best, scalar, avx2, avx3, avx3_bf16 or neon.
        log: called as log(level, text) with level debug, info or warning; what it raises goes to sys.unraisablehook.
        jit: allow (compile what packs and cache lack), deny (packs and cache only) or pack_only; None: GIRIH_JIT, else allow.
        nvrtc: NVRTC's file or a directory that holds it; None: searched for.
        cache_dir: of compiled kernels; "" = none on disk; None: ~/.cache/girih.
        packs: directories of prebuilt kernels.
        nvrtc_options: more options for all kernels.
        max_threads: of a warm-up; 0 = one per CPU, as far as memory allows.

        Raises ValueError for unknown names, NotImplementedError for a target or device that this machine lacks.
        """

    @property
    def device(self) -> str:
        """"cpu", "cuda:0\""""

    @property
    def num_workers(self) -> int:
        """CPU worker threads including the caller"""

    @property
    def target(self) -> str:
        """the SIMD instruction set chosen"""

    def __repr__(self) -> str: ...

class CpuInfo:
    """Facts of the CPU."""

    @property
    def model(self) -> str: ...

    @property
    def num_cpus(self) -> int:
        """CPUs that this process may use"""

    @property
    def features(self) -> list[str]:
        """"avx2", "fma", "avx512f", ..."""

def cpu_info() -> CpuInfo:
    """Facts of the CPU, as `girih info` prints them."""

def available_cpu_targets() -> list[str]:
    """SIMD instruction sets compiled in that this CPU can run, widest first."""

class Expr:
    """
    A value that attention computes for a query and a key (or an element), as an expression: made from variables (q_pos(), kv_pos(),
    score(), ...), parameters (scalar(), array(), bits()) and Python numbers by operators and functions. Immutable; building one
    computes nothing.

    Types: "integer" (64-bit), "number" (f32), "boolean". Integers and numbers mix to numbers; comparisons of integers are exact.
    `/` divides numbers, `//` and `%` are those of Python on integers (by 0: 0). Conditions combine by & | ~, with parentheses round
    comparisons: (kv_pos <= q_pos) & (q_pos - kv_pos < 1024).
    """

    def __init__(self, value: girih._typing.ExprLike | None) -> None:
        """A constant: a bool, int or float, or a scalar of NumPy or PyTorch."""

    def __add__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __radd__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __sub__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __rsub__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __mul__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __rmul__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __truediv__(self, other: girih._typing.ExprLike | None) -> Expr:
        """Division of numbers; integers become numbers."""

    def __rtruediv__(self, other: girih._typing.ExprLike | None) -> Expr:
        """Division of numbers; integers become numbers."""

    def __floordiv__(self, other: girih._typing.ExprLike | None) -> Expr:
        """Floor division of integers; x // 0 is 0."""

    def __rfloordiv__(self, other: girih._typing.ExprLike | None) -> Expr:
        """Floor division of integers; x // 0 is 0."""

    def __mod__(self, other: girih._typing.ExprLike | None) -> Expr:
        """a - b * (a // b) of integers; x % 0 is 0."""

    def __rmod__(self, other: girih._typing.ExprLike | None) -> Expr:
        """a - b * (a // b) of integers; x % 0 is 0."""

    def __lt__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __le__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __gt__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __ge__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __eq__(self, other: girih._typing.ExprLike) -> Any: ...

    def __ne__(self, other: girih._typing.ExprLike) -> Any: ...

    def __and__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __rand__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __or__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __ror__(self, other: girih._typing.ExprLike | None) -> Expr: ...

    def __neg__(self) -> Expr: ...

    def __pos__(self) -> Expr: ...

    def __abs__(self) -> Expr: ...

    def __invert__(self) -> Expr: ...

    def __bool__(self) -> NoReturn: ...

    def __float__(self) -> NoReturn: ...

    def __int__(self) -> NoReturn: ...

    def __index__(self) -> NoReturn: ...

    def __repr__(self) -> str: ...

    def __copy__(self) -> Expr: ...

    def __deepcopy__(self, memo: object) -> Expr: ...

    @property
    def type(self) -> str:
        """"boolean", "integer" or "number\""""

    __hash__: None  # type: ignore[assignment]

    __array_ufunc__: None = None

def score() -> Expr:
    """number: q . k * sm_scale (natural units, before any hook)"""

def q_pos() -> Expr:
    """integer: logical position of the query row's token"""

def kv_pos() -> Expr:
    """integer: logical position of the key"""

def q_idx() -> Expr:
    """integer: index of the token within its request's query rows, from 0"""

def q_len() -> Expr:
    """integer: query rows of the request"""

def kv_len() -> Expr:
    """integer: logical KV length of the request"""

def request() -> Expr:
    """integer: index of the request in the batch"""

def q_head() -> Expr:
    """integer: query head"""

def kv_head() -> Expr:
    """integer: KV head"""

def q_row() -> Expr:
    """integer: row of the token in the query tensor (all requests)"""

def x() -> Expr:
    """number: the element that a transform (query, key, value, output) maps"""

def dim() -> Expr:
    """integer: the element's index within the head"""

def mean_square() -> Expr:
    """number: mean of x*x over the head (for QK-norm)"""

def scalar(name: str, type: str | type = 'number', time: str = 'run') -> Expr:
    """
    A named scalar parameter: "number" (float) or "integer" (int). time="run": its value comes with run() and may change between
    runs of a plan; "plan": it comes with plan() and serves proofs about the mask.
    """

class ArrayParam:
    """
    A named one-dimensional array of f32, i32 or i64; an index outside it reads 0. See array().
    """

    def __init__(self, name: str, dtype: girih._typing.DTypeLike = 'f32', time: str = 'run') -> None: ...

    def __getitem__(self, index: girih._typing.ExprLike | None) -> Expr:
        """
        The element at an integer expression, a number (f32) or an integer (i32, i64).
        """

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def time(self) -> str: ...

    def __repr__(self) -> str: ...

    __iter__: None = None

class BitsParam:
    """
    A named array of bits, packed little-endian into uint8; a bit outside it reads false. See bits().
    """

    def __init__(self, name: str, time: str = 'run') -> None: ...

    def __getitem__(self, index: girih._typing.ExprLike | None) -> Expr:
        """The bit at an integer expression, a boolean."""

    @property
    def name(self) -> str: ...

    @property
    def time(self) -> str: ...

    def __repr__(self) -> str: ...

    __iter__: None = None

def array(name: str, dtype: girih._typing.DTypeLike = 'f32', time: str = 'run') -> ArrayParam:
    """
    A named one-dimensional array parameter of f32, i32 or i64: array("slopes")[q_head()]. An index outside it reads 0.
    """

def bits(name: str, time: str = 'run') -> BitsParam:
    """
    A named array of bits, packed little-endian into uint8 (numpy.packbits(mask, bitorder="little")): bits("allowed")[kv_pos()].
    A bit outside it reads false.
    """

def cuda_code(type: str | type, body: str, args: Sequence[Expr | ArrayParam | BitsParam | tuple[str, girih._typing.ExprLike]] = (), *, name: str = 'cuda_code') -> Expr:
    """
    CUDA text in place of an expression, for what expressions cannot say; the CPU refuses it. `body` is the body of a function that
    gets `args` under their names (number: float, integer: i64, boolean: bool) and returns a `type` ("number", "integer",
    "boolean"). An argument is a variable or scalar parameter, an array or bit array (which the text indexes), or a pair
    ("name", expression). No barriers, shuffles or writes. Nothing is proven of a text; put known bounds round it:
    never_outside & (always_inside | cuda_code(...)).
    """

def select(condition: girih._typing.ExprLike | None, if_true: girih._typing.ExprLike | None, if_false: girih._typing.ExprLike | None) -> Expr:
    """`if_true` where the condition holds, else `if_false`."""

def min(a: girih._typing.ExprLike, b: girih._typing.ExprLike) -> Expr:
    """The smaller of two expressions."""

def max(a: girih._typing.ExprLike, b: girih._typing.ExprLike) -> Expr:
    """The larger of two expressions."""

def abs(a: girih._typing.ExprLike | None) -> Expr:
    """The magnitude; keeps the type."""

def exp(a: girih._typing.ExprLike | None) -> Expr:
    """e to the power of a number."""

def log(a: girih._typing.ExprLike | None) -> Expr:
    """The natural logarithm."""

def tanh(a: girih._typing.ExprLike | None) -> Expr:
    """The hyperbolic tangent."""

def sqrt(a: girih._typing.ExprLike | None) -> Expr:
    """The square root."""

def rsqrt(a: girih._typing.ExprLike | None) -> Expr:
    """1 / sqrt(a)."""

def sigmoid(a: girih._typing.ExprLike | None) -> Expr:
    """1 / (1 + exp(-a))."""

class Rope:
    """
    Rotary position encoding of Q and K as they are loaded (the cache holds unrotated keys). The angle of pair i at
    position p is p * theta^(-2i / rotary_dim) / scale, adjusted by the Llama-3.1 rule if asked.
    """

    def __init__(self, *, theta: float = 10000.0, scale: float = 1.0, rotary_dim: int = 0, rotary_begin: int = 0, interleave: bool = False, llama31: Rope.Llama31 | None = None) -> None:
        """
        scale: positions are divided by it (linear scaling).
        rotary_dim: leading elements that rotate, even; 0 = all of head_dim_qk.
        rotary_begin: first element that rotates (MLA: 512).
        interleave: pairs (2i, 2i+1) if true, (i, i + rotary_dim/2) if false.
        llama31: a Rope.Llama31, or None.
        """

    class Llama31:
        """The frequency adjustment of Llama 3.1."""

        def __init__(self, *, factor: float = 8.0, low_freq_factor: float = 1.0, high_freq_factor: float = 4.0, old_context_len: float = 8192.0) -> None: ...

        @property
        def factor(self) -> float: ...

        @property
        def low_freq_factor(self) -> float: ...

        @property
        def high_freq_factor(self) -> float: ...

        @property
        def old_context_len(self) -> float: ...

        def __repr__(self) -> str: ...

    @property
    def theta(self) -> float: ...

    @property
    def scale(self) -> float: ...

    @property
    def rotary_dim(self) -> int: ...

    @property
    def rotary_begin(self) -> int: ...

    @property
    def interleave(self) -> bool: ...

    @property
    def llama31(self) -> Rope.Llama31 | None: ...

    def __repr__(self) -> str: ...

class Variant:
    """
    What makes one attention differ from another: hooks as expressions (see Expr), each absent if None. Immutable; see replace().

      query, output    transforms of Q and O: number of x, dim, (query: mean_square), q_head, q_pos, q_idx, q_len, kv_len, request, q_row
      key, value       transforms of K and V: number of x, dim, mean_square, kv_head, kv_pos
      logits           number of score and all positions and heads
      mask             boolean of all positions and heads; true = visible
      sink             number of q_head: a logit that joins the softmax denominator
      softmax          False: the weight of a key is `logits` itself, the output a plain weighted sum, and there is no LSE
      rope             position encoding of Q and K as they are loaded
      name             for logs; does not select the kernel

    All hooks may use parameters (scalar(), array(), bits()) and constants. ValueError names the hook that uses what it may not.
    """

    def __init__(self, *, query: girih._typing.ExprLike | None = None, key: girih._typing.ExprLike | None = None, value: girih._typing.ExprLike | None = None, logits: girih._typing.ExprLike | None = None, mask: girih._typing.ExprLike | None = None, sink: girih._typing.ExprLike | None = None, output: girih._typing.ExprLike | None = None, softmax: bool = True, rope: Rope | None = None, name: str = '') -> None: ...

    def __copy__(self) -> Variant: ...

    def __deepcopy__(self, memo: object) -> Variant: ...

    def replace(self, *, query: girih._typing.ExprLike | None = ..., key: girih._typing.ExprLike | None = ..., value: girih._typing.ExprLike | None = ..., logits: girih._typing.ExprLike | None = ..., mask: girih._typing.ExprLike | None = ..., sink: girih._typing.ExprLike | None = ..., output: girih._typing.ExprLike | None = ..., softmax: bool = ..., rope: Rope | None = ..., name: str = ...) -> Variant:
        """A copy with other parts; None takes a hook out."""

    @property
    def query(self) -> Expr | None:
        """number of x, dim, mean_square, q_head, positions: maps Q, before RoPE"""

    @property
    def key(self) -> Expr | None:
        """number of x, dim, mean_square, kv_head, kv_pos: maps K, before RoPE"""

    @property
    def value(self) -> Expr | None:
        """number of x, dim, mean_square, kv_head, kv_pos: maps V"""

    @property
    def logits(self) -> Expr | None:
        """
        number of score and all positions and heads: what softmax sees, natural units
        """

    @property
    def mask(self) -> Expr | None:
        """boolean of positions and heads: true = visible"""

    @property
    def sink(self) -> Expr | None:
        """number of q_head: a logit that joins the denominator of that head"""

    @property
    def output(self) -> Expr | None:
        """number of x, dim, q_head, positions: maps O"""

    @property
    def softmax(self) -> bool: ...

    @property
    def rope(self) -> Rope | None: ...

    @property
    def name(self) -> str: ...

    @property
    def key_text(self) -> str:
        """
        Canonical text of everything but the name: variants with equal texts share their kernels.
        """

    @property
    def params(self) -> dict[str, tuple[str, str, str]]:
        """
        Its parameters: {name: ("number" | "integer" | "array" | "bits", dtype, "plan" | "run")}.
        """

    def show(self, q_len: int, kv_len: int, *, params: Mapping[str, Any] | None = None, tile: int | tuple[int, int] | None = None, q_head: int = 0, kv_head: int = 0) -> girih._svg.Svg:
        """
        A picture of the mask over one request's queries (down) and keys (right): which tiles the planner proves never visible (they are
        skipped) or always visible (they run without mask code), and which are left to the kernel. Up to 128 x 128 also every key that
        is visible.

        q_len, kv_len: extents; queries are the last q_len positions.
        params: values of parameters; what a missing one decides is drawn as unknown.
        tile: keys and queries a tile, or (queries, keys); None: 64, less for short and more for long extents.
        q_head, kv_head: of which head, where the mask differs by head.

        Returns an Svg: shown by notebooks; save(path) writes it, str() is its text.
        """

    def __repr__(self) -> str: ...

def mask_picture(variant: Variant, q_len: int, kv_len: int, tile_rows: int, tile_keys: int, with_cells: bool, q_head: int, kv_head: int, params: Mapping[str, Any] | None) -> tuple[bytes, bytes | None, list[str], bool]:
    """
    Classes of a mask's tiles (0 never, 1 always, 2 depends), row by row; its cells (0 hidden, 1 visible, 2 unknown) if asked for;
    parameters of the mask that have no value; whether the mask differs by head.
    """

def plan_items(plan: Plan) -> list[dict[str, Any]]:
    """The work items of a plan in the order in which their units do them."""

def plan_lists(plan: Plan) -> list[tuple[str, int, int]]:
    """
    (name, first unit, end of units) of each list that a plan balances by itself: "all", or "small" and "large" tiles.
    """

def source(spec: AttentionSpec, arch: int = 90, *, family: str = '') -> str:
    """
    The CUDA text that is compiled for a spec's kernels on GPUs of a compute capability (90 = 9.0), with its compiler options, as
    `girih source` prints it. No GPU is needed. family: "floor", "mma"; "" = the fastest that takes the spec.
    Raises ValueError for an unknown arch, NotImplementedError where no kernel (of that family) takes the spec.
    """

def array_info(array: girih._typing.ArrayLike, name: str = 'array') -> tuple[tuple[int, ...], str, str]:
    """
    (shape, dtype, device) as girih sees an array; `name` is what errors call it.
    """

class AttentionSpec:
    """
    What is asked: everything that selects and shapes a kernel. Immutable; may be shared by threads.
    """

    def __init__(self, *, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, head_dim_vo: int = 0, head_dim_rope: int = 0, q_dtype: girih._typing.DTypeLike = 'bf16', k_dtype: girih._typing.DTypeLike | None = None, v_dtype: girih._typing.DTypeLike | None = None, o_dtype: girih._typing.DTypeLike | None = None, k_scale: str = 'none', v_scale: str = 'none', v_is_k: bool = False, sm_scale: float = 0.0, lse: str = 'none', partial_state: bool = False, batch_invariant: bool = False, variant: Variant | None = None, k_rope_dtype: girih._typing.DTypeLike | None = None) -> None:
        """
        num_qo_heads: any multiple of num_kv_heads.
        head_dim_qk, head_dim_vo: 1 to 1024; head_dim_vo=0: head_dim_qk.
        head_dim_rope: > 0: Q and K come in two arrays, the second holds the last head_dim_rope dims (MLA).
        q_dtype, o_dtype: f32, f16 or bf16, o_dtype also e4m3 or e5m2. o_dtype=None: q_dtype.
        k_dtype, v_dtype: f32, f16, bf16, e4m3, e5m2, i8, nvfp4 or mxfp4. None: q_dtype, k_dtype.
        k_scale, v_scale: where quantised data has its scales: "tensor", "head", "token_head", "token_group" (one for each 128 dims of
          a token and head), or "block" (4-bit types).
        v_is_k: V is a view of K's first head_dim_vo dims (MLA): the store is read once.
        sm_scale: 0 = 1 / sqrt(head_dim_qk).
        lse: "natural" or "base2": run() also returns the log-sum-exp of each row, f32 [num_tokens, num_qo_heads].
        partial_state: the result is to be merged elsewhere: leaves out the sink and the output transform; needs lse.
        batch_invariant: a row's bits depend on its own request only.
        variant: mask, bias, cap, sink, transforms; None: every key is visible.
        k_rope_dtype: of K's second array. None: k_dtype; or f32, f16 or bf16, without scales, beside any K.

        Raises ValueError for unknown names here; the other rules are checked where the spec is scheduled.
        """

    @property
    def num_qo_heads(self) -> int: ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim_qk(self) -> int: ...

    @property
    def head_dim_vo(self) -> int: ...

    @property
    def head_dim_rope(self) -> int: ...

    @property
    def q_dtype(self) -> str: ...

    @property
    def k_dtype(self) -> str: ...

    @property
    def v_dtype(self) -> str: ...

    @property
    def o_dtype(self) -> str: ...

    @property
    def k_rope_dtype(self) -> str | None:
        """None: k_dtype"""

    @property
    def k_scale(self) -> str: ...

    @property
    def v_scale(self) -> str: ...

    @property
    def v_is_k(self) -> bool: ...

    @property
    def sm_scale(self) -> float: ...

    @property
    def lse(self) -> str: ...

    @property
    def partial_state(self) -> bool: ...

    @property
    def batch_invariant(self) -> bool: ...

    @property
    def variant(self) -> Variant: ...

    def __repr__(self) -> str: ...

class AttentionLimits:
    """
    The largest batch that a schedule serves; plan() refuses what exceeds it. Sizes the workspace. Immutable.
    """

    def __init__(self, *, max_tokens: int, max_requests: int, max_kv_len: int, max_segments: int = 1, max_groups: int = 0, max_param_bytes: int = 1048576, max_qo_len: int = 0, max_items: int = 0) -> None:
        """
        max_tokens: rows of the query array.
        max_requests: requests of a batch.
        max_kv_len: keys of one group in one segment.
        max_segments: segments of a batch.
        max_groups: query groups over all segments; 0 = max_requests * max_segments.
        max_param_bytes: bytes of plan-time parameters.
        max_qo_len: query rows of one request; 0 = max_tokens. Where all are short one kernel is enough.
        max_items: work items of a plan, which size a GPU's copy of it; 0 = what any batch under common masks needs.
        """

    @property
    def max_tokens(self) -> int: ...

    @property
    def max_requests(self) -> int: ...

    @property
    def max_kv_len(self) -> int: ...

    @property
    def max_segments(self) -> int: ...

    @property
    def max_groups(self) -> int: ...

    @property
    def max_param_bytes(self) -> int: ...

    @property
    def max_qo_len(self) -> int: ...

    @property
    def max_items(self) -> int: ...

    def __repr__(self) -> str: ...

class Segment:
    """
    Groups of query rows, each with its run of pages: one level of a batch. Keeps its arrays alive and reads them during
    plan() only. Arrays: int32 or int64 in host memory (NumPy, torch on the CPU), or sequences of ints, which are copied.
    """

    def __init__(self, *, kv_indptr: girih._typing.IndicesLike | None = None, kv_len: girih._typing.IndicesLike | None = None, page_size: int = 16, table_stride: int = 0, num_table_heads: int = 1, qo_indptr: girih._typing.IndicesLike | None = None, kv_pos: girih._typing.IndicesLike | None = None, page_pos: girih._typing.IndicesLike | None = None, kv_rope_pos: girih._typing.IndicesLike | None = None, masked: bool = True) -> None:
        """
        kv_indptr: offsets into kv_indices, [num_groups + 1], or [num_kv_heads, num_groups + 1] where each KV head has pages of its own
          (num_table_heads). Ragged: token offsets.
        kv_len: keys of each group, [num_groups] or [num_kv_heads, num_groups]. Ragged: optional, else the extents of kv_indptr. Table
          entries past ceil(len / page_size) are never read.
        page_size: tokens a page, as the store's; 0 = ragged.
        table_stride: in place of kv_indptr: row r of the page table starts at entry r * table_stride (a block table's columns).
        num_table_heads: 1, or num_kv_heads where each head has its own table rows, ordered [head, group].
        qo_indptr: group g holds query rows [qo_indptr[g], qo_indptr[g+1]); None: the groups are the requests of the batch.
        kv_pos: [num_groups] position of the group's first key; None: after the keys of the preceding segments.
        page_pos: per table entry, position of the page's first key, where pages are not adjacent; also given to run().
        kv_rope_pos: [num_groups] RoPE position of the first key; None: its position.
        masked: False: every key of the segment is visible to every row of its group.

        Raises ValueError for an array on a GPU, of another type or rank. Other rules are checked by plan().
        """

    @staticmethod
    def from_last_page(kv_indptr: girih._typing.IndicesLike, last_page_len: girih._typing.IndicesLike, page_size: int) -> Segment:
        """
        The segment of a page table in FlashInfer's form: kv_indptr [num_groups + 1], last_page_len [num_groups] keys of each last
        page (1 to page_size; 0 allowed without pages). Both are copied. Raises ValueError naming the entry that breaks a rule.
        """

    @property
    def longest(self) -> int:
        """the largest of kv_len; 0 where it was not given"""

    @property
    def page_size(self) -> int: ...

    @property
    def table_stride(self) -> int: ...

    @property
    def num_table_heads(self) -> int: ...

    @property
    def masked(self) -> bool: ...

class AttentionCapability:
    """
    What one family of kernels does. Validation and dispatch read the same table.
    """

    @property
    def device(self) -> str: ...

    @property
    def family(self) -> str: ...

    @property
    def q_dtypes(self) -> list[str]: ...

    @property
    def o_dtypes(self) -> list[str]: ...

    @property
    def kv_dtypes(self) -> list[str]: ...

    @property
    def max_head_dim(self) -> int: ...

    @property
    def features(self) -> list[str]: ...

    def __repr__(self) -> str: ...

def attention_capabilities() -> list[AttentionCapability]:
    """The families of attention kernels and what each does."""

class KvStore:
    """
    Keys and values of one layer: views of arrays, never copies, which are kept alive. An argument of run(): one plan
    serves all layers. Made by paged(), paged_combined(), ragged() or blocks(). Immutable; may be shared by threads.
    """

    @staticmethod
    def paged(k: girih._typing.ArrayLike, v: girih._typing.ArrayLike | None = None, *, layout: str = 'NHD', k_rope: girih._typing.ArrayLike | None = None, k_dtype: girih._typing.DTypeLike | None = None, v_dtype: girih._typing.DTypeLike | None = None, k_scale: float | girih._typing.ArrayLike | None = None, v_scale: float | girih._typing.ArrayLike | None = None, k_global_scale: float = 1.0, v_global_scale: float = 1.0, k_rope_scale: float | girih._typing.ArrayLike | None = None) -> KvStore:
        """
        A paged cache: k and v [num_pages, page_size, heads, dim] (NHD) or [num_pages, heads, page_size, dim] (HND), any strides;
        [num_pages, page_size, dim] counts as one head. The page size is that of the arrays.

        v: None for MLA, where V is a view of K (spec.v_is_k).
        k_rope: K's last dims in an array of their own (spec.head_dim_rope).
        k_dtype, v_dtype: what uint8 data holds: "nvfp4" or "mxfp4" (two elements a byte, the even one in the low nibble), or an 8-bit
          type. v_dtype=None: as k_dtype.
        k_scale, v_scale: scales of quantised data, value = code * scale * global scale. A number or f32 [1]: one for all; f32 [heads];
          one per token and head: f32 of the data's extents without the last, or one for each 128 dims there: with dim / 128 in place of the
          last (dense); 4-bit data: one per block, e4m3 (nvfp4, blocks of 16) or
          uint8 (mxfp4, e8m0, blocks of 32), of the data's extents with the blocks in place of the last. They follow the data's layout.
        k_global_scale, v_global_scale: multiply all scales (nvfp4's tensor scale).
        k_rope_scale: of a quantised k_rope; None: a k_scale of one or of one per head serves both. A k_rope of f32, f16 or bf16 has none,
          whatever k is (spec.k_rope_dtype).

        Raises ValueError naming the argument for shapes, types or devices that do not fit.
        """

    @staticmethod
    def paged_combined(kv: girih._typing.ArrayLike, *, layout: str = 'NHD', dtype: girih._typing.DTypeLike | None = None, k_scale: float | girih._typing.ArrayLike | None = None, v_scale: float | girih._typing.ArrayLike | None = None, k_global_scale: float = 1.0, v_global_scale: float = 1.0) -> KvStore:
        """
        A paged cache in one array [num_pages, 2, page_size, heads, dim] (NHD) or [num_pages, 2, heads, page_size, dim] (HND).

        dtype: what uint8 data holds, as in paged().
        k_scale, v_scale: scales of quantised data, value = code * scale * global scale. A number or f32 [1]: one for all; f32 [heads];
          one per token and head: f32 of the data's extents without the last, or one for each 128 dims there: with dim / 128 in place of the
          last (dense); 4-bit data: one per block, e4m3 (nvfp4, blocks of 16) or
          uint8 (mxfp4, e8m0, blocks of 32), of the data's extents with the blocks in place of the last. They follow the data's layout.
        k_global_scale, v_global_scale: multiply all scales (nvfp4's tensor scale).
        k_rope_scale: of a quantised k_rope; None: a k_scale of one or of one per head serves both. A k_rope of f32, f16 or bf16 has none,
          whatever k is (spec.k_rope_dtype).

        Raises ValueError naming the argument for shapes, types or devices that do not fit.
        """

    @staticmethod
    def ragged(k: girih._typing.ArrayLike, v: girih._typing.ArrayLike | None = None, *, layout: str = 'NHD', k_rope: girih._typing.ArrayLike | None = None, k_dtype: girih._typing.DTypeLike | None = None, v_dtype: girih._typing.DTypeLike | None = None, k_scale: float | girih._typing.ArrayLike | None = None, v_scale: float | girih._typing.ArrayLike | None = None, k_global_scale: float = 1.0, v_global_scale: float = 1.0, k_rope_scale: float | girih._typing.ArrayLike | None = None) -> KvStore:
        """
        Keys and values of all requests one after the other: k and v [num_tokens, heads, dim] (NHD) or
        [heads, num_tokens, dim] (HND), any strides; [num_tokens, dim] counts as one head. Segments over it have page_size=0
        and token offsets in kv_indptr.

        k_dtype, v_dtype: what uint8 data holds: "nvfp4" or "mxfp4" (two elements a byte, the even one in the low nibble), or an 8-bit
          type. v_dtype=None: as k_dtype.
        k_scale, v_scale: scales of quantised data, value = code * scale * global scale. A number or f32 [1]: one for all; f32 [heads];
          one per token and head: f32 of the data's extents without the last, or one for each 128 dims there: with dim / 128 in place of the
          last (dense); 4-bit data: one per block, e4m3 (nvfp4, blocks of 16) or
          uint8 (mxfp4, e8m0, blocks of 32), of the data's extents with the blocks in place of the last. They follow the data's layout.
        k_global_scale, v_global_scale: multiply all scales (nvfp4's tensor scale).
        k_rope_scale: of a quantised k_rope; None: a k_scale of one or of one per head serves both. A k_rope of f32, f16 or bf16 has none,
          whatever k is (spec.k_rope_dtype).

        Raises ValueError naming the argument for shapes, types or devices that do not fit.
        """

    @staticmethod
    def blocks(k: girih._typing.ArrayLike, v: girih._typing.ArrayLike, *, page_size: int, layout: str = 'NHD', k_dtype: girih._typing.DTypeLike | None = None, v_dtype: girih._typing.DTypeLike | None = None, k_scale: float | girih._typing.ArrayLike | None = None, v_scale: float | girih._typing.ArrayLike | None = None, k_global_scale: float = 1.0, v_global_scale: float = 1.0) -> KvStore:
        """
        Ragged k and v [num_tokens, heads, dim] (NHD) or [heads, num_tokens, dim] (HND) seen as pages of `page_size` tokens: page i is tokens
        [i * page_size, ...). What the patterns of block_sparse() and variable_block_sparse() run over. The other arguments: as ragged().
        """

    @staticmethod
    def mla_tokens(tokens: girih._typing.ArrayLike, *, latent_dim: int = 512, rope_dim: int = 64) -> KvStore:
        """
        MLA's fp8 tokens as DeepSeek-V3.2 caches them: 8-bit tokens [num_pages, page_size, B] or [num_pages, page_size, 1, B], B =
        latent_dim + latent_dim / 128 * 4 + rope_dim * 2 (656): e4m3 codes of the latent, a float32 scale for each 128 of them, then
        the RoPE part as bfloat16. For specs of k_dtype="e4m3", k_scale="token_group", k_rope_dtype="bf16", v_is_k=True.

        Raises ValueError naming the argument for shapes, types or strides that do not fit.
        """

    def single_token_pages(self) -> KvStore:
        """
        The same memory as pages of one token, which lists of tokens need: page id = page * page_size + slot.

        Raises ValueError where pages do not adjoin, and for ragged stores.
        """

    @property
    def page_size(self) -> int:
        """tokens a page; 0: ragged"""

    @property
    def num_pages(self) -> int:
        """pages; ragged: tokens"""

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim_k(self) -> int:
        """without k_rope's; 4-bit data: two a byte"""

    @property
    def head_dim_rope(self) -> int:
        """of k_rope; 0 without one"""

    @property
    def head_dim_v(self) -> int:
        """0 without v"""

    @property
    def k_dtype(self) -> str: ...

    @property
    def k_rope_dtype(self) -> str | None:
        """None without k_rope"""

    @property
    def v_dtype(self) -> str: ...

    @property
    def k_scale(self) -> str:
        """
        none, tensor, head, token_head, token_group or block: what AttentionSpec(k_scale=...) says
        """

    @property
    def v_scale(self) -> str: ...

    @property
    def device(self) -> str: ...

    def __repr__(self) -> str: ...

class SegmentData:
    """
    A store with the page table of one segment, for run(): what a Segment of the plan is computed from. Keeps both alive.
    """

    def __init__(self, store: KvStore, kv_indices: girih._typing.IndicesLike | None = None, page_pos: girih._typing.IndicesLike | None = None) -> None:
        """
        kv_indices: int32 page ids, [entries] or a dense table [rows, table_stride], on the store's device; None for a ragged store.
        page_pos: int64 position of each entry's first key, where the segment was planned with page_pos.
        On the CPU also sequences of ints. Arrays are read in place at each run().
        """

    @property
    def store(self) -> KvStore: ...

class BlockSparse:
    """
    A block-sparse pattern as a segment: segment() goes to plan(), data(store) to run(), with store = KvStore.blocks(k, v,
    page_size=pattern.page_size). Plan with kv_len=[num_cols] where the mask asks for positions. Immutable.
    """

    @property
    def page_size(self) -> int:
        """tokens a page: what the store is cut into"""

    @property
    def num_table_heads(self) -> int: ...

    @property
    def qo_indptr(self) -> object: ...

    @property
    def kv_indptr(self) -> object: ...

    @property
    def kv_len(self) -> object: ...

    @property
    def kv_indices(self) -> object: ...

    @property
    def page_pos(self) -> object: ...

    def segment(self) -> Segment:
        """The pattern for plan()."""

    def data(self, store: KvStore) -> SegmentData:
        """
        The pattern over a store, for run(); on CUDA its two arrays are copied there by torch. Keep it for all runs of a pattern.
        """

def block_sparse(num_rows: int, num_cols: int, block_rows: int, block_cols: int, indptr: girih._typing.IndicesLike, indices: girih._typing.IndicesLike, *, num_heads: int = 1) -> BlockSparse:
    """
    A BSR pattern over a [num_rows, num_cols] score matrix with blocks of block_rows x block_cols (the last of each may be cut).

    indptr: [block rows + 1]; indices: attended block columns, ascending within a row. For patterns per KV head: num_heads, indptr
    [num_heads, block rows + 1] with absolute offsets. Host memory.

    Raises ValueError naming the entry that breaks a rule.
    """

class KeyLists:
    """
    A list of tokens for each query row: segment() goes to plan(), data(store) to run(). Immutable.
    """

    @property
    def qo_indptr(self) -> object: ...

    @property
    def kv_indptr(self) -> object: ...

    @property
    def kv_len(self) -> object: ...

    @property
    def kv_indices(self) -> object: ...

    def segment(self) -> Segment:
        """The lists for plan(); not masked."""

    def data(self, store: KvStore) -> SegmentData:
        """
        The lists over a store of pages of one token, for run(); on CUDA their array is copied there by torch.
        """

def key_lists(indices: girih._typing.ArrayLike) -> KeyLists:
    """
    Lists of tokens out of an indexer's table: row i attends to the entries >= 0 of indices[i], in their order; negative ones are
    unused. indices: int32 [rows, top_k], dense, host memory. Where used entries come first and their counts are known, the table
    itself serves: Segment(qo_indptr=range(rows + 1), page_size=1, table_stride=top_k, kv_len=counts, masked=False).

    Raises ValueError for another type, rank or device.
    """

def variable_block_sparse(row_sizes: girih._typing.IndicesLike, col_sizes: girih._typing.IndicesLike, block_mask: girih._typing.ArrayLike, *, num_heads: int = 1) -> BlockSparse:
    """
    Blocks of any sizes.

    row_sizes, col_sizes: [n], or [num_heads, n] where KV heads differ. block_mask: bool or uint8 [num_heads, row blocks, column blocks],
    nonzero = attended. Host memory.

    Raises ValueError naming the entry that breaks a rule.
    """

class Schedule:
    """
    What is chosen once for a spec: kernels, tiles, workspace. Immutable; may be shared by threads.
    """

    @property
    def spec(self) -> AttentionSpec:
        """with defaults filled in"""

    @property
    def limits(self) -> AttentionLimits: ...

    @property
    def key(self) -> str:
        """names the kernel in logs, caches and benchmark rows"""

    @property
    def num_units(self) -> int:
        """CPU workers or CTAs that a plan is balanced over"""

    @property
    def workspace_bytes(self) -> int:
        """for the worst batch within the limits"""

    @property
    def workspace_layout(self) -> list[tuple[str, int, int]]:
        """(name, offset, size) of each region, in bytes"""

    def __repr__(self) -> str: ...

def schedule(spec: AttentionSpec, limits: AttentionLimits, *, context: Context | None = None, device: girih._typing.DeviceLike = 'cpu', num_units: int = 0, num_sms: int = 0, family: str = '') -> Schedule:
    """
    Checks the spec and freezes every choice; on CUDA compiles or loads the kernels. Arguments and errors as Attention's.
    """

class PlanInfo:
    """Facts of a planned batch."""

    @property
    def num_items(self) -> int:
        """work items"""

    @property
    def num_merges(self) -> int:
        """row ranges that are merged from parts"""

    @property
    def workspace_bytes(self) -> int:
        """used of the schedule's"""

    @property
    def blob_bytes(self) -> int:
        """of the work list"""

    @property
    def max_unit_cost(self) -> int:
        """planner's cost units"""

    @property
    def total_cost(self) -> int: ...

    @property
    def max_piece_cost(self) -> int:
        """largest piece that cannot be cut"""

    @property
    def visible_pairs(self) -> int:
        """(row, key) pairs in the kept tiles, per query head"""

    def __repr__(self) -> str: ...

class Plan:
    """
    The work list of one batch. Reuses its memory from step to step. One thread at a time.
    """

    def __init__(self, schedule: Schedule) -> None: ...

    def update(self, qo_indptr: girih._typing.IndicesLike, segments: Segment | Sequence[Segment], *, kv_len: girih._typing.IndicesLike | None = None, q_pos: girih._typing.IndicesLike | None = None, q_rope_pos: girih._typing.IndicesLike | None = None, params: girih._typing.Params | None = None) -> PlanInfo:
        """Plans a batch; arguments and errors as Attention.plan()."""

    def load(self, blob: bytes) -> PlanInfo:
        """
        Takes over the blob() of a plan with an equal schedule, made elsewhere. Every index in it is checked; raises ValueError.
        """

    def blob(self) -> bytes:
        """The work list as bytes."""

    @property
    def info(self) -> PlanInfo: ...

    @property
    def schedule(self) -> Schedule: ...

class DevicePlan:
    """
    A plan on its CUDA device: memory of fixed size and address for any plan of one schedule. Runs with one DevicePlan may
    not overlap; use two for that. It must live as long as CUDA graphs that were captured with it. One thread at a time.
    """

    def __init__(self, context: Context, schedule: Schedule) -> None: ...

    def upload(self, plan: Plan, *, stream: girih._typing.StreamLike | None = None) -> None:
        """
        Copies the plan's batch to the device, ordered by `stream`. `plan` may be updated as soon as this returns.
        """

    def stage(self, plan: Plan) -> None:
        """
        Makes the next replays of a CUDA graph with a captured upload() read this plan.
        """

    @property
    def capacity_bytes(self) -> int:
        """of the device's copy"""

class Attention:
    """
    Attention for one spec: schedules once, plan() each step, run() each layer. Owns the plan, on CUDA its copy on the
    device, and the workspace. One thread at a time (a second is refused); its context too serves one thread at a time.
    """

    def __init__(self, spec: AttentionSpec, limits: AttentionLimits, *, context: Context | None = None, device: girih._typing.DeviceLike = 'cpu', num_units: int = 0, num_sms: int = 0, family: str = '', workspace: girih._typing.ArrayLike | None = None) -> None:
        """
        context: what to run on; None: default_context(device).
        num_units: CPU: what a plan is balanced over; 0 = the context's workers.
        num_sms: CUDA: multiprocessors to use; 0 = all.
        family: CUDA: "floor" or "mma"; "" = the fastest that takes the spec.
        workspace: contiguous memory on the device, at least schedule.workspace_bytes from its first multiple of 64 on; None: on the CPU
          grown by plans, on CUDA allocated by torch at the first run().

        Raises ValueError or NotImplementedError naming the field of the spec or limits that does not fit. On CUDA compiles or loads kernels.
        """

    def plan(self, qo_indptr: girih._typing.IndicesLike, segments: Segment | Sequence[Segment], *, kv_len: girih._typing.IndicesLike | None = None, q_pos: girih._typing.IndicesLike | None = None, q_rope_pos: girih._typing.IndicesLike | None = None, params: girih._typing.Params | None = None, stream: girih._typing.StreamLike | None = None) -> PlanInfo:
        """
        Plans one step's batch; on CUDA also queues its copy to the device. All arrays are host memory (int32, int64 or sequences of ints),
        read before this returns.

        qo_indptr: [num_requests + 1]; request r owns query rows [qo_indptr[r], qo_indptr[r+1]).
        segments: the levels of the batch, each request's keys in order.
        kv_len: [num_requests] logical KV length; None: the keys of the segments that cover the request.
        q_pos: [num_requests] position of the first query row; None: kv_len - q_len (bottom-right).
        q_rope_pos: [num_requests] RoPE position of the first query row; None: q_pos.
        params: {name: number or host array} for the variant's plan-time parameters.
        stream: CUDA: None = torch's current stream where torch works on CUDA, else the default stream.

        Raises ValueError naming the entry that breaks a rule, before the former plan is changed.
        """

    def run(self, q: girih._typing.ArrayLike, kv: SegmentData | KvStore | Sequence[SegmentData | KvStore], *, kv_indices: girih._typing.IndicesLike | None = None, page_pos: girih._typing.IndicesLike | None = None, q_rope: girih._typing.ArrayLike | None = None, out: girih._typing.ArrayLike | None = None, lse: girih._typing.ArrayLike | None = None, o_scale: girih._typing.ArrayLike | None = None, params: girih._typing.Params | None = None, stream: girih._typing.StreamLike | None = None) -> Any:
        """
        Computes the planned batch for one layer. On CUDA queues work on the stream, waits for nothing, and can be captured in a graph
        (after one run outside, which allocates the workspace).

        q: [num_tokens, num_qo_heads, head_dim_qk - head_dim_rope], last dimension dense, of the spec's q_dtype.
        kv: one store or SegmentData per planned segment.
        kv_indices, page_pos: beside a single KvStore, as SegmentData has them.
        q_rope: [num_tokens, num_qo_heads, head_dim_rope] where the spec has it.
        out: [num_tokens, num_qo_heads, head_dim_vo] of o_dtype; lse: f32 [num_tokens, num_qo_heads]. None: made by q's library (torch,
          NumPy). A row that sees no key gets 0 and -inf.
        o_scale: where o_dtype is e4m3 or e5m2: one f32 on q's device, > 0; out holds the codes nearest to value / o_scale, saturated. None: 1.
        params: {name: number or array on the device} for the variant's run-time parameters.
        stream: CUDA: None = the current stream of q's library, else the default stream.

        Returns out, or (out, lse) where spec.lse is not "none". Raises ValueError before anything is written.
        """

    def load(self, blob: bytes, *, stream: girih._typing.StreamLike | None = None) -> PlanInfo:
        """
        Takes over the blob() of an Attention with an equal schedule (another process, another rank) in place of plan().
        """

    def blob(self) -> bytes:
        """The planned work list as bytes, for load() elsewhere."""

    @property
    def schedule(self) -> Schedule: ...

    @property
    def plan_info(self) -> PlanInfo: ...

    @property
    def spec(self) -> AttentionSpec:
        """with defaults filled in"""

    @property
    def limits(self) -> AttentionLimits: ...

    @property
    def context(self) -> Context: ...

    def __repr__(self) -> str: ...

def append_planned(attention: Attention, store: KvStore, k: girih._typing.ArrayLike, v: girih._typing.ArrayLike | None = None, *, kv_indices: girih._typing.IndicesLike | None = None, k_rope: girih._typing.ArrayLike | None = None, segment: int = 0, stream: girih._typing.StreamLike | None = None) -> None:
    """
    Appends for the batch that `attention` has planned, on CUDA: row i of k and v belongs to query token i, and the query tokens of a group
    are the last keys of its list in `segment` (not written where a list is shorter). Reads nothing but device memory, so a captured graph
    appends whatever is planned before a replay. Two tokens may not go to the same place, which is not checked.

    k, k_rope, v: [tokens, heads, dim] f32, f16 or bf16 on the device; kv_indices: the segment's int32 page ids there.

    Raises NotImplementedError on the CPU (use append()), ValueError naming what does not fit.
    """

def merge_state(v_a: girih._typing.ArrayLike, s_a: girih._typing.ArrayLike, v_b: girih._typing.ArrayLike, s_b: girih._typing.ArrayLike, *, base2: bool = False, v_out: girih._typing.ArrayLike | None = None, s_out: girih._typing.ArrayLike | None = None, context: Context | None = None, stream: girih._typing.StreamLike | None = None) -> tuple[Any, Any]:
    """
    Merges two attention states (equations 2 and 3 of arXiv 2501.01005).

    v_a, v_b: [rows, heads, dim] f32, f16 or bf16; s_a, s_b: their log-sum-exps, f32 [rows, heads].
    base2: s is a base-2 log-sum-exp instead of a natural one.
    v_out, s_out: outputs; None: made like v. They may be inputs (on CUDA: be them, or lie apart).
    context: None: the thread's default for the arrays' device. stream: CUDA: None = the arrays' library's current one.

    Returns (v, s): [rows, heads, dim] of v's type and f32 [rows, heads]. Empty states merge to (0, -inf).
    Raises ValueError naming the argument whose shape, type or device does not fit, before anything is written.
    """

def merge_states(v: girih._typing.ArrayLike, s: girih._typing.ArrayLike, *, base2: bool = False, v_out: girih._typing.ArrayLike | None = None, s_out: girih._typing.ArrayLike | None = None, context: Context | None = None, stream: girih._typing.StreamLike | None = None) -> tuple[Any, Any]:
    """
    Merges each row's states; there may be none.

    v: [rows, num_states, heads, dim] f32, f16 or bf16; s: f32 [rows, num_states, heads].
    base2: s is a base-2 log-sum-exp instead of a natural one.
    v_out, s_out: outputs; None: made like v. They may be inputs (on CUDA: be them, or lie apart).
    context: None: the thread's default for the arrays' device. stream: CUDA: None = the arrays' library's current one.

    Returns (v, s): [rows, heads, dim] of v's type and f32 [rows, heads]. Empty states merge to (0, -inf).
    Raises ValueError naming the argument whose shape, type or device does not fit, before anything is written.
    """

def merge_states_varlen(v: girih._typing.ArrayLike, s: girih._typing.ArrayLike, indptr: girih._typing.IndicesLike, *, base2: bool = False, v_out: girih._typing.ArrayLike | None = None, s_out: girih._typing.ArrayLike | None = None, context: Context | None = None, stream: girih._typing.StreamLike | None = None) -> tuple[Any, Any]:
    """
    Row i merges states [indptr[i], indptr[i+1]). Outputs may not overlap inputs here. Cannot be captured in a CUDA graph.

    v: [num_states, heads, dim] f32, f16 or bf16; s: f32 [num_states, heads]; indptr: [rows + 1] in host memory.
    base2: s is a base-2 log-sum-exp instead of a natural one.
    v_out, s_out: outputs; None: made like v. They may be inputs (on CUDA: be them, or lie apart).
    context: None: the thread's default for the arrays' device. stream: CUDA: None = the arrays' library's current one.

    Returns (v, s): [rows, heads, dim] of v's type and f32 [rows, heads]. Empty states merge to (0, -inf).
    Raises ValueError naming the argument whose shape, type or device does not fit, before anything is written.
    """

def append(store: KvStore, k: girih._typing.ArrayLike, v: girih._typing.ArrayLike | None = None, *, k_rope: girih._typing.ArrayLike | None = None, append_indptr: girih._typing.IndicesLike, kv_len: girih._typing.IndicesLike, kv_indices: girih._typing.IndicesLike | None = None, kv_indptr: girih._typing.IndicesLike | None = None, table_stride: int = 0, context: Context | None = None, stream: girih._typing.StreamLike | None = None) -> None:
    """
    Writes new keys and values into the pages of a store, quantising as it goes (the scales per token and head, and of blocks, are
    computed and stored; those per tensor and head are inputs).

    k, k_rope, v: [tokens, heads, dim] f32, f16 or bf16, any strides; more rows than appended are padding.
    append_indptr: [num_requests + 1]; request r's new tokens are rows [append_indptr[r], append_indptr[r+1]).
    kv_len: [num_requests] lengths after the append; the new tokens take the last places.
    kv_indices: int32 page ids, host memory; None for a ragged store.
    kv_indptr: [num_requests + 1] offsets into kv_indices (ragged: token offsets), or table_stride: row r starts at r * table_stride.
    All index arrays are host memory or sequences of ints. Cannot be captured in a CUDA graph: see append_planned().

    Raises ValueError naming the entry that breaks a rule, before anything is written; for a read-only store too.
    """

def append_at(store: KvStore, k: girih._typing.ArrayLike, v: girih._typing.ArrayLike | None = None, *, k_rope: girih._typing.ArrayLike | None = None, slots: girih._typing.ArrayLike | None = None, batch_indices: girih._typing.ArrayLike | None = None, positions: girih._typing.ArrayLike | None = None, kv_indices: girih._typing.ArrayLike | None = None, kv_indptr: girih._typing.ArrayLike | None = None, context: Context | None = None, stream: girih._typing.StreamLike | None = None) -> None:
    """
    append() for tokens whose places are arrays where the store is: on CUDA nothing is read on the host, so that nothing waits and a
    captured graph appends whatever the arrays hold (after one call outside of it). int32 or int64, dense, an entry per row:

    slots: [n] page id * page_size + place in the page (ragged: token of the store); or
    batch_indices, positions: [n] request, and the token's index in its list, with kv_indptr [num_requests + 1] and kv_indices (int32 page
      ids; ragged: none, kv_indptr are token offsets).
    A slot or request below 0: the row goes nowhere. k, k_rope, v: as append(), n rows or more.

    What lies outside of a list or of the store raises ValueError on the CPU, as do two rows for one place; on CUDA the former is not
    written, and the latter must not be.
    """

def copy_pages(store: KvStore, copies: Iterable[tuple[int, int]], *, context: Context | None = None, stream: girih._typing.StreamLike | None = None) -> None:
    """
    Copies whole pages within a store, scales included.

    copies: (source, destination) page ids, or an array [n, 2]; a destination may not take part in another copy.

    Raises ValueError before anything is written.
    """

def append_positions(append_indptr: girih._typing.IndicesLike, kv_len: girih._typing.IndicesLike) -> tuple[Any, Any]:
    """
    For every appended token its request (int32) and its position (int64): two arrays [append_indptr[-1]] in host memory, of torch where
    append_indptr is a tensor, else of NumPy. Arguments as append()'s.
    """

def kv_len_from_last_page(kv_indptr: girih._typing.IndicesLike, last_page_len: girih._typing.IndicesLike, page_size: int) -> Any:
    """
    KV lengths (int64 [num_requests], host memory) of a page table in FlashInfer's form: (pages - 1) * page_size + last_page_len, 0 for a
    request without pages. Of torch where kv_indptr is a tensor, else of NumPy.
    """

def info() -> dict[str, Any]:
    """
    What the library found and chose on this machine, as `girih info --json` prints it: version, cpu, targets, workers, attention
    families, driver and GPUs, NVRTC, kernel policy, cache, packs, environment variables. What is missing has its reason under "missing".
    """

def warmup(context: Context, specs: Sequence[AttentionSpec], progress: Callable[[int, int, str, str, str, float], object] | None = None) -> None:
    """See girih.warmup()."""

class Quantization:
    """
    How an operator quantises its output: the type of codes, what shares a scale, and where scales are.

    A value is code * scale * global_scale. M is the largest finite magnitude of what shares a scale.

        scale     dtype           scales, and their shape for x [rows, dim] (with heads: [rows, heads, ...])
        tensor    e4m3 e5m2 i8    an input: float32 [1]
        token     e4m3 e5m2 i8    M / largest code: float32 [rows]
        block     e4m3 e5m2 i8    M / largest code of 128 elements: float32 [rows, ceil(dim / 128)]
        block     nvfp4           e4m3(M / 6 / global_scale) of 16: float8_e4m3fn [rows, ceil(dim / 16)]
        block     mxfp4           2^(floor(log2(M / global_scale)) - 2) of 32: float8_e8m0fnu [rows, ceil(dim / 32)]
        mx        e4m3 e5m2       2^(floor(log2(M / global_scale)) - 8, or - 15) of 32: float8_e8m0fnu [rows, ceil(dim / 32)]
        tile      e4m3 e5m2 i8    M / largest code of 128 rows x 128: float32 [ceil(rows / 128), ceil(dim / 128)]; quantize() only

    Scales of 8 bits may be given as uint8. 4-bit codes lie two to a byte, the even element in the low nibble: uint8 arrays of
    ceil(dim / 2) a row.
    """

    def __init__(self, dtype: girih._typing.DTypeLike, scale: str, *, scales: object | None = None, global_scale: float = 1.0, swizzled: bool = False) -> None:
        """
        dtype: e4m3, e5m2, i8, nvfp4 or mxfp4.
        scale: tensor, token, block, mx or tile.
        scales: of scale="tensor" the scale; otherwise where computed scales go, or None: the call makes an array and returns it.
        global_scale: finite and > 0; multiplies every scale.
        swizzled: block scales in tiles of 128 rows x 4 blocks, as block-scaled tensor-core instructions read them: byte
        (r // 128 * (C // 4) + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4, C = blocks rounded up to 4.
        """

    @property
    def dtype(self) -> str:
        """"e4m3", ..."""

    @property
    def scale(self) -> str:
        """"token", ..."""

    @property
    def scales(self) -> object:
        """the array given, or None"""

    @property
    def global_scale(self) -> float: ...

    @property
    def swizzled(self) -> bool: ...

    def __repr__(self) -> str: ...

def quantize(x: girih._typing.ArrayLike, quantization: Quantization, out: object | None, context: Context | None, stream: object | None) -> object: ...

def dequantize(x: girih._typing.ArrayLike, codes: object | None, scale: str, scales: object, global_scale: float, swizzled: bool, dim: object | None, dtype: object | None, out: object | None, context: Context | None, stream: object | None) -> object: ...

def packbits(x: girih._typing.ArrayLike, order: str, out: object | None, context: Context | None, stream: object | None) -> object: ...

def segment_packbits(*args: Any) -> Any: ...

def rms_norm(x: girih._typing.ArrayLike, weight: object | None, bias: object | None, residual: object | None, residual_out: object | None, out: object | None, dtype: object | None, quantization: Quantization | None, eps: float, weight_offset: float, context: Context | None, stream: object | None) -> object: ...

def layer_norm(x: girih._typing.ArrayLike, weight: object | None, bias: object | None, residual: object | None, residual_out: object | None, out: object | None, dtype: object | None, quantization: Quantization | None, eps: float, weight_offset: float, context: Context | None, stream: object | None) -> object: ...

def activate(x: girih._typing.ArrayLike, activation: str, up: object | None, interleaved: bool, out: object | None, dtype: object | None, quantization: Quantization | None, alpha: float, limit: float, context: Context | None, stream: object | None) -> object: ...

def rope(*args: Any) -> Any: ...

def rope_frequencies(rotary_dim: int, theta: float, linear: float, ntk: float, llama31: Sequence[float] | None, yarn: Sequence[float] | None, whole_pairs: bool) -> list[float]: ...

def rope_cos_sin(*args: Any) -> Any: ...

def rope_append(store: KvStore, q: object | None, k: girih._typing.ArrayLike, v: object | None, cos_sin: girih._typing.ArrayLike, append_indptr: girih._typing.IndicesLike, kv_len: girih._typing.IndicesLike, kv_indices: object | None, kv_indptr: object | None, table_stride: int, positions: object | None, indptr: object | None, offsets: object | None, rotary_begin: int, interleaved: bool, inplace: bool, q_out: object | None, q_weight: object | None, k_weight: object | None, eps: float, weight_offset: float, q_quantization: Quantization | None, k_nope: object | None, q_nope: object | None, q_nope_out: object | None, context: Context | None, stream: object | None) -> object: ...

def rope_append_planned(plan: object, store: KvStore, q: object | None, k: girih._typing.ArrayLike, v: object | None, cos_sin: girih._typing.ArrayLike, kv_indices: object | None, segment: int, positions: object | None, indptr: object | None, offsets: object | None, rotary_begin: int, interleaved: bool, inplace: bool, q_out: object | None, q_weight: object | None, k_weight: object | None, eps: float, weight_offset: float, q_quantization: Quantization | None, k_nope: object | None, q_nope: object | None, q_nope_out: object | None, context: Context | None, stream: object | None) -> object: ...

def sample(*args: Any) -> Any: ...

def softmax(logits: girih._typing.ArrayLike, temperature: object, out: object | None, context: Context | None, stream: object | None) -> object: ...

def top_p_renorm_probs(probs: girih._typing.ArrayLike, top_p: object, out: object | None, context: Context | None, stream: object | None) -> object: ...

def top_k_renorm_probs(probs: girih._typing.ArrayLike, top_k: object, out: object | None, context: Context | None, stream: object | None) -> object: ...

def top_k_mask_logits(logits: girih._typing.ArrayLike, top_k: object, out: object | None, context: Context | None, stream: object | None) -> object: ...

def top_k(*args: Any) -> Any: ...

def chain_speculative_sample(*args: Any) -> Any: ...
