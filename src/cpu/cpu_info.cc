// Detection of CPU features and of the CPUs that this process may use (features.h, CpuInfo of context.h).
// We ask CPUID ourselves instead of Highway's dispatcher: that one lives in libhwy.so, which a self-contained library must not need.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <thread>

#include "cpu/features.h"

#if defined(__x86_64__) || defined(__i386__)
#define GIRIH_X86 1
#include <cpuid.h>
#else
#define GIRIH_X86 0
#endif

#if defined(__linux__)
#include <sched.h>
#endif

namespace girih::cpu {
namespace {

enum class Word : std::uint8_t { leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_edx, leaf7_1_eax, extended1_ecx };

// Register state (XCR0 bits) that a feature needs the system to save.
constexpr std::uint64_t kNoState = 0;
constexpr std::uint64_t kYmmState = 0x6;       // SSE and AVX halves
constexpr std::uint64_t kZmmState = 0xE6;      // with opmask, upper halves of ZMM0-15, ZMM16-31
constexpr std::uint64_t kTileState = 0x60000;  // tile configuration and data

struct Bit {
  std::string_view name;
  Word word;
  int bit;
  std::uint64_t state;
};

// Bit positions: Intel SDM volume 2A (CPUID), AMD APM volume 3 appendix E.
constexpr Bit kBits[] = {
    {"pclmulqdq", Word::leaf1_ecx, 1, kNoState},     {"ssse3", Word::leaf1_ecx, 9, kNoState},
    {"sse4_1", Word::leaf1_ecx, 19, kNoState},       {"sse4_2", Word::leaf1_ecx, 20, kNoState},
    {"aes", Word::leaf1_ecx, 25, kNoState},          {"avx", Word::leaf1_ecx, 28, kYmmState},
    {"f16c", Word::leaf1_ecx, 29, kYmmState},        {"fma", Word::leaf1_ecx, 12, kYmmState},
    {"lzcnt", Word::extended1_ecx, 5, kNoState},     {"bmi1", Word::leaf7_ebx, 3, kNoState},
    {"bmi2", Word::leaf7_ebx, 8, kNoState},          {"avx2", Word::leaf7_ebx, 5, kYmmState},
    {"avx512f", Word::leaf7_ebx, 16, kZmmState},     {"avx512dq", Word::leaf7_ebx, 17, kZmmState},
    {"avx512cd", Word::leaf7_ebx, 28, kZmmState},    {"avx512bw", Word::leaf7_ebx, 30, kZmmState},
    {"avx512vbmi", Word::leaf7_ecx, 1, kZmmState},   {"avx512vl", Word::leaf7_ebx, 31, kZmmState},
    {"avx512_vnni", Word::leaf7_ecx, 11, kZmmState}, {"avx512_bf16", Word::leaf7_1_eax, 5, kZmmState},
    {"avx512_fp16", Word::leaf7_edx, 23, kZmmState}, {"avx_vnni", Word::leaf7_1_eax, 4, kYmmState},
    {"amx_tile", Word::leaf7_edx, 24, kTileState},   {"amx_int8", Word::leaf7_edx, 25, kTileState},
    {"amx_bf16", Word::leaf7_edx, 22, kTileState},
};

constexpr std::string_view kAvx2Needs[] = {"pclmulqdq", "ssse3", "sse4_1", "sse4_2", "aes",  "avx",
                                           "f16c",      "fma",   "lzcnt",  "bmi1",   "bmi2", "avx2"};
constexpr std::string_view kAvx3Needs[] = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"};

std::uint32_t word_of(const CpuidWords& words, Word word) {
  switch (word) {
    case Word::leaf1_ecx: return words.leaf1_ecx;
    case Word::leaf7_ebx: return words.leaf7_ebx;
    case Word::leaf7_ecx: return words.leaf7_ecx;
    case Word::leaf7_edx: return words.leaf7_edx;
    case Word::leaf7_1_eax: return words.leaf7_1_eax;
    case Word::extended1_ecx: return words.extended1_ecx;
  }
  return 0;
}

bool has(const Features& features, std::string_view name) {
  for (const std::string& found : features.names) {
    if (found == name) return true;
  }
  return false;
}

template <std::size_t n>
bool has_all(const Features& features, const std::string_view (&names)[n]) {
  for (const std::string_view name : names) {
    if (!has(features, name)) return false;
  }
  return true;
}

#if GIRIH_X86
std::uint64_t read_xcr0() {
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

std::string model_name() {
  unsigned registers[12] = {};
  for (unsigned i = 0; i < 3; ++i) {
    unsigned* r = registers + 4 * i;
    if (!__get_cpuid(0x80000002U + i, r, r + 1, r + 2, r + 3)) return "x86";
  }
  char text[sizeof(registers) + 1] = {};
  std::memcpy(text, registers, sizeof(registers));
  const std::string_view padded = text;
  const std::size_t first = padded.find_first_not_of(' ');
  if (first == std::string_view::npos) return "x86";
  return std::string(padded.substr(first, padded.find_last_not_of(' ') + 1 - first));
}
#else
std::string model_name() {
#if defined(__aarch64__)
  return "aarch64";
#else
  return "unknown";
#endif
}
#endif

}  // namespace

CpuidWords read_cpuid() {
  CpuidWords words;
#if GIRIH_X86
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d)) {
    words.leaf1_ecx = c;
    constexpr unsigned kOsXsave = 1U << 27;  // XGETBV may be used
    if (c & kOsXsave) words.xcr0 = read_xcr0();
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    words.leaf7_ebx = b;
    words.leaf7_ecx = c;
    words.leaf7_edx = d;
    const unsigned last_subleaf = a;
    if (last_subleaf >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) words.leaf7_1_eax = a;
  }
  if (__get_cpuid(0x80000001U, &a, &b, &c, &d)) words.extended1_ecx = c;
#endif
  return words;
}

Features decode(const CpuidWords& words) {
  Features features;
  for (const Bit& bit : kBits) {
    const bool present = (word_of(words, bit.word) >> bit.bit) & 1U;
    if (present && (words.xcr0 & bit.state) == bit.state) features.names.emplace_back(bit.name);
  }
  features.avx2 = has_all(features, kAvx2Needs);
  features.avx3 = features.avx2 && has_all(features, kAvx3Needs);
  features.avx512_bf16 = features.avx3 && has(features, "avx512_bf16");
  features.avx512_vbmi = features.avx3 && has(features, "avx512vbmi");
  features.avx512_vnni = features.avx3 && has(features, "avx512_vnni");
#if defined(__aarch64__)
  features.neon = true;  // part of the base architecture
  features.names.emplace_back("neon");
#endif
  return features;
}

Features detect_features() { return decode(read_cpuid()); }

std::vector<CpuTarget> targets_of(const Features& features) {
  std::vector<CpuTarget> targets;
  if (features.avx3 && features.avx512_bf16) targets.push_back(CpuTarget::avx3_bf16);
  if (features.avx3) targets.push_back(CpuTarget::avx3);
  if (features.avx2) targets.push_back(CpuTarget::avx2);
  if (features.neon) targets.push_back(CpuTarget::neon);
  targets.push_back(CpuTarget::scalar);
  return targets;
}

std::vector<int> usable_cpus() {
  std::vector<int> cpus;
#if defined(__linux__)
  // The kernel refuses a mask smaller than its own; 64 Ki CPUs is far beyond any machine.
  for (int capacity = 1024; capacity <= (1 << 16) && cpus.empty(); capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(capacity);
    if (set == nullptr) break;
    const std::size_t size = CPU_ALLOC_SIZE(capacity);
    if (sched_getaffinity(0, size, set) == 0) {
      for (int cpu = 0; cpu < capacity; ++cpu) {
        if (CPU_ISSET_S(cpu, size, set)) cpus.push_back(cpu);
      }
    }
    CPU_FREE(set);
  }
#endif
  if (cpus.empty()) {
    const unsigned count = std::max(std::thread::hardware_concurrency(), 1U);
    for (unsigned cpu = 0; cpu < count; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

}  // namespace girih::cpu

namespace girih {

CpuInfo cpu_info() { return {cpu::model_name(), static_cast<int>(cpu::usable_cpus().size()), cpu::detect_features().names}; }

std::vector<CpuTarget> available_cpu_targets() { return cpu::targets_of(cpu::detect_features()); }

}  // namespace girih
