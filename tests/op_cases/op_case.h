// One row per op and shape. The rows of a family are in its <folder>_cases.cpp (op_cases.h); op_cases_test.cpp
// lists what every row must pass. Shapes: prime sizes that vector loops do not divide, ones, and sizes that 2, 3, 4
// and 6 ranks divide.
#pragma once

#include <string>
#include <vector>

#include "engine/base/attrs.h"
#include "engine/graph/dtype.h"
#include "engine/graph/shape.h"
#include "engine/ops/layer_builder.h"

namespace trainctl {

/// Emits the forward nodes of a row's layer; the last one is differentiated.
using BuildLayer = void (*)(LayerBuilder& layer, const std::vector<TensorId>& inputs, const Attrs& attrs);

struct CaseInput {
  Shape shape;
  bool differentiable = true;
  DType dtype = DType::f32;
  int64_t below = 0;      ///< i32: values in [0, below)
  bool positive = false;  ///< e^(x/2) in place of x
  bool zeros = false;     ///< 0 where x is below -0.4: about a third
  bool distinct = false;  ///< no two of 61 consecutive elements are equal, in bf16 either
};

struct OpCase {
  std::string op;
  std::vector<CaseInput> inputs;
  Attrs attrs = {};
  std::vector<Shape> outputs;  ///< output shapes of the last node, worked out by hand
  double tolerance = 2e-6;     ///< relative to the largest element of a result; gradients: 10 times that
  BuildLayer build = nullptr;  ///< for a layer of more than one node
  bool fused = false;          ///< with an epilogue, which only the compiler sets: no backward
  bool has_losses = false;     ///< its gradient also has that of losses which its outputs do not show
  bool has_kinks = false;      ///< rounding to bf16 crosses kinks of its function: gradients are compared only in f32

  std::string name() const;
};

/// An input without a gradient, such as a label.
inline CaseInput fixed(Shape shape) { return {std::move(shape), false}; }
/// An input whose elements are positive, for a logarithm or a divisor.
inline CaseInput positive(Shape shape) { return {.shape = std::move(shape), .positive = true}; }
/// An i32 input with values in [0, below).
inline CaseInput ids(Shape shape, int64_t below) { return {std::move(shape), false, DType::i32, below}; }

/// A case of an instruction with this epilogue.
OpCase fused_case(std::string op, std::vector<CaseInput> inputs, Attrs attrs, const Epilogue& epilogue,
                  std::vector<Shape> outputs);

/// A case of a batch_norm layer as engine/model lowers it, with the features in dim `dim` of x (batch_norm_cases.cpp).
OpCase batch_norm_case(Shape x, bool affine, int64_t dim = 1);

/// The values of an f32 input: standard normal, unless the input asks for something else. They depend only on the row,
/// the input and the element, so that a row fails in the same way each time.
std::vector<double> case_values(const OpCase& op_case, size_t input);

}  // namespace trainctl
