// A norm's gradient (dy, x, statistics .., [gamma,] [residual]) -> dx [, its parameters' gradients ..], and the kernels
// that compute its epilogue separately.
#pragma once

#include "engine/ops/expect.h"
#include "engine/ops/fused_kernels.h"
#include "engine/ops/kernel.h"

namespace trainctl {

/// A call of a norm's gradient, divided into the call without its epilogue and the operands of the epilogue.
template <class Call>
struct NormGradCall {
  Call plain;                           ///< (dy, x, statistics .., [gamma]) -> dx
  const TensorArg* residual = nullptr;  ///< added to dx
  std::vector<TensorArg> parameters;    ///< gradients of the parameters; empty: they are not computed

  explicit NormGradCall(const Call& call) : plain(call) {
    const Epilogue epilogue = epilogue_of(call.attrs);
    set_epilogue(plain.attrs, {});
    if (epilogue.residual) {
      residual = &call.in.back();
      plain.in.pop_back();
    }
    if (epilogue.parameter_grads) parameters.assign(call.out.begin() + 1, call.out.end());
    plain.out.resize(1);
  }
  bool has_epilogue() const { return residual != nullptr || !parameters.empty(); }
  /// Inputs of the kernel of the parameters' gradients: dy, x and the statistics.
  std::vector<TensorArg> of_parameters(size_t statistics) const {
    return {plain.in.begin(), plain.in.begin() + 2 + static_cast<std::ptrdiff_t>(statistics)};
  }
};

/// The outputs of a norm's gradient with that many parameters. `inputs`: at most, without a residual.
inline std::vector<TensorInfo> infer_norm_grad(const char* name, Infos in, const Attrs& attrs, size_t inputs,
                                               size_t parameters) {
  const Epilogue epilogue = epilogue_of(attrs);
  const size_t residual = epilogue.residual ? 1 : 0;
  expect_inputs(name, in, inputs - 1 + residual, inputs + residual);
  if (epilogue.residual) expect_shape(name, "the residual", in.back(), in[1].shape);
  std::vector<TensorInfo> out = {in[1]};
  if (epilogue.parameter_grads) out.insert(out.end(), parameters, TensorInfo{{in[1].shape.back()}});
  return out;
}

}  // namespace trainctl
