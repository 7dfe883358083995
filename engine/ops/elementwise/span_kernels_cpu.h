// The stand-alone kernel of an element-wise op: its span over the whole tensor.
#pragma once

#include "engine/ops/cpu/threads_cpu.h"
#include "engine/ops/elementwise/spans_cpu.h"

namespace trainctl::cpu {

inline CpuKernel over_all(const KernelCall& call, Span1 span) {
  return
      [span, x = call.in[0].as<float>(), y = call.out[0].as<float>(), n = call.out[0].size(), threads = call.threads] {
        over_elements(threads, n, [=](int64_t begin, int64_t end) { span(x + begin, y + begin, end - begin); });
      };
}

inline CpuKernel over_all(const KernelCall& call, Span2 span) {
  return [span, a = call.in[0].as<float>(), b = call.in[1].as<float>(), y = call.out[0].as<float>(),
          n = call.out[0].size(), threads = call.threads] {
    over_elements(threads, n, [=](int64_t begin, int64_t end) { span(a + begin, b + begin, y + begin, end - begin); });
  };
}

}  // namespace trainctl::cpu
