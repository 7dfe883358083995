// The stand-alone kernel of an element-wise op: its span over the whole tensor.
#pragma once

#include "engine/ops/elementwise/spans_cpu.h"

namespace trainctl::cpu {

inline CpuKernel over_all(const KernelCall& call, Span1 span) {
  return [span, x = call.in[0].as<float>(), y = call.out[0].as<float>(), n = call.out[0].size()] { span(x, y, n); };
}

inline CpuKernel over_all(const KernelCall& call, Span2 span) {
  return [span, a = call.in[0].as<float>(), b = call.in[1].as<float>(), y = call.out[0].as<float>(),
          n = call.out[0].size()] { span(a, b, y, n); };
}

}  // namespace trainctl::cpu
