// Random rows, keys, parameters and expressions over them, for the tests of the evaluators.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "variant/evaluate.h"
#include "variant_interpreter.h"

namespace girih::test {

inline bool close(float a, float b, float relative) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::fabs(a - b) <= relative * std::max(std::fabs(a), std::fabs(b)) + 1e-30F;
}

inline TestParams sample_params(std::mt19937& rng) {
  TestParams p;
  const auto n = rng() % 90;
  p.f32["weights"] = {};  // present even if empty
  p.i32["ids"] = {};
  p.i64["starts"] = {};
  p.bits["flags"] = {};
  for (unsigned i = 0; i < n; ++i) {
    p.f32["weights"].push_back(static_cast<float>(static_cast<int>(rng() % 64) - 32) / 4);
    p.i32["ids"].push_back(static_cast<std::int32_t>(rng() % 4 == 0 ? rng() : rng() % 9));
    p.i64["starts"].push_back(rng() % 4 == 0 ? static_cast<std::int64_t>(rng()) << 20 : static_cast<std::int64_t>(rng() % 90) - 20);
    p.bits["flags"].push_back(static_cast<std::uint8_t>(rng()));
  }
  p.integers["shift"] = static_cast<std::int64_t>(rng() % 50) - 10;
  p.numbers["level"] = 1.5F;
  return p;
}

inline variant::RowVars sample_row(std::mt19937& rng) {
  variant::RowVars row;
  row.q_pos = static_cast<std::int64_t>(rng() % 100);
  if (rng() % 8 == 0) row.q_pos += std::int64_t{1} << 40;
  row.q_idx = static_cast<std::int64_t>(rng() % 20);
  row.q_len = 20;
  row.kv_len = 120;
  row.request = static_cast<std::int64_t>(rng() % 5);
  row.q_head = static_cast<std::int64_t>(rng() % 8);
  row.kv_head = row.q_head / 4;
  row.q_row = row.q_idx + 7;
  return row;
}

inline Point point_of(const variant::RowVars& row) {
  Point p;
  p.q_pos = row.q_pos;
  p.q_idx = row.q_idx;
  p.q_len = row.q_len;
  p.kv_len = row.kv_len;
  p.request = row.request;
  p.q_head = row.q_head;
  p.kv_head = row.kv_head;
  p.q_row = row.q_row;
  return p;
}

/// `time` of all parameters.
inline RandomExpr pair_expressions(std::mt19937& rng, bool with_score, ParamTime time = ParamTime::run) {
  const ArrayParam weights("weights", DType::f32, time), ids("ids", DType::i32, time), starts("starts", DType::i64, time);
  const BitsParam flags("flags", time);
  std::vector<Expr> integers = {kv_pos(),
                                kv_pos(),
                                q_pos(),
                                q_idx(),
                                q_len(),
                                kv_len(),
                                request(),
                                q_head(),
                                kv_head(),
                                q_row(),
                                ids[kv_pos()],
                                ids[q_pos()],
                                scalar("shift", ExprType::integer, time)};
  if (rng() % 3 == 0) integers.insert(integers.end(), {starts[kv_pos()], starts[request()], kv_pos() * Expr(std::int64_t{1} << 33)});
  std::vector<Expr> numbers = {weights[kv_pos()], weights[q_head()], scalar("level", ExprType::number, time)};
  if (with_score) numbers.insert(numbers.end(), {score(), score()});
  return {rng, integers, numbers, {flags[kv_pos() + q_idx()], flags[q_pos()], Expr::boolean(true) & (kv_pos() < q_pos())}};
}

struct Lanes {
  std::vector<std::int64_t> kv_pos;
  std::vector<float> score;
};

inline Lanes sample_lanes(std::mt19937& rng, int n) {
  Lanes lanes;
  const auto start = static_cast<std::int64_t>(rng() % 100) - 3 + (rng() % 10 == 0 ? std::int64_t{1} << 35 : 0);
  for (int i = 0; i < n; ++i) {
    lanes.kv_pos.push_back(start + i + (rng() % 30 == 0 ? 50 : 0));
    lanes.score.push_back(static_cast<float>(static_cast<int>(rng() % 400) - 200) / 16);
  }
  return lanes;
}

}  // namespace girih::test
