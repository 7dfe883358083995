// Everything that tests know about one family of ops. engine/ops/<folder>/<folder>_cases.cpp defines
//   extern const OpCases <folder>_cases
// and all_ops.def makes the list, so a family without it does not link. families_test.cpp checks its contents.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/ops/op_family.h"
#include "tests/op_cases/naive.h"
#include "tests/op_cases/op_case.h"

namespace trainctl {

/// One forward node of an op.
struct Given {
  const char* op;
  std::vector<TensorInfo> inputs;
  Attrs attrs = {};
};

/// The rule and the shapes of one node (tests/ops_rules/rules_test.cpp).
struct RuleCase {
  Given given;
  const char* rule;
  const char* uncuttable;
  std::vector<Shape> shapes;
  const char* inner = "";  ///< letters that the op sums over itself
};

/// The backward nodes of an op as one_node.h prints them, and the reason why cutting any factor that the forward rule
/// permits leaves correct (partial) sums (tests/ops_rules/gradients_test.cpp).
struct GradientCase {
  Given given;
  std::vector<std::string> nodes;
  const char* why;
  const char* whole = "";  ///< letters that are never cut, so that a kernel's sum over them is already the whole sum
};

/// The error of infer for inputs that do not fit (tests/ops_rules/shape_errors_test.cpp).
struct ShapeErrorCase {
  Given given;
  const char* message;
};

/// The seed of the random numbers on both sides of a comparison, for ops that draw random numbers.
inline constexpr uint64_t kCaseSeed = 17;
inline constexpr uint32_t kCaseStep = 5;
inline constexpr int kCaseMicroBatch = 3;

/// The forward op as a naive loop in double: kernels and finite differences are compared with it.
struct Reference {
  const char* op;
  naive::Outputs (*run)(const naive::Inputs& in, const Attrs& attrs);
};

/// An operand of a KernelCase.
struct CaseOperand {
  enum class Fill : uint8_t {
    values,     ///< between -1 and 1, determined by the operand's index and the element
    positive,   ///< between 0 and 1
    number,     ///< every element is `number`
    ids,        ///< i32 in [0, number)
    e4m3,       ///< i32 words of four E4M3 numbers; results are compared as those numbers
    e5m2,       ///< the same of E5M2 numbers
    unwritten,  ///< NaN
    work        ///< i32 that the kernel uses only while it runs: not compared
  };
  Shape shape;
  Fill fill = Fill::values;
  DType dtype = DType::f32;
  bool accumulate = false;
  double number = 0;
};

inline CaseOperand unwritten(Shape shape, DType dtype = DType::f32) {
  return {std::move(shape), CaseOperand::Fill::unwritten, dtype};
}

/// A call of one kernel, for kernels that no op of the graph runs and for fused steps that no OpCase reaches. On a CPU
/// it is compared with the family's KernelReference, on a GPU with the CPU.
struct KernelCase {
  std::string kernel;
  std::vector<CaseOperand> in, out;
  Attrs attrs = {};
  double tolerance = 0;  ///< between GPU and CPU, relative to the element, or to 1 if that is larger
  StepScalars scalars = {};

  /// The CPU runs the call in f32 instead of bf16, because its kernel has no bf16.
  bool f32_on_cpu = false;

  std::string name() const;
};

struct NaiveCall {
  const naive::Inputs& in;
  const naive::Outputs& before;  ///< the initial contents of the outputs
  const Attrs& attrs;
  const StepScalars& scalars;
};

/// A kernel as a naive loop in double. If an output has TensorArg::accumulate, the result is added to it. After the
/// outputs it returns the new values of the inputs that the kernel updates.
struct KernelReference {
  const char* kernel;
  naive::Outputs (*run)(const NaiveCall& call);
};

/// A layer of a job file (tests/model/layer_types_test.cpp). It is placed between two dense layers `first` and
/// `second` of [8, 12], so that gradients flow through.
struct LayerCase {
  const char* type;
  const char* fields;            ///< ", units: 5"; its input is `first` unless given here
  Shape shape;                   ///< shape of the output
  bool of_ids = false;           ///< reads the data instead, ids of [8, 5]
  Shape sample = {};             ///< it reads `shaped` instead: a dense layer after `first` with samples of this shape
  const char* output = "layer";  ///< "layer.0" where it has several
};

struct Exemption {
  const char* kernel;
  const char* why;
};

struct OpCases {
  std::vector<OpCase> rows = {};
  std::vector<Reference> references = {};
  std::vector<RuleCase> rules = {};
  std::vector<GradientCase> gradients = {};
  std::vector<ShapeErrorCase> shape_errors = {};
  std::vector<KernelCase> kernels = {};
  std::vector<KernelReference> kernel_references = {};
  std::vector<Exemption> without_cuda = {};  ///< kernels that GPUs do not have
  std::vector<Exemption> allocating = {};    ///< kernels of CPUs that allocate when they run
  std::vector<LayerCase> layers = {};
};

/// Returns whether the family of an op is among those that TRAINCTL_OP_CASES names, whose rows the lists below have.
bool is_wanted(std::string_view op);

struct FamilyCases {
  const char* folder;
  const OpFamily& family;
  const OpCases& cases;
};

/// The cases of all wanted families, in the order of all_ops.def.
std::span<const FamilyCases> all_cases();

/// The rows of all families, in the same order, or of those that the environment names: TRAINCTL_OP_CASES=softmax,gelu.
const std::vector<OpCase>& op_cases();
const std::vector<RuleCase>& rule_cases();
const std::vector<GradientCase>& gradient_cases();
const std::vector<ShapeErrorCase>& shape_error_cases();
const std::vector<KernelCase>& kernel_cases();
const std::vector<LayerCase>& layer_cases();

/// True if the CPU kernel is in OpCases::allocating.
bool may_allocate(std::string_view kernel);

/// The reference of an op; null if it has none.
const Reference* find_reference(std::string_view op);
const KernelReference* find_kernel_reference(std::string_view kernel);

}  // namespace trainctl
