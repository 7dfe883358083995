// All that may be asked of one kernel without running it: by passes, the proof, profiles, `trainctl bench`, tests and
// docs. A kernel that an op of the graph runs is part of its OpDef (op_def.h); the others, which only compiled programs
// use, stand in the list of their family (op_family.h).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/attrs.h"
#include "engine/graph/dtype.h"
#include "engine/graph/shape.h"
#include "engine/ops/epilogue.h"

namespace trainctl {

struct TensorInfo {
  Shape shape;
  DType dtype = DType::f32;
};
using Infos = std::span<const TensorInfo>;

inline int64_t bytes_of(const TensorInfo& info) { return num_elements(info.shape) * byte_size(info.dtype); }

/// Work of one execution on the shapes given (local or global alike).
struct Cost {
  double flops = 0;
  double bytes = 0;  ///< read and written, each once
};

/// Which output may take the memory of an input that dies there.
enum class InPlace : uint8_t {
  no,
  first_on_first,  ///< output 0, of input 0
  last_on_first,   ///< the last output, of input 0
  only_on_alike,   ///< the only output, of any input of its shape
};

/// What a kernel is in a launch that several small kernels share (engine/ops/small_step).
enum class LaunchRole : uint8_t { none, product, loss, weight_grad };

/// A call that is worth timing: what `trainctl bench op NAME` runs where no shapes are given, and the rule that given
/// ones must follow.
struct KernelExample {
  enum class Fill : uint8_t {
    values,      ///< random, of --dtype
    statistics,  ///< random and positive, f32 whatever --dtype: means, variances, gradients of parameters
    indices,     ///< i32: ids or labels
  };
  struct Input {
    Shape shape;
    Fill fill = Fill::values;
  };

  const char* what = "";  ///< "C[m,n] = A[m,k] B[k,n]"
  std::vector<Input> inputs;
  Attrs attrs = {};     ///< with which it runs
  Attrs optional = {};  ///< others that it takes, with values of their type; those of its epilogues are known
  /// Of kernels that no op of a graph runs: their outputs, in a run with floats of `dtype`. Throws ShapeError.
  std::vector<TensorInfo> (*outputs)(Infos inputs, const Attrs& attrs, DType dtype) = nullptr;
  /// Indices are in [0, below).
  int64_t (*below)(Infos inputs, const Attrs& attrs) = nullptr;
  bool reads_inputs = true;  ///< false: they only give the output its shape
  /// Of ops of backward passes, whose infer trusts what their forward op has checked. Throws ShapeError.
  void (*expect)(Infos inputs) = nullptr;
};

struct KernelDef {
  const char* name;

  // Operands. Inputs are read and outputs are written, but for:
  unsigned accumulates = 0;      ///< bit i: the kernel can add into output i (TensorArg::accumulate)
  unsigned updates_input = 0;    ///< bit i: input i is state that the kernel changes in place
  bool updates_outputs = false;  ///< f32 outputs are read and changed (an optimizer's); a bf16 one is a copy, written
  InPlace in_place = InPlace::no;

  // Fusion.
  unsigned takes = 0;  ///< bits of EpilogueStep
  /// What it is to the kernel before it. Null: no step of an epilogue.
  EpilogueRole (*as_epilogue)(const Attrs& attrs) = nullptr;
  /// Its word in an element-wise expression (elementwise/expression.h). Null: it has none.
  std::string (*element)(const Attrs& attrs) = nullptr;
  /// Of a loss: the kernel of its gradient, by the same operands, and the one that makes both.
  const KernelDef* loss_grad = nullptr;
  const KernelDef* loss_with_grad = nullptr;
  /// A matrix product: under precision tf32 its instructions get the attr `tf32`.
  bool is_product = false;
  /// With the attr first_row it makes some rows of output 0 alone, from that one on.
  bool makes_rows = false;
  LaunchRole launch_role = LaunchRole::none;

  // Work.
  /// Null: every operand once through memory, what is updated twice.
  Cost (*cost)(Infos inputs, Infos outputs, const Attrs& attrs) = nullptr;
  /// The most bytes that its CUDA kernel asks of CudaScratch on any card. Null: what sums over blocks take.
  int64_t (*most_cuda_scratch)(const std::vector<Shape>& inputs, const std::vector<Shape>& outputs) = nullptr;

  /// For tests and `trainctl bench`. Null: the kernel only moves bytes of a graph's collective, which has none.
  KernelExample (*example)() = nullptr;

  bool takes_step(EpilogueStep step) const { return (takes & bits(step)) != 0; }
};

/// KernelDef::cost, or what stands for it.
Cost kernel_cost(const KernelDef& kernel, Infos inputs, Infos outputs, const Attrs& attrs);

/// Every kernel: those of ops, then those that only compiled programs use, by family.
std::span<const KernelDef* const> all_kernels();
/// Null when there is none of that name.
const KernelDef* find_kernel(std::string_view name);
/// The same, but the name must exist.
const KernelDef& get_kernel(std::string_view name);

}  // namespace trainctl
