// C ABI: norms, gated activations, quantisation, bit packing.
#include <algorithm>

#include "c_api/convert.h"
#include "c_api/handles.h"
#include "girih/activation.h"
#include "girih/norm.h"

namespace girih::c_api {
namespace {

static_assert(static_cast<int>(Activation::multiply) == GIRIH_MULTIPLY && static_cast<int>(Activation::gelu_tanh) == GIRIH_GELU_TANH);
static_assert(static_cast<int>(BitOrder::big) == GIRIH_BIG);

NormArgs norm_args(const Call& call, const girih_norm_args& a) {
  const Field field("args");
  return {.x = tensor(call, a.x, Field(field, "x")),
          .weight = tensor(call, a.weight, Field(field, "weight")),
          .bias = tensor(call, a.bias, Field(field, "bias")),
          .residual = tensor(call, a.residual, Field(field, "residual")),
          .residual_out = tensor(call, a.residual_out, Field(field, "residual_out")),
          .out = tensor(call, a.out, Field(field, "out")),
          .quantization = quantization(call, a.quantization, Field(field, "quantization")),
          .eps = a.eps,
          .weight_offset = a.weight_offset};
}

ActivationArgs activation_args(const Call& call, const girih_activation_args& a) {
  const Field field("args");
  call.reserved(a.reserved, field);
  return {.x = tensor(call, a.x, Field(field, "x")),
          .up = tensor(call, a.up, Field(field, "up")),
          .interleaved = call.flag(a.interleaved, Field(field, "interleaved")),
          .out = tensor(call, a.out, Field(field, "out")),
          .quantization = quantization(call, a.quantization, Field(field, "quantization")),
          .alpha = a.alpha,
          .limit = a.limit};
}

Quantization required_quantization(const Call& call, const girih_quantization* given) {
  if (given == nullptr) call.refuse("quantization is NULL; must point to a girih_quantization");
  return quantization(call, *given, "quantization");
}

BitOrder bit_order(const Call& call, girih_bit_order order) { return call.enumerator<BitOrder>(order, GIRIH_BIG + 1, "order"); }

}  // namespace
}  // namespace girih::c_api

using girih::c_api::Call;
using girih::c_api::guarded;
using girih::c_api::tensor;

girih_status girih_rms_norm(const girih_context* context, const girih_norm_args* args, void* stream) {
  return guarded("girih_rms_norm", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::rms_norm(on, girih::c_api::norm_args(call, call.read(args, "args")), stream);
  });
}

girih_status girih_layer_norm(const girih_context* context, const girih_norm_args* args, void* stream) {
  return guarded("girih_layer_norm", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::layer_norm(on, girih::c_api::norm_args(call, call.read(args, "args")), stream);
  });
}

girih_status girih_activate(const girih_context* context, girih_activation activation, const girih_activation_args* args, void* stream) {
  return guarded("girih_activate", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::activate(on, call.enumerator<girih::Activation>(activation, GIRIH_MULTIPLY + 1, "activation"),
                    girih::c_api::activation_args(call, call.read(args, "args")), stream);
  });
}

girih_status girih_quantize(const girih_context* context, const girih_tensor* x, const girih_tensor* out,
                            const girih_quantization* quantization, void* stream) {
  return guarded("girih_quantize", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::quantize(on, tensor(call, x, "x"), tensor(call, out, "out"), girih::c_api::required_quantization(call, quantization), stream);
  });
}

girih_status girih_dequantize(const girih_context* context, const girih_tensor* x, const girih_tensor* out,
                              const girih_quantization* quantization, void* stream) {
  return guarded("girih_dequantize", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::dequantize(on, tensor(call, x, "x"), tensor(call, out, "out"), girih::c_api::required_quantization(call, quantization), stream);
  });
}

girih_status girih_packbits(const girih_context* context, const girih_tensor* x, const girih_tensor* out, girih_bit_order order,
                            void* stream) {
  return guarded("girih_packbits", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    girih::packbits(on, tensor(call, x, "x"), tensor(call, out, "out"), girih::c_api::bit_order(call, order), stream);
  });
}

girih_status girih_segment_packbits(const girih_context* context, const girih_tensor* x, const girih_indices* indptr,
                                    const girih_tensor* out, girih_bit_order order, int64_t* out_indptr, int64_t capacity, void* stream) {
  return guarded("girih_segment_packbits", [&](const Call& call) {
    const girih::Context& on = call.handle(context, "context").value;
    const girih::Indices segments = girih::c_api::indices(call, indptr, "indptr");
    const bool wanted = out_indptr != nullptr || capacity != 0;
    if (wanted) call.check_capacity(out_indptr, capacity, segments.size(), "out_indptr");
    const auto offsets =
        girih::segment_packbits(on, tensor(call, x, "x"), segments, tensor(call, out, "out"), girih::c_api::bit_order(call, order), stream);
    if (wanted) std::copy(offsets.begin(), offsets.end(), out_indptr);
  });
}
