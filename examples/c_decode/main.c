// In C: decodes one token for each of two requests over a paged KV cache, with a sliding window and a soft cap, then samples from logits.
#include <girih/girih_c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(girih_status status) {
  if (status == GIRIH_OK) return;
  fprintf(stderr, "%s: %s\n", girih_status_name(status), girih_last_error());
  exit(1);
}

static girih_tensor dense(void* data, girih_dtype dtype, int32_t rank, const int64_t* shape) {
  girih_tensor tensor;
  const girih_device cpu = {GIRIH_CPU, 0};
  check(girih_tensor_dense(&tensor, data, dtype, cpu, rank, shape));
  return tensor;
}

// Causal, 32 keys with the query's own; scores within +-30.
static girih_variant* make_variant(void) {
  girih_expr_builder* b = NULL;
  girih_variant_options options;
  girih_variant* variant = NULL;
  check(girih_expr_builder_create(&b));
  check(girih_variant_options_init(&options, sizeof options));
  const girih_expr* q = girih_expr_variable(b, GIRIH_Q_POS);
  const girih_expr* kv = girih_expr_variable(b, GIRIH_KV_POS);
  const girih_expr* within = girih_expr_binary(b, GIRIH_LT, girih_expr_binary(b, GIRIH_SUB, q, kv), girih_expr_integer(b, 32));
  options.mask = girih_expr_binary(b, GIRIH_AND, girih_expr_binary(b, GIRIH_LE, kv, q), within);
  options.logits = girih_expr_soft_cap(b, 30.0F);
  check(girih_variant_create(b, &options, &variant));  // says what failed above, too
  girih_expr_builder_destroy(b);
  return variant;
}

int main(void) {
  girih_context* context = NULL;  // once
  check(girih_context_create(NULL, &context));
  girih_variant* variant = make_variant();
  girih_attention_spec spec;
  check(girih_attention_spec_init(&spec, sizeof spec));
  spec.num_qo_heads = 32;
  spec.num_kv_heads = 8;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = spec.o_dtype = GIRIH_F32;
  spec.variant = variant;
  girih_attention_limits limits;
  check(girih_attention_limits_init(&limits, sizeof limits));
  limits.max_tokens = limits.max_requests = 64;
  limits.max_kv_len = 4096;
  girih_schedule* schedule = NULL;
  check(girih_schedule_create(context, &spec, &limits, NULL, &schedule));
  girih_variant_destroy(variant);
  girih_schedule_info info;
  check(girih_schedule_info_init(&info, sizeof info));
  check(girih_schedule_get_info(schedule, &info));
  char* memory = malloc((size_t)info.workspace_bytes + 64);
  girih_plan* plan = NULL;
  check(girih_plan_create(schedule, &plan));

  const int32_t qo_indptr[] = {0, 1, 2}, kv_len[] = {40, 17};             // each step
  const int32_t kv_indptr[] = {0, 3, 5}, kv_indices[] = {4, 0, 2, 1, 3};  // pages of 16 tokens
  const girih_indices rows = {qo_indptr, 3, 32, 0}, pages = {kv_indptr, 3, 32, 0}, lengths = {kv_len, 2, 32, 0};
  girih_kv_segment segment;
  girih_batch batch;
  check(girih_kv_segment_init(&segment, sizeof segment));
  check(girih_batch_init(&batch, sizeof batch));
  segment.kv_indptr = pages;
  segment.kv_len = lengths;
  batch.qo_indptr = rows;
  batch.segments = &segment;
  batch.num_segments = 1;
  check(girih_plan_update(plan, &batch, NULL));

  static float q[2 * 32 * 128], k[5 * 16 * 8 * 128], v[5 * 16 * 8 * 128], o[2 * 32 * 128];  // each layer
  for (size_t i = 0; i < sizeof v / sizeof v[0]; ++i) v[i] = (float)(i / (16 * 8 * 128));   // a value is its page's id
  const int64_t cache_shape[] = {5, 16, 8, 128}, q_shape[] = {2, 32, 128};
  const girih_tensor k_pages = dense(k, GIRIH_F32, 4, cache_shape), v_pages = dense(v, GIRIH_F32, 4, cache_shape);
  girih_segment_data data;
  girih_attention_args args;
  check(girih_segment_data_init(&data, sizeof data));
  check(girih_attention_args_init(&args, sizeof args));
  check(girih_paged_kv_store(&k_pages, &v_pages, GIRIH_NHD, &data.store));
  data.kv_indices = kv_indices;
  data.num_kv_indices = 5;
  args.q = dense(q, GIRIH_F32, 3, q_shape);
  args.o = dense(o, GIRIH_F32, 3, q_shape);
  args.segments = &data;
  args.num_segments = 1;
  args.workspace = (void*)(((uintptr_t)memory + 63) / 64 * 64);
  args.workspace_bytes = info.workspace_bytes;
  check(girih_run(context, schedule, plan, &args));
  printf("%.3f %.3f\n", o[0], o[32 * 128]);

  float logits[2][3] = {{1, 3, 2}, {9, 8, 7}};
  int32_t tokens[2];
  const int64_t logits_shape[] = {2, 3}, tokens_shape[] = {2};
  girih_sample_args sample;
  check(girih_sample_args_init(&sample, sizeof sample));
  sample.input = dense(logits, GIRIH_F32, 2, logits_shape);
  sample.tokens = dense(tokens, GIRIH_I32, 1, tokens_shape);
  sample.top_k.value = 1;
  check(girih_sample(context, &sample));
  printf("%d %d\n", (int)tokens[0], (int)tokens[1]);

  girih_plan_destroy(plan);
  girih_schedule_destroy(schedule);
  girih_context_destroy(context);
  free(memory);
  return 0;
}
