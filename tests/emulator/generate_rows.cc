// girih_emulated_row_kernels DIRECTORY SHARDS: writes the generated sources of the kernels that the cases of cases/rows.h and rope.h need,
// as C++ for the emulator: rows_0.cc .. rows_N.cc, and rows_kernels.cc, which lists them.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "cases/rope.h"
#include "cases/rows.h"
#include "emulator/row_kernels.h"

namespace girih::emulator {
namespace {

void write(const std::string& path, const std::string& text) {
  // A file that stays as it was is not compiled again.
  std::ifstream old(path, std::ios::binary);
  if (old && std::string(std::istreambuf_iterator<char>(old), {}) == text) return;
  std::ofstream file(path, std::ios::binary);
  if (!(file << text).flush()) throw std::runtime_error("cannot write " + path);
}

void generate(const std::string& directory, std::size_t num_shards) {
  std::vector<std::string> shards(num_shards);
  std::set<std::string> seen;
  std::string declarations, rows;
  constexpr Device kDevice{DeviceKind::cuda, 0};
  std::vector<rows::Launch> launches;
  for (const cases::RowsCase& c : cases::rows_cases()) launches.push_back(cases::RowsProblem(c).describe(kDevice));
  for (const cases::RopeCase& c : cases::rope_cases()) launches.push_back(cases::RopeProblem(c).describe(kDevice));
  for (rows::Launch& launch : launches) {
    const rows::Shape shape = rows::shape_launch(launch);
    std::string name;
    const std::string source = rows::source_of(launch, shape, name);
    if (!seen.insert(source).second) continue;
    shards[seen.size() % num_shards] += source + "\n";
    declarations += fmt::format("extern \"C\" void {}(girih::abi::RowsParams);\n", name);
    rows += fmt::format("    {{{}U, \"{}\", {}}},\n", source_hash(source), name, name);
  }
  for (std::size_t i = 0; i < num_shards; ++i) write(fmt::format("{}/rows_{}.cc", directory, i), shards[i]);
  write(directory + "/rows_kernels.cc", "#include \"emulator/row_kernels.h\"\n\n" + declarations +
                                            "\nnamespace girih::emulator {\n\nstd::span<const RowKernel> row_kernels() {\n" +
                                            "  static const RowKernel kKernels[] = {\n" + rows +
                                            "  };\n  return kKernels;\n}\n\n}  // namespace girih::emulator\n");
}

}  // namespace
}  // namespace girih::emulator

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: girih_emulated_row_kernels DIRECTORY SHARDS\n", stderr);
    return 2;
  }
  try {
    girih::emulator::generate(argv[1], static_cast<std::size_t>(std::stoi(argv[2])));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "girih_emulated_row_kernels: %s\n", e.what());
    return 1;
  }
  return 0;
}
