// Prints all cases as one file of kernel text: each Variant in a namespace of its own, then the table of functions.h.
#include <fmt/format.h>

#include <cstdio>

#include "cases.h"
#include "variant/cuda.h"

int main() {
  const auto cases = girih::test::variant_cuda_cases();
  fmt::print("#include \"variant_cuda/wrap.cuh\"\nnamespace girih::attention {{\n");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (const auto math : {girih::variant::CudaMath::exact, girih::variant::CudaMath::approximate}) {
      fmt::print("namespace {}{} {{  // {}\n{}}}\n", math == girih::variant::CudaMath::exact ? 'v' : 'a', i, cases[i].name,
                 girih::variant::print_cuda(cases[i].program, {}, math));
    }
  }
  fmt::print("}}  // namespace girih::attention\nnamespace girih::test {{\n");
  fmt::print(
      "void cuda_rotation(std::uint64_t turns, float* cos, float* sin) {{\n"
      "  const attention::Rotation r = attention::rotation(turns);\n  *cos = r.cos;\n  *sin = r.sin;\n}}\n");
  fmt::print("const CudaVariant kCudaVariants[] = {{\n");
  for (std::size_t i = 0; i < cases.size(); ++i)
    fmt::print("  attention::Wrapped<attention::v{0}::Variant, attention::a{0}::Variant>::table(),\n", i);
  fmt::print("}};\n}}  // namespace girih::test\n");
  return 0;
}
