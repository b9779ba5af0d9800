// The variants whose printed text is tested: every built-in one, then random ones. The printer and the test make the same list.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "girih/error.h"
#include "girih/variant.h"
#include "variant/program.h"
#include "variant_samples.h"

namespace girih::test {

struct VariantCase {
  std::string name;
  Variant variant;
  variant::Program program;
};

inline void add_case(std::vector<VariantCase>& cases, std::string name, const Variant& v) {
  try {
    cases.push_back({std::move(name), v, variant::compile(v)});
  } catch (const Error&) {
    return;  // random constants that overflow when folded
  }
}

inline void add_builtin_cases(std::vector<VariantCase>& cases) {
  const auto mask = [&](const char* name, const Expr& e) {
    Variant v;
    v.mask = e;
    add_case(cases, name, v);
  };
  const auto logits = [&](const char* name, const Expr& e) {
    Variant v;
    v.logits = e;
    add_case(cases, name, v);
  };
  mask("causal", variants::causal());
  mask("window", variants::window(7, 3));
  mask("sliding_window", variants::sliding_window(9));
  mask("chunked_local", variants::chunked_local(5));
  for (const ParamTime time : {ParamTime::plan, ParamTime::run}) {
    mask("prefix_lm", variants::prefix_lm(time));
    mask("document", variants::document(time));
    mask("custom_mask", variants::custom_mask(time));
    mask("speculative_tree", variants::speculative_tree(time));
    mask("multi_item", variants::multi_item(time));
    mask("bidirectional_spans", variants::causal_with_bidirectional_spans(time));
  }
  mask("first_tokens", variants::causal() & (variants::first_tokens(4) | variants::window(6)));
  mask("by_head", q_head() < 3);
  logits("soft_cap", variants::soft_cap(30.0F));
  logits("alibi", variants::alibi());
  logits("sigmoid", variants::sigmoid_logits(-1.0F));
  logits("score", score());
  const ArrayParam weights("weights", DType::f32), planned("level_of", DType::f32, ParamTime::plan);
  Variant v;
  v.query = variants::rms_norm("weights", 1e-5F);
  v.key = x() * weights[dim()] + dim() * 2 - kv_pos() + kv_head();
  v.value = select(dim() % 3 == 1, -x(), x() * 0.5);
  v.output = x() * sigmoid(weights[q_head()]) * weights[dim() - q_row()];
  v.sink = variants::sinks() + planned[q_head()];
  add_case(cases, "transforms", v);
}

inline std::vector<VariantCase> variant_cuda_cases() {
  std::vector<VariantCase> cases;
  add_builtin_cases(cases);
  std::mt19937 rng(21);
  for (int i = 0; i < 160; ++i) {
    const ParamTime time = rng() % 2 == 0 ? ParamTime::plan : ParamTime::run;
    Variant v;
    v.mask = pair_expressions(rng, false, time).boolean(3);
    Expr logits = pair_expressions(rng, true, time).exact(3);
    switch (rng() % 8) {
      case 0: logits = tanh(logits); break;
      case 1: logits = exp(logits * 0.125F); break;
      case 2: logits = log(abs(logits)); break;
      case 3: logits = sigmoid(logits); break;
      case 4: logits = sqrt(logits); break;
      case 5: logits = rsqrt(logits); break;
      default: break;
    }
    v.logits = logits;
    add_case(cases, "random " + std::to_string(i), v);
  }
  return cases;
}

}  // namespace girih::test
