// What this CPU and its operating system let a program use. The words come from CPUID and XGETBV (x86); what they mean is a pure
// function, so that CPUs nobody has at hand can be tested. A feature whose registers the system does not save counts as absent.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "girih/context.h"

namespace girih::cpu {

/// The words of CPUID that are read, 0 where a leaf does not exist (and on other architectures).
struct CpuidWords {
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0;
  std::uint32_t leaf7_ecx = 0;
  std::uint32_t leaf7_edx = 0;
  std::uint32_t leaf7_1_eax = 0;    // leaf 7, subleaf 1
  std::uint32_t extended1_ecx = 0;  // leaf 0x80000001
  std::uint64_t xcr0 = 0;           // register state that the system saves
};

struct Features {
  bool avx2 = false;         // all that code compiled for Highway's AVX2 target may use: also FMA, F16C, BMI, BMI2, AES, CLMUL
  bool avx3 = false;         // likewise for Highway's AVX3 target: avx2, and AVX-512 F, BW, CD, DQ, VL
  bool avx512_bf16 = false;  // with avx3
  bool avx512_vbmi = false;  // with avx3
  bool avx512_vnni = false;  // with avx3
  bool neon = false;
  std::vector<std::string> names;  // every feature found, by the names of /proc/cpuinfo
};

CpuidWords read_cpuid();
Features decode(const CpuidWords& words);

/// decode(read_cpuid()). Not cached: CPUID traps in virtual machines (tens of microseconds), so ask once per Context or Schedule.
Features detect_features();

/// Targets that a CPU with `features` runs, widest first.
std::vector<CpuTarget> targets_of(const Features& features);

/// CPUs in this process's affinity mask, ascending; never empty.
std::vector<int> usable_cpus();

}  // namespace girih::cpu
