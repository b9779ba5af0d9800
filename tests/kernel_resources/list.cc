// See list.h.
#include "kernel_resources/list.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "attention/merge_cuda.h"
#include "attention/spec.h"
#include "emulator/cases.h"
#include "page/page_cuda.h"
#include "variant/program.h"

namespace girih::kernel_resources {
namespace {

struct ListedSpec {
  AttentionSpec spec;
  bool floor_too = false;
  bool of_model = false;
};

AttentionSpec model_spec(int qo_heads, int kv_heads, int head_dim, DType q, DType kv) {
  AttentionSpec spec{.num_qo_heads = qo_heads, .num_kv_heads = kv_heads, .head_dim_qk = head_dim, .q_dtype = q, .o_dtype = q};
  spec.k_dtype = spec.v_dtype = kv;
  if (bits(kv) == 8) spec.k_scale = spec.v_scale = ScaleGranularity::tensor;
  spec.variant.mask = variants::causal();
  return spec;
}

/// Llama 3 in the types it is served in; DeepSeek's MLA with all heads and with those of one of eight ranks; gpt-oss; and V of more dims
/// than K, for which large tiles of the mma family may have no room.
std::vector<AttentionSpec> model_specs() {
  std::vector<AttentionSpec> all = {model_spec(32, 8, 128, DType::bf16, DType::bf16), model_spec(32, 8, 128, DType::f16, DType::f16),
                                    model_spec(32, 8, 128, DType::bf16, DType::e4m3)};
  for (const int heads : {128, 16}) {
    AttentionSpec mla = model_spec(heads, 1, 576, DType::bf16, DType::bf16);
    mla.head_dim_vo = 512;
    mla.head_dim_rope = 64;
    mla.v_is_k = true;
    mla.lse = LseKind::natural;
    all.push_back(mla);
  }
  for (const bool window : {true, false}) {
    AttentionSpec sinks = model_spec(64, 8, 64, DType::bf16, DType::bf16);
    if (window) sinks.variant.mask = variants::sliding_window(128);
    sinks.variant.sink = variants::sinks();
    all.push_back(sinks);
  }
  for (const int value_dim : {128, 256}) {
    AttentionSpec unequal = model_spec(8, 4, 64, DType::f16, DType::f16);
    unequal.head_dim_vo = value_dim;
    all.push_back(unequal);
  }
  return all;
}

std::vector<ListedSpec> listed_specs(int arch) {
  std::vector<ListedSpec> specs;
  for (AttentionSpec& spec : model_specs()) specs.push_back({.spec = std::move(spec), .floor_too = specs.empty(), .of_model = true});
  std::map<std::string, cases::AttentionCase> by_name;
  for (cases::AttentionCase& c : emulator::all_cases(arch)) by_name.emplace(c.name, std::move(c));
  for (const emulator::EmulatedSpec& wanted : emulator::kEmulatedSpecs) {
    const auto found = by_name.find(std::string(wanted.case_name));
    if (found == by_name.end()) throw std::runtime_error(fmt::format("no case is called {}", wanted.case_name));
    specs.push_back({.spec = found->second.spec, .floor_too = wanted.floor_too});
  }
  return specs;
}

/// What one kernel of is recorded everywhere.
std::string class_of(const attention::CudaKernel& kernel, int tile_class, const AttentionSpec& spec) {
  return fmt::format("{} {} {} {} {}", kernel.family, tile_class, name(spec.q_dtype), name(spec.k_dtype), spec.v_is_k);
}

class List {
 public:
  explicit List(int arch) : arch_(arch), all_recorded_(arch == 75 || arch == 80 || arch == 90) {}

  void add_attention(const ListedSpec& listed) {
    const variant::Program program = variant::compile(listed.spec.variant);
    const AttentionSpec spec = attention::normalise(listed.spec, program, DeviceKind::cuda);
    for (const std::string_view family : emulator::families_of(spec, program, arch_)) {
      if (family == emulator::kMmaOfSm89 || (family == "floor" && !listed.floor_too)) continue;
      for (const std::int64_t rows : {attention::kAnyRows, attention::kFewRows, attention::kCascadeRows}) {
        const bool cascades = rows == attention::kCascadeRows;
        const attention::CudaKernels kernels =
            attention::choose_cuda_kernels(spec, program, cuda::example_device(arch_), family, rows, cascades);
        for (int c = 0; c < attention::kNumClasses; ++c) add_attention(kernels.classes[c], c, spec, listed.of_model);
      }
    }
  }

  void add_cache_operators() {
    struct Plane {
      DType type;
      ScaleGranularity scale;
    };
    for (const DType source : {DType::bf16, DType::f32}) {
      for (const Plane& p : {Plane{DType::bf16, ScaleGranularity::none}, Plane{DType::e4m3, ScaleGranularity::tensor},
                             Plane{DType::e5m2, ScaleGranularity::head}, Plane{DType::i8, ScaleGranularity::token_head},
                             Plane{DType::nvfp4, ScaleGranularity::block}, Plane{DType::mxfp4, ScaleGranularity::block}}) {
        KvPlane plane;
        plane.dtype = p.type;
        plane.scales.granularity = p.scale;
        plane.head_byte_stride = bytes(p.type, 128);
        plane.token_byte_stride = 8 * plane.head_byte_stride;
        plane.page_byte_stride = 16 * plane.token_byte_stride;
        const TensorView tensor(nullptr, source, {1, 8, 128});
        const page::PlaneSource planes[] = {{&plane, &tensor}, {&plane, &tensor}};
        rows::Launch launch = page::describe_append(planes, 1);
        const rows::Shape shape = rows::shape_launch(launch);
        std::string name;
        const std::string text = rows::source_of(launch, shape, name);
        add(name, text, shape.num_threads, true, all_recorded_ || source == DType::bf16);
      }
    }
    add("copy_pages", page::copy_pages_source(), page::kCopyThreads, true, true);
    for (const DType values : {DType::f32, DType::bf16}) {
      std::string name;
      const std::string text = attention::merge_source(values, values, values, name);
      add(name, text, attention::kMergeThreads, true, all_recorded_ || values == DType::bf16);
    }
  }

  std::vector<ListedKernel> kernels() && { return std::move(kernels_); }

 private:
  void add_attention(const attention::CudaKernel& kernel, int tile_class, const AttentionSpec& spec, bool of_model) {
    if (!seen_.insert(kernel.source).second) return;
    const bool first = classes_.insert(class_of(kernel, tile_class, spec)).second;
    const bool first_of_family = classes_.insert(fmt::format("{} {}", kernel.family, tile_class)).second;
    const bool first_of_type = classes_.insert(std::string(name(spec.k_dtype))).second;
    const bool tested = all_recorded_ ? first : first_of_family || first_of_type;
    add(kernel.name, kernel.source, kernel.num_threads, first || of_model, tested);
    kernels_.back().blocks_per_sm = kernel.blocks_per_sm;
    kernels_.back().shared_bytes = kernel.shared_bytes;
  }

  void add(const std::string& name, const std::string& source, int num_threads, bool recorded, bool tested) {
    if (!names_.insert(name).second) throw std::runtime_error("two kernels of one architecture are called " + name);
    kernels_.push_back({.source = {name, source, cuda::nvrtc_arch(arch_)},
                        .arch = arch_,
                        .num_threads = num_threads,
                        .recorded = recorded || all_recorded_,
                        .tested = tested});
  }

  int arch_;
  bool all_recorded_;
  std::set<std::string> seen_, names_, classes_;
  std::vector<ListedKernel> kernels_;
};

}  // namespace

std::vector<ListedKernel> listed_kernels() {
  std::vector<ListedKernel> all;
  for (const int arch : cuda::example_archs()) {
    List list(arch);
    for (const ListedSpec& spec : listed_specs(arch)) list.add_attention(spec);
    list.add_cache_operators();
    for (ListedKernel& kernel : std::move(list).kernels()) all.push_back(std::move(kernel));
  }
  return all;
}

}  // namespace girih::kernel_resources
