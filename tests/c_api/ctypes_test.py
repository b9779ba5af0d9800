"""The C ABI from Python's ctypes with nothing but the standard library: every declared function is exported; a paged decode and a sampled
token agree with plain loops; errors have status and text. Prints nothing unless something is wrong.
Arguments: the shared library, the folder of the C headers."""

import ctypes as c
import math
import pathlib
import random
import re
import sys

OK, INVALID_ARGUMENT, UNSUPPORTED, OUT_OF_MEMORY = 0, 1, 2, 3
F32, I32 = 0, 8
LE, SUB, LT, AND, Q_POS, KV_POS = 8, 1, 7, 13, 1, 2

i32, i64, u64, f32, f64, ptr, text = c.c_int32, c.c_int64, c.c_uint64, c.c_float, c.c_double, c.c_void_p, c.c_char_p


def struct(name, *fields):
    return type(name, (c.Structure,), {"_fields_": list(fields)})


Device = struct("Device", ("kind", i32), ("index", i32))
Tensor = struct("Tensor", ("data", ptr), ("dtype", i32), ("rank", i32), ("device", Device), ("shape", i64 * 6), ("strides", i64 * 6))
Indices = struct("Indices", ("data", ptr), ("size", i64), ("bits", i32), ("reserved", i32))
Hooks = "query key value logits mask sink output".split()
VariantOptions = struct("VariantOptions", ("struct_size", u64), ("name", text), *((hook, ptr) for hook in Hooks), ("rope", ptr),
                        ("softmax", i32), ("reserved", i32))
Spec = struct("Spec", ("struct_size", u64), *((name, i32) for name in (
    "num_qo_heads num_kv_heads head_dim_qk head_dim_vo head_dim_rope q_dtype k_dtype v_dtype o_dtype k_scale v_scale v_is_k").split()),
    ("sm_scale", f64), ("lse", i32), ("partial_state", i32), ("batch_invariant", i32), ("k_rope_dtype_plus_one", i32),
    ("variant", ptr))
Limits = struct("Limits", ("struct_size", u64), *((name, i64) for name in (
    "max_tokens max_requests max_segments max_groups max_kv_len max_param_bytes max_qo_len max_items").split()))
ScheduleInfo = struct("ScheduleInfo", ("struct_size", u64), ("key", text), ("workspace_bytes", i64), ("num_regions", i64),
                      ("num_units", i32), ("reserved", i32))
Scales = struct("Scales", ("data", ptr), ("page", i64), ("token", i64), ("head", i64), ("granularity", i32), ("global_scale", f32))
Plane = struct("Plane", ("data", ptr), ("page", i64), ("token", i64), ("head", i64), ("dim", i64), ("scales", Scales), ("dtype", i32),
               ("reserved", i32))
Store = struct("Store", ("page_size", i64), ("num_pages", i64), ("k", Plane), ("k_rope", Plane), ("v", Plane))
Segment = struct("Segment", ("struct_size", u64), ("qo_indptr", Indices), ("page_size", i64), ("kv_indptr", Indices),
                 ("table_stride", i64), ("kv_len", Indices), ("kv_pos", Indices), ("page_pos", Indices), ("kv_rope_pos", Indices),
                 ("num_table_heads", i32), ("masked", i32))
Batch = struct("Batch", ("struct_size", u64), ("qo_indptr", Indices), ("segments", ptr), ("num_segments", i64), ("kv_len", Indices),
               ("q_pos", Indices), ("q_rope_pos", Indices), ("params", ptr), ("num_params", i64))
SegmentData = struct("SegmentData", ("struct_size", u64), ("store", Store), ("kv_indices", ptr), ("num_kv_indices", i64),
                     ("page_pos", ptr), ("num_page_pos", i64))
Args = struct("Args", ("struct_size", u64), ("q", Tensor), ("q_rope", Tensor), ("segments", ptr), ("num_segments", i64), ("params", ptr),
              ("num_params", i64), ("o", Tensor), ("lse", Tensor), ("workspace", ptr), ("workspace_bytes", i64), ("stream", ptr),
              ("device_plan", ptr), ("o_scale", Tensor))
RowFloat = struct("RowFloat", ("rows", Tensor), ("value", f32), ("reserved", i32))
RowInt = struct("RowInt", ("rows", Tensor), ("value", i64))
Lists = struct("Lists", ("indptr", Tensor), ("tokens", Tensor))
SampleArgs = struct("SampleArgs", ("struct_size", u64), ("input", Tensor), ("indices", Tensor), ("bias_tokens", Lists), ("bias", Tensor),
                    ("history", Lists), ("history_counts", Tensor), ("repetition_penalty", RowFloat), ("frequency_penalty", RowFloat),
                    ("presence_penalty", RowFloat), ("allowed", Tensor), ("temperature", RowFloat), ("top_k", RowInt),
                    ("top_p", RowFloat), ("min_p", RowFloat), ("seed", RowInt), ("offset", RowInt), ("tokens", Tensor),
                    ("valid", Tensor), ("logprobs", Tensor), ("top_tokens", Tensor), ("top_logprobs", Tensor), ("kind", i32),
                    ("order", i32), ("logprob_kind", i32), ("reserved", i32), ("stream", ptr))
WarmupFn = c.CFUNCTYPE(i32, ptr, ptr)


class Library:
    """Functions by their names without girih_; a status that is not OK raises."""

    def __init__(self, path, headers):
        self.dll = c.CDLL(path)
        declarations = "".join(header.read_text() for header in sorted(headers.glob("*.h")))
        declarations = re.sub(r"//[^\n]*", "", declarations)
        self.returns = dict((name, kind) for kind, name in re.findall(r"GIRIH_API\s+([\w ]+[ *]+?)\s*(girih_\w+)\(", declarations))
        self.on_contexts = set(re.findall(r"(girih_\w+)\(\s*const girih_context\s*\*", declarations))
        missing = [name for name in self.returns if not hasattr(self.dll, name)]
        assert len(self.returns) > 100 and not missing, f"{len(self.returns)} functions are declared; not exported: {missing}"
        for name, kind in self.returns.items():
            function = getattr(self.dll, name)
            function.restype = {"girih_status": i32, "const char*": text, "const char *": text, "void": None}.get(kind.strip(), ptr)

    def __getattr__(self, name):
        function = getattr(self.dll, "girih_" + name)
        if self.returns["girih_" + name].strip() != "girih_status":
            return function

        def call(*args):
            status = function(*args)
            if status != OK:
                raise RuntimeError(status, self.last_error().decode())

        return call


def must_fail(status, part, function, *args):
    try:
        function(*args)
    except RuntimeError as error:
        assert error.args[0] == status and part in error.args[1], f"wanted {status} with {part!r}; got {error.args}"
        return
    raise AssertionError(f"nothing failed; wanted {part!r}")


def nothing_everywhere(lib, context):
    """Every function with NULL and 0 for all that it takes, and for all but a context: a status with a text or a result, never a crash."""
    assert len(lib.on_contexts) > 20
    for name, kind in lib.returns.items():
        for first in ([], [context]) if name in lib.on_contexts else ([],):
            result = getattr(lib.dll, name)(*first, *[ptr()] * 16)
            if kind.strip() == "girih_status" and result != OK:
                message = lib.last_error().decode()
                assert INVALID_ARGUMENT <= result <= OUT_OF_MEMORY and ": " in message, f"{name} gave {result}: {message}"


def started(lib, kind, name):
    value = kind()
    getattr(lib, name + "_init")(c.byref(value), u64(c.sizeof(value)))
    assert value.struct_size == c.sizeof(value)
    return value


def dense(lib, data, dtype, *shape):
    tensor = Tensor()
    lib.tensor_dense(c.byref(tensor), data, i32(dtype), Device(0, 0), i32(len(shape)), (i64 * len(shape))(*shape))
    return tensor


def indices(values):
    array = (i32 * len(values))(*values)
    result = Indices(c.cast(array, ptr), len(values), 32, 0)
    result.keep = array
    return result


def window(lib, size):
    """The last `size` keys up to the query itself."""
    builder, variant = ptr(), ptr()
    lib.expr_builder_create(c.byref(builder))
    variable = lambda v: ptr(lib.expr_variable(builder, i32(v)))
    binary = lambda op, a, b: ptr(lib.expr_binary(builder, i32(op), a, b))
    distance = binary(SUB, variable(Q_POS), variable(KV_POS))
    options = started(lib, VariantOptions, "variant_options")
    options.mask = binary(AND, binary(LE, variable(KV_POS), variable(Q_POS)),
                          binary(LT, distance, ptr(lib.expr_integer(builder, i64(size))))).value
    lib.variant_create(builder, c.byref(options), c.byref(variant))
    lib.expr_builder_destroy(builder)
    return variant


def paged_decode(lib, context):
    heads, kv_heads, dim, page, pages, size = 4, 2, 16, 4, 7, 6
    lens, table, kv_indptr = [9, 14], [6, 2, 0, 5, 1, 3, 4], [0, 3, 7]
    draw = random.Random(1)
    numbers = lambda n: (f32 * n)(*(draw.uniform(-1, 1) for _ in range(n)))
    k, v = numbers(pages * page * kv_heads * dim), numbers(pages * page * kv_heads * dim)
    q, o = numbers(2 * heads * dim), (f32 * (2 * heads * dim))()

    variant = window(lib, size)
    spec = started(lib, Spec, "attention_spec")
    spec.num_qo_heads, spec.num_kv_heads, spec.head_dim_qk = heads, kv_heads, dim
    spec.q_dtype = spec.k_dtype = spec.v_dtype = spec.o_dtype = F32
    spec.variant = variant.value
    limits = started(lib, Limits, "attention_limits")
    limits.max_tokens, limits.max_requests, limits.max_kv_len = 8, 8, 64
    schedule, plan = ptr(), ptr()
    lib.schedule_create(context, c.byref(spec), c.byref(limits), None, c.byref(schedule))
    info = started(lib, ScheduleInfo, "schedule_info")
    lib.schedule_get_info(schedule, c.byref(info))
    lib.plan_create(schedule, c.byref(plan))

    segment = started(lib, Segment, "kv_segment")
    offsets, lengths, rows = indices(kv_indptr), indices(lens), indices([0, 1, 2])
    segment.page_size, segment.kv_indptr, segment.kv_len = page, offsets, lengths
    batch = started(lib, Batch, "batch")
    batch.qo_indptr, batch.segments, batch.num_segments = rows, c.addressof(segment), 1
    lib.plan_update(plan, c.byref(batch), None)

    data = started(lib, SegmentData, "segment_data")
    k_pages, v_pages = dense(lib, k, F32, pages, page, kv_heads, dim), dense(lib, v, F32, pages, page, kv_heads, dim)
    lib.paged_kv_store(c.byref(k_pages), c.byref(v_pages), i32(0), c.byref(data.store))
    ids = (i32 * len(table))(*table)
    data.kv_indices, data.num_kv_indices = c.addressof(ids), len(table)
    memory = c.create_string_buffer(info.workspace_bytes + 64)
    args = started(lib, Args, "attention_args")
    args.q, args.o = dense(lib, q, F32, 2, heads, dim), dense(lib, o, F32, 2, heads, dim)
    args.segments, args.num_segments = c.addressof(data), 1
    args.workspace, args.workspace_bytes = (c.addressof(memory) + 63) // 64 * 64, info.workspace_bytes
    lib.run(context, schedule, plan, c.byref(args))

    for r, length in enumerate(lens):
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            places = [((table[kv_indptr[r] + j // page] * page + j % page) * kv_heads + kv_head) * dim
                      for j in range(max(0, length - size), length)]
            row = (r * heads + head) * dim
            weights = [math.exp(sum(q[row + d] * k[at + d] for d in range(dim)) / math.sqrt(dim)) for at in places]
            for d in range(dim):
                wanted = sum(w * v[at + d] for w, at in zip(weights, places)) / sum(weights)
                assert abs(o[row + d] - wanted) < 2e-6, f"o[{r}, {head}, {d}]={o[row + d]}; wanted {wanted}"

    args.workspace_bytes = 0
    must_fail(OUT_OF_MEMORY, "attention.run: workspace has 0 bytes", lib.run, context, schedule, plan, c.byref(args))
    ids[2] = 99
    args.workspace_bytes = info.workspace_bytes
    must_fail(INVALID_ARGUMENT, "kv_indices[2]=99", lib.run, context, schedule, plan, c.byref(args))
    must_fail(INVALID_ARGUMENT, "schedule is not a girih_schedule", lib.run, context, plan, plan, c.byref(args))
    for name, handle in (("plan", plan), ("schedule", schedule), ("variant", variant)):
        getattr(lib, name + "_destroy")(handle)


def sample(lib, context):
    logits = (f32 * 8)(0, 1, 5, 2, 9, 3, 3, 3)
    tokens, logprobs = (i32 * 2)(), (f32 * 2)()
    args = started(lib, SampleArgs, "sample_args")
    args.input, args.tokens, args.logprobs = dense(lib, logits, F32, 2, 4), dense(lib, tokens, I32, 2), dense(lib, logprobs, F32, 2)
    args.top_p.value = 1e-6
    lib.sample(context, c.byref(args))
    assert list(tokens) == [2, 0], list(tokens)
    for row in range(2):
        wanted = max(logits[4 * row:4 * row + 4]) - math.log(sum(math.exp(x) for x in logits[4 * row:4 * row + 4]))
        assert abs(logprobs[row] - wanted) < 1e-6


def errors(lib, context):
    context_info = (u64 * 3)(24, 0, 0)
    lib.context_get_info(context, context_info)
    must_fail(INVALID_ARGUMENT, "context is NULL", lib.context_get_info, None, context_info)
    must_fail(INVALID_ARGUMENT, "struct_size=0", lib.context_get_info, context, (u64 * 3)())
    spec = started(lib, Spec, "attention_spec")
    spec.q_dtype = 5
    limits = started(lib, Limits, "attention_limits")
    limits.max_tokens = limits.max_requests = limits.max_kv_len = 1
    schedule = ptr()
    must_fail(UNSUPPORTED, "spec.q_dtype=i8", lib.schedule_create, context, c.byref(spec), c.byref(limits), None, c.byref(schedule))
    assert not schedule
    must_fail(6, "asked to stop", lib.warmup, context, c.byref(spec), i64(1), WarmupFn(lambda user, progress: 1), None)


def main():
    lib = Library(sys.argv[1], pathlib.Path(sys.argv[2]))
    assert lib.last_error() == b""
    context = ptr()
    lib.context_create(None, c.byref(context))
    paged_decode(lib, context)
    sample(lib, context)
    errors(lib, context)
    nothing_everywhere(lib, context)
    lib.context_destroy(context)


main()
