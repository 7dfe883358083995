// Tensors in double and loops over them, for the naive references of ops (the <folder>_cases.cpp of each family).
// Every element is found by its index; nothing is optimized.
#pragma once

#include <boost/container/static_vector.hpp>
#include <functional>
#include <string>
#include <vector>

#include "engine/graph/shape.h"
#include "engine/ops/epilogue.h"
#include "engine/ops/kernel.h"

namespace trainctl {

struct Tensor64 {
  Shape shape;
  std::vector<double> values;
};

namespace naive {

using Index = boost::container::static_vector<int64_t, 8>;  ///< no allocation: references look at each element by one
using Inputs = std::vector<Tensor64>;
using Outputs = std::vector<Tensor64>;

Index index_of(const Shape& shape, int64_t flat);
double at(const Tensor64& t, const Index& index);
Tensor64 make(const Shape& shape, const std::function<double(const Index&)>& value);
Tensor64 zeros(const Shape& shape);

/// Applies f to each element of the first input.
Outputs map(const Inputs& in, const std::function<double(double)>& f);
/// Applies f to the elements of two inputs, which are broadcast as in numpy.
Outputs map_pairs(const Inputs& in, double (*f)(double, double));
/// A loss of one prediction and its label, or the slope of that loss. `attrs` are the attributes of the loss.
using PairLoss = double (*)(double prediction, double label, const Attrs& attrs);
/// Computes scale * sum of f(prediction, label).
Outputs sum_of_pairs(const Inputs& in, const Attrs& attrs, PairLoss f);
/// Computes the same sum, and its gradient scale * slope(prediction, label).
Outputs sum_with_slopes(const Inputs& in, const Attrs& attrs, PairLoss f, PairLoss slope);

/// Applies f to the elements of any number of inputs, which are broadcast.
Outputs map_all(const Inputs& in, const std::function<double(const std::vector<double>&)>& f);
/// Computes a function of kUnary, given its name and its attributes.
double unary(const std::string& function, const Attrs& attrs, double x);
/// The slope of that function at x.
double unary_slope(const std::string& function, const Attrs& attrs, double x);

/// The value of the activation at x.
double activated(Activation activation, double x);
/// The slope of the activation at its input x. For relu the output y gives the same slope.
double slope_at(Activation activation, double x);
/// Applies the element-wise steps of an epilogue to a kernel's result: bias (in[2]), activation and slope (at the
/// last input), and the activation's input if it is kept.
Outputs with_epilogue(Tensor64 result, const Inputs& in, const Attrs& attrs);

/// Returns whether dropout keeps element i of the whole batch's tensor.
bool keeps(double p, int64_t key, uint64_t seed, uint32_t step, size_t i);
/// The learning rate of the step times attribute learning_rate_scale.
double learning_rate(const StepScalars& scalars, const Attrs& attrs);
/// The factor of gradients that are clipped to attribute clip_norm. in[1] is their squared norm.
double clip_scale(const Inputs& in, const Attrs& attrs);

}  // namespace naive
}  // namespace trainctl
