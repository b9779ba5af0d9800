// The operators beside attention through the C ABI, each against its formula in double.
#include "check.h"

enum { kRows = 3, kDim = 20 };

static void norms(girih_context* context) {
  float x[kRows * kDim], residual[kRows * kDim], weight[kDim], bias[kDim], out[kRows * kDim], sum[kRows * kDim];
  fill(x, COUNT(x), 21);
  fill(residual, COUNT(residual), 22);
  fill(weight, COUNT(weight), 23);
  fill(bias, COUNT(bias), 24);
  girih_norm_args args;
  OK(girih_norm_args_init(&args, sizeof args));
  CHECK(args.eps == 1e-6F && args.weight_offset == 0 && args.quantization.global_scale == 1);
  args.x = dense(x, GIRIH_F32, 2, kRows, kDim, 0, 0);
  args.weight = dense(weight, GIRIH_F32, 1, kDim, 0, 0, 0);
  args.residual = dense(residual, GIRIH_F32, 2, kRows, kDim, 0, 0);
  args.residual_out = dense(sum, GIRIH_F32, 2, kRows, kDim, 0, 0);
  args.out = dense(out, GIRIH_F32, 2, kRows, kDim, 0, 0);
  args.weight_offset = 1;
  args.eps = 1e-3F;
  OK(girih_rms_norm(context, &args, NULL));
  for (int r = 0; r < kRows; ++r) {
    double square = 0;
    for (int d = 0; d < kDim; ++d) square += pow((double)x[r * kDim + d] + residual[r * kDim + d], 2);
    for (int d = 0; d < kDim; ++d) {
      const double h = (double)x[r * kDim + d] + residual[r * kDim + d];
      NEAR(out[r * kDim + d], h / sqrt(square / kDim + 1e-3) * (weight[d] + 1.0), 1e-5);
      NEAR(sum[r * kDim + d], h, 1e-6);
    }
  }
  memset(&args.residual, 0, sizeof args.residual);
  memset(&args.residual_out, 0, sizeof args.residual_out);
  args.bias = dense(bias, GIRIH_F32, 1, kDim, 0, 0, 0);
  args.weight_offset = 0;
  OK(girih_layer_norm(context, &args, NULL));
  for (int r = 0; r < kRows; ++r) {
    double mean = 0, variance = 0;
    for (int d = 0; d < kDim; ++d) mean += x[r * kDim + d] / (double)kDim;
    for (int d = 0; d < kDim; ++d) variance += pow(x[r * kDim + d] - mean, 2) / kDim;
    for (int d = 0; d < kDim; ++d) NEAR(out[r * kDim + d], (x[r * kDim + d] - mean) / sqrt(variance + 1e-3) * weight[d] + bias[d], 1e-5);
  }
  args.eps = -1;
  FAILS(GIRIH_INVALID_ARGUMENT, "eps", girih_layer_norm(context, &args, NULL));
  args.quantization.swizzled = -1;
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_rms_norm: args.quantization.swizzled=-1", girih_rms_norm(context, &args, NULL));
  FAILS(GIRIH_INVALID_ARGUMENT, "girih_rms_norm: context is NULL", girih_rms_norm(NULL, &args, NULL));
}

static double activation(girih_activation kind, double g, double u) {
  switch (kind) {
    case GIRIH_SILU: return g / (1 + exp(-g)) * u;
    case GIRIH_GELU: return g * 0.5 * (1 + erf(g / sqrt(2.0))) * u;
    case GIRIH_GELU_TANH: return g * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g))) / 2 * u;
    case GIRIH_SWIGLUOAI: {
      const double gate = fmin(g, 0.5), up = fmax(fmin(u, 0.5), -0.5);
      return gate / (1 + exp(-1.702 * gate)) * (up + 1);
    }
    default: return g * u;
  }
}

static void activations(girih_context* context) {
  float x[kRows * 2 * kDim], out[kRows * kDim];
  fill(x, COUNT(x), 25);
  girih_activation_args args;
  for (int interleaved = 0; interleaved < 2; ++interleaved) {
    for (girih_activation kind = GIRIH_SILU; kind <= GIRIH_MULTIPLY; ++kind) {
      OK(girih_activation_args_init(&args, sizeof args));
      CHECK(args.alpha == 1.702F && args.limit == 7.0F);
      args.x = dense(x, GIRIH_F32, 2, kRows, 2 * kDim, 0, 0);
      args.out = dense(out, GIRIH_F32, 2, kRows, kDim, 0, 0);
      args.limit = 0.5F;
      args.interleaved = interleaved;
      OK(girih_activate(context, kind, &args, NULL));
      for (int r = 0; r < kRows; ++r) {
        for (int d = 0; d < kDim; ++d) {
          const float* row = x + r * 2 * kDim;
          const double gate = interleaved ? row[2 * d] : row[d], up = interleaved ? row[2 * d + 1] : row[kDim + d];
          NEAR(out[r * kDim + d], activation(kind, gate, up), 1e-6);
        }
      }
    }
  }
  FAILS(GIRIH_INVALID_ARGUMENT, "activation=5 is unknown", girih_activate(context, 5, &args, NULL));
}

static void quantisation(girih_context* context) {
  float x[kRows * kDim], back[kRows * kDim], scales[kRows];
  int8_t codes[kRows * kDim];
  fill(x, COUNT(x), 26);
  girih_quantization q;
  memset(&q, 0, sizeof q);  // global_scale 0 of a zeroed struct is 1
  q.scale = GIRIH_QUANT_TOKEN;
  q.scales = dense(scales, GIRIH_F32, 1, kRows, 0, 0, 0);
  const girih_tensor in = dense(x, GIRIH_F32, 2, kRows, kDim, 0, 0), out = dense(codes, GIRIH_I8, 2, kRows, kDim, 0, 0);
  const girih_tensor again = dense(back, GIRIH_F32, 2, kRows, kDim, 0, 0);
  OK(girih_quantize(context, &in, &out, &q, NULL));
  OK(girih_dequantize(context, &out, &again, &q, NULL));
  for (int r = 0; r < kRows; ++r) {
    double most = 0;
    for (int d = 0; d < kDim; ++d) most = fmax(most, fabs(x[r * kDim + d]));
    NEAR(scales[r], most / 127, 1e-8);
    for (int d = 0; d < kDim; ++d) {
      NEAR(codes[r * kDim + d], x[r * kDim + d] / (most / 127), 0.5001);
      NEAR(back[r * kDim + d], codes[r * kDim + d] * (double)scales[r], 1e-7);
    }
  }
  FAILS(GIRIH_INVALID_ARGUMENT, "quantization is NULL", girih_quantize(context, &in, &out, NULL, NULL));
  q.scale = 6;
  FAILS(GIRIH_INVALID_ARGUMENT, "quantization.scale=6 is unknown", girih_quantize(context, &in, &out, &q, NULL));

  uint8_t flags[19], bytes[5];
  for (int i = 0; i < 19; ++i) flags[i] = (uint8_t)(i % 3 == 0 ? 7 : 0);
  const girih_tensor bits = dense(flags, GIRIH_U8, 1, 19, 0, 0, 0), packed = dense(bytes, GIRIH_U8, 1, 3, 0, 0, 0);
  for (girih_bit_order order = GIRIH_LITTLE; order <= GIRIH_BIG; ++order) {
    OK(girih_packbits(context, &bits, &packed, order, NULL));
    for (int i = 0; i < 24; ++i) {
      const int bit = order == GIRIH_LITTLE ? i % 8 : 7 - i % 8;
      CHECK((bytes[i / 8] >> bit & 1) == (i < 19 && i % 3 == 0));
    }
  }
  FAILS(GIRIH_INVALID_ARGUMENT, "order=2", girih_packbits(context, &bits, &packed, 2, NULL));
  const int32_t indptr[] = {0, 4, 4, 19};
  const girih_indices segments = indices32(indptr, 4);
  const girih_tensor lists = dense(bytes, GIRIH_U8, 1, 3, 0, 0, 0);
  int64_t offsets[4] = {-1, -1, -1, -1};
  OK(girih_segment_packbits(context, &bits, &segments, &lists, GIRIH_LITTLE, offsets, 4, NULL));
  CHECK(offsets[0] == 0 && offsets[1] == 1 && offsets[2] == 1 && offsets[3] == 3);
  CHECK(bytes[0] == 0x09 && bytes[1] == (uint8_t)(1 << 2 | 1 << 5));  // 0 3 | 6 9
  OK(girih_segment_packbits(context, &bits, &segments, &lists, GIRIH_LITTLE, NULL, 0, NULL));
  FAILS(GIRIH_INVALID_ARGUMENT, "out_indptr has room for 3 entries; needs 4",
        girih_segment_packbits(context, &bits, &segments, &lists, GIRIH_LITTLE, offsets, 3, NULL));
}

enum { kHeads = 2, kHeadDim = 8, kPositions = 32, kPageSize = 4, kPages = 5 };

static void rope_and_append(girih_context* context) {
  girih_rope_table table;
  OK(girih_rope_table_init(&table, sizeof table));
  CHECK(table.theta == 10000 && table.linear == 1 && table.ntk == 1);
  table.rotary_dim = kHeadDim;
  double frequencies[kHeadDim / 2];
  OK(girih_rope_frequencies(&table, frequencies, COUNT(frequencies)));
  for (int i = 0; i < kHeadDim / 2; ++i) NEAR(frequencies[i], pow(10000, -2.0 * i / kHeadDim), 1e-12);
  FAILS(GIRIH_INVALID_ARGUMENT, "out has room for 3 entries; needs 4", girih_rope_frequencies(&table, frequencies, 3));
  girih_yarn yarn;
  OK(girih_yarn_init(&yarn, sizeof yarn));
  CHECK(yarn.beta_fast == 32 && yarn.whole_pairs == 1);
  yarn.factor = 4;
  table.yarn = &yarn;
  OK(girih_rope_frequencies(&table, frequencies, COUNT(frequencies)));
  NEAR(frequencies[0], 1, 1e-12);
  NEAR(frequencies[3], 1e-3 / 4, 1e-7);
  table.yarn = NULL;
  static float cos_sin[kPositions * kHeadDim];
  FAILS(GIRIH_INVALID_ARGUMENT, "out has room for 255 entries; needs 256", girih_rope_cos_sin(&table, kPositions, cos_sin, 255));
  OK(girih_rope_cos_sin(&table, kPositions, cos_sin, COUNT(cos_sin)));
  NEAR(cos_sin[7 * kHeadDim + 1], cos(7 * 0.1), 1e-6);
  NEAR(cos_sin[7 * kHeadDim + 5], sin(7 * 0.1), 1e-6);

  enum { kTokens = 4 };
  float q[kTokens * kHeads * kHeadDim], k[kTokens * kHeads * kHeadDim], v[kTokens * kHeads * kHeadDim];
  float q_out[kTokens * kHeads * kHeadDim], k_out[kTokens * kHeads * kHeadDim], appended_q[kTokens * kHeads * kHeadDim];
  fill(q, COUNT(q), 27);
  fill(k, COUNT(k), 28);
  fill(v, COUNT(v), 29);
  // Request 0 has 6 tokens of which 3 are new, request 1 its first.
  const int64_t positions[kTokens] = {3, 4, 5, 0}, kv_len[] = {6, 1};
  const int32_t append_indptr[] = {0, 3, 4}, kv_indptr[] = {0, 2, 3}, kv_indices[] = {3, 1, 4};
  girih_rope_args args;
  OK(girih_rope_args_init(&args, sizeof args));
  args.q = dense(q, GIRIH_F32, 3, kTokens, kHeads, kHeadDim, 0);
  args.k = dense(k, GIRIH_F32, 3, kTokens, kHeads, kHeadDim, 0);
  args.q_out = dense(q_out, GIRIH_F32, 3, kTokens, kHeads, kHeadDim, 0);
  args.k_out = dense(k_out, GIRIH_F32, 3, kTokens, kHeads, kHeadDim, 0);
  args.cos_sin = dense(cos_sin, GIRIH_F32, 2, kPositions, kHeadDim, 0, 0);
  args.positions = dense((void*)positions, GIRIH_I64, 1, kTokens, 0, 0, 0);
  OK(girih_apply_rope(context, &args, NULL));
  for (int t = 0; t < kTokens; ++t) {
    for (int h = 0; h < kHeads; ++h) {
      for (int i = 0; i < kHeadDim / 2; ++i) {
        const int at = (t * kHeads + h) * kHeadDim + i;
        const double angle = (double)positions[t] * pow(10000, -2.0 * i / kHeadDim);
        NEAR(q_out[at], q[at] * cos(angle) - q[at + kHeadDim / 2] * sin(angle), 1e-6);
        NEAR(k_out[at + kHeadDim / 2], k[at + kHeadDim / 2] * cos(angle) + k[at] * sin(angle), 1e-6);
      }
    }
  }

  // Appended by two calls into two caches: rotated first, and in one go.
  static float pages[2][2][kPages * kPageSize * kHeads * kHeadDim];
  girih_kv_store store[2];
  for (int i = 0; i < 2; ++i) {
    const girih_tensor k_pages = dense(pages[i][0], GIRIH_F32, 4, kPages, kPageSize, kHeads, kHeadDim);
    const girih_tensor v_pages = dense(pages[i][1], GIRIH_F32, 4, kPages, kPageSize, kHeads, kHeadDim);
    OK(girih_paged_kv_store(&k_pages, &v_pages, GIRIH_NHD, &store[i]));
  }
  girih_append_batch batch;
  OK(girih_append_batch_init(&batch, sizeof batch));
  batch.append_indptr = indices32(append_indptr, 3);
  batch.kv_len = indices64(kv_len, 2);
  batch.kv_indices = kv_indices;
  batch.num_kv_indices = COUNT(kv_indices);
  batch.kv_indptr = indices32(kv_indptr, 3);
  const girih_tensor new_v = dense(v, GIRIH_F32, 3, kTokens, kHeads, kHeadDim, 0);
  OK(girih_append(context, &store[0], &batch, &args.k_out, NULL, &new_v, NULL));
  girih_rope_append_args fused;
  OK(girih_rope_append_args_init(&fused, sizeof fused));
  fused.rope = &args;
  fused.v = new_v;
  args.q_out = dense(appended_q, GIRIH_F32, 3, kTokens, kHeads, kHeadDim, 0);
  memset(&args.k_out, 0, sizeof args.k_out);
  memset(&args.positions, 0, sizeof args.positions);  // the keys' own
  OK(girih_rope_append(context, &store[1], &batch, &fused, NULL));
  CHECK(memcmp(pages[0], pages[1], sizeof pages[0]) == 0 && memcmp(q_out, appended_q, sizeof q_out) == 0);
  const int places[kTokens] = {3 * kPageSize + 3, 1 * kPageSize + 0, 1 * kPageSize + 1, 4 * kPageSize + 0};
  const size_t token_bytes = sizeof(float) * kHeads * kHeadDim;
  for (int t = 0; t < kTokens; ++t) {
    CHECK(memcmp(pages[0][0] + places[t] * kHeads * kHeadDim, k_out + t * kHeads * kHeadDim, token_bytes) == 0);
    CHECK(memcmp(pages[0][1] + places[t] * kHeads * kHeadDim, v + t * kHeads * kHeadDim, token_bytes) == 0);
  }
  const int64_t slots[kTokens] = {places[0], places[1], places[2], places[3]};
  const girih_tensor slot_table = dense((void*)slots, GIRIH_I64, 1, kTokens, 0, 0, 0);
  const girih_tensor rotated = dense(k_out, GIRIH_F32, 3, kTokens, kHeads, kHeadDim, 0);
  memset(pages[1], 0, sizeof pages[1]);
  OK(girih_append_by_table(context, &store[1], &slot_table, NULL, NULL, NULL, NULL, &rotated, NULL, &new_v, NULL));
  CHECK(memcmp(pages[0], pages[1], sizeof pages[0]) == 0);
  FAILS(GIRIH_INVALID_ARGUMENT, "batch_indices has rank 0",
        girih_append_by_table(context, &store[1], NULL, NULL, NULL, NULL, NULL, &rotated, NULL, &new_v, NULL));
  fused.rope = NULL;
  FAILS(GIRIH_INVALID_ARGUMENT, "args.rope is NULL", girih_rope_append(context, &store[1], &batch, &fused, NULL));
  batch.num_kv_indices = 1;
  FAILS(GIRIH_INVALID_ARGUMENT, "kv_indices", girih_append(context, &store[0], &batch, &args.k, NULL, &new_v, NULL));
  FAILS(GIRIH_INVALID_ARGUMENT, "store is NULL", girih_append(context, NULL, &batch, &args.k, NULL, &new_v, NULL));

  const girih_page_copy copies[] = {{3, 0}, {4, 2}};
  OK(girih_copy_pages(context, &store[0], kHeads, kHeadDim, 0, kHeadDim, copies, 2, NULL));
  for (int plane = 0; plane < 2; ++plane) {
    const size_t page_bytes = token_bytes * kPageSize, page = page_bytes / sizeof(float);
    CHECK(memcmp(pages[0][plane], pages[0][plane] + 3 * page, page_bytes) == 0);
    CHECK(memcmp(pages[0][plane] + 2 * page, pages[0][plane] + 4 * page, page_bytes) == 0);
  }
  FAILS(GIRIH_INVALID_ARGUMENT, "copies is NULL", girih_copy_pages(context, &store[0], kHeads, kHeadDim, 0, kHeadDim, NULL, 2, NULL));

  const girih_indices appended = indices32(append_indptr, 3), lengths = indices64(kv_len, 2);
  int32_t requests[kTokens];
  int64_t found[kTokens];
  OK(girih_append_positions(&appended, &lengths, requests, found, kTokens));
  CHECK(memcmp(found, positions, sizeof found) == 0 && requests[2] == 0 && requests[3] == 1);
  FAILS(GIRIH_INVALID_ARGUMENT, "batch_indices has room for 3 entries; needs 4",
        girih_append_positions(&appended, &lengths, requests, found, 3));
}

void test_operators(girih_context* context) {
  norms(context);
  activations(context);
  quantisation(context);
  rope_and_append(context);
}
