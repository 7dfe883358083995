// Steps that the compiler may add to a kernel, so that values between two ops never reach memory. The compiler, the
// kernels and `trainctl bench` all use this type; only epilogue.cpp knows how it is stored in an instruction's
// attrs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/attrs.h"

namespace trainctl {

enum class Activation : uint8_t { none, relu, gelu, gelu_tanh };

/// Applied in this order to the kernel's result:
struct Epilogue {
  bool bias = false;                         ///< adds inputs[2], [n]
  bool residual = false;                     ///< adds the last input, as large as the result
  Activation activation = Activation::none;  ///< applied to that sum
  bool keep_input = false;                   ///< outputs[1] is the activation's input
  Activation slope =
      Activation::none;    ///< multiplies by the activation's slope at the last input: relu's result, gelu's input
  bool bias_grad = false;  ///< outputs[1] is inputs[1], dy, summed over all leading dims
  bool parameter_grads = false;  ///< norm gradients: outputs[1..] are those of the norm's parameters
  bool descend = false;          ///< outputs -= learning_rate * result; the outputs accumulate

  friend bool operator==(const Epilogue&, const Epilogue&) = default;
};

/// One step of an epilogue; as a bit mask, the steps that a kernel supports (KernelDef::takes). relu: the only
/// activation that it takes; what relu's backward reads is relu's result, so there is no keep_input.
enum class EpilogueStep : uint8_t {
  none = 0,
  bias = 1,
  activation = 2,
  slope = 4,
  bias_grad = 8,
  descend = 16,
  residual = 32,
  relu = 64,
  parameter_grads = 128
};
template <class... Steps>
constexpr unsigned bits(Steps... steps) {
  return (static_cast<unsigned>(steps) | ...);
}

/// The role of a kernel in the epilogue of the kernel before it (KernelDef::as_epilogue).
struct EpilogueRole {
  EpilogueStep step = EpilogueStep::none;
  Activation activation = Activation::none;  ///< for the steps activation and slope
  int dim = -1;                              ///< for bias and bias_grad: the dim that it belongs to; -1: the last
};

Epilogue epilogue_of(const Attrs& attrs);
/// Replaces the epilogue that the attrs hold.
void set_epilogue(Attrs& attrs, const Epilogue& epilogue);

/// The activation of a gelu node, from attr approximate.
Activation gelu_of(const Attrs& attrs);

/// For `trainctl bench op --attrs`: every attr of an epilogue with these steps, each with a value.
Attrs epilogue_attrs(unsigned steps);
/// The values of an epilogue attr that is a word; empty if it is a flag or no attr of epilogues.
std::vector<std::string> epilogue_words(std::string_view attr);

}  // namespace trainctl
