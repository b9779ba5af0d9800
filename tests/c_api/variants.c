// Variants through the C ABI: every constructor has the type that it should, a builder remembers its first error, and what a hook may not
// be is refused by the schedule.
#include "check.h"

enum { kHeads = 2, kDim = 16, kTokens = 12 };

static void expect_type(const girih_expr* expr, girih_expr_type wanted, const char* what) {
  girih_expr_type type = -1;
  if (girih_expr_get_type(expr, &type) != GIRIH_OK || type != wanted) {
    ++failures;
    printf("%s has type %d; wanted %d: %s\n", what, (int)type, (int)wanted, expr == NULL ? girih_last_error() : "");
  }
}
#define TYPE(wanted, expr) expect_type(expr, wanted, #expr)

static void constructors(void) {
  girih_expr_builder* b = NULL;
  OK(girih_expr_builder_create(&b));
  for (girih_variable v = GIRIH_SCORE; v <= GIRIH_MEAN_SQUARE; ++v) {
    const int number = v == GIRIH_SCORE || v == GIRIH_X || v == GIRIH_MEAN_SQUARE;
    TYPE(number ? GIRIH_NUMBER : GIRIH_INTEGER, girih_expr_variable(b, v));
  }
  const girih_expr* i = girih_expr_integer(b, (int64_t)1 << 40);
  const girih_expr* x = girih_expr_number(b, 0.5);
  const girih_expr* t = girih_expr_boolean(b, 1);
  TYPE(GIRIH_INTEGER, i);
  TYPE(GIRIH_NUMBER, x);
  TYPE(GIRIH_BOOLEAN, t);
  for (girih_unary_op op = GIRIH_NEG; op <= GIRIH_SIGMOID; ++op)
    TYPE(op == GIRIH_NOT ? GIRIH_BOOLEAN : GIRIH_NUMBER, girih_expr_unary(b, op, op == GIRIH_NOT ? t : x));
  for (girih_binary_op op = GIRIH_ADD; op <= GIRIH_MAX; ++op) TYPE(GIRIH_INTEGER, girih_expr_binary(b, op, i, i));
  for (girih_binary_op op = GIRIH_LT; op <= GIRIH_NE; ++op) TYPE(GIRIH_BOOLEAN, girih_expr_binary(b, op, i, x));
  TYPE(GIRIH_BOOLEAN, girih_expr_binary(b, GIRIH_AND, t, t));
  TYPE(GIRIH_BOOLEAN, girih_expr_binary(b, GIRIH_OR, t, t));
  TYPE(GIRIH_NUMBER, girih_expr_select(b, t, x, i));
  TYPE(GIRIH_INTEGER, girih_expr_scalar(b, "n", GIRIH_INTEGER, GIRIH_PLAN_TIME));
  TYPE(GIRIH_NUMBER, girih_expr_array(b, "table", GIRIH_F32, GIRIH_RUN_TIME, i));
  TYPE(GIRIH_INTEGER, girih_expr_array(b, "ids", GIRIH_I32, GIRIH_PLAN_TIME, i));
  TYPE(GIRIH_BOOLEAN, girih_expr_bits(b, "bits", GIRIH_RUN_TIME, i));

  TYPE(GIRIH_BOOLEAN, girih_expr_causal(b));
  TYPE(GIRIH_BOOLEAN, girih_expr_window(b, 4, 2));
  TYPE(GIRIH_BOOLEAN, girih_expr_sliding_window(b, 4));
  TYPE(GIRIH_BOOLEAN, girih_expr_chunked_local(b, 4));
  TYPE(GIRIH_BOOLEAN, girih_expr_prefix_lm(b, GIRIH_PLAN_TIME));
  TYPE(GIRIH_BOOLEAN, girih_expr_document(b, GIRIH_PLAN_TIME));
  TYPE(GIRIH_BOOLEAN, girih_expr_custom_mask(b, GIRIH_RUN_TIME));
  TYPE(GIRIH_BOOLEAN, girih_expr_speculative_tree(b, GIRIH_RUN_TIME));
  TYPE(GIRIH_BOOLEAN, girih_expr_first_tokens(b, 4));
  TYPE(GIRIH_BOOLEAN, girih_expr_multi_item(b, GIRIH_PLAN_TIME));
  TYPE(GIRIH_BOOLEAN, girih_expr_causal_with_bidirectional_spans(b, GIRIH_PLAN_TIME));
  TYPE(GIRIH_NUMBER, girih_expr_soft_cap(b, 30.0F));
  TYPE(GIRIH_NUMBER, girih_expr_alibi(b));
  TYPE(GIRIH_NUMBER, girih_expr_sigmoid_logits(b, -1.0F));
  TYPE(GIRIH_NUMBER, girih_expr_sinks(b));
  TYPE(GIRIH_NUMBER, girih_expr_rms_norm(b, "q_weight", 1e-6F));
  OK(girih_expr_builder_status(b));
  girih_expr_builder_destroy(b);

  float slopes[8];
  OK(girih_alibi_slopes(8, slopes, 8));
  NEAR(slopes[0], 0.5, 0);
  NEAR(slopes[7], 1.0 / 256, 0);
  FAILS(GIRIH_INVALID_ARGUMENT, "out has room for 7 entries; needs 8", girih_alibi_slopes(8, slopes, 7));
  FAILS(GIRIH_INVALID_ARGUMENT, "num_heads=-1", girih_alibi_slopes(-1, slopes, 8));
}

// The mean of V under a mask, for equal keys.
static girih_status run_variant(girih_context* context, const girih_variant* variant, const girih_param_value* params, int64_t num_params,
                                float* o) {
  static float q[kTokens * kHeads * kDim], k[kTokens * kHeads * kDim], v[kTokens * kHeads * kDim];
  for (int64_t i = 0; i < COUNT(v); ++i) v[i] = (float)(i / (kHeads * kDim));
  girih_attention_spec spec;
  OK(girih_attention_spec_init(&spec, sizeof spec));
  spec.variant = variant;
  const girih_tensor q_all = dense(q, GIRIH_F32, 3, kTokens, kHeads, kDim, 0), k_all = dense(k, GIRIH_F32, 3, kTokens, kHeads, kDim, 0);
  const girih_tensor v_all = dense(v, GIRIH_F32, 3, kTokens, kHeads, kDim, 0), out = dense(o, GIRIH_F32, 3, kTokens, kHeads, kDim, 0);
  return girih_single_attention(context, &spec, &q_all, &k_all, &v_all, &out, NULL, params, num_params);
}

static void masks_and_parameters(girih_context* context) {
  static float o[kTokens * kHeads * kDim];
  girih_expr_builder* b = NULL;
  OK(girih_expr_builder_create(&b));
  girih_variant_options options;
  OK(girih_variant_options_init(&options, sizeof options));
  options.mask = girih_expr_binary(b, GIRIH_AND, girih_expr_causal(b), girih_expr_document(b, GIRIH_PLAN_TIME));
  girih_rope rope;
  OK(girih_rope_init(&rope, sizeof rope));
  const girih_llama31 scaling = {8, 1, 4, 8192};
  rope.llama31 = &scaling;
  options.rope = &rope;  // of zero keys: no effect on the means
  girih_variant* variant = NULL;
  OK(girih_variant_create(b, &options, &variant));

  int32_t documents[kTokens];
  for (int i = 0; i < kTokens; ++i) documents[i] = i / 5;
  girih_param_value ids;
  memset(&ids, 0, sizeof ids);
  ids.name = "document_id";
  ids.array = dense(documents, GIRIH_I32, 1, kTokens, 0, 0, 0);
  OK(run_variant(context, variant, &ids, 1, o));
  for (int t = 0; t < kTokens; ++t) NEAR(o[t * kHeads * kDim], (t / 5 * 5 + t) / 2.0, 1e-5);
  FAILS(GIRIH_INVALID_ARGUMENT, "params['document_id'] is missing", run_variant(context, variant, NULL, 0, o));
  ids.name = NULL;
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_single_attention: params[0].name is NULL", run_variant(context, variant, &ids, 1, o));
  girih_variant_destroy(variant);

  // A bias that chooses one key: + 100 at kv_pos = target, an integer given at run time. As of single_attention, all at once.
  OK(girih_variant_options_init(&options, sizeof options));
  const girih_expr* target = girih_expr_scalar(b, "target", GIRIH_INTEGER, GIRIH_RUN_TIME);
  const girih_expr* is_target = girih_expr_binary(b, GIRIH_EQ, girih_expr_variable(b, GIRIH_KV_POS), target);
  const girih_expr* bias = girih_expr_select(b, is_target, girih_expr_number(b, 100), girih_expr_number(b, 0));
  options.logits = girih_expr_binary(b, GIRIH_ADD, girih_expr_variable(b, GIRIH_SCORE), bias);
  OK(girih_variant_create(b, &options, &variant));
  girih_param_value seven;
  memset(&seven, 0, sizeof seven);
  seven.name = "target";
  seven.integer = 7;
  OK(run_variant(context, variant, &seven, 1, o));
  for (int t = 0; t < kTokens; ++t) NEAR(o[t * kHeads * kDim], 7, 1e-5);
  girih_variant_destroy(variant);

  // Without softmax: a plain sum of weights 1/2.
  OK(girih_variant_options_init(&options, sizeof options));
  options.softmax = 0;
  options.logits = girih_expr_sigmoid_logits(b, 0);
  OK(girih_variant_create(b, &options, &variant));
  OK(run_variant(context, variant, NULL, 0, o));
  NEAR(o[0], 33, 1e-4);
  girih_variant_destroy(variant);
  girih_expr_builder_destroy(b);
}

static void cuda_text(girih_context* context) {
  static float o[kTokens * kHeads * kDim];
  girih_expr_builder* b = NULL;
  OK(girih_expr_builder_create(&b));
  girih_cuda_arg args[4];
  memset(args, 0, sizeof args);
  args[0].value = girih_expr_variable(b, GIRIH_SCORE);
  args[1].name = "distance";
  args[1].value = girih_expr_binary(b, GIRIH_SUB, girih_expr_variable(b, GIRIH_Q_POS), girih_expr_variable(b, GIRIH_KV_POS));
  args[2].kind = GIRIH_CUDA_ARG_ARRAY;
  args[2].name = "slopes";
  args[2].dtype = GIRIH_F32;
  args[2].time = GIRIH_RUN_TIME;
  args[3].kind = GIRIH_CUDA_ARG_BITS;
  args[3].name = "flags";
  const char* body = "return flags[0] ? score : score - slopes[0] * (float)distance;";
  girih_variant_options options;
  OK(girih_variant_options_init(&options, sizeof options));
  options.logits = girih_expr_cuda_code(b, GIRIH_NUMBER, body, args, 4, "decay");
  TYPE(GIRIH_NUMBER, options.logits);
  girih_variant* variant = NULL;
  OK(girih_variant_create(b, &options, &variant));
  FAILS(GIRIH_UNSUPPORTED, "CUDA", run_variant(context, variant, NULL, 0, o));
  girih_variant_destroy(variant);
  CHECK(girih_expr_cuda_code(b, GIRIH_NUMBER, "return {;", NULL, 0, NULL) == NULL);
  CHECK(strstr(girih_last_error(), "\"cuda_code\"") != NULL);  // its default name
  girih_expr_builder_destroy(b);
}

static void first_error_stays(void) {
  girih_expr_builder* b = NULL;
  OK(girih_expr_builder_create(&b));
  girih_variant_options options;
  OK(girih_variant_options_init(&options, sizeof options));
  const girih_expr* bad = girih_expr_binary(b, GIRIH_ADD, girih_expr_boolean(b, 1), girih_expr_integer(b, 1));
  CHECK(bad == NULL && strstr(girih_last_error(), "operator+ of boolean and integer") != NULL);
  options.mask = girih_expr_binary(b, GIRIH_AND, bad, girih_expr_causal(b));  // does not hide the first
  CHECK(options.mask == NULL && strstr(girih_last_error(), "operator+ of boolean and integer") != NULL);
  girih_dtype dtype = 0;
  FAILS(GIRIH_INVALID_ARGUMENT, "f33", girih_dtype_from_name("f33", &dtype));
  FAILS(GIRIH_INVALID_ARGUMENT, "operator+ of boolean and integer", girih_expr_builder_status(b));
  girih_variant* variant = (girih_variant*)b;
  FAILS(GIRIH_INVALID_ARGUMENT, "operator+ of boolean and integer", girih_variant_create(b, &options, &variant));
  CHECK(variant == NULL);
  girih_expr_builder_destroy(b);

  // Each of these is the first error of a builder of its own.
  struct {
    const char* part;
    int which;
  } cases[] = {{"girih_expr_variable: variable=13", 0},
               {"girih_expr_unary: op=-1", 1},
               {"girih_expr_binary: op=15", 2},
               {"girih_expr_unary: a is NULL", 3},
               {"girih_expr_boolean: value=2", 4},
               {"girih_expr_scalar: name is NULL", 5},
               {"girih_expr_scalar: type=3", 6},
               {"girih_expr_array: time=2", 7},
               {"array parameter 'a' is bf16", 8},
               {"sliding_window: size=0", 9},
               {"a is not a girih_expr", 10},
               {"args[0].kind=3", 11},
               {"girih_expr_cuda_code: body is NULL", 12},
               {"args[0].reserved=1", 13}};
  for (int64_t i = 0; i < COUNT(cases); ++i) {
    OK(girih_expr_builder_create(&b));
    const girih_expr* one = girih_expr_integer(b, 1);
    girih_cuda_arg arg;
    memset(&arg, 0, sizeof arg);
    arg.kind = cases[i].which == 11 ? 3 : GIRIH_CUDA_ARG_VALUE;
    arg.reserved = cases[i].which == 13;
    const girih_expr* made = one;
    switch (cases[i].which) {
      case 0: made = girih_expr_variable(b, 13); break;
      case 1: made = girih_expr_unary(b, -1, one); break;
      case 2: made = girih_expr_binary(b, 15, one, one); break;
      case 3: made = girih_expr_unary(b, GIRIH_NEG, NULL); break;
      case 4: made = girih_expr_boolean(b, 2); break;
      case 5: made = girih_expr_scalar(b, NULL, GIRIH_NUMBER, GIRIH_RUN_TIME); break;
      case 6: made = girih_expr_scalar(b, "s", 3, GIRIH_RUN_TIME); break;
      case 7: made = girih_expr_array(b, "a", GIRIH_F32, 2, one); break;
      case 8: made = girih_expr_array(b, "a", GIRIH_BF16, GIRIH_RUN_TIME, one); break;
      case 9: made = girih_expr_sliding_window(b, 0); break;
      case 10: made = girih_expr_unary(b, GIRIH_NEG, (const girih_expr*)b); break;
      case 11:
      case 13: made = girih_expr_cuda_code(b, GIRIH_NUMBER, "return 0;", &arg, 1, NULL); break;
      default: made = girih_expr_cuda_code(b, GIRIH_NUMBER, NULL, NULL, 0, NULL); break;
    }
    CHECK(made == NULL);
    FAILS(GIRIH_INVALID_ARGUMENT, cases[i].part, girih_expr_builder_status(b));
    girih_expr_builder_destroy(b);
  }
  CHECK(girih_expr_causal(NULL) == NULL && strstr(girih_last_error(), "girih_expr_causal: builder is NULL") != NULL);
  FAILS(GIRIH_INVALID_ARGUMENT, "builder is NULL", girih_expr_builder_status(NULL));
}

void test_variants(girih_context* context) {
  constructors();
  masks_and_parameters(context);
  cuda_text(context);
  first_error_stays();
}
