// One row an op and shape; op_cases_test.cpp says what every row must pass.
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
  int64_t below = 0;  ///< i32: values in [0, below)
};

struct OpCase {
  std::string op;
  std::vector<CaseInput> inputs;
  Attrs attrs = {};
  std::vector<Shape> outputs;  ///< of the last node, as a person works them out
  double tolerance = 2e-6;     ///< of the largest element of a result; gradients: 10 times that
  BuildLayer build = nullptr;  ///< where the layer is more than one node
  bool fused = false;          ///< attrs that only the compiler sets: there is no backward

  std::string name() const;
};

std::vector<OpCase> op_cases();

/// A batch_norm layer as model/ lowers it, over x [n, c, ..].
OpCase batch_norm_case(Shape x, bool affine);

/// Values of f32 inputs: a standard normal by (row, input, element), so that a row fails the same way each time.
std::vector<double> case_values(const OpCase& op_case, size_t input);

}  // namespace trainctl
