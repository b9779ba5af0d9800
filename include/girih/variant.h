// Attention variants as expressions: a mask, bias, cap, transform or sink is written once with ordinary operators and runs on every
// backend. `Expr` is an immutable graph; building one does no work. The planner proves from a mask which key ranges are never or
// always visible (interval analysis), so masks that can be proven cost nothing.
//
//   Variant v;
//   v.mask = (kv_pos() <= q_pos()) & (q_pos() - kv_pos() < 1024);          // causal, window of 1024 keys including self
//   v.logits = scalar("cap") * tanh(score() / scalar("cap"));               // soft cap, the cap given at run
//
// Types: integers are 64-bit, numbers f32, conditions bool. Integer operands of an f32 operator convert; comparisons of integers are
// exact. Integer arithmetic wraps are the author's fault and are refused where the analysis sees that they can happen.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "girih/tensor.h"

namespace girih {

namespace variant {
struct Node;
}

/// When a parameter's value is given. `plan`: with the batch, copied into the plan, usable for proofs.
/// `run`: with run(), may differ between runs of one plan; whatever depends on it is never proven.
enum class ParamTime : std::uint8_t { plan, run };

enum class ExprType : std::uint8_t { boolean, integer, number };

class Expr {
 public:
  Expr() = default;  ///< "absent": the hook is not used
  Expr(int value);
  Expr(std::int64_t value);
  Expr(float value);
  Expr(double value);  ///< rounded to f32
  static Expr boolean(bool value);

  explicit operator bool() const { return node_ != nullptr; }  ///< present? (`!e` is the negated condition: ask `e.node() == nullptr`)
  ExprType type() const;
  const std::shared_ptr<const variant::Node>& node() const { return node_; }
  explicit Expr(std::shared_ptr<const variant::Node> node) : node_(std::move(node)) {}

 private:
  std::shared_ptr<const variant::Node> node_;
};

// Variables. Which hook may use which is stated at struct Variant.
Expr score();        ///< number: q . k * sm_scale (natural units, before any hook)
Expr q_pos();        ///< integer: logical position of the query row's token
Expr kv_pos();       ///< integer: logical position of the key
Expr q_idx();        ///< integer: index of the token within its request's query rows, from 0
Expr q_len();        ///< integer: query rows of the request
Expr kv_len();       ///< integer: logical KV length of the request
Expr request();      ///< integer: index of the request in the batch
Expr q_head();       ///< integer
Expr kv_head();      ///< integer
Expr q_row();        ///< integer: row of the token in the query tensor (all requests)
Expr x();            ///< number: the element that a transform maps
Expr dim();          ///< integer: the element's index within the head
Expr mean_square();  ///< number: mean of x*x over the head (for QK-norm)

/// A named scalar parameter. `type` is ExprType::number or integer.
Expr scalar(std::string name, ExprType type = ExprType::number, ParamTime time = ParamTime::run);

/// A named one-dimensional array of f32, i32 or i64. An index outside it reads 0.
class ArrayParam {
 public:
  ArrayParam(std::string name, DType dtype, ParamTime time = ParamTime::run);
  Expr operator[](Expr index) const;

 private:
  friend class CudaArg;
  std::string name_;
  DType dtype_;
  ParamTime time_;
};

/// A named array of bits, packed little-endian into bytes (u8). A bit outside it reads false.
class BitsParam {
 public:
  BitsParam(std::string name, ParamTime time = ParamTime::run);
  Expr operator[](Expr bit_index) const;

 private:
  friend class CudaArg;
  std::string name_;
  ParamTime time_;
};

Expr operator+(Expr a, Expr b);
Expr operator-(Expr a, Expr b);
Expr operator*(Expr a, Expr b);
Expr operator/(Expr a, Expr b);  ///< number division; on two integers: floor division (x / 0 = 0)
Expr operator%(Expr a, Expr b);  ///< integers: a - b * floor(a / b) (x % 0 = 0)
Expr operator-(Expr a);
Expr operator<(Expr a, Expr b);
Expr operator<=(Expr a, Expr b);
Expr operator>(Expr a, Expr b);
Expr operator>=(Expr a, Expr b);
Expr operator==(Expr a, Expr b);
Expr operator!=(Expr a, Expr b);
Expr operator&(Expr a, Expr b);  ///< booleans only
Expr operator|(Expr a, Expr b);
Expr operator!(Expr a);
Expr select(Expr condition, Expr if_true, Expr if_false);
Expr min(Expr a, Expr b);
Expr max(Expr a, Expr b);
Expr abs(Expr a);
Expr exp(Expr a);
Expr log(Expr a);
Expr tanh(Expr a);
Expr sqrt(Expr a);
Expr rsqrt(Expr a);
Expr sigmoid(Expr a);

/// Something that CUDA text may name: a variable or scalar parameter under its own name, any expression under a given one, or a whole
/// array, which the text indexes: `slopes[i]`, 0 or false outside.
class CudaArg {
 public:
  CudaArg(Expr variable);  ///< a variable or a scalar parameter
  CudaArg(std::string name, Expr value);
  CudaArg(const ArrayParam& array);
  CudaArg(const BitsParam& bits);
  const std::string& name() const { return name_; }
  const Expr& value() const { return value_; }

 private:
  std::string name_;
  Expr value_;
};

/// The escape hatch: CUDA text in place of an expression, for what expressions cannot say. `body` is the body of a function that gets
/// `args` under their names (number: float, integer: i64, boolean: bool) and returns a `type`; it may call what kernels/core/math.cuh has.
/// It is called for one score, key or element at a time by threads that may have diverged: no barriers, shuffles or writes. Texts are part
/// of the key. CUDA only: a schedule on the CPU refuses the variant. A compile error names `name` and the line of `body`. At most 8
/// arguments.
///
///   v.logits = cuda_code(ExprType::number, "return score - slope * log2(1.0F + (float)abs(q_pos - kv_pos));",
///                        {score(), q_pos(), kv_pos(), scalar("slope")});
///
/// Nothing is proven of a text: as a mask it is evaluated for every key, as logits it may be anything. Bounds that are known go around it
/// as expressions, and the planner proves those: `never_outside & (always_inside | cuda_code(...))`.
Expr cuda_code(ExprType type, std::string body, std::vector<CudaArg> args, std::string name = "cuda_code");

/// Rotary position encoding applied to Q and K as they are loaded (the cache holds unrotated keys).
/// Angle of pair i at position p: p * freq_i, freq_i = theta^(-2i / rotary_dim) / scale, adjusted by the Llama-3.1 rule if asked.
struct Rope {
  double theta = 10000.0;
  double scale = 1.0;       ///< positions are divided by it (linear scaling)
  int rotary_dim = 0;       ///< leading elements that rotate, even; 0 = all of head_dim_qk
  int rotary_begin = 0;     ///< first element that rotates (MLA: 512)
  bool interleave = false;  ///< pairs (2i, 2i+1) if true, (i, i + rotary_dim/2) if false
  struct Llama31 {
    double factor = 8.0;
    double low_freq_factor = 1.0;
    double high_freq_factor = 4.0;
    double old_context_len = 8192.0;
  };
  std::optional<Llama31> llama31;
};

/// What makes one attention differ from another. Absent hooks cost nothing.
/// All hooks may use parameters and constants, and beyond that:
///   query            x dim mean_square q_head q_pos q_idx q_len kv_len request q_row   (number)
///   key, value       x dim mean_square kv_head kv_pos                                   (number)
///   logits           score and all positions and heads                                  (number, natural units)
///   mask             q_pos kv_pos q_idx q_len kv_len request q_row q_head kv_head       (boolean: true = visible)
///   sink             q_head (number: a logit that joins the denominator of that head)
///   output           x dim q_head q_pos q_idx q_len kv_len request q_row                (number)
/// `key` and `query` come before RoPE. `softmax = false`: the weight of a key is `logits` itself (required then), the output the plain
/// weighted sum, and there is no LSE.
struct Variant {
  std::string name;  ///< for logs and benchmark rows; not part of the key
  Expr query, key, value, logits, mask, sink, output;
  bool softmax = true;
  std::optional<Rope> rope;
};

/// A value for a named parameter.
struct ParamValue {
  std::string_view name;
  double number = 0;         ///< a scalar number's value, or
  std::int64_t integer = 0;  ///< a scalar integer's value, or
  TensorView array{};        ///< rank 1, dense: an array's or bit array's data (rank 0 = scalar)
};

/// The built-in variants: ordinary expressions, for use as they are or combined with `&`, `|`.
namespace variants {
/// kv_pos <= q_pos.
Expr causal();
/// q_pos - left <= kv_pos <= q_pos + right; a negative bound is open. `left` counts keys before self (FlashInfer's window_left).
Expr window(std::int64_t left, std::int64_t right = 0);
/// At most `size` keys including self, causal (Hugging Face's sliding_window).
Expr sliding_window(std::int64_t size);
/// Keys of the same chunk of `size` positions, causal (Llama 4's chunked local attention).
Expr chunked_local(std::int64_t size);
/// Causal, and every key below position prefix_len[request] (array "prefix_len", i32).
Expr prefix_lm(ParamTime time = ParamTime::plan);
/// Keys whose document id equals the query's (array "document_id", i32, indexed by position: one id per position of one sequence).
Expr document(ParamTime time = ParamTime::plan);
/// Bits "custom_mask": for each request, row-major [q_len, kv_len] starting at bit custom_mask_start[request] (i64 array).
Expr custom_mask(ParamTime time = ParamTime::run);
/// Draft-tree verification: the committed prefix is visible, of the q_len draft tokens (the last q_len keys) those whose bit is set in
/// "tree_mask": row-major [q_len, q_len] from bit tree_mask_start[request].
Expr speculative_tree(ParamTime time = ParamTime::run);
/// The first `size` keys stay visible (StreamingLLM); combine with `window` by `|` and with `causal` by `&`.
Expr first_tokens(std::int64_t size);
/// Multi-item scoring: causal; a token of an item sees the prefix (positions below prefix_len[request]) and its own item.
/// "item_id": i32 per query row of the tensor by position as in `document`.
Expr multi_item(ParamTime time = ParamTime::plan);
/// Causal, plus both directions within a span: positions with equal "span_id" (i32 by position, 0 = none) see each other.
Expr causal_with_bidirectional_spans(ParamTime time = ParamTime::plan);

/// cap * tanh(score / cap) with a constant cap.
Expr soft_cap(float cap);
/// score + slope[q_head] * (kv_pos - q_pos), array "alibi_slopes" (f32).
Expr alibi();
/// The standard slopes of ALiBi (Press et al. 2022) for `num_heads` heads, also when it is not a power of two.
std::vector<float> alibi_slopes(int num_heads);
/// Sigmoid attention (Ramapuram et al. 2024): weight sigmoid(score + bias); use with softmax = false.
Expr sigmoid_logits(float bias);
/// Learned sink logits per query head: array "sinks" (f32), as gpt-oss has.
Expr sinks();
/// x * rsqrt(mean_square + eps) * weight[dim], array `weight_name` (f32): QK-norm.
Expr rms_norm(std::string weight_name, float eps);
}  // namespace variants

}  // namespace girih
