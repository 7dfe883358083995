// A loss and its gradient as one kernel made of two: (prediction, label) -> loss, gradient. The gradient may lie on
// the prediction, so it comes last.
#pragma once

namespace trainctl {

/// The two kernels of one call, CPU's or CUDA's.
template <class Kernel>
struct LossAndGrad {
  Kernel loss, grad;
};

template <class Call, class Kernel>
LossAndGrad<Kernel> prepare_loss_and_grad(const Call& call, Kernel (*loss)(const Call&), Kernel (*grad)(const Call&)) {
  Call of_loss = call, of_grad = call;
  of_loss.out.pop_back();
  of_grad.out.erase(of_grad.out.begin());
  return {loss(of_loss), grad(of_grad)};
}

}  // namespace trainctl
