// Runs a kernel case on a device, and its naive reference in double.
#include "tests/op_cases/kernel_case_run.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/error.h"
#include "engine/graph/bf16.h"
#include "engine/graph/e4m3.h"
#include "engine/graph/e5m2.h"
#include "engine/ops/random.h"

namespace trainctl {
namespace {

using Fill = CaseOperand::Fill;

bool has_words(const CaseOperand& operand) { return operand.fill == Fill::e4m3 || operand.fill == Fill::e5m2; }

/// Makes a word of four 8-bit floats, none of which is an infinity or NaN: each of its bytes is below `end`.
double word_of(double u, int end) {
  uint32_t word = 0;
  for (int byte = 0; byte < 4; ++byte, u = u * end - std::floor(u * end))
    word = word << 8 | static_cast<uint32_t>(std::floor(u * end));
  return word;
}

/// The four numbers of each word.
std::vector<double> numbers_of(const std::vector<double>& words, bool e5m2) {
  std::vector<double> numbers;
  for (const double word : words) {
    for (int byte = 0; byte < 4; ++byte) {
      const auto bits = static_cast<uint8_t>(static_cast<uint64_t>(word) >> 8 * byte);
      numbers.push_back(double{e5m2 ? from_e5m2(bits) : from_e4m3(bits)});
    }
  }
  return numbers;
}

/// The initial values of an operand. They depend on `place`, the operand's index among all operands.
std::vector<double> values_of(const CaseOperand& operand, uint64_t place) {
  std::vector<double> values(static_cast<size_t>(num_elements(operand.shape)));
  for (size_t i = 0; i < values.size(); ++i) {
    const double u = double{philox_uniform(place, i, 0)};
    double v = operand.number;
    if (operand.fill == Fill::values) v = double{2.0f * static_cast<float>(u) - 1.0f};
    if (operand.fill == Fill::positive) v = u;
    if (has_words(operand)) v = word_of(u, operand.fill == Fill::e4m3 ? 0x7f : 0x7c);
    if (operand.fill == Fill::ids) v = std::floor(u * operand.number);
    if (operand.fill == Fill::unwritten) v = std::numeric_limits<double>::quiet_NaN();
    if (operand.dtype == DType::bf16) v = double{from_bf16(to_bf16(static_cast<float>(v)))};
    values[i] = v;
  }
  return values;
}

std::vector<std::vector<double>> all_values(const KernelCase& row) {
  std::vector<std::vector<double>> all;
  for (const auto* operands : {&row.in, &row.out})
    for (const CaseOperand& operand : *operands) all.push_back(values_of(operand, all.size() + 1));
  return all;
}

/// Stores the values in host memory, which has the same size for every type.
TensorArg in_memory(const CaseOperand& operand, const std::vector<double>& values, bool wide,
                    std::vector<uint32_t>& memory) {
  memory.resize(values.size());
  const DType dtype = wide && operand.dtype == DType::bf16 ? DType::f32 : operand.dtype;
  TensorArg arg{memory.data(), dtype, operand.shape, operand.shape, Shape(operand.shape.size(), 0)};
  arg.accumulate = operand.accumulate;
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::i32) arg.as<int32_t>()[i] = static_cast<int32_t>(static_cast<int64_t>(values[i]));
    if (dtype == DType::f32) arg.as<float>()[i] = static_cast<float>(values[i]);
    if (dtype == DType::bf16) arg.as<uint16_t>()[i] = to_bf16(static_cast<float>(values[i]));
  }
  return arg;
}

/// Reads values as double. i32 values are signed, except for words of 8-bit numbers.
std::vector<double> in_double(const CaseOperand& operand, const TensorArg& arg) {
  std::vector<double> values(static_cast<size_t>(arg.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (arg.dtype == DType::f32) values[i] = double{arg.as<float>()[i]};
    if (arg.dtype == DType::bf16) values[i] = double{from_bf16(arg.as<uint16_t>()[i])};
    if (arg.dtype == DType::i32)
      values[i] =
          has_words(operand) ? static_cast<double>(arg.as<uint32_t>()[i]) : static_cast<double>(arg.as<int32_t>()[i]);
  }
  return values;
}

/// Converts results to the form in which they are compared.
std::vector<double> result_of(const CaseOperand& operand, std::vector<double> values) {
  if (operand.fill == Fill::work) return {};
  return has_words(operand) ? numbers_of(values, operand.fill == Fill::e5m2) : values;
}

/// The inputs that the kernel updates. Their new values are results too, and follow those of the outputs.
std::vector<size_t> updated_inputs(const KernelCase& row) {
  std::vector<size_t> updated;
  for (size_t i = 0; i < row.in.size(); ++i)
    if ((get_kernel(row.kernel).updates_input >> i & 1u) != 0) updated.push_back(i);
  return updated;
}

}  // namespace

KernelCaseRun::KernelCaseRun(const KernelCase& row) : row_(row), values_(all_values(row)) {}

Results KernelCaseRun::on(const CaseDevice& device, bool wide, int times) const {
  const KernelCase& row = row_;
  std::vector<std::vector<uint32_t>> memory(values_.size());
  KernelCall call{.attrs = row.attrs, .scalars = &row.scalars};
  for (size_t i = 0; i < values_.size(); ++i) {
    const bool input = i < row.in.size();
    const CaseOperand& operand = input ? row.in[i] : row.out[i - row.in.size()];
    (input ? call.in : call.out).push_back(in_memory(operand, values_[i], wide, memory[i]));
  }
  const auto prepared = device.prepare(row.kernel, call);
  for (int i = 0; i < times; ++i) prepared();
  Results results;
  for (size_t o = 0; o < call.out.size(); ++o)
    results.push_back(result_of(row.out[o], in_double(row.out[o], call.out[o])));
  for (const size_t i : updated_inputs(row)) results.push_back(in_double(row.in[i], call.in[i]));
  return results;
}

Results KernelCaseRun::naive(int times) const {
  const KernelCase& row = row_;
  const KernelReference* reference = find_kernel_reference(row.kernel);
  if (reference == nullptr) check(false, "no reference of kernel " + row.kernel);
  naive::Inputs in, out;
  for (size_t i = 0; i < row.in.size(); ++i) in.push_back({row.in[i].shape, values_[i]});
  for (size_t o = 0; o < row.out.size(); ++o) out.push_back({row.out[o].shape, values_[row.in.size() + o]});
  for (int i = 0; i < times; ++i) {
    naive::Outputs made = reference->run({in, out, row.attrs, row.scalars});
    const std::vector<size_t> updated = updated_inputs(row);
    check(made.size() == out.size() + updated.size(), "the reference makes as many results as the kernel");
    for (size_t u = 0; u < updated.size(); ++u) in[updated[u]] = std::move(made[out.size() + u]);
    made.resize(out.size());
    for (size_t o = 0; o < out.size(); ++o) {
      check(made[o].values.size() == out[o].values.size(), "the reference's outputs are as large as the kernel's");
      for (size_t e = 0; e < made[o].values.size() && row.out[o].accumulate; ++e) made[o].values[e] += out[o].values[e];
    }
    out = std::move(made);
  }
  Results results;
  for (size_t o = 0; o < out.size(); ++o) results.push_back(result_of(row.out[o], out[o].values));
  for (const size_t i : updated_inputs(row)) results.push_back(in[i].values);
  return results;
}

double worst_part(const std::vector<double>& got, const std::vector<double>& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double part = std::fabs(got[i] - expected[i]) / std::max(1.0, std::fabs(expected[i]));
    if (!(part <= worst)) worst = std::isnan(part) ? INFINITY : part;
  }
  return worst;
}

}  // namespace trainctl
