// A loss and its gradient as one kernel: (prediction, label) -> loss, gradient. The gradient is computed last because
// it may overwrite the prediction.
#pragma once

#include <utility>

#include "engine/ops/kernel.h"

namespace trainctl::cpu {

inline CpuKernel loss_with_grad(const KernelCall& call, PrepareCpuKernel loss, PrepareCpuKernel grad) {
  KernelCall of_loss = call, of_grad = call;
  of_loss.out.pop_back();
  of_grad.out.erase(of_grad.out.begin());
  return [run_loss = loss(of_loss), run_grad = grad(of_grad)] {
    run_loss();
    run_grad();
  };
}

}  // namespace trainctl::cpu
