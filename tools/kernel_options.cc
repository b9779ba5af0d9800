// See kernel_options.h. Specs go the way that schedule() takes them.
#include "tools/kernel_options.h"

#include <charconv>
#include <iterator>
#include <utility>

#include "attention/cuda.h"
#include "base/error.h"
#include "base/file.h"
#include "tools/batch_json.h"
#include "tools/models.h"

namespace girih::tools {
namespace {

constexpr std::string_view kOp = "kernel";
constexpr std::int64_t kMaxSourceBytes = std::int64_t{1} << 24;

struct Target {
  int arch;          // what kernels are chosen by
  std::string name;  // what they are compiled for
};

/// The GPU of this machine, where no --arch is given.
Target target_here() {
  try {
    const std::shared_ptr<const cuda::Driver> driver = cuda::Driver::load();
    const int arch = driver->device_info(0).arch;
    return {arch, cuda::nvrtc_arch(arch)};
  } catch (const Error& error) {
    fail(Code::invalid_argument, kOp, "give --arch, e.g. 90 or 80,90 or all: there is no GPU here to take it from ({})", error.what());
  }
}

std::vector<Target> targets_of(const std::string& text) {
  std::vector<Target> targets;
  if (text.empty()) return {target_here()};
  if (text == "all") {
    for (const int arch : cuda::example_archs()) targets.push_back({arch, cuda::nvrtc_arch(arch)});
    return targets;
  }
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    std::string_view digits = word;
    const bool ptx = jit::is_ptx(word);
    if (ptx) digits.remove_prefix(std::string_view("compute_").size());
    int arch = 0;
    const std::from_chars_result result = std::from_chars(digits.data(), digits.data() + digits.size(), arch);
    if (result.ec != std::errc() || result.ptr != digits.data() + digits.size()) {
      fail(Code::invalid_argument, kOp, "--arch \"{}\"; \"{}\" must be a compute capability like 90, or compute_80 for PTX, or all", text,
           word);
    }
    targets.push_back({arch, ptx ? word : cuda::nvrtc_arch(arch)});
  }
  return targets;
}

LseKind parse_lse(const std::string& text) {
  if (text == "none") return LseKind::none;
  if (text == "natural") return LseKind::natural;
  if (text == "base2") return LseKind::base2;
  fail(Code::invalid_argument, kOp, "--lse \"{}\"; must be none, natural or base2", text);
}

/// The file's text as a hook that sees the variables given.
Expr text_hook(ExprType type, const std::string& file, std::vector<CudaArg> variables) {
  const std::size_t name = file.find_last_of('/') + 1;
  return cuda_code(type, read_file(file, kMaxSourceBytes), std::move(variables), file.substr(name));
}

AttentionSpec spec_of_options(const KernelOptions& o) {
  AttentionSpec spec;
  spec.num_qo_heads = o.num_qo_heads;
  spec.num_kv_heads = o.num_kv_heads;
  spec.head_dim_qk = o.head_dim;
  spec.head_dim_vo = o.head_dim_vo;
  spec.q_dtype = spec.o_dtype = dtype_from_name(o.dtype);
  spec.k_dtype = spec.v_dtype = o.kv_dtype.empty() ? spec.q_dtype : dtype_from_name(o.kv_dtype);
  spec.k_scale = spec.v_scale = scale_granularity(spec.k_dtype);
  spec.lse = parse_lse(o.lse);
  spec.batch_invariant = o.batch_invariant;
  // A kernel does not depend on the values of parameters, so one request stands for all.
  NamedVariant named = make_variant(parse_call(o.mask, "--mask"), parse_call(o.logits, "--logits"), {o.num_qo_heads, 1, 1});
  if (o.sinks) add_sinks(named, std::vector<float>(static_cast<std::size_t>(std::max(o.num_qo_heads, 0))));
  spec.variant = named.variant;
  if (!o.logits_text.empty()) {
    spec.variant.logits =
        text_hook(ExprType::number, o.logits_text, {score(), q_pos(), kv_pos(), q_len(), kv_len(), request(), q_head(), kv_head()});
  }
  if (!o.mask_text.empty()) {
    spec.variant.mask =
        text_hook(ExprType::boolean, o.mask_text, {q_idx(), q_pos(), kv_pos(), q_len(), kv_len(), request(), q_head(), kv_head()});
  }
  return spec;
}

std::vector<AttentionSpec> specs_of(const KernelOptions& o) {
  if (!o.file.empty()) return {read_batch_json(o.file).spec};
  if (o.models.empty()) return {spec_of_options(o)};
  std::vector<AttentionSpec> specs;
  for (const std::string& name : o.models) {
    const ModelPreset& model = model_preset(name);
    for (const std::int64_t window : layer_windows(model, 2)) {
      AttentionSpec spec = model_spec(model, window, dtype_from_name(o.kv_dtype.empty() ? o.dtype : o.kv_dtype));
      spec.lse = parse_lse(o.lse);
      spec.batch_invariant = o.batch_invariant;
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

std::vector<WantedKernel> kernels_of_spec(const AttentionSpec& spec, const Target& target, const std::string& family) {
  std::vector<WantedKernel> wanted;
  for (const attention::CudaKernel& kernel : attention::cuda_kernels_of(spec, cuda::example_device(target.arch), family)) {
    wanted.push_back({.source = {.name = kernel.name, .source = kernel.source, .target = target.name, .weight = kernel.tile_rows},
                      .family = kernel.family,
                      .num_threads = kernel.num_threads,
                      .blocks_per_sm = kernel.blocks_per_sm,
                      .shared_bytes = kernel.shared_bytes});
  }
  return wanted;
}

}  // namespace

void add_kernel_options(CLI::App& command, KernelOptions& o) {
  CLI::Option* file = command.add_option("FILE", o.file, "Spec as JSON: the form of `girih plan` (its batch is not used)");
  CLI::Option* model = command.add_option("--model", o.models, "All kernels of this model's layers; may be repeated");
  CLI::Option* source = command.add_option("--source", o.source, "A CUDA source of your own, which may include the library's kernel texts");
  CLI::Option* entry = command.add_option("--entry", o.entry, "Its extern \"C\" kernel")->needs(source);
  source->needs(entry)->excludes(file)->excludes(model);
  model->excludes(file);
  command.add_option("--arch", o.arch, "Compute capabilities: 90 or 80,90 or all; compute_80 gives PTX; default: the GPU here");
  command.add_option("--family", o.family, "Kernel family; default: the fastest that takes the spec")->excludes(source);
  // A batch file, a model or a source says these itself.
  for (CLI::Option* option :
       {command.add_option("--qo-heads", o.num_qo_heads, "Query heads")->capture_default_str(),
        command.add_option("--kv-heads", o.num_kv_heads, "KV heads")->capture_default_str(),
        command.add_option("--head-dim", o.head_dim, "Head dimension of Q and K")->capture_default_str(),
        command.add_option("--head-dim-vo", o.head_dim_vo, "Head dimension of V and O; 0 = the same")->capture_default_str(),
        command.add_option("--mask", o.mask, "A mask as in `girih plan`")->capture_default_str(),
        command.add_option("--logits", o.logits, "A logits rule as in `girih plan`")->capture_default_str(),
        command.add_option(
            "--mask-text", o.mask_text,
            "In place of --mask: a file with CUDA text (cuda_code) of q_idx q_pos kv_pos q_len kv_len request q_head kv_head"),
        command.add_option("--logits-text", o.logits_text,
                           "In place of --logits: a file with CUDA text of score q_pos kv_pos q_len kv_len request q_head kv_head"),
        command.add_flag("--sinks", o.sinks, "A learned logit per query head joins the softmax")}) {
    option->excludes(file)->excludes(model)->excludes(source);
  }
  for (const char* hook : {"--mask", "--logits"}) command.get_option(fmt::format("{}-text", hook))->excludes(command.get_option(hook));
  for (CLI::Option* option :
       {command.add_option("--dtype", o.dtype, "Type of Q and O: f32, f16, bf16")->capture_default_str(),
        command.add_option("--kv-dtype", o.kv_dtype, "Type of K and V: the same (default), e4m3, e5m2, i8, nvfp4, mxfp4"),
        command.add_option("--lse", o.lse, "none, natural, base2")->capture_default_str(),
        command.add_flag("--batch-invariant", o.batch_invariant, "Cut KV where only the spec decides")}) {
    option->excludes(file)->excludes(source);
  }
}

std::vector<WantedKernel> wanted_kernels(const KernelOptions& o) {
  std::vector<WantedKernel> wanted;
  const std::vector<Target> targets = targets_of(o.arch);
  if (!o.source.empty()) {
    const std::string text = read_file(o.source, kMaxSourceBytes);
    for (const Target& target : targets) {
      const jit::KernelSource source{.name = o.entry, .source = text, .target = target.name};
      wanted.push_back({.source = source, .family = "source"});
    }
    return wanted;
  }
  for (const AttentionSpec& spec : specs_of(o)) {
    for (const Target& target : targets) {
      std::vector<WantedKernel> kernels = kernels_of_spec(spec, target, o.family);
      std::move(kernels.begin(), kernels.end(), std::back_inserter(wanted));
    }
  }
  return wanted;
}

}  // namespace girih::tools
