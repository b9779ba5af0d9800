// KV stores out of tensors: dims in the order of a layout become byte strides, checked so that run() may trust them. Nothing is read.
#include <cstdint>
#include <limits>

#include "base/error.h"
#include "base/math.h"
#include "girih/attention.h"

namespace girih {
namespace {

constexpr std::int64_t kMaxExtent = std::int64_t{1} << 40;
constexpr int kMaxDim = 1024;

template <typename... Args>
[[noreturn]] void refuse(std::string_view op, fmt::format_string<Args...> text, Args&&... args) {
  fail(Code::invalid_argument, op, text, std::forward<Args>(args)...);
}

void check_tensor(std::string_view op, const char* name, const TensorView& t, int rank) {
  if (t.rank != rank) refuse(op, "{} has rank {}; must be {}", name, t.rank, rank);
  for (int i = 0; i < rank; ++i) {
    if (t.shape[i] < 0 || t.shape[i] > kMaxExtent) refuse(op, "{}.shape[{}]={}; must be in [0, 2^40]", name, i, t.shape[i]);
  }
  if (t.data == nullptr && t.numel() > 0) refuse(op, "{}.data is null; must point to {} elements", name, t.numel());
}

/// Bytes of `stride` elements. 4-bit elements lie two to a byte, so strides but the last dim's are even.
std::int64_t stride_bytes(std::string_view op, const char* name, const TensorView& t, int dim) {
  if (t.shape[dim] <= 1) return 0;
  std::int64_t total = 0;
  if (__builtin_mul_overflow(t.strides[dim], std::int64_t{bits(t.dtype)}, &total)) {
    refuse(op, "{}.strides[{}]={} overflows 64 bits in bytes", name, dim, t.strides[dim]);
  }
  if (total % 8 != 0) refuse(op, "{}.strides[{}]={} elements of {}; must be whole bytes", name, dim, t.strides[dim], girih::name(t.dtype));
  return total / 8;
}

/// The plane of `t`, whose dims page (or -1), token, head and element are given.
KvPlane make_plane(std::string_view op, const char* name, const TensorView& t, int page, int token, int head, int element) {
  KvPlane plane;
  plane.data = t.data;
  plane.dtype = t.dtype;
  plane.page_byte_stride = stride_bytes(op, name, t, page < 0 ? token : page);  // ragged: a page id is the index of its first token
  plane.token_byte_stride = stride_bytes(op, name, t, token);
  plane.head_byte_stride = stride_bytes(op, name, t, head);
  if (t.shape[element] > 1 && t.strides[element] != 1) {
    if (bits(t.dtype) < 8) refuse(op, "{}.strides[{}]={}; 4-bit data must be dense in its last dim", name, element, t.strides[element]);
    plane.dim_byte_stride = stride_bytes(op, name, t, element);
    if (plane.dim_byte_stride == 0) refuse(op, "{}.strides[{}]=0; elements of a head must be distinct", name, element);
  }
  return plane;
}

void check_same(std::string_view op, const TensorView& k, const TensorView& v, int dim, const char* what) {
  if (k.shape[dim] != v.shape[dim])
    refuse(op, "v.shape[{}]={} differs from k.shape[{}]={}; {} must be equal", dim, v.shape[dim], dim, k.shape[dim], what);
}

}  // namespace

KvStore paged_kv_store(const TensorView& k, const TensorView& v, KvLayout layout) {
  constexpr std::string_view op = "attention.paged_kv_store";
  check_tensor(op, "k", k, 4);
  check_tensor(op, "v", v, 4);
  const int token = layout == KvLayout::nhd ? 1 : 2;
  const int head = layout == KvLayout::nhd ? 2 : 1;
  check_same(op, k, v, 0, "pages");
  check_same(op, k, v, token, "page sizes");
  check_same(op, k, v, head, "heads");
  if (k.shape[token] < 1) refuse(op, "k.shape[{}]={}; the page size must be >= 1", token, k.shape[token]);
  KvStore store;
  store.page_size = k.shape[token];
  store.num_pages = k.shape[0];
  store.k = make_plane(op, "k", k, 0, token, head, 3);
  store.v = make_plane(op, "v", v, 0, token, head, 3);
  return store;
}

KvStore paged_kv_store(const TensorView& kv, KvLayout layout) {
  constexpr std::string_view op = "attention.paged_kv_store";
  check_tensor(op, "kv", kv, 5);
  if (kv.shape[1] != 2) refuse(op, "kv.shape[1]={}; must be 2 (K, then V)", kv.shape[1]);
  const int token = layout == KvLayout::nhd ? 2 : 3;
  const int head = layout == KvLayout::nhd ? 3 : 2;
  if (kv.shape[token] < 1) refuse(op, "kv.shape[{}]={}; the page size must be >= 1", token, kv.shape[token]);
  KvStore store;
  store.page_size = kv.shape[token];
  store.num_pages = kv.shape[0];
  store.k = make_plane(op, "kv", kv, 0, token, head, 4);
  store.v = store.k;
  if (kv.data != nullptr) store.v.data = static_cast<const std::byte*>(kv.data) + stride_bytes(op, "kv", kv, 1);
  return store;
}

KvStore ragged_kv_store(const TensorView& k, const TensorView& v, KvLayout layout) {
  constexpr std::string_view op = "attention.ragged_kv_store";
  check_tensor(op, "k", k, 3);
  check_tensor(op, "v", v, 3);
  const int token = layout == KvLayout::nhd ? 0 : 1;
  const int head = layout == KvLayout::nhd ? 1 : 0;
  check_same(op, k, v, token, "tokens");
  check_same(op, k, v, head, "heads");
  KvStore store;
  store.page_size = kEndlessPage;
  store.num_pages = k.shape[token];
  store.k = make_plane(op, "k", k, -1, token, head, 2);
  store.v = make_plane(op, "v", v, -1, token, head, 2);
  return store;
}

KvStore mla_token_kv_store(const TensorView& given, int latent_dim, int rope_dim) {
  constexpr std::string_view op = "attention.mla_token_kv_store";
  TensorView t = given;
  if (t.rank == 4 && t.shape[2] == 1) {  // with the dimension of the one head
    t.shape[2] = t.shape[3];
    t.strides[2] = t.strides[3];
    t.rank = 3;
  }
  check_tensor(op, "tokens", t, 3);
  if (bits(t.dtype) != 8) refuse(op, "tokens is {}; must be bytes (u8, or another type of 8 bits)", name(t.dtype));
  if (latent_dim < 1 || latent_dim > kMaxDim || latent_dim % kScaleGroup != 0)
    refuse(op, "latent_dim={}; must be a multiple of {} up to {}", latent_dim, kScaleGroup, kMaxDim);
  if (rope_dim < 1 || rope_dim > kMaxDim) refuse(op, "rope_dim={}; must be in 1..{}", rope_dim, kMaxDim);
  const std::int64_t scales_at = latent_dim;
  const std::int64_t rope_at = scales_at + latent_dim / kScaleGroup * 4;
  const std::int64_t token_bytes = rope_at + bytes(DType::bf16, rope_dim);
  if (t.shape[2] != token_bytes || t.strides[2] != 1) {
    refuse(op, "tokens has {} bytes a token, {} apart; must be {} dense ones: {} codes, {} scales of 4 bytes, {} bf16", t.shape[2],
           t.strides[2], token_bytes, latent_dim, latent_dim / kScaleGroup, rope_dim);
  }
  if (t.shape[1] < 1) refuse(op, "tokens.shape[1]={}; the page size must be >= 1", t.shape[1]);
  const auto* data = static_cast<const std::byte*>(t.data);
  const auto at = [&](std::int64_t offset) { return data == nullptr ? nullptr : data + offset; };
  const std::int64_t page = stride_bytes(op, "tokens", t, 0);
  const std::int64_t token = stride_bytes(op, "tokens", t, 1);
  KvStore store{.page_size = t.shape[1], .num_pages = t.shape[0]};
  store.k = {.data = data, .dtype = DType::e4m3, .page_byte_stride = page, .token_byte_stride = token};
  store.k.scales = {
      .granularity = ScaleGranularity::token_group, .data = at(scales_at), .page_byte_stride = page, .token_byte_stride = token};
  store.k_rope = {.data = at(rope_at), .dtype = DType::bf16, .page_byte_stride = page, .token_byte_stride = token};
  return store;
}

KvStore single_token_pages(const KvStore& given) {
  constexpr std::string_view op = "attention.single_token_pages";
  if (given.page_size < 1) refuse(op, "store.page_size={}; must be a paged store", given.page_size);
  KvStore store = given;
  store.page_size = 1;
  store.has_partial_page = false;
  if (__builtin_mul_overflow(given.num_pages, given.page_size, &store.num_pages) ||
      store.num_pages > std::int64_t{std::numeric_limits<std::int32_t>::max()} + 1) {
    refuse(op, "store.num_pages={} of {} tokens; tokens must be at most 2^31, as their ids are 32-bit", given.num_pages, given.page_size);
  }
  if (given.has_partial_page) refuse(op, "store.has_partial_page=true; every page must have its page_size={} tokens", given.page_size);
  const auto respan = [&](const char* what, auto& strides) {
    if (strides.data == nullptr || given.page_size == 1) return;
    std::int64_t page = 0;
    if (__builtin_mul_overflow(strides.token_byte_stride, given.page_size, &page) ||
        (given.num_pages > 1 && page != strides.page_byte_stride)) {
      refuse(op, "{}.page_byte_stride={} with {} tokens of {} bytes; pages must adjoin for tokens to be counted through them", what,
             strides.page_byte_stride, given.page_size, strides.token_byte_stride);
    }
    strides.page_byte_stride = strides.token_byte_stride;
  };
  const auto respan_plane = [&](const char* what, const char* scales, KvPlane& plane) {
    respan(what, plane);
    const ScaleGranularity g = plane.scales.granularity;
    if (g != ScaleGranularity::none && g != ScaleGranularity::tensor && g != ScaleGranularity::head) respan(scales, plane.scales);
  };
  respan_plane("store.k", "store.k.scales", store.k);
  respan_plane("store.k_rope", "store.k_rope.scales", store.k_rope);
  respan_plane("store.v", "store.v.scales", store.v);
  return store;
}

KvSegment KeyLists::segment() const {
  return {.qo_indptr = qo_indptr, .page_size = 1, .kv_indptr = kv_indptr, .kv_len = kv_len, .masked = false};
}

KeyLists key_lists(std::span<const std::int32_t> indices, std::int64_t num_rows) {
  constexpr std::string_view op = "attention.key_lists";
  if (num_rows < 0 || (num_rows == 0 ? !indices.empty() : std::ssize(indices) % num_rows != 0))
    refuse(op, "num_rows={} with {} indices; every row must have the same number of entries", num_rows, indices.size());
  const std::size_t top_k = num_rows == 0 ? 0 : indices.size() / static_cast<std::size_t>(num_rows);
  KeyLists lists{.qo_indptr = {0}, .kv_indptr = {0}, .kv_len = {}, .kv_indices = {}};
  lists.kv_indices.reserve(indices.size());
  for (std::int64_t row = 0; row < num_rows; ++row) {
    for (const std::int32_t token : indices.subspan(static_cast<std::size_t>(row) * top_k, top_k)) {
      if (token >= 0) lists.kv_indices.push_back(token);
    }
    lists.qo_indptr.push_back(row + 1);
    lists.kv_len.push_back(std::ssize(lists.kv_indices) - lists.kv_indptr.back());
    lists.kv_indptr.push_back(std::ssize(lists.kv_indices));
  }
  return lists;
}

KvStore block_sparse_kv_store(const TensorView& k, const TensorView& v, std::int64_t page_size, KvLayout layout) {
  constexpr std::string_view op = "attention.block_sparse_kv_store";
  if (page_size < 1 || page_size > std::numeric_limits<std::int32_t>::max()) refuse(op, "page_size={}; must be in [1, 2^31)", page_size);
  KvStore store = ragged_kv_store(k, v, layout);
  store.page_size = page_size;
  store.has_partial_page = store.num_pages % page_size != 0;
  store.num_pages = ceil_div(store.num_pages, page_size);
  for (KvPlane* plane : {&store.k, &store.v}) {
    if (__builtin_mul_overflow(plane->token_byte_stride, page_size, &plane->page_byte_stride)) {
      refuse(op, "page_size={} x {} bytes a token overflows 64 bits", page_size, plane->token_byte_stride);
    }
  }
  return store;
}

std::vector<std::int64_t> kv_len_from_last_page(Indices kv_indptr, Indices last_page_len, std::int64_t page_size) {
  constexpr std::string_view op = "attention.kv_len_from_last_page";
  if (page_size < 1 || page_size > std::numeric_limits<std::int32_t>::max()) refuse(op, "page_size={}; must be in [1, 2^31)", page_size);
  const std::int64_t n = last_page_len.size();
  if (kv_indptr.size() != n + 1 && !(kv_indptr.empty() && n == 0)) {
    refuse(op, "kv_indptr has {} entries; must have {} (one more than last_page_len)", kv_indptr.size(), n + 1);
  }
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(n), 0);
  for (std::int64_t r = 0; r < n; ++r) {
    if (kv_indptr[r] < 0) refuse(op, "kv_indptr[{}]={}; must be >= 0", r, kv_indptr[r]);
    if (kv_indptr[r + 1] < kv_indptr[r])
      refuse(op, "kv_indptr[{}]={} < kv_indptr[{}]={}; must be non-decreasing", r + 1, kv_indptr[r + 1], r, kv_indptr[r]);
    const std::int64_t pages = kv_indptr[r + 1] - kv_indptr[r];
    const std::int64_t last = last_page_len[r];
    if (pages == 0) {
      if (last < 0 || last > page_size) refuse(op, "last_page_len[{}]={}; must be in [0, page_size={}]", r, last, page_size);
      continue;
    }
    if (last < 1 || last > page_size)
      refuse(op, "last_page_len[{}]={}; must be in [1, page_size={}] for a request with pages", r, last, page_size);
    if (__builtin_mul_overflow(pages - 1, page_size, &lengths[static_cast<std::size_t>(r)]) ||
        __builtin_add_overflow(lengths[static_cast<std::size_t>(r)], last, &lengths[static_cast<std::size_t>(r)])) {
      refuse(op, "kv_indptr gives request {} {} pages of {}; its length overflows 64 bits", r, pages, page_size);
    }
  }
  return lengths;
}

}  // namespace girih
