// One kernel call to time (shapes, types, attributes), from the user's options and the kernel's example.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/ops/kernel_def.h"

namespace trainctl {

/// f32, bf16, or tf32 (f32, but products may round their operands).
struct BenchType {
  DType dtype = DType::f32;
  bool tf32 = false;
};
BenchType parse_bench_type(const std::string& text);

struct OpRequest {
  const KernelDef* kernel = nullptr;
  KernelExample example;
  std::vector<TensorInfo> inputs, outputs;
  std::vector<KernelExample::Fill> fills;  ///< one per input
  int64_t below = 0;                       ///< exclusive upper bound of indices
  unsigned adds = 0;                       ///< bit i: output i is added to its previous contents
  Attrs attrs;
  BenchType type;

  std::string name() const { return kernel->name; }
  bool accumulates(size_t output) const { return epilogue_of(attrs).descend || (adds >> output & 1U) != 0; }
};

/// A default call of a kernel. Its optional attributes include those of the kernel's epilogues.
KernelExample example_of(const KernelDef& kernel);

/// Parses `shapes` "32x784,784x512" (empty: those of the example) and `attrs` "transpose_b=true,perm=[1,0]" (or empty).
/// Throws SpecError that states what was expected.
OpRequest make_op_request(const std::string& op, const std::string& shapes, const std::string& attrs,
                          const BenchType& type);

/// One shape per input: "32x784,784x512".
std::vector<Shape> parse_shapes(const std::string& text);
std::string shapes_text(const std::vector<TensorInfo>& infos);

/// Parses "1K,1M,256M": K, M and G are powers of 1024, optionally followed by B or iB. Throws SpecError.
std::vector<int64_t> parse_sizes(const std::string& text);

}  // namespace trainctl
