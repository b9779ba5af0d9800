// What the C ABI does with bad input: statuses, texts, NULL and foreign handles, sizes of structs, callbacks that stop.
#include "check.h"

static girih_attention_spec spec_of(girih_dtype dtype) {
  girih_attention_spec spec;
  OK(girih_attention_spec_init(&spec, sizeof spec));
  spec.head_dim_qk = 16;
  spec.q_dtype = spec.o_dtype = dtype;
  spec.k_dtype = spec.v_dtype = GIRIH_F32;
  return spec;
}

static girih_attention_limits limits_of(int64_t tokens) {
  girih_attention_limits limits;
  OK(girih_attention_limits_init(&limits, sizeof limits));
  limits.max_tokens = tokens;
  limits.max_requests = 1;
  limits.max_kv_len = 4096;
  return limits;
}

static void names(void) {
  CHECK(strcmp(girih_status_name(GIRIH_OK), "ok") == 0);
  CHECK(strcmp(girih_status_name(GIRIH_INVALID_ARGUMENT), "invalid_argument") == 0);
  CHECK(strcmp(girih_status_name(GIRIH_UNSUPPORTED), "unsupported") == 0);
  CHECK(strcmp(girih_status_name(GIRIH_OUT_OF_MEMORY), "out_of_memory") == 0);
  CHECK(strcmp(girih_status_name(GIRIH_IO), "io") == 0);
  CHECK(strcmp(girih_status_name(GIRIH_INTERNAL), "internal") == 0);
  CHECK(strcmp(girih_status_name(GIRIH_CANCELLED), "cancelled") == 0);
  CHECK(strcmp(girih_status_name(99), "unknown status") == 0);
  int32_t major = -1, minor = -1, patch = -1;
  girih_version_numbers(&major, &minor, &patch);
  girih_version_numbers(NULL, NULL, NULL);
  char text[64];
  snprintf(text, sizeof text, "%d.%d.%d", (int)major, (int)minor, (int)patch);
  CHECK(strcmp(text, girih_version()) == 0);
  for (girih_dtype dtype = GIRIH_F32; dtype <= GIRIH_U8; ++dtype) {
    girih_dtype back = -1;
    OK(girih_dtype_from_name(girih_dtype_name(dtype), &back));
    CHECK(back == dtype);
  }
  CHECK(strcmp(girih_dtype_name(11), "invalid dtype") == 0 && strcmp(girih_dtype_name(-1), "invalid dtype") == 0);
  int32_t bits = 0;
  OK(girih_dtype_bits(GIRIH_MXFP4, &bits));
  CHECK(bits == 4);
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_dtype_bits: dtype=11 is unknown; must be in 0..10", girih_dtype_bits(11, &bits));
  FAILS(GIRIH_INVALID_ARGUMENT, "out is NULL", girih_dtype_bits(GIRIH_F32, NULL));
  CHECK(strcmp(girih_cpu_target_name(GIRIH_CPU_AVX3), "avx3") == 0 && strcmp(girih_cpu_target_name(6), "invalid target") == 0);
}

static void sizes_of_structs(girih_context* context) {
  girih_attention_spec spec = spec_of(GIRIH_F32);
  CHECK(spec.struct_size == sizeof spec && spec.num_qo_heads == 1 && spec.sm_scale == 0 && spec.variant == NULL);
  const girih_attention_limits limits = limits_of(1);
  CHECK(limits.max_segments == 1 && limits.max_param_bytes == 1 << 20);
  girih_schedule* schedule = (girih_schedule*)context;
  spec.struct_size = 0;
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_schedule_create: spec.struct_size=0; must be sizeof(girih_attention_spec), at least 88",
        girih_schedule_create(context, &spec, &limits, NULL, &schedule));
  CHECK(schedule == NULL);
  spec.struct_size = sizeof spec - 1;
  FAILS(GIRIH_INVALID_ARGUMENT, "spec.struct_size=87", girih_schedule_create(context, &spec, &limits, NULL, &schedule));
  spec.struct_size = (uint64_t)1 << 40;
  FAILS(GIRIH_INVALID_ARGUMENT, "spec.struct_size=1099511627776", girih_schedule_create(context, &spec, &limits, NULL, &schedule));

  // Of a later version: taken where what this one does not know is zero.
  struct {
    girih_attention_spec known;
    int64_t later[2];
  } larger;
  memset(&larger, 0, sizeof larger);
  larger.known = spec_of(GIRIH_F32);
  larger.known.struct_size = sizeof larger;
  OK(girih_schedule_create(context, &larger.known, &limits, NULL, &schedule));
  girih_attention_spec* filled = &larger.known;
  larger.later[1] = 7;
  filled->struct_size = sizeof larger;
  OK(girih_schedule_get_spec(schedule, filled));
  CHECK(larger.later[1] == 0 && filled->struct_size == sizeof larger && filled->head_dim_vo == 16);
  girih_schedule_destroy(schedule);
  larger.later[1] = 7;
  larger.known.variant = NULL;
  FAILS(GIRIH_INVALID_ARGUMENT, "sets fields of a later version of girih_attention_spec",
        girih_schedule_create(context, &larger.known, &limits, NULL, &schedule));

  FAILS(GIRIH_INVALID_ARGUMENT, "girih_attention_spec_init: out is NULL", girih_attention_spec_init(NULL, sizeof spec));
  FAILS(GIRIH_INVALID_ARGUMENT, "struct_size=8;", girih_attention_spec_init(&spec, 8));
  girih_context_info info;
  info.struct_size = 4;
  FAILS(GIRIH_INVALID_ARGUMENT, "info.struct_size=4; must be sizeof(girih_context_info), at least 24",
        girih_context_get_info(context, &info));
  FAILS(GIRIH_INVALID_ARGUMENT, "info is NULL; must point to a girih_context_info", girih_context_get_info(context, NULL));

  // Elements of an array have one size.
  girih_attention_spec two[2] = {spec_of(GIRIH_F32), spec_of(GIRIH_F32)};
  OK(girih_warmup(context, two, 2, NULL, NULL));
  two[1].struct_size += 8;
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_warmup: specs[1].struct_size=96 differs from the first element's 88",
        girih_warmup(context, two, 2, NULL, NULL));
  FAILS(GIRIH_INVALID_ARGUMENT, "specs is NULL with 1 entries", girih_warmup(context, NULL, 1, NULL, NULL));
  FAILS(GIRIH_INVALID_ARGUMENT, "specs has -1 entries", girih_warmup(context, two, -1, NULL, NULL));
}

static void handles(girih_context* context) {
  const girih_attention_spec spec = spec_of(GIRIH_F32);
  const girih_attention_limits limits = limits_of(1);
  girih_schedule* schedule = NULL;
  girih_plan* plan = NULL;
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_schedule_create: context is NULL; must be a girih_context",
        girih_schedule_create(NULL, &spec, &limits, NULL, &schedule));
  FAILS(GIRIH_INVALID_ARGUMENT, "spec is NULL; must point to a girih_attention_spec",
        girih_schedule_create(context, NULL, &limits, NULL, &schedule));
  FAILS(GIRIH_INVALID_ARGUMENT, "limits is NULL", girih_schedule_create(context, &spec, NULL, NULL, &schedule));
  FAILS(GIRIH_INVALID_ARGUMENT, "out is NULL", girih_schedule_create(context, &spec, &limits, NULL, NULL));
  OK(girih_schedule_create(context, &spec, &limits, NULL, &schedule));
  FAILS(GIRIH_INVALID_ARGUMENT, "schedule is not a girih_schedule, or it has been destroyed",
        girih_plan_create((const girih_schedule*)context, &plan));
  girih_plan_destroy((girih_plan*)schedule);  // no plan: left alone
  CHECK(strstr(girih_last_error(), "girih_plan_destroy: handle is not a girih_plan") != NULL);
  OK(girih_plan_create(schedule, &plan));
  girih_attention_args args;
  OK(girih_attention_args_init(&args, sizeof args));
  FAILS(GIRIH_INVALID_ARGUMENT, "plan holds no batch yet", girih_run(context, schedule, plan, &args));
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_run: plan is NULL", girih_run(context, schedule, NULL, &args));
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_run: args is NULL", girih_run(context, schedule, plan, NULL));
  const void* blob = plan;
  int64_t bytes = -1;
  OK(girih_plan_get_blob(plan, &blob, &bytes));
  CHECK(blob == NULL && bytes == 0);
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_plan_load: blob is NULL with 9 entries", girih_plan_load(plan, NULL, 9, NULL));
  CHECK(girih_plan_load(plan, "nonsense", 8, NULL) != GIRIH_OK);
  girih_device_plan* on_device = NULL;
  FAILS(GIRIH_INVALID_ARGUMENT, "must be one CUDA device", girih_device_plan_create(context, schedule, &on_device));
  FAILS(GIRIH_INVALID_ARGUMENT, "device_plan is NULL", girih_device_plan_upload(NULL, plan, NULL));
  FAILS(GIRIH_INVALID_ARGUMENT, "device_plan is NULL", girih_device_plan_stage(NULL, plan));
  FAILS(GIRIH_INVALID_ARGUMENT, "device_plan is NULL", girih_device_plan_get_capacity_bytes(NULL, &bytes));
  FAILS(GIRIH_INVALID_ARGUMENT, "device_plan is NULL", girih_append_planned(context, NULL, NULL, NULL, 0, NULL, NULL, NULL, 0, NULL));
  FAILS(GIRIH_INVALID_ARGUMENT, "device_plan is NULL", girih_rope_append_planned(context, NULL, NULL, NULL, 0, NULL, 0, NULL));
  girih_workspace_region region;
  FAILS(GIRIH_INVALID_ARGUMENT, "index=-1", girih_schedule_get_region(schedule, -1, &region));
  girih_plan_destroy(plan);
  girih_schedule_destroy(schedule);
  girih_context_destroy(NULL);
  girih_expr_builder_destroy(NULL);
  girih_variant_destroy(NULL);
  girih_schedule_destroy(NULL);
  girih_plan_destroy(NULL);
  girih_device_plan_destroy(NULL);
  girih_block_sparse_destroy(NULL);
  girih_capabilities_destroy(NULL);
}

// The library's own rules reach C with their texts; a plan that fails stays as it was.
static void plans_and_runs(girih_context* context) {
  enum { kKeys = 4000 };
  static float k[kKeys * 16], v[kKeys * 16];
  float q[16] = {0}, o[16] = {0};
  girih_schedule* schedule = NULL;
  girih_attention_spec spec = spec_of(GIRIH_I8);
  girih_attention_limits limits = limits_of(1);
  FAILS(GIRIH_UNSUPPORTED, "spec.q_dtype=i8 is not supported", girih_schedule_create(context, &spec, &limits, NULL, &schedule));
  spec = spec_of(77);
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_schedule_create: spec.q_dtype=77 is unknown",
        girih_schedule_create(context, &spec, &limits, NULL, &schedule));
  spec = spec_of(GIRIH_F32);
  spec.v_is_k = 2;
  FAILS(GIRIH_INVALID_ARGUMENT, "spec.v_is_k=2; must be 0 or 1", girih_schedule_create(context, &spec, &limits, NULL, &schedule));
  spec = spec_of(GIRIH_F32);
  spec.k_rope_dtype_plus_one = 12;
  FAILS(GIRIH_INVALID_ARGUMENT, "spec.k_rope_dtype_plus_one=12 is unknown",
        girih_schedule_create(context, &spec, &limits, NULL, &schedule));
  spec = spec_of(GIRIH_F32);
  girih_schedule_options options;
  OK(girih_schedule_options_init(&options, sizeof options));
  options.num_units = 8;
  options.family = "mma";
  FAILS(GIRIH_INVALID_ARGUMENT, "options.family=\"mma\"", girih_schedule_create(context, &spec, &limits, &options, &schedule));
  options.family = NULL;
  OK(girih_schedule_create(context, &spec, &limits, &options, &schedule));

  const int32_t qo_indptr[] = {0, 1}, backwards[] = {kKeys, 0}, kv_indptr[] = {0, kKeys};
  girih_kv_segment segment;
  OK(girih_kv_segment_init(&segment, sizeof segment));
  segment.page_size = GIRIH_ENDLESS_PAGE;
  segment.kv_indptr = indices32(kv_indptr, 2);
  girih_batch batch;
  OK(girih_batch_init(&batch, sizeof batch));
  batch.qo_indptr = indices32(qo_indptr, 2);
  batch.segments = &segment;
  batch.num_segments = 1;
  girih_plan* plan = NULL;
  OK(girih_plan_create(schedule, &plan));
  girih_plan_info info, later;
  OK(girih_plan_info_init(&info, sizeof info));
  OK(girih_plan_info_init(&later, sizeof later));
  OK(girih_plan_update(plan, &batch, &info));
  segment.kv_indptr = indices32(backwards, 2);
  FAILS(GIRIH_INVALID_ARGUMENT, "kv_indptr", girih_plan_update(plan, &batch, NULL));
  segment.kv_indptr.bits = 16;
  FAILS(GIRIH_INVALID_ARGUMENT, "batch.segments[0].kv_indptr.bits=16; must be 32 or 64", girih_plan_update(plan, &batch, NULL));
  segment.kv_indptr = indices32(NULL, 2);
  FAILS(GIRIH_INVALID_ARGUMENT, "batch.segments[0].kv_indptr is NULL with 2 entries", girih_plan_update(plan, &batch, NULL));
  segment.kv_indptr = indices32(kv_indptr, 2);
  later.struct_size = 1;
  FAILS(GIRIH_INVALID_ARGUMENT, "info.struct_size=1", girih_plan_update(plan, &batch, &later));
  batch.num_params = 33;
  batch.params = (const girih_param_value*)k;
  FAILS(GIRIH_INVALID_ARGUMENT, "batch.params has 33 entries; a variant has at most 32", girih_plan_update(plan, &batch, NULL));
  later.struct_size = sizeof later;
  OK(girih_plan_get_info(plan, &later));
  CHECK(memcmp(&info, &later, sizeof info) == 0);

  const girih_tensor k_all = dense(k, GIRIH_F32, 3, kKeys, 1, 16, 0), v_all = dense(v, GIRIH_F32, 3, kKeys, 1, 16, 0);
  girih_segment_data data;
  OK(girih_segment_data_init(&data, sizeof data));
  OK(girih_ragged_kv_store(&k_all, &v_all, GIRIH_NHD, &data.store));
  girih_attention_args args;
  OK(girih_attention_args_init(&args, sizeof args));
  args.q = dense(q, GIRIH_F32, 3, 1, 1, 16, 0);
  args.o = dense(o, GIRIH_F32, 3, 1, 1, 16, 0);
  args.segments = &data;
  args.num_segments = 1;
  FAILS(GIRIH_OUT_OF_MEMORY, "attention.run: workspace has 0 bytes", girih_run(context, schedule, plan, &args));
  args.q.dtype = -1;
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_run: args.q.dtype=-1 is unknown", girih_run(context, schedule, plan, &args));
  args.q.dtype = GIRIH_F32;
  args.q.rank = 7;
  FAILS(GIRIH_INVALID_ARGUMENT, "args.q.rank=7; must be in 0..6", girih_run(context, schedule, plan, &args));
  args.q.rank = 3;
  args.q.shape[1] = -2;
  FAILS(GIRIH_INVALID_ARGUMENT, "args.q.shape[1]=-2", girih_run(context, schedule, plan, &args));
  args.q.shape[0] = args.q.shape[1] = INT64_MAX;
  FAILS(GIRIH_INVALID_ARGUMENT, "exceeds 64 bits", girih_run(context, schedule, plan, &args));
  args.q = dense(q, GIRIH_F32, 3, 1, 1, 16, 0);
  args.q.device.kind = 2;
  FAILS(GIRIH_INVALID_ARGUMENT, "args.q.device.kind=2 is unknown", girih_run(context, schedule, plan, &args));
  args.q.device.kind = GIRIH_CUDA;
  FAILS(GIRIH_INVALID_ARGUMENT, "q is not in CPU memory", girih_run(context, schedule, plan, &args));
  args.q.device.kind = GIRIH_CPU;
  data.store.k.dtype = 12;
  FAILS(GIRIH_INVALID_ARGUMENT, "args.segments[0].store.k.dtype=12 is unknown", girih_run(context, schedule, plan, &args));
  data.store.k.dtype = GIRIH_F32;
  data.store.v.scales.granularity = 6;
  FAILS(GIRIH_INVALID_ARGUMENT, "args.segments[0].store.v.scales.granularity=6", girih_run(context, schedule, plan, &args));
  data.store.v.scales.granularity = GIRIH_SCALE_NONE;
  data.num_kv_indices = 3;
  FAILS(GIRIH_INVALID_ARGUMENT, "args.segments[0].kv_indices is NULL with 3 entries", girih_run(context, schedule, plan, &args));
  FAILS(GIRIH_INVALID_ARGUMENT, "layout=2", girih_ragged_kv_store(&k_all, &v_all, 2, &data.store));
  FAILS(GIRIH_INVALID_ARGUMENT, "out is NULL", girih_ragged_kv_store(&k_all, &v_all, GIRIH_NHD, NULL));
  FAILS(GIRIH_INVALID_ARGUMENT, "k has rank 0; must be 4", girih_paged_kv_store(NULL, NULL, GIRIH_NHD, &data.store));
  girih_plan_destroy(plan);
  girih_schedule_destroy(schedule);

  girih_tensor tensor;
  const girih_device cpu = {GIRIH_CPU, 0};
  const int64_t shape[] = {1, 2, 3, 4, 5, 6, 7};
  FAILS(GIRIH_INVALID_ARGUMENT, "rank=7", girih_tensor_dense(&tensor, q, GIRIH_F32, cpu, 7, shape));
  FAILS(GIRIH_INVALID_ARGUMENT, "shape is NULL", girih_tensor_dense(&tensor, q, GIRIH_F32, cpu, 2, NULL));
  FAILS(GIRIH_INVALID_ARGUMENT, "shape has -1 entries", girih_tensor_dense(&tensor, q, GIRIH_F32, cpu, -1, shape));
  FAILS(GIRIH_INVALID_ARGUMENT, "out is NULL", girih_tensor_dense(NULL, q, GIRIH_F32, cpu, 1, shape));
}

static int32_t stop(void* user, const girih_warmup_progress* progress) {
  *(int64_t*)user += 1;
  return progress->struct_size == sizeof *progress && progress->done == 0 ? 1 : 2;
}
static int32_t go_on(void* user, const girih_warmup_progress* progress) {
  *(int64_t*)user += progress->name != NULL && progress->target != NULL;
  return 0;
}

static void contexts(girih_context* context) {
  int64_t calls = 0;
  const girih_attention_spec spec = spec_of(GIRIH_F32);
  OK(girih_warmup(context, &spec, 1, go_on, &calls));
  CHECK(calls == 1);
  FAILS(GIRIH_CANCELLED, "girih_warmup: progress asked to stop", girih_warmup(context, &spec, 1, stop, &calls));
  CHECK(calls == 2);

  girih_context_info info;
  OK(girih_context_info_init(&info, sizeof info));
  OK(girih_context_get_info(context, &info));
  CHECK(info.device.kind == GIRIH_CPU && info.num_workers == 3 && info.cpu_target != GIRIH_CPU_BEST);
  girih_cpu_target targets[8];
  int64_t count = 0;
  OK(girih_available_cpu_targets(NULL, 0, &count));
  OK(girih_available_cpu_targets(targets, 8, &count));
  CHECK(count >= 1 && targets[count - 1] == GIRIH_CPU_SCALAR);

  girih_context_options options;
  OK(girih_context_options_init(&options, sizeof options));
  girih_context* other = context;
  options.num_workers = -1;
  FAILS(GIRIH_INVALID_ARGUMENT, "num_workers=-1", girih_context_create(&options, &other));
  CHECK(other == NULL);
  options.num_workers = 1;
  options.target = 6;
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_context_create: options.target=6 is unknown", girih_context_create(&options, &other));
  int neon = 0, avx2 = 0;
  for (int64_t i = 0; i < count; ++i) {
    neon |= targets[i] == GIRIH_CPU_NEON;
    avx2 |= targets[i] == GIRIH_CPU_AVX2;
  }
  CHECK(!neon || !avx2);
  options.target = neon ? GIRIH_CPU_AVX2 : GIRIH_CPU_NEON;  // no CPU has both
  FAILS(GIRIH_UNSUPPORTED, "this CPU runs", girih_context_create(&options, &other));
  options.target = GIRIH_CPU_BEST;
  options.num_cpus = 1;
  FAILS(GIRIH_INVALID_ARGUMENT, "options.cpus is NULL with 1 entries", girih_context_create(&options, &other));
  options.num_cpus = 0;
  options.device.kind = 9;
  FAILS(GIRIH_INVALID_ARGUMENT, "options.device.kind=9", girih_context_create(&options, &other));
  options.device.kind = GIRIH_CPU;
  girih_jit_options jit;
  OK(girih_jit_options_init(&jit, sizeof jit));
  options.jit = &jit;
  jit.policy = 4;
  FAILS(GIRIH_INVALID_ARGUMENT, "options.jit.policy=4", girih_context_create(&options, &other));
  jit.policy = GIRIH_JIT_PACK_ONLY;
  const char* packs[] = {"a", NULL};
  jit.packs = packs;
  jit.num_packs = 2;
  FAILS(GIRIH_INVALID_ARGUMENT, "options.jit.packs[1] is NULL", girih_context_create(&options, &other));
  jit.num_packs = 0;
  jit.cache_dir = "";
  jit.nvrtc = "nowhere";
  OK(girih_context_create(&options, &other));
  girih_context_destroy(other);
  OK(girih_context_create(NULL, &other));
  girih_context_destroy(other);
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_context_create: out is NULL", girih_context_create(NULL, NULL));
}

void test_errors(girih_context* context) {
  names();
  sizes_of_structs(context);
  handles(context);
  plans_and_runs(context);
  contexts(context);
}
