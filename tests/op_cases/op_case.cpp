// Writes the name of a row of the op cases, and draws the values of its operands.
#include "tests/op_cases/op_case.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/base/text.h"
#include "engine/ops/random.h"
#include "tests/op_cases/op_cases.h"

namespace trainctl {

OpCase fused_case(std::string op, std::vector<CaseInput> inputs, Attrs attrs, const Epilogue& epilogue,
                  std::vector<Shape> outputs) {
  set_epilogue(attrs, epilogue);
  OpCase row{std::move(op), std::move(inputs), std::move(attrs), std::move(outputs)};
  row.fused = true;
  return row;
}

std::string OpCase::name() const {
  std::vector<std::string> shapes;
  for (const CaseInput& input : inputs) shapes.push_back(to_string(input.shape));
  return fmt::format("{} {} {}", op, join(shapes, " "), to_string(attrs));
}

std::string KernelCase::name() const {
  std::vector<std::string> operands;
  for (const CaseOperand& operand : in) operands.push_back(to_string(operand.shape));
  for (const CaseOperand& operand : out) operands.push_back(to_string(operand.shape));
  return fmt::format("{} {} {}", kernel, join(operands, " "), to_string(attrs));
}

std::vector<double> case_values(const OpCase& op_case, size_t input) {
  const CaseInput& in = op_case.inputs[input];
  const uint64_t key = stream_key(stable_hash(op_case.name()), input);
  std::vector<double> values(static_cast<size_t>(num_elements(in.shape)));
  for (size_t i = 0; i < values.size(); ++i) {
    const double u = philox_uniform(key, 2 * i, 0), angle = philox_uniform(key, 2 * i + 1, 0);
    if (in.distinct) {
      values[i] = (static_cast<double>(i * 37 % 61) - 30) / 16;
    } else if (in.dtype == DType::i32) {
      values[i] = std::floor(u * static_cast<double>(in.below));
    } else {
      const double normal = std::sqrt(-2.0 * std::log(1.0 - u)) * std::cos(2.0 * M_PI * angle);
      const double shown = in.zeros && normal < -0.4 ? 0.0 : normal;
      values[i] = static_cast<float>(in.positive ? std::exp(normal / 2) : shown);
    }
  }
  return values;
}

}  // namespace trainctl
