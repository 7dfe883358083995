// Cases of clip_parameters: its kernels in double precision, and the shapes, sharding rules, gradients and errors to
// expect.
#include <cmath>

#include "tests/op_cases/op_cases.h"
#include "tests/op_cases/optimizer_cases.h"

namespace trainctl {
namespace {

/// out: gradients
naive::Outputs clip_parameters(const NaiveCall& call) {
  naive::Outputs out = call.before;
  for_each_parameter(call.attrs, [&](size_t begin, size_t end) {
    double squares = 0;
    for (size_t i = begin; i < end; ++i) squares += out[0].values[i] * out[0].values[i];
    const double scale = std::min(1.0, call.attrs.number("norm") / (std::sqrt(squares) + 1e-6));
    for (size_t i = begin; i < end; ++i) out[0].values[i] *= scale;
  });
  return out;
}

std::vector<KernelCase> clip_parameters_kernels() {
  std::vector<KernelCase> calls;
  for (const int64_t n : {1, 7, 37, 4096, 70001})
    for (const double norm : {0.5, 1e6})
      calls.push_back({"clip_parameters", {{{n}}}, {{{n}}}, {{"norm", norm}, {"parameters", two_parameters(n)}}, 1e-5});
  return calls;
}

}  // namespace

extern const OpCases clip_parameters_cases = {.kernels = clip_parameters_kernels(),
                                              .kernel_references = {{"clip_parameters", clip_parameters}}};

}  // namespace trainctl
