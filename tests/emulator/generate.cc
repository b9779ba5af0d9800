// girih_emulated_kernels ARCH DIRECTORY SHARDS: writes the generated sources of the kernels that cases.h asks for, as C++ for the emulator
// of that architecture: shard_0.cc .. shard_N.cc, and kernels.cc, which lists them. Each source is as the library makes it but for two
// names: its entry and its struct Variant are numbered, since many kernels share a file.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "attention/spec.h"
#include "emulator/cases.h"
#include "emulator/kernels.h"
#include "girih/error.h"
#include "variant/program.h"

namespace girih::emulator {
namespace {

struct Numbered {
  attention::CudaKernel kernel;
  int number;
};

std::string key_of(const AttentionSpec& given) {
  const variant::Program program = variant::compile(given.variant);
  return attention::spec_key(attention::normalise(given, program, DeviceKind::cuda), program);
}

/// Distinct kernels of all specs, in order. Those for few rows, or for cascades, where a case of the spec asks for them.
std::vector<Numbered> choose_kernels(int arch) {
  std::map<std::string, cases::AttentionCase> by_name;
  std::set<std::string> with_few_rows, with_cascades;  // keys of specs
  for (cases::AttentionCase& c : all_cases(arch)) {
    if (max_rows(c) <= attention::kFewRows) with_few_rows.insert(key_of(c.spec));
    if (max_rows(c) <= attention::kCascadeRows) with_cascades.insert(key_of(c.spec));
    by_name.emplace(c.name, c);
  }
  std::vector<Numbered> kernels;
  std::set<std::string> seen;
  for (const EmulatedSpec& wanted : emulated_specs(arch)) {
    const auto found = by_name.find(std::string(wanted.case_name));
    if (found == by_name.end()) throw std::runtime_error(fmt::format("no case is called {}", wanted.case_name));
    const variant::Program program = variant::compile(found->second.spec.variant);
    const AttentionSpec spec = attention::normalise(found->second.spec, program, DeviceKind::cuda);
    for (const std::string_view family : families_of(spec, program, arch)) {
      if (family == "floor" && !wanted.floor_too) continue;
      for (const std::int64_t rows : {attention::kFewRows, attention::kCascadeRows, attention::kAnyRows}) {
        const bool cascades = rows == attention::kCascadeRows;
        if (rows == attention::kFewRows && !with_few_rows.contains(key_of(found->second.spec))) continue;
        if (cascades && !with_cascades.contains(key_of(found->second.spec))) continue;
        const FamilyOfChip of = family_of_chip(family, arch);
        for (attention::CudaKernel& kernel :
             attention::choose_cuda_kernels(spec, program, emulated_device(of.arch), of.family, rows, cascades).classes) {
          if (seen.insert(kernel.source).second) kernels.push_back({std::move(kernel), static_cast<int>(kernels.size())});
        }
      }
    }
  }
  return kernels;
}

std::string renamed(const Numbered& k) {
  std::string text = std::regex_replace(k.kernel.source, std::regex("\\bVariant\\b"), fmt::format("Variant_{}", k.number));
  return std::regex_replace(text, std::regex("\\b" + k.kernel.name + "\\b"), fmt::format("emulated_{}", k.number));
}

void write(const std::string& path, const std::string& text) {
  // A file that stays as it was is not compiled again.
  std::ifstream old(path, std::ios::binary);
  if (old && std::string(std::istreambuf_iterator<char>(old), {}) == text) return;
  std::ofstream file(path, std::ios::binary);
  if (!(file << text).flush()) throw std::runtime_error("cannot write " + path);
}

void generate(int arch, const std::string& directory, int num_shards) {
  const std::vector<Numbered> kernels = choose_kernels(arch);
  for (int shard = 0; shard < num_shards; ++shard) {
    std::string text;
    for (const Numbered& k : kernels) {
      if (k.number % num_shards == shard) text += renamed(k) + "\n";
    }
    write(fmt::format("{}/shard_{}.cc", directory, shard), text);
  }
  std::string declarations;
  std::string rows;
  for (const Numbered& k : kernels) {
    declarations += fmt::format("extern \"C\" void emulated_{}(girih::abi::AttentionParams);\n", k.number);
    rows += fmt::format("    {{{}U, \"{}\", emulated_{}}},\n", source_hash(k.kernel.source), k.kernel.name, k.number);
  }
  write(directory + "/kernels.cc", "#include \"emulator/kernels.h\"\n\n" + declarations +
                                       "\nnamespace girih::emulator {\n\nstd::span<const EmulatedKernel> emulated_kernels() {\n" +
                                       "  static const EmulatedKernel kKernels[] = {\n" + rows +
                                       "  };\n  return kKernels;\n}\n\n}  // namespace girih::emulator\n");
}

}  // namespace
}  // namespace girih::emulator

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: girih_emulated_kernels ARCH DIRECTORY SHARDS\n", stderr);
    return 2;
  }
  try {
    girih::emulator::generate(std::stoi(argv[1]), argv[2], std::stoi(argv[3]));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "girih_emulated_kernels: %s\n", e.what());
    return 1;
  }
  return 0;
}
