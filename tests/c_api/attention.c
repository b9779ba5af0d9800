// Attention through the C ABI against a naive loop in double: paged decode with a variant of its own, several segments, block-sparse
// patterns, one-call attention, merging, blobs.
#include "check.h"

enum { kQoHeads = 4, kKvHeads = 2, kDim = 32, kPage = 8 };

// What the naive loop is given: a key's row by logical position, and what a row may see.
typedef struct {
  const float* q;  // [tokens, kQoHeads, kDim]
  const float* k;  // [rows, kKvHeads, kDim]
  const float* v;
  const int64_t* key_row;  // [kv_len]
  int64_t kv_len;
  double cap;  // of the scores; 0 = none
} Naive;

typedef int (*Visible)(int64_t q_pos, int64_t kv_pos);
static int see_all(int64_t q_pos, int64_t kv_pos) { return q_pos >= 0 && kv_pos >= 0; }
static int see_causal(int64_t q_pos, int64_t kv_pos) { return kv_pos <= q_pos; }
static int see_window(int64_t q_pos, int64_t kv_pos) { return kv_pos <= q_pos && q_pos - kv_pos < 20; }
static int see_blocks(int64_t q_pos, int64_t kv_pos) { return q_pos / 4 == kv_pos / 4 || kv_pos < 4; }

static void naive_row(const Naive* p, int64_t token, int head, int64_t q_pos, Visible visible, double* o, double* lse) {
  const int kv_head = head / (kQoHeads / kKvHeads);
  const float* q = p->q + (token * kQoHeads + head) * kDim;
  double sum = 0;
  double top = -INFINITY;
  double* scores = malloc(sizeof(double) * (size_t)(p->kv_len + 1));
  for (int64_t j = 0; j < p->kv_len; ++j) {
    const float* k = p->k + (p->key_row[j] * kKvHeads + kv_head) * kDim;
    double s = 0;
    for (int d = 0; d < kDim; ++d) s += (double)q[d] * k[d];
    s /= sqrt((double)kDim);
    if (p->cap > 0) s = p->cap * tanh(s / p->cap);
    scores[j] = visible(q_pos, j) ? s : -INFINITY;
    if (scores[j] > top) top = scores[j];
  }
  for (int d = 0; d < kDim; ++d) o[d] = 0;
  for (int64_t j = 0; j < p->kv_len; ++j) {
    if (scores[j] == -INFINITY) continue;
    const double w = exp(scores[j] - top);
    const float* v = p->v + (p->key_row[j] * kKvHeads + kv_head) * kDim;
    sum += w;
    for (int d = 0; d < kDim; ++d) o[d] += w * v[d];
  }
  for (int d = 0; d < kDim && sum > 0; ++d) o[d] /= sum;
  *lse = sum > 0 ? top + log(sum) : -INFINITY;
  free(scores);
}

static void compare(const Naive* p, int64_t token, int64_t q_pos, Visible visible, const float* o, const float* lse) {
  for (int head = 0; head < kQoHeads; ++head) {
    double wanted[kDim];
    double wanted_lse = 0;
    naive_row(p, token, head, q_pos, visible, wanted, &wanted_lse);
    const int64_t row = token * kQoHeads + head;
    for (int d = 0; d < kDim; ++d) NEAR(o[row * kDim + d], wanted[d], 2e-6);
    if (lse == NULL) continue;
    if (isinf(wanted_lse)) {
      CHECK(isinf(lse[row]) && lse[row] < 0);
    } else {
      NEAR(lse[row], wanted_lse, 2e-6);
    }
  }
}

static girih_attention_spec f32_spec(void) {
  girih_attention_spec spec;
  OK(girih_attention_spec_init(&spec, sizeof spec));
  spec.num_qo_heads = kQoHeads;
  spec.num_kv_heads = kKvHeads;
  spec.head_dim_qk = kDim;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = spec.o_dtype = GIRIH_F32;
  return spec;
}

static girih_attention_limits small_limits(void) {
  girih_attention_limits limits;
  OK(girih_attention_limits_init(&limits, sizeof limits));
  limits.max_tokens = 16;
  limits.max_requests = 4;
  limits.max_segments = 2;
  limits.max_groups = 16;
  limits.max_kv_len = 64;
  return limits;
}

// The workspace of a schedule, aligned.
typedef struct {
  void* allocation;
  void* data;
  int64_t bytes;
} Workspace;
static Workspace workspace_of(const girih_schedule* schedule) {
  girih_schedule_info info;
  OK(girih_schedule_info_init(&info, sizeof info));
  OK(girih_schedule_get_info(schedule, &info));
  Workspace w;
  w.bytes = info.workspace_bytes;
  w.allocation = malloc((size_t)w.bytes + 64);
  w.data = (void*)(((uintptr_t)w.allocation + 63) / 64 * 64);
  return w;
}

// Three requests of 21, 9 and 0 keys; a window of 20 keys, and a soft cap that is given at run time.
static girih_variant* window_and_cap(void) {
  girih_expr_builder* b = NULL;
  OK(girih_expr_builder_create(&b));
  girih_variant_options options;
  OK(girih_variant_options_init(&options, sizeof options));
  const girih_expr* q = girih_expr_variable(b, GIRIH_Q_POS);
  const girih_expr* kv = girih_expr_variable(b, GIRIH_KV_POS);
  const girih_expr* near = girih_expr_binary(b, GIRIH_LT, girih_expr_binary(b, GIRIH_SUB, q, kv), girih_expr_integer(b, 20));
  const girih_expr* cap = girih_expr_scalar(b, "cap", GIRIH_NUMBER, GIRIH_RUN_TIME);
  const girih_expr* scaled = girih_expr_binary(b, GIRIH_DIV, girih_expr_variable(b, GIRIH_SCORE), cap);
  options.name = "window_and_cap";
  options.mask = girih_expr_binary(b, GIRIH_AND, girih_expr_binary(b, GIRIH_LE, kv, q), near);
  options.logits = girih_expr_binary(b, GIRIH_MUL, cap, girih_expr_unary(b, GIRIH_TANH, scaled));
  girih_variant* variant = NULL;
  OK(girih_variant_create(b, &options, &variant));
  girih_expr_builder_destroy(b);
  return variant;
}

static void paged_decode(girih_context* context) {
  enum { kPages = 6, kRequests = 3 };
  static float k[kPages * kPage * kKvHeads * kDim], v[kPages * kPage * kKvHeads * kDim];
  static float q[kRequests * kQoHeads * kDim], o[kRequests * kQoHeads * kDim], again[kRequests * kQoHeads * kDim];
  float lse[kRequests * kQoHeads];
  fill(k, COUNT(k), 1);
  fill(v, COUNT(v), 2);
  fill(q, COUNT(q), 3);
  for (int64_t i = 0; i < COUNT(q); ++i) q[i] *= 4;

  girih_variant* variant = window_and_cap();
  girih_attention_spec spec = f32_spec();
  spec.lse = GIRIH_LSE_NATURAL;
  spec.variant = variant;
  const girih_attention_limits limits = small_limits();
  girih_schedule* schedule = NULL;
  OK(girih_schedule_create(context, &spec, &limits, NULL, &schedule));
  girih_variant_destroy(variant);  // the schedule has a copy
  girih_plan* plan = NULL;
  OK(girih_plan_create(schedule, &plan));

  const int32_t qo_indptr[] = {0, 1, 2, 3}, kv_indices[] = {4, 0, 5, 2, 3};
  const int64_t kv_indptr[] = {0, 3, 5, 5}, kv_len[] = {21, 9, 0};
  girih_kv_segment segment;
  OK(girih_kv_segment_init(&segment, sizeof segment));
  segment.page_size = kPage;
  segment.kv_indptr = indices64(kv_indptr, 4);
  segment.kv_len = indices64(kv_len, 3);
  girih_batch batch;
  OK(girih_batch_init(&batch, sizeof batch));
  batch.qo_indptr = indices32(qo_indptr, 4);
  batch.segments = &segment;
  batch.num_segments = 1;
  girih_plan_info info;
  OK(girih_plan_info_init(&info, sizeof info));
  OK(girih_plan_update(plan, &batch, &info));
  CHECK(info.num_items > 0 && info.blob_bytes > 0);

  const girih_tensor k_pages = dense(k, GIRIH_F32, 4, kPages, kPage, kKvHeads, kDim);
  const girih_tensor v_pages = dense(v, GIRIH_F32, 4, kPages, kPage, kKvHeads, kDim);
  girih_segment_data data;
  OK(girih_segment_data_init(&data, sizeof data));
  OK(girih_paged_kv_store(&k_pages, &v_pages, GIRIH_NHD, &data.store));
  data.kv_indices = kv_indices;
  data.num_kv_indices = COUNT(kv_indices);
  girih_param_value cap;
  memset(&cap, 0, sizeof cap);
  cap.name = "cap";
  cap.number = 2.5;
  const Workspace workspace = workspace_of(schedule);
  girih_attention_args args;
  OK(girih_attention_args_init(&args, sizeof args));
  args.q = dense(q, GIRIH_F32, 3, kRequests, kQoHeads, kDim, 0);
  args.o = dense(o, GIRIH_F32, 3, kRequests, kQoHeads, kDim, 0);
  args.lse = dense(lse, GIRIH_F32, 2, kRequests, kQoHeads, 0, 0);
  args.segments = &data;
  args.num_segments = 1;
  args.params = &cap;
  args.num_params = 1;
  args.workspace = workspace.data;
  args.workspace_bytes = workspace.bytes;
  memset(o, 0xFF, sizeof o);
  OK(girih_run(context, schedule, plan, &args));
  for (int64_t r = 0; r < kRequests; ++r) {
    int64_t rows[32];
    for (int64_t j = 0; j < kv_len[r]; ++j) rows[j] = kv_indices[kv_indptr[r] + j / kPage] * kPage + j % kPage;
    const Naive naive = {q, k, v, rows, kv_len[r], 2.5};
    compare(&naive, r, kv_len[r] - 1, see_window, o, lse);
  }

  // The same as codes, of a scale: within half a step of e4m3.
  girih_schedule* coded = NULL;
  spec.o_dtype = GIRIH_E4M3;
  spec.variant = variant = window_and_cap();
  OK(girih_schedule_create(context, &spec, &limits, NULL, &coded));
  girih_variant_destroy(variant);
  girih_plan* coded_plan = NULL;
  OK(girih_plan_create(coded, &coded_plan));
  OK(girih_plan_update(coded_plan, &batch, &info));
  static uint8_t codes[kRequests * kQoHeads * kDim];
  float scale = 0.01F;
  girih_attention_args coded_args = args;
  coded_args.o = dense(codes, GIRIH_E4M3, 3, kRequests, kQoHeads, kDim, 0);
  coded_args.o_scale = dense(&scale, GIRIH_F32, 1, 1, 0, 0, 0);
  OK(girih_run(context, coded, coded_plan, &coded_args));
  for (int64_t i = 0; i < COUNT(o); ++i) {
    const int exponent = codes[i] >> 3 & 15, mantissa = codes[i] & 7;
    const double magnitude = exponent > 0 ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    NEAR(scale * (codes[i] & 0x80 ? -magnitude : magnitude), o[i], 0.0626 * fabs(o[i]) + 1e-5);
  }
  girih_plan_destroy(coded_plan);
  girih_schedule_destroy(coded);

  // The plan as bytes, taken over by another: the same bits.
  const void* blob = NULL;
  int64_t bytes = 0;
  OK(girih_plan_get_blob(plan, &blob, &bytes));
  CHECK(bytes == info.blob_bytes);
  girih_plan* copy = NULL;
  OK(girih_plan_create(schedule, &copy));
  OK(girih_plan_load(copy, blob, bytes, NULL));
  args.o = dense(again, GIRIH_F32, 3, kRequests, kQoHeads, kDim, 0);
  OK(girih_run(context, schedule, copy, &args));
  CHECK(memcmp(o, again, sizeof o) == 0);

  girih_plan_destroy(copy);
  girih_schedule_destroy(schedule);
  OK(girih_plan_get_info(plan, &info));  // outlives its schedule's handle
  girih_plan_destroy(plan);
  free(workspace.allocation);
}

// A prefix of 8 tokens that two requests share, then 5 and 3 tokens of their own: two segments, of which one has no table of its own.
static void shared_prefix(girih_context* context) {
  enum { kTokens = 16 };
  static float k[kTokens * kKvHeads * kDim], v[kTokens * kKvHeads * kDim], q[2 * kQoHeads * kDim], o[2 * kQoHeads * kDim];
  fill(k, COUNT(k), 4);
  fill(v, COUNT(v), 5);
  fill(q, COUNT(q), 6);
  const girih_attention_spec spec = f32_spec();
  const girih_attention_limits limits = small_limits();
  girih_schedule_options options;
  OK(girih_schedule_options_init(&options, sizeof options));
  options.num_units = 2;
  girih_schedule* schedule = NULL;
  OK(girih_schedule_create(context, &spec, &limits, &options, &schedule));
  girih_schedule_info info;
  OK(girih_schedule_info_init(&info, sizeof info));
  OK(girih_schedule_get_info(schedule, &info));
  CHECK(info.num_units == 2 && strlen(info.key) > 0 && info.num_regions > 0);
  int64_t end = 0;
  for (int64_t i = 0; i < info.num_regions; ++i) {
    girih_workspace_region region;
    OK(girih_schedule_get_region(schedule, i, &region));
    CHECK(strlen(region.name) > 0 && region.offset >= end);
    end = region.offset + region.size;
  }
  CHECK(end <= info.workspace_bytes);
  girih_attention_spec full;
  full.struct_size = sizeof full;
  OK(girih_schedule_get_spec(schedule, &full));
  CHECK(full.head_dim_vo == kDim && full.num_qo_heads == kQoHeads && full.variant != NULL);
  NEAR(full.sm_scale, 1 / sqrt((double)kDim), 1e-15);
  girih_attention_limits full_limits;
  full_limits.struct_size = sizeof full_limits;
  OK(girih_schedule_get_limits(schedule, &full_limits));
  CHECK(full_limits.max_tokens == 16 && full_limits.max_qo_len == 16);

  const int32_t qo_indptr[] = {0, 1, 2}, all[] = {0, 2}, prefix[] = {0, 8}, own[] = {8, 13, 16};
  girih_kv_segment segments[2];
  for (int i = 0; i < 2; ++i) {
    OK(girih_kv_segment_init(&segments[i], sizeof segments[i]));
    segments[i].page_size = GIRIH_ENDLESS_PAGE;
  }
  segments[0].qo_indptr = indices32(all, 2);
  segments[0].kv_indptr = indices32(prefix, 2);
  segments[1].kv_indptr = indices32(own, 3);
  girih_batch batch;
  OK(girih_batch_init(&batch, sizeof batch));
  batch.qo_indptr = indices32(qo_indptr, 3);
  batch.segments = segments;
  batch.num_segments = 2;
  girih_plan* plan = NULL;
  OK(girih_plan_create(schedule, &plan));
  OK(girih_plan_update(plan, &batch, NULL));

  const girih_tensor k_all = dense(k, GIRIH_F32, 3, kTokens, kKvHeads, kDim, 0);
  const girih_tensor v_all = dense(v, GIRIH_F32, 3, kTokens, kKvHeads, kDim, 0);
  girih_segment_data data[2];
  for (int i = 0; i < 2; ++i) {
    OK(girih_segment_data_init(&data[i], sizeof data[i]));
    OK(girih_ragged_kv_store(&k_all, &v_all, GIRIH_NHD, &data[i].store));
  }
  const Workspace workspace = workspace_of(schedule);
  girih_attention_args args;
  OK(girih_attention_args_init(&args, sizeof args));
  args.q = dense(q, GIRIH_F32, 3, 2, kQoHeads, kDim, 0);
  args.o = dense(o, GIRIH_F32, 3, 2, kQoHeads, kDim, 0);
  args.segments = data;
  args.num_segments = 2;
  args.workspace = workspace.data;
  args.workspace_bytes = workspace.bytes;
  OK(girih_run(context, schedule, plan, &args));
  const int64_t first[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, second[] = {0, 1, 2, 3, 4, 5, 6, 7, 13, 14, 15};
  const Naive one = {q, k, v, first, COUNT(first), 0}, two = {q, k, v, second, COUNT(second), 0};
  compare(&one, 0, 12, see_all, o, NULL);
  compare(&two, 1, 10, see_all, o, NULL);
  girih_plan_destroy(plan);
  girih_schedule_destroy(schedule);
  free(workspace.allocation);
}

// Pools of MLA's fp8 tokens, as stores.
static void mla_tokens(void) {
  static unsigned char pool[2 * 4 * 656];
  girih_tensor tokens = {0};
  tokens.data = pool;
  tokens.dtype = GIRIH_U8;
  tokens.rank = 3;
  const int64_t shape[] = {2, 4, 656}, strides[] = {4 * 656, 656, 1};
  memcpy(tokens.shape, shape, sizeof shape);
  memcpy(tokens.strides, strides, sizeof strides);
  girih_kv_store store, single;
  OK(girih_mla_token_kv_store(&tokens, 512, 64, &store));
  CHECK(store.page_size == 4 && store.num_pages == 2 && store.k.dtype == GIRIH_E4M3 && store.k_rope.dtype == GIRIH_BF16);
  CHECK(store.k.scales.granularity == GIRIH_SCALE_TOKEN_GROUP && store.k.scales.data == pool + 512 && store.k_rope.data == pool + 528);
  OK(girih_single_token_pages(&store, &single));
  CHECK(single.page_size == 1 && single.num_pages == 8 && single.k.page_byte_stride == 656);
  FAILS(GIRIH_INVALID_ARGUMENT, "latent_dim=100", girih_mla_token_kv_store(&tokens, 100, 64, &store));
  FAILS(GIRIH_INVALID_ARGUMENT, "store is NULL", girih_single_token_pages(NULL, &single));
  girih_attention_spec spec;
  OK(girih_attention_spec_init(&spec, sizeof spec));
  CHECK(spec.k_rope_dtype_plus_one == 0);
}

// Blocks of 4 x 4: the diagonal and the first column, as BSR and by a mask of blocks.
static void block_sparse(girih_context* context) {
  enum { kTokens = 12 };
  static float k[kTokens * kKvHeads * kDim], v[kTokens * kKvHeads * kDim], q[kTokens * kQoHeads * kDim], o[kTokens * kQoHeads * kDim];
  fill(k, COUNT(k), 7);
  fill(v, COUNT(v), 8);
  fill(q, COUNT(q), 9);
  const int32_t indptr[] = {0, 1, 3, 5}, blocks[] = {0, 0, 1, 0, 2};
  const int64_t sizes[] = {4, 4, 4};
  const uint8_t block_mask[] = {1, 0, 0, 1, 1, 0, 1, 0, 1};
  int64_t rows[kTokens];
  for (int64_t i = 0; i < kTokens; ++i) rows[i] = i;
  for (int form = 0; form < 2; ++form) {
    girih_block_sparse* sparse = NULL;
    const girih_indices block_sizes = indices64(sizes, 3), offsets = indices32(indptr, 4), columns = indices32(blocks, 5);
    if (form == 0) {
      OK(girih_block_sparse_create(kTokens, kTokens, 4, 4, &offsets, &columns, 1, &sparse));
    } else {
      OK(girih_block_sparse_create_variable(&block_sizes, &block_sizes, block_mask, COUNT(block_mask), 1, &sparse));
    }
    girih_kv_segment segment;
    OK(girih_kv_segment_init(&segment, sizeof segment));
    OK(girih_block_sparse_get_segment(sparse, &segment));
    const girih_attention_spec spec = f32_spec();
    girih_attention_limits limits = small_limits();
    limits.max_requests = 1;
    girih_schedule* schedule = NULL;
    OK(girih_schedule_create(context, &spec, &limits, NULL, &schedule));
    girih_plan* plan = NULL;
    OK(girih_plan_create(schedule, &plan));
    const int32_t qo_indptr[] = {0, kTokens};
    girih_batch batch;
    OK(girih_batch_init(&batch, sizeof batch));
    const int64_t kv_len = kTokens;
    batch.qo_indptr = indices32(qo_indptr, 2);
    batch.kv_len = indices64(&kv_len, 1);
    batch.segments = &segment;
    batch.num_segments = 1;
    OK(girih_plan_update(plan, &batch, NULL));
    const girih_tensor k_all = dense(k, GIRIH_F32, 3, kTokens, kKvHeads, kDim, 0);
    const girih_tensor v_all = dense(v, GIRIH_F32, 3, kTokens, kKvHeads, kDim, 0);
    girih_segment_data data;
    OK(girih_segment_data_init(&data, sizeof data));
    OK(girih_block_sparse_kv_store(&k_all, &v_all, segment.page_size, GIRIH_NHD, &data.store));
    OK(girih_block_sparse_get_data(sparse, &data));
    const Workspace workspace = workspace_of(schedule);
    girih_attention_args args;
    OK(girih_attention_args_init(&args, sizeof args));
    args.q = dense(q, GIRIH_F32, 3, kTokens, kQoHeads, kDim, 0);
    args.o = dense(o, GIRIH_F32, 3, kTokens, kQoHeads, kDim, 0);
    args.segments = &data;
    args.num_segments = 1;
    args.workspace = workspace.data;
    args.workspace_bytes = workspace.bytes;
    memset(o, 0xFF, sizeof o);
    OK(girih_run(context, schedule, plan, &args));
    const Naive naive = {q, k, v, rows, kTokens, 0};
    for (int64_t t = 0; t < kTokens; ++t) compare(&naive, t, t, see_blocks, o, NULL);
    girih_plan_destroy(plan);
    girih_schedule_destroy(schedule);
    girih_block_sparse_destroy(sparse);
    free(workspace.allocation);
  }
}

// One call for 6 rows over 10 keys, causal; then the same in two halves of the keys, merged.
static void one_call_and_merges(girih_context* context) {
  enum { kTokens = 10, kRows = 6 };
  static float k[kTokens * kKvHeads * kDim], v[kTokens * kKvHeads * kDim], q[kRows * kQoHeads * kDim];
  static float o[2][kRows * kQoHeads * kDim], merged[kRows * kQoHeads * kDim];
  static float lse[2][kRows * kQoHeads], merged_lse[kRows * kQoHeads];
  fill(k, COUNT(k), 10);
  fill(v, COUNT(v), 11);
  fill(q, COUNT(q), 12);
  int64_t rows[kTokens];
  for (int64_t i = 0; i < kTokens; ++i) rows[i] = i;
  const Naive naive = {q, k, v, rows, kTokens, 0};

  girih_expr_builder* b = NULL;
  OK(girih_expr_builder_create(&b));
  girih_variant_options options;
  OK(girih_variant_options_init(&options, sizeof options));
  options.mask = girih_expr_causal(b);
  girih_variant* causal = NULL;
  OK(girih_variant_create(b, &options, &causal));
  girih_expr_builder_destroy(b);
  girih_attention_spec spec = f32_spec();
  spec.lse = GIRIH_LSE_NATURAL;
  spec.variant = causal;
  const girih_tensor q_all = dense(q, GIRIH_F32, 3, kRows, kQoHeads, kDim, 0);
  girih_tensor o_part[2], lse_part[2];
  for (int i = 0; i < 2; ++i) {
    o_part[i] = dense(o[i], GIRIH_F32, 3, kRows, kQoHeads, kDim, 0);
    lse_part[i] = dense(lse[i], GIRIH_F32, 2, kRows, kQoHeads, 0, 0);
  }
  girih_tensor k_part = dense(k, GIRIH_F32, 3, kTokens, kKvHeads, kDim, 0);
  girih_tensor v_part = dense(v, GIRIH_F32, 3, kTokens, kKvHeads, kDim, 0);
  OK(girih_single_attention(context, &spec, &q_all, &k_part, &v_part, &o_part[0], &lse_part[0], NULL, 0));
  for (int64_t t = 0; t < kRows; ++t) compare(&naive, t, kTokens - kRows + t, see_causal, o[0], lse[0]);
  girih_variant_destroy(causal);

  spec.variant = NULL;
  for (int i = 0; i < 2; ++i) {
    k_part = dense(k + i * 4 * kKvHeads * kDim, GIRIH_F32, 3, i == 0 ? 4 : 6, kKvHeads, kDim, 0);
    v_part = dense(v + i * 4 * kKvHeads * kDim, GIRIH_F32, 3, i == 0 ? 4 : 6, kKvHeads, kDim, 0);
    OK(girih_single_attention(context, &spec, &q_all, &k_part, &v_part, &o_part[i], &lse_part[i], NULL, 0));
  }
  const girih_tensor out = dense(merged, GIRIH_F32, 3, kRows, kQoHeads, kDim, 0);
  const girih_tensor out_lse = dense(merged_lse, GIRIH_F32, 2, kRows, kQoHeads, 0, 0);
  OK(girih_merge_state(context, &o_part[0], &lse_part[0], &o_part[1], &lse_part[1], &out, &out_lse, 0, NULL));
  for (int64_t t = 0; t < kRows; ++t) compare(&naive, t, t, see_all, merged, merged_lse);

  // The two parts as an array of states: [n, 2, heads, dim] by strides, and as lists of states of one row each.
  girih_tensor states = dense(o, GIRIH_F32, 4, kRows, 2, kQoHeads, kDim);
  states.strides[0] = kQoHeads * kDim;
  states.strides[1] = kRows * kQoHeads * kDim;
  girih_tensor states_lse = dense(lse, GIRIH_F32, 3, kRows, 2, kQoHeads, 0);
  states_lse.strides[0] = kQoHeads;
  states_lse.strides[1] = kRows * kQoHeads;
  memset(merged, 0xFF, sizeof merged);
  OK(girih_merge_states(context, &states, &states_lse, &out, &out_lse, 0, NULL));
  for (int64_t t = 0; t < kRows; ++t) compare(&naive, t, t, see_all, merged, merged_lse);

  const girih_tensor list = dense(o, GIRIH_F32, 3, 2 * kRows, kQoHeads, kDim, 0);
  const girih_tensor list_lse = dense(lse, GIRIH_F32, 2, 2 * kRows, kQoHeads, 0, 0);
  const girih_tensor first = dense(merged, GIRIH_F32, 3, 1, kQoHeads, kDim, 0);
  const girih_tensor first_lse = dense(merged_lse, GIRIH_F32, 2, 1, kQoHeads, 0, 0);
  const int64_t one_state[] = {6, 7};
  const girih_indices indptr = indices64(one_state, 2);
  OK(girih_merge_states_varlen(context, &list, &list_lse, &indptr, &first, &first_lse, 0, NULL));
  CHECK(memcmp(merged, o[1], sizeof(float) * kQoHeads * kDim) == 0);
}

static void lengths_and_capabilities(void) {
  const int32_t indptr[] = {0, 3, 3, 4}, last[] = {5, 0, 8};
  const girih_indices kv_indptr = indices32(indptr, 4), last_page_len = indices32(last, 3);
  int64_t kv_len[3];
  OK(girih_kv_len_from_last_page(&kv_indptr, &last_page_len, 8, kv_len, 3));
  CHECK(kv_len[0] == 21 && kv_len[1] == 0 && kv_len[2] == 8);
  FAILS(GIRIH_INVALID_ARGUMENT, "kv_len has room for 2 entries; needs 3",
        girih_kv_len_from_last_page(&kv_indptr, &last_page_len, 8, kv_len, 2));

  girih_capabilities* table = NULL;
  OK(girih_capabilities_create(&table));
  int64_t size = 0;
  OK(girih_capabilities_get_size(table, &size));
  int found = 0;
  for (int64_t i = 0; i < size; ++i) {
    girih_attention_capability row;
    OK(girih_attention_capability_init(&row, sizeof row));
    OK(girih_capabilities_get(table, i, &row));
    if (row.device != GIRIH_CPU || strcmp(row.family, "cpu") != 0) continue;
    int paged = 0, nvfp4 = 0;
    for (int64_t f = 0; f < row.num_features; ++f) paged += strcmp(row.features[f], "paged") == 0;
    for (int64_t t = 0; t < row.num_kv_dtypes; ++t) nvfp4 += row.kv_dtypes[t] == GIRIH_NVFP4;
    found += paged == 1 && nvfp4 == 1 && row.max_head_dim == 1024 && row.num_q_dtypes == 3 && row.num_o_dtypes == 5;
  }
  CHECK(found == 1);
  girih_attention_capability beyond;
  OK(girih_attention_capability_init(&beyond, sizeof beyond));
  FAILS(GIRIH_INVALID_ARGUMENT, "the table has", girih_capabilities_get(table, size, &beyond));
  girih_capabilities_destroy(table);
}

void test_attention(girih_context* context) {
  paged_decode(context);
  shared_prefix(context);
  mla_tokens();
  block_sparse(context);
  one_call_and_merges(context);
  lengths_and_capabilities();
}
