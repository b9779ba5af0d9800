// Declares the evaluators of the current SIMD target (girih::variant::N_AVX2::evaluate_mask, ...); evaluate.cc compiles them once for all
// targets, and a kernel of the same target calls them. Include after hwy/highway.h.

#if defined(GIRIH_VARIANT_EVALUATE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef GIRIH_VARIANT_EVALUATE_INL
#undef GIRIH_VARIANT_EVALUATE_INL
#else
#define GIRIH_VARIANT_EVALUATE_INL
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "variant/evaluate.h"

namespace girih::variant {
namespace HWY_NAMESPACE {

/// program.logits of `n` <= kMaxLanes keys of one row. `score`: natural units in, logits out. The hook must be present.
void evaluate_logits(const Program& program, const ParamTable& params, const RowVars& row, const std::int64_t* kv_pos, int n, float* score,
                     std::byte* scratch);
/// program.mask of `n` keys of one row: 1 = visible, 0 = not. The hook must be present.
void evaluate_mask(const Program& program, const ParamTable& params, const RowVars& row, const std::int64_t* kv_pos, int n,
                   std::uint8_t* visible, std::byte* scratch);

/// Begins the evaluation of `code` (logits or mask; not absent) over a tile: `num_rows` rows of one KV head, which must stay where they
/// are. `lanes` >= num_rows, a multiple of 16: lanes past the rows repeat the last one. What depends on rows alone is worked out here.
/// `tile`: evaluate_tile_bytes, 64-byte aligned, kept from step to step.
void begin_tile_hook(const Code& code, const ParamTable& params, const RowVars* rows, int num_rows, int lanes, std::byte* tile);
/// Logits of a step of keys for lanes [first, first + lanes) of the tile (multiples of 16), in place. scores [num_keys, ld], natural units:
/// lanes are columns.
void evaluate_tile_logits(std::byte* tile, const std::int64_t* kv_pos, int num_keys, int first, int lanes, float* scores, int ld);
/// The mask of a step of keys for all lanes: visible [num_keys, lanes], 1 or 0.
void evaluate_tile_mask(std::byte* tile, const std::int64_t* kv_pos, int num_keys, std::uint8_t* visible);

/// query, key, value or output over a head vector of `n` elements, in place. An absent hook leaves it as it is. `kv_pos`: of key and value.
void evaluate_transform(const Code& code, const ParamTable& params, const RowVars& row, std::int64_t kv_pos, int n, float* x,
                        std::byte* scratch);
/// program.sink of a head, natural units. The hook must be present.
float evaluate_sink(const Program& program, const ParamTable& params, std::int64_t q_head, std::byte* scratch);

}  // namespace HWY_NAMESPACE
}  // namespace girih::variant

#endif  // GIRIH_VARIANT_EVALUATE_INL
