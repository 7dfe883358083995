// Everything that can be asked about a kernel without running it. Each kernel is one constant: in the OpDef of its op
// (op_def.h), or, if only compiled programs use it, in the list of its family (op_family.h). Its code is elsewhere, in
// *_cpu.cpp and *_cuda.cu, and found by its name. Each section of KernelDef is for one of its readers.
#pragma once

#include <optional>
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

/// Work of one execution on the given shapes, local or global.
struct Cost {
  double flops = 0;
  double bytes = 0;  ///< read and written, each counted once
  /// Exponentials of attention's scores, for which products wait.
  double exponentials = 0;
};

/// The matrices that a product of matrices writes: `count` of rows x cols, each cut into tiles.
struct WrittenMatrices {
  int64_t count = 1, rows = 0, cols = 0;
};

/// Tells which output may take the memory of an input whose lifetime ends there.
enum class InPlace : uint8_t {
  no,
  first_on_first,  ///< output 0 that of input 0
  last_on_first,   ///< the last output that of input 0
  only_on_alike,   ///< the only output that of any input with its shape
};

/// Execution of a kernel on images that are stored channels last, [n, h, w, c].
struct ChannelsLast {
  /// Nodes with more inputs or outputs do not run on such images.
  static constexpr size_t kMostOperands = 32;

  Attrs attrs;
  unsigned inputs = 0, outputs = 0;  ///< bit i: operand i is images, and is then channels last

  bool has_input(size_t i) const { return (inputs >> i & 1u) != 0; }
  bool has_output(size_t o) const { return (outputs >> o & 1u) != 0; }
};

/// Operands that have the rows of the first one as their leading dims.
struct RowOperands {
  unsigned inputs = 0, outputs = 0;  ///< bit i: operand i has
};

/// A kernel's role in a launch that several small kernels share (engine/ops/small_step).
enum class LaunchRole : uint8_t { none, product, weight_grad };

/// A representative call: `trainctl bench op NAME` runs it if no shapes are given, and checks given ones against
/// it.
struct KernelExample {
  enum class Fill : uint8_t {
    values,      ///< random, in --dtype
    statistics,  ///< random and positive, f32 whatever --dtype: means, variances, gradients of parameters
    indices,     ///< i32: ids or labels
  };
  struct Input {
    Shape shape;
    Fill fill = Fill::values;
  };

  const char* what = "";  ///< "C[m,n] = A[m,k] B[k,n]"
  std::vector<Input> inputs;
  Attrs attrs = {};     ///< that it runs with
  Attrs optional = {};  ///< other attrs that it accepts, with values of their type; those of its epilogues are implied
  /// For kernels that no op of a graph runs: their outputs, with floats of `dtype`. Throws ShapeError.
  std::vector<TensorInfo> (*outputs)(Infos inputs, const Attrs& attrs, DType dtype) = nullptr;
  /// Indices are in [0, below).
  int64_t (*below)(Infos inputs, const Attrs& attrs) = nullptr;
  bool reads_inputs = true;  ///< false: they only determine the output's shape
  /// For ops of backward passes, whose infer relies on the checks of their forward op. Throws ShapeError.
  void (*expect)(Infos inputs) = nullptr;
};

struct KernelDef {
  const char* name;

  // Operands, for the executor, the proof and memory. Inputs are read and outputs are written, except:
  unsigned accumulates = 0;  ///< bit i: the kernel can add to output i (TensorArg::accumulate)
  /// Bit i: only the kernel of the gradient reads output i, and the order of its elements depends on the cut.
  unsigned private_outputs = 0;
  unsigned updates_input = 0;  ///< bit i: input i is state that the kernel changes in place
  bool updates_outputs =
      false;  ///< f32 outputs are read and changed (an optimizer's); a bf16 output is a copy that is only written
  InPlace in_place = InPlace::no;

  // Fusion (compile/fuse): which kernels may become one, and what that one is.
  unsigned takes = 0;  ///< mask of EpilogueStep: the steps it supports
  /// Its role in the epilogue of the kernel before it. Null: not an epilogue step.
  EpilogueRole (*as_epilogue)(const Attrs& attrs) = nullptr;
  /// Its token in an element-wise expression (elementwise/expression.h). Null: none.
  std::string (*element)(const Attrs& attrs) = nullptr;
  /// For a loss: the kernel of its gradient, from the same operands, and the one that computes both.
  const KernelDef* loss_grad = nullptr;
  const KernelDef* loss_with_grad = nullptr;
  /// The kernel that reads this one's inputs and then its outputs, with the same attrs, and the one that computes both:
  /// inputs -> this one's outputs, then those of `next`.
  const KernelDef* next = nullptr;
  const KernelDef* with_next = nullptr;
  /// For a gradient with inputs dy, x, mean, var, .. of a forward kernel x, mean, var, parameters ..: with attr
  /// behind_relu, dy is the gradient behind the relu of the forward kernel's epilogue. The gradient finds from x where
  /// relu gave 0, so it has this many inputs, followed by all parameters of the forward kernel. 0: it does not support
  /// the attr.
  size_t inputs_behind_relu = 0;
  /// The dim of output 0, or of the last input of a gradient of weights, that a bias belongs to. Null: the last.
  int (*channel_dim)(const Attrs& attrs) = nullptr;

  // Memory format (compile/lower/choose_formats.cpp).
  /// With operands that are images [n, c, h, w]: how it takes all of them channels last. Null or empty: not at all.
  std::optional<ChannelsLast> (*channels_last)(Infos inputs, const Attrs& attrs) = nullptr;
  /// It transposes its images itself if they are not channels last.
  bool prefers_channels_last = false;

  /// A product of matrices or a convolution: under precision tf32 its instructions get the attr `tf32`, and what
  /// follows it becomes its epilogue (compile/fuse/fuse_products.cpp).
  bool is_product = false;
  /// Products of matrices with weights are most of its work, which counts as that of the model, although it is no
  /// product to the compiler.
  bool has_products = false;
  /// With the attr first_row it computes only some rows of output 0, starting with that one.
  bool makes_rows = false;
  /// Operands by rows of a kernel that computes its rows one by one: given some rows of these inputs, it computes the
  /// same rows of these outputs; its other outputs are sums over rows. Null: it has no such rows.
  RowOperands (*row_operands)(const Attrs& attrs) = nullptr;
  LaunchRole launch_role = LaunchRole::none;

  // Work on given shapes, for the cost model and profiles.
  /// Null: every operand passes through memory once, updated ones twice.
  Cost (*cost)(Infos inputs, Infos outputs, const Attrs& attrs) = nullptr;
  /// Null: it is no product of matrices.
  WrittenMatrices (*written)(Infos inputs, Infos outputs) = nullptr;
  /// The most bytes of CudaScratch that its CUDA kernel uses on any card. Null: only what sums over blocks use.
  int64_t (*most_cuda_scratch)(const std::vector<Shape>& inputs, const std::vector<Shape>& outputs) = nullptr;

  /// For tests and `trainctl bench`. Null: the cost of a graph's collective, which has no kernel.
  KernelExample (*example)() = nullptr;

  bool takes_step(EpilogueStep step) const { return (takes & bits(step)) != 0; }
};

/// KernelDef::cost, or its default.
Cost kernel_cost(const KernelDef& kernel, Infos inputs, Infos outputs, const Attrs& attrs);

/// Every kernel, by family: those of ops, then those that only compiled programs use.
std::span<const KernelDef* const> all_kernels();
/// Null if there is none of that name.
const KernelDef* find_kernel(std::string_view name);
/// The same, but the name must exist.
const KernelDef& get_kernel(std::string_view name);

}  // namespace trainctl
