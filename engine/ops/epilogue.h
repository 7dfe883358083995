// What the compiler may have a kernel do besides its own work, so that what lies between two ops never reaches memory.
// The compiler, the kernels and `trainctl bench` all use this type; epilogue.cpp alone knows how an instruction's attrs
// hold it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/attrs.h"

namespace trainctl {

enum class Activation : uint8_t { none, relu, gelu, gelu_tanh };

/// In this order, on the kernel's result:
struct Epilogue {
  bool bias = false;                         ///< adds inputs[2], [n]
  Activation activation = Activation::none;  ///< of that
  bool keep_input = false;                   ///< outputs[1] is what the activation is of
  Activation slope = Activation::none;  ///< times the activation's slope at the last input: relu's result, gelu's input
  bool bias_grad = false;               ///< outputs[1] is inputs[1], dy, summed over all leading dims
  bool descend = false;                 ///< outputs -= learning_rate * result; the outputs accumulate

  friend bool operator==(const Epilogue&, const Epilogue&) = default;
};

/// One step of an epilogue. As a bit: the steps that a kernel takes (KernelDef::takes).
enum class EpilogueStep : uint8_t { none = 0, bias = 1, activation = 2, slope = 4, bias_grad = 8, descend = 16 };
template <class... Steps>
constexpr unsigned bits(Steps... steps) {
  return (static_cast<unsigned>(steps) | ...);
}

/// What a kernel is to the kernel before it (KernelDef::as_epilogue).
struct EpilogueRole {
  EpilogueStep step = EpilogueStep::none;
  Activation activation = Activation::none;  ///< of the steps activation and slope
};

Epilogue epilogue_of(const Attrs& attrs);
/// Replaces the one that the attrs hold.
void set_epilogue(Attrs& attrs, const Epilogue& epilogue);

/// The activation of a gelu node: attr approximate.
Activation gelu_of(const Attrs& attrs);

/// For `trainctl bench op --attrs`: every attr of an epilogue of these steps with a value, and the words that an attr
/// of epilogues takes (empty: it is none of them).
Attrs epilogue_attrs(unsigned steps);
/// The values that such an attr may have, where it is a word; empty: it is none, or a flag.
std::vector<std::string> epilogue_words(std::string_view attr);

}  // namespace trainctl
