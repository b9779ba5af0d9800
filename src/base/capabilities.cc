// The table of operators (include/girih/capabilities.h).
#include "base/capabilities.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "girih/capabilities.h"

namespace girih {
namespace {

constexpr std::string_view kFloats = "f32, f16, bf16";
constexpr std::string_view kCodes = "f32, f16, bf16, e4m3, e5m2, i8, nvfp4, mxfp4";
constexpr std::string_view kTokens = "i32, i64";

constexpr std::array kTable = {
    OperatorCapability{"rms_norm", "norm.h", true, true, Capture::yes, kFloats, kCodes},
    OperatorCapability{"layer_norm", "norm.h", true, true, Capture::yes, kFloats, kCodes},
    OperatorCapability{"activate", "activation.h", true, true, Capture::yes, kFloats, kCodes},
    OperatorCapability{"rope", "rope.h", true, true, Capture::yes, kFloats, kCodes},
    OperatorCapability{"rope_append", "rope.h", true, true, Capture::no, kFloats, kCodes},
    OperatorCapability{"rope_append (plan)", "rope.h", false, true, Capture::yes, kFloats, kCodes},
    OperatorCapability{"quantize", "quantize.h", true, true, Capture::yes, kFloats, "e4m3, e5m2, i8, nvfp4, mxfp4"},
    OperatorCapability{"dequantize", "quantize.h", true, true, Capture::yes, "e4m3, e5m2, i8, nvfp4, mxfp4", kFloats},
    OperatorCapability{"packbits", "quantize.h", true, true, Capture::yes, "u8", "u8"},
    OperatorCapability{"segment_packbits", "quantize.h", true, true, Capture::no, "u8", "u8"},
    OperatorCapability{"append", "page.h", true, true, Capture::no, kFloats, kCodes},
    OperatorCapability{"append (plan)", "page.h", false, true, Capture::yes, kFloats, kCodes},
    OperatorCapability{"copy_pages", "page.h", true, true, Capture::no, kCodes, kCodes},
    OperatorCapability{"merge_state", "attention.h", true, true, Capture::yes, kFloats, kFloats},
    OperatorCapability{"merge_states", "attention.h", true, true, Capture::yes, kFloats, kFloats},
    OperatorCapability{"merge_states_varlen", "attention.h", true, true, Capture::no, kFloats, kFloats},
    OperatorCapability{"sample", "sampling.h", true, true, Capture::yes, kFloats, kTokens},
    OperatorCapability{"softmax", "sampling.h", true, true, Capture::yes, kFloats, "f32"},
    OperatorCapability{"top_p_renorm_probs", "sampling.h", true, true, Capture::yes, kFloats, "f32"},
    OperatorCapability{"top_k_renorm_probs", "sampling.h", true, true, Capture::yes, kFloats, "f32"},
    OperatorCapability{"top_k_mask_logits", "sampling.h", true, true, Capture::yes, kFloats, kFloats},
    OperatorCapability{"top_k", "sampling.h", true, true, Capture::yes, kFloats, kTokens},
    OperatorCapability{"chain_speculative_sample", "sampling.h", true, true, Capture::yes, kFloats, kTokens},
};

}  // namespace

std::span<const OperatorCapability> operator_capabilities() { return kTable; }

void require_backend(const Context& context, std::string_view op) {
  const auto* row = std::find_if(kTable.begin(), kTable.end(), [&](const OperatorCapability& c) { return c.op == op; });
  if (row == kTable.end()) bug("{} has no row in the table of operators", op);
  const bool on_cpu = context.device().kind == DeviceKind::cpu;
  if (on_cpu ? row->cpu : row->cuda) return;
  fail(Code::unsupported, op, "the context is for {}; this operator runs on {} only so far", name(context.device()),
       row->cpu ? "the CPU" : "CUDA devices");
}

}  // namespace girih
