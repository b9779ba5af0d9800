// Digests of results (replay_digest.h).
#include "tools/replay_digest.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "girih/error.h"
#include "tools/replay_kv.h"

namespace girih::tools {

DigestTable::DigestTable(std::int64_t width, DType dtype) : dtype_(dtype), weights_(width) {
  std::mt19937_64 random(0x6769726968);
  for (float& weight : weights_) weight = static_cast<float>(random() >> 40) * 0x1.0p-23F - 1.0F;
}

void DigestTable::add(std::int64_t request, std::int64_t position, int layer, const void* o) {
  Digest& digest = running_[request];
  // Every row starts elsewhere in the weights, so that rows in another order give another digest.
  const std::size_t start = static_cast<std::size_t>(position * 7919 + layer * 104729) % weights_.size();
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    std::size_t w = start + i;
    if (w >= weights_.size()) w -= weights_.size();
    const double term = weights_[w] * element(o, dtype_, static_cast<std::int64_t>(i));
    digest.sum += term;
    digest.squares += term * term;
  }
}

void DigestTable::finish(std::int64_t request) {
  const auto node = running_.extract(request);
  if (!node.empty()) finished_[request] = node.mapped();
}

void write_results(const std::string& path, const std::string& settings, const std::map<std::int64_t, Digest>& digests) {
  nlohmann::json requests = nlohmann::json::array();
  for (const auto& [request, digest] : digests) requests.push_back({request, digest.sum, digest.squares});
  std::ofstream file(path);
  file << nlohmann::json{{"girih_replay_results", 1}, {"settings", settings}, {"requests", requests}}.dump() << "\n";
  file.close();
  if (!file) throw std::runtime_error(fmt::format("replay: {} cannot be written", path));
}

CompareResult compare_results(const std::string& path, const std::string& settings, const std::map<std::int64_t, Digest>& digests,
                              DType o_dtype) {
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  std::map<std::int64_t, Digest> other;
  std::string other_settings;
  try {
    if (json.at("girih_replay_results").get<int>() != 1) throw Error(Code::io, path + ": results of another version");
    other_settings = json.at("settings").get<std::string>();
    for (const auto& row : json.at("requests")) {
      other[row.at(0).get<std::int64_t>()] = {.sum = row.at(1).get<double>(), .squares = row.at(2).get<double>()};
    }
  } catch (const nlohmann::json::exception&) {
    throw Error(Code::io, path + ": not a file written by girih replay --results");
  }
  if (other_settings != settings) {
    throw Error(Code::invalid_argument,
                fmt::format("replay: --compare {}: results of \"{}\" cannot be compared with \"{}\"", path, other_settings, settings));
  }
  // Terms differ by the rounding of the output and, with bf16 dot products, of the weights: independent errors of about 2^-9 of a term, so
  // the sum's is that of the root of squares; four times it is allowed.
  CompareResult result{.tolerance = o_dtype == DType::f32 ? 0x1.0p-13 : 0x1.0p-7};
  for (const auto& [request, digest] : digests) {
    const auto it = other.find(request);
    if (it == other.end()) {
      ++result.missing;
      continue;
    }
    ++result.compared;
    const double difference = std::abs(digest.sum - it->second.sum);
    const double relative = difference == 0 ? 0 : difference / std::sqrt(std::max(digest.squares, it->second.squares));
    result.max_relative = std::max(result.max_relative, relative);
    if (!(relative <= result.tolerance)) ++result.different;
    other.erase(it);
  }
  result.missing += std::ssize(other);
  return result;
}

}  // namespace girih::tools
