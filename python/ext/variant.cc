// Variants for Python: their parts, Rope, the built-in ones. Expressions are in expressions.cc, the tracing of functions in
// girih/_variant.py, pictures in show.cc and girih/_show_mask.py.
#include "girih/variant.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bind.h"
#include "expr.h"
#include "variant/node.h"
#include "variant/program.h"

namespace girih::python {
namespace {

[[noreturn]] void raise_type(const std::string& text) { throw nb::type_error(text.c_str()); }

void bind_rope(nb::module_& m) {
  nb::class_<Rope> cls(m, "Rope",
                       "Rotary position encoding of Q and K as they are loaded (the cache holds unrotated keys). The angle of pair i at\n"
                       "position p is p * theta^(-2i / rotary_dim) / scale, adjusted by the Llama-3.1 rule if asked.");
  nb::class_<Rope::Llama31>(cls, "Llama31", "The frequency adjustment of Llama 3.1.")
      .def(
          "__init__",
          [](Rope::Llama31* self, double factor, double low, double high, double length) {
            new (self) Rope::Llama31{factor, low, high, length};
          },
          nb::kw_only(), nb::arg("factor") = 8.0, nb::arg("low_freq_factor") = 1.0, nb::arg("high_freq_factor") = 4.0,
          nb::arg("old_context_len") = 8192.0)
      .def_ro("factor", &Rope::Llama31::factor)
      .def_ro("low_freq_factor", &Rope::Llama31::low_freq_factor)
      .def_ro("high_freq_factor", &Rope::Llama31::high_freq_factor)
      .def_ro("old_context_len", &Rope::Llama31::old_context_len)
      .def("__repr__", [](const Rope::Llama31& r) {
        return fmt::format("Rope.Llama31(factor={}, low_freq_factor={}, high_freq_factor={}, old_context_len={})", r.factor,
                           r.low_freq_factor, r.high_freq_factor, r.old_context_len);
      });
  cls.def(
         "__init__",
         [](Rope* self, double theta, double scale, int rotary_dim, int rotary_begin, bool interleave,
            std::optional<Rope::Llama31> llama31) { new (self) Rope{theta, scale, rotary_dim, rotary_begin, interleave, llama31}; },
         nb::kw_only(), nb::arg("theta") = 10000.0, nb::arg("scale") = 1.0, nb::arg("rotary_dim") = 0, nb::arg("rotary_begin") = 0,
         nb::arg("interleave") = false, nb::arg("llama31") = nb::none(),
         "scale: positions are divided by it (linear scaling).\n"
         "rotary_dim: leading elements that rotate, even; 0 = all of head_dim_qk.\n"
         "rotary_begin: first element that rotates (MLA: 512).\n"
         "interleave: pairs (2i, 2i+1) if true, (i, i + rotary_dim/2) if false.\n"
         "llama31: a Rope.Llama31, or None.")
      .def_ro("theta", &Rope::theta)
      .def_ro("scale", &Rope::scale)
      .def_ro("rotary_dim", &Rope::rotary_dim)
      .def_ro("rotary_begin", &Rope::rotary_begin)
      .def_ro("interleave", &Rope::interleave)
      .def_ro("llama31", &Rope::llama31)
      .def("__repr__", [](nb::handle self) {
        const Rope& r = nb::cast<const Rope&>(self);
        return fmt::format("Rope(theta={}, scale={}, rotary_dim={}, rotary_begin={}, interleave={}, llama31={})", r.theta, r.scale,
                           r.rotary_dim, r.rotary_begin, r.interleave ? "True" : "False", nb::repr(self.attr("llama31")).c_str());
      });
}

struct Hook {
  const char* name;
  Expr Variant::*member;
  const char* doc;
};
constexpr Hook kHooks[] = {
    {"query", &Variant::query, "number of x, dim, mean_square, q_head, positions: maps Q, before RoPE"},
    {"key", &Variant::key, "number of x, dim, mean_square, kv_head, kv_pos: maps K, before RoPE"},
    {"value", &Variant::value, "number of x, dim, mean_square, kv_head, kv_pos: maps V"},
    {"logits", &Variant::logits, "number of score and all positions and heads: what softmax sees, natural units"},
    {"mask", &Variant::mask, "boolean of positions and heads: true = visible"},
    {"sink", &Variant::sink, "number of q_head: a logit that joins the denominator of that head"},
    {"output", &Variant::output, "number of x, dim, q_head, positions: maps O"},
};

/// Sets hooks and facts by name; checks the whole as schedule() would.
Variant checked(Variant v, const nb::kwargs& given) {
  for (const auto [key, value] : given) {
    const auto text = nb::cast<std::string>(key);
    const auto* hook = std::find_if(std::begin(kHooks), std::end(kHooks), [&](const Hook& h) { return text == h.name; });
    if (hook != std::end(kHooks)) {
      v.*hook->member = value.is_none() ? Expr() : hook->member == &Variant::mask ? expr(value) : number_of(expr(value));
    } else if (text == "softmax") {
      if (!nb::isinstance<nb::bool_>(value)) raise_type("softmax: must be True or False");
      v.softmax = nb::cast<bool>(value);
    } else if (text == "rope") {
      if (!value.is_none() && !nb::isinstance<Rope>(value)) raise_type("rope: must be a girih.Rope or None");
      v.rope = value.is_none() ? std::nullopt : std::optional<Rope>(nb::cast<Rope>(value));
    } else if (text == "name") {
      if (!nb::isinstance<nb::str>(value)) raise_type("name: must be a str");
      v.name = nb::cast<std::string>(value);
    } else {
      raise_type("\"" + text + "\" is no part of a Variant; it has query, key, value, logits, mask, sink, output, softmax, rope, name");
    }
  }
  in_python_words([&] { return variant::compile(v); });
  return v;
}

constexpr const char* kVariantParts =
    "query: girih._typing.ExprLike | None = {0}, key: girih._typing.ExprLike | None = {0}, value: girih._typing.ExprLike | None = {0}, "
    "logits: girih._typing.ExprLike | None = {0}, mask: girih._typing.ExprLike | None = {0}, sink: girih._typing.ExprLike | None = {0}, "
    "output: girih._typing.ExprLike | None = {0}, softmax: bool = {1}, rope: Rope | None = {0}, name: str = {2}";

void bind_variant_class(nb::module_& m) {
  static const std::string init_sig =
      "def __init__(self, *, " + fmt::format(fmt::runtime(kVariantParts), "None", "True", "''") + ") -> None";
  static const std::string replace_sig =
      "def replace(self, *, " + fmt::format(fmt::runtime(kVariantParts), "...", "...", "...") + ") -> Variant";
  nb::class_<Variant> cls(
      m, "Variant",
      "What makes one attention differ from another: hooks as expressions (see Expr), each absent if None. Immutable; see replace().\n\n"
      "  query, output    transforms of Q and O: number of x, dim, (query: mean_square), q_head, q_pos, q_idx, q_len, kv_len, request, "
      "q_row\n"
      "  key, value       transforms of K and V: number of x, dim, mean_square, kv_head, kv_pos\n"
      "  logits           number of score and all positions and heads\n"
      "  mask             boolean of all positions and heads; true = visible\n"
      "  sink             number of q_head: a logit that joins the softmax denominator\n"
      "  softmax          False: the weight of a key is `logits` itself, the output a plain weighted sum, and there is no LSE\n"
      "  rope             position encoding of Q and K as they are loaded\n"
      "  name             for logs; does not select the kernel\n\n"
      "All hooks may use parameters (scalar(), array(), bits()) and constants. ValueError names the hook that uses what it may not.");
  cls.def(
      "__init__", [](Variant* self, const nb::kwargs& parts) { new (self) Variant(checked({}, parts)); }, nb::sig(init_sig.c_str()));
  cls.def("__copy__", [](const Variant& self) { return self; });
  cls.def(
      "__deepcopy__", [](const Variant& self, nb::handle) { return self; }, nb::arg("memo"));
  cls.def(
      "replace", [](const Variant& self, const nb::kwargs& parts) { return checked(self, parts); }, nb::sig(replace_sig.c_str()),
      "A copy with other parts; None takes a hook out.");
  for (const Hook& hook : kHooks) {
    const auto member = hook.member;
    cls.def_prop_ro(
        hook.name,
        [member](const Variant& self) {
          const Expr& e = self.*member;
          return e.node() == nullptr ? std::optional<Expr>() : std::optional<Expr>(e);
        },
        hook.doc);
  }
  cls.def_ro("softmax", &Variant::softmax)
      .def_ro("rope", &Variant::rope)
      .def_ro("name", &Variant::name)
      .def_prop_ro(
          "key_text", [](const Variant& self) { return variant::compile(self).key_text; },
          "Canonical text of everything but the name: variants with equal texts share their kernels.")
      .def_prop_ro(
          "params",
          [](const Variant& self) {
            nb::dict result;
            for (const variant::ParamInfo& param : variant::compile(self).params) {
              const char* kind = param.kind == variant::ParamInfo::Kind::scalar  ? param.dtype == DType::f32 ? "number" : "integer"
                                 : param.kind == variant::ParamInfo::Kind::array ? "array"
                                                                                 : "bits";
              result[param.name.c_str()] = nb::make_tuple(kind, std::string(name(param.dtype)), name_of(param.time));
            }
            return result;
          },
          nb::sig("def params(self) -> dict[str, tuple[str, str, str]]"),
          "Its parameters: {name: (\"number\" | \"integer\" | \"array\" | \"bits\", dtype, \"plan\" | \"run\")}.")
      .def(
          "show",
          [](nb::handle self, const nb::args& args, const nb::kwargs& kwargs) {
            return nb::module_::import_("girih._show_mask").attr("show_mask")(self, *args, **kwargs);
          },
          nb::sig("def show(self, q_len: int, kv_len: int, *, params: collections.abc.Mapping[str, typing.Any] | None = None, tile: int | "
                  "tuple[int, int] | None = None, q_head: int = 0, kv_head: int = 0) -> girih._svg.Svg"),
          "A picture of the mask over one request's queries (down) and keys (right): which tiles the planner proves never visible (they "
          "are\n"
          "skipped) or always visible (they run without mask code), and which are left to the kernel. Up to 128 x 128 also every key that\n"
          "is visible.\n\n"
          "q_len, kv_len: extents; queries are the last q_len positions.\n"
          "params: values of parameters; what a missing one decides is drawn as unknown.\n"
          "tile: keys and queries a tile, or (queries, keys); None: 64, less for short and more for long extents.\n"
          "q_head, kv_head: of which head, where the mask differs by head.\n\n"
          "Returns an Svg: shown by notebooks; save(path) writes it, str() is its text.")
      .def("__repr__", [](const Variant& self) {
        std::string text;
        const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
        if (!self.name.empty()) add("name=\"" + self.name + "\"");
        for (const Hook& hook : kHooks)
          if ((self.*hook.member).node() != nullptr) add(std::string(hook.name) + "=" + text_of(self.*hook.member));
        if (!self.softmax) add("softmax=False");
        if (self.rope) add("rope=" + std::string(nb::repr(nb::cast(*self.rope)).c_str()));
        return "Variant(" + text + ")";
      });
}

void bind_builtins(nb::module_& parent) {
  nb::module_ m = parent.def_submodule("variants", "The built-in variants: ordinary expressions, for use as they are or combined.");
  m.def("causal", variants::causal, "kv_pos <= q_pos.");
  m.def("window", variants::window, nb::arg("left"), nb::arg("right") = 0,
        "q_pos - left <= kv_pos <= q_pos + right; a negative bound is open. `left` counts keys before self (FlashInfer's window_left).");
  m.def("sliding_window", variants::sliding_window, nb::arg("size"),
        "At most `size` keys including self, causal (Hugging Face's sliding_window).");
  m.def("chunked_local", variants::chunked_local, nb::arg("size"),
        "Keys of the same chunk of `size` positions, causal (Llama 4's chunked local attention).");
  m.def("first_tokens", variants::first_tokens, nb::arg("size"),
        "The first `size` keys stay visible (StreamingLLM); combine with window by | and with causal by &.");
  const auto timed = [&](const char* name, Expr (*make)(ParamTime), const char* time, const char* doc) {
    m.def(
        name, [make](const std::string& text) { return make(time_of(text)); }, nb::arg("time") = time, doc);
  };
  timed("prefix_lm", variants::prefix_lm, "plan", "Causal, and every key below position prefix_len[request] (array \"prefix_len\", i32).");
  timed(
      "document", variants::document, "plan",
      "Keys whose document id equals the query's (array \"document_id\", i32, indexed by position: one id per position of one sequence).");
  timed("custom_mask", variants::custom_mask, "run",
        "Bits \"custom_mask\": for each request, row-major [q_len, kv_len] starting at bit custom_mask_start[request] (i64 array).");
  timed("speculative_tree", variants::speculative_tree, "run",
        "Draft-tree verification: the committed prefix is visible, of the q_len draft tokens (the last q_len keys) those whose bit is set "
        "in\n"
        "\"tree_mask\": row-major [q_len, q_len] from bit tree_mask_start[request] (i64 array).");
  timed("multi_item", variants::multi_item, "plan",
        "Multi-item scoring: causal; a token of an item sees the prefix (positions below prefix_len[request], i32) and its own item\n"
        "(\"item_id\", i32 by position).");
  timed("causal_with_bidirectional_spans", variants::causal_with_bidirectional_spans, "plan",
        "Causal, plus both directions within a span: positions with equal \"span_id\" (i32 by position, 0 = none) see each other.");
  m.def("soft_cap", variants::soft_cap, nb::arg("cap"), "Logits: cap * tanh(score / cap) with a constant cap.");
  m.def("alibi", variants::alibi, "Logits: score + slope[q_head] * (kv_pos - q_pos), array \"alibi_slopes\" (f32).");
  m.def("alibi_slopes", variants::alibi_slopes, nb::arg("num_heads"),
        "The standard slopes of ALiBi (Press et al. 2022) for `num_heads` heads, also when it is not a power of two.");
  m.def("sigmoid_logits", variants::sigmoid_logits, nb::arg("bias"),
        "Logits of sigmoid attention (Ramapuram et al. 2024): sigmoid(score + bias); use with softmax=False.");
  m.def("sinks", variants::sinks, "Sink: learned logits per query head, array \"sinks\" (f32), as gpt-oss has.");
  m.def("rms_norm", variants::rms_norm, nb::arg("weight_name"), nb::arg("eps"),
        "Query or key: x * rsqrt(mean_square + eps) * weight[dim], array `weight_name` (f32): QK-norm.");
}

}  // namespace

void bind_variant(nb::module_& m) {
  bind_expressions(m);
  bind_rope(m);
  bind_variant_class(m);
  bind_builtins(m);
}

}  // namespace girih::python
