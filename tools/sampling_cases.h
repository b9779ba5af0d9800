// What `girih bench sampling` measures: operators, shapes and distributions of rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace girih::tools {

enum class SamplingOp : std::uint8_t { sample, softmax, top_p_renorm, top_k };

struct SamplingCase {
  std::string name;
  SamplingOp op = SamplingOp::sample;
  std::int64_t rows = 1, vocab = 128256;
  bool logits = false;  ///< of sample: logits with temperature and penalties over 200 tokens a row; else probabilities
  std::int64_t top_k = 0;
  float top_p = 1, min_p = 0;
  std::string distribution = "gaussian";
};

inline std::vector<SamplingCase> sampling_cases() {
  std::vector<SamplingCase> all;
  struct Shape {
    std::int64_t rows, vocab;
  };
  for (const Shape& s : {Shape{128, 200000}, {64, 128256}, {16, 128256}, {1, 128256}}) {
    const std::string shape = "-" + std::to_string(s.rows) + "x" + std::to_string(s.vocab);
    const auto add = [&](const std::string& name, SamplingCase c) {
      c.name = name + shape + (c.distribution == "gaussian" ? "" : "-" + c.distribution);
      c.rows = s.rows;
      c.vocab = s.vocab;
      all.push_back(c);
    };
    add("plain", {});
    add("top-p", {.name = {}, .top_p = 0.9F});
    add("top-k", {.name = {}, .top_k = 50});
    add("min-p", {.name = {}, .min_p = 0.1F});
    add("top-k-top-p", {.name = {}, .top_k = 50, .top_p = 0.9F});
    add("logits-top-k-top-p", {.name = {}, .logits = true, .top_k = 50, .top_p = 0.9F});
    add("logits-top-p", {.name = {}, .logits = true, .top_p = 0.9F});
    add("softmax", {.name = {}, .op = SamplingOp::softmax});
    add("top-p-renorm", {.name = {}, .op = SamplingOp::top_p_renorm, .top_p = 0.9F});
    add("values-of-50", {.name = {}, .op = SamplingOp::top_k, .top_k = 50});
    add("values-of-2048", {.name = {}, .op = SamplingOp::top_k, .top_k = 2048});
    if (s.rows != 128) continue;
    for (const char* distribution : {"uniform", "equal", "peak", "two-peaks", "heavy-tail", "mostly-inf"}) {
      add("top-p", {.name = {}, .top_p = 0.9F, .distribution = distribution});
      add("top-k", {.name = {}, .top_k = 50, .distribution = distribution});
      add("values-of-2048", {.name = {}, .op = SamplingOp::top_k, .top_k = 2048, .distribution = distribution});
    }
  }
  return all;
}

}  // namespace girih::tools
