// Attention and convolutions of cuDNN, opened at first use. A plan is built once for each signature in a process, 20 to
// 40 ms each, and shared by equal layers. Engines that are not deterministic are never taken.
// Needs neither cuDNN nor CUDA headers: only cudnn_plans_cuda.cpp includes NVIDIA's front end; a program that was
// built without it has no_cudnn_plans_cuda.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/cuda_scratch.h"

namespace trainctl::cuda {

/// Sizes, and elements from one index to the next. Images are in the order n, c, h, w, whatever their format in memory.
struct CudnnTensor {
  Shape dims, strides;
};

class CudnnPlan {
 public:
  virtual ~CudnnPlan() = default;
  /// Bytes of CudaScratch that run() needs.
  virtual int64_t workspace() const = 0;
  /// Enqueues it; can be captured. `tensors` in the order of the signature, aligned to 16 bytes.
  virtual void run(CudaStream stream, const std::vector<const void*>& tensors, void* workspace) const = 0;
};
using CudnnPlanPtr = std::shared_ptr<const CudnnPlan>;

/// Softmax attention in 16 bits. q and out are [b, heads, t, d], k and v [b, kv heads, s, d], the logs of sums
/// [b, heads, t, 1] in f32. Tensors: q, k, v, out, logs; with backward also dy, dq, dk, dv, with the strides of out, q,
/// k and v, unless dk and dv have their own.
struct CudnnAttention {
  CudnnTensor q, k, v, out, logs = {};
  CudnnTensor dk = {}, dv = {};
  bool causal = false;  ///< the last row sees all keys, or those of the window
  int64_t window = 0;   ///< with causal: a row sees this many rows, itself the last; 0: all
  float scale = 1;
  bool backward = false;
  DType dtype = DType::bf16;  ///< or f16
};

/// y = x * w by image, or a gradient of it. Tensors: forward x, w, y; data dy, w, dx; weight dy, x, dw. A bias comes
/// before y: forward x, w, bias, y.
struct CudnnConvolution {
  enum class Kind : uint8_t { forward, data, weight };
  Kind kind = Kind::forward;
  CudnnTensor x, w, y;  ///< w: [outputs, inputs of a group, height, width]
  Shape before, after;  ///< padding: top and left, bottom and right
  Shape stride, dilation;
  DType dtype = DType::bf16;
  DType w_dtype = DType::bf16;  ///< dtype of the weight, or of its gradient
  bool tf32 = false;            ///< f32: the products may round their operands
  bool bias = false;            ///< forward: a bias of the outputs is added
  bool relu = false;            ///< forward: relu follows the bias
};

/// The library's engines for one signature that are permitted, in the order that its heuristics suggest.
class CudnnEngines {
 public:
  virtual ~CudnnEngines() = default;
  /// Identity and settings of each engine, in one word that is the same in every process.
  const std::vector<std::string>& names() const { return names_; }
  /// Null if it cannot be built, which is found here, or is refused: see fault().
  virtual CudnnPlanPtr plan(size_t engine) = 0;
  /// Returns why there is none, or why the one asked for last was not built.
  const std::string& fault() const { return fault_; }

 protected:
  std::vector<std::string> names_;
  std::string fault_;
};

/// Returns why there is no cuDNN to use; "" if there is. The first call opens it.
const std::string& cudnn_fault();

/// Version of the library; may only be called, like all functions below, once cudnn_fault() is "".
std::string cudnn_version();

/// Null if the library has no engine for it.
CudnnPlanPtr cudnn_plan(const CudnnAttention& attention);

/// Engines that need at most `most_workspace` bytes of workspace; never null.
std::unique_ptr<CudnnEngines> cudnn_engines(const CudnnConvolution& convolution, int64_t most_workspace);

/// One word for everything that the choice of an engine may depend on.
std::string key_of(const CudnnConvolution& convolution);

}  // namespace trainctl::cuda
