// Products by cuBLASLt, which is column-major: a row-major C = A B is a column-major C^T = B^T A^T of the same memory,
// so our B is its A, and nothing is copied.
#include <array>
#include <map>
#include <memory>
#include <mutex>

#include "engine/ops/cuda/cuda_scratch.h"
#include "engine/ops/matmul/algorithm_choice_cuda.h"
#include "engine/ops/matmul/measure_product_cuda.h"
#include "engine/ops/small_step/finish_cuda.h"

namespace trainctl::cuda {
namespace {

constexpr size_t kScalarBytes = 256;  ///< scratch for alpha and beta
constexpr size_t kWorkspace = kProductWorkspace;
constexpr int kCandidates = 8;
constexpr size_t kFirstWithScales = 120900;   ///< the version that has scales for parts of 8-bit factors
constexpr int64_t kWorthMeasuring = 1 << 22;  ///< multiplications

cudaDataType_t type_of(DType t) { return t == DType::bf16 ? CUDA_R_16BF : t == DType::f16 ? CUDA_R_16F : CUDA_R_32F; }
cudaDataType_t type_of_factor(const Product& p, bool e5m2) {
  return !p.is_fp8() ? type_of(p.operands) : e5m2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

cublasLtMatmulMatrixScale_t scale_mode(const Product& p, bool squares) {
  if (p.tensor_scales) return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  return squares ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
}

/// The library's descriptors of one product; they must outlive its runs.
struct Prepared {
  const CublasLt& lt = cublaslt();
  cublasLtMatmulDesc_t desc = nullptr;
  std::array<cublasLtMatrixLayout_t, 3> layouts{};  ///< the layouts of A, B and C as cuBLASLt sees them
  cublasLtMatmulAlgo_t algorithm{};

  Prepared() = default;
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  ~Prepared() {
    for (cublasLtMatrixLayout_t layout : layouts)
      if (layout != nullptr) lt.layout_destroy(layout);
    if (desc != nullptr) lt.desc_destroy(desc);
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    lt.check(lt.desc_set(desc, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  }
  /// Describes a row-major matrix of `rows` rows of `cols` elements; rows start `pitch` elements apart.
  void describe(int which, cudaDataType_t type, int64_t rows, int64_t cols, int64_t pitch, int64_t batch,
                int64_t step) {
    lt.check(lt.layout_create(&layouts[which], type, cols, rows, pitch), "cublasLtMatrixLayoutCreate");
    if (batch == 1) return;
    const auto count = static_cast<int32_t>(batch);
    lt.check(lt.layout_set(layouts[which], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)), "batch count");
    lt.check(lt.layout_set(layouts[which], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof(step)),
             "batch step");
  }
  cublasStatus_t run(const Product& p, const void* alpha, const void* beta, void* workspace, CudaStream stream,
                     const cublasLtMatmulAlgo_t& with) const {
    const void* const added = p.residual != nullptr ? p.residual : p.c;
    return lt.matmul(lt.handle, desc, alpha, p.b, layouts[0], p.a, layouts[1], beta, added, layouts[2], p.c, layouts[2],
                     &with, workspace, kWorkspace, stream);
  }
  /// Returns whether the library can compute the product with this algorithm.
  bool can_run(const cublasLtMatmulAlgo_t& with) const {
    cublasLtMatmulHeuristicResult_t found{};
    return lt.algo_check(lt.handle, desc, layouts[0], layouts[1], layouts[2], layouts[2], &with, &found) ==
               CUBLAS_STATUS_SUCCESS &&
           found.workspaceSize <= kWorkspace;
  }
};

/// The type in which the library reads a bias. With factors of 8 bits it reads bf16 even if the result
/// is f32.
DType bias_type_of(const Product& p) { return p.is_fp8() ? DType::bf16 : p.result; }

/// The library's epilogue for everything that the product does to its sums; null: there is none.
std::optional<cublasLtEpilogue_t> epilogue_of(const Product& p) {
  const bool bias = p.bias != nullptr, sums = p.a_sums != nullptr || p.b_sums != nullptr;
  if (bias && p.bias_type != bias_type_of(p)) return std::nullopt;
  if (sums) {  // cuBLASLt overwrites the sums, and computes those of only one operand
    const bool alone = !bias && p.activation == Activation::none && p.slope == Activation::none;
    if (!alone || p.sums_accumulate || p.accumulate || (p.a_sums != nullptr && p.b_sums != nullptr))
      return std::nullopt;
    return p.b_sums != nullptr ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB;
  }
  if (p.slope != Activation::none) {
    if (p.slope != Activation::gelu_tanh || bias || p.n % 8 != 0) return std::nullopt;
    return CUBLASLT_EPILOGUE_DGELU;
  }
  switch (p.activation) {
    case Activation::none:
      return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    case Activation::relu:
      if (p.before != nullptr) return std::nullopt;
      return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Activation::gelu_tanh:
      if (p.before == nullptr) return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
      if (p.n % 8 != 0) return std::nullopt;
      return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Activation::gelu:  // the exact form, not the tanh approximation
      break;
  }
  return std::nullopt;
}

/// Describes a product to cuBLASLt: its types, transposes, epilogue, scales and layouts. Operands a and b are
/// exchanged.
void describe(Prepared& lt, const Product& p, cublasLtEpilogue_t epilogue) {
  const cublasComputeType_t compute = p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  lt.lt.check(lt.lt.desc_create(&lt.desc, compute, CUDA_R_32F), "cublasLtMatmulDescCreate");
  lt.set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  lt.set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.descend != nullptr) lt.set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
  lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (p.bias != nullptr) lt.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  if (const void* sums = p.b_sums != nullptr ? p.b_sums : p.a_sums; sums != nullptr)
    lt.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, sums);
  if (const void* beside = p.before != nullptr ? p.before : p.slope_at; beside != nullptr) {
    lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, beside);
    lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.n);
    if (p.batch > 1) lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, p.m * p.n);
    if (is_half(p.result)) lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type_of(p.result));
  }
  if (p.is_fp8()) {
    lt.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(p, p.b_squares));
    lt.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(p, p.a_squares));
    lt.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_scales);
    lt.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_scales);
  }
  const int64_t a_cols = p.transpose_a ? p.m : p.k, b_cols = p.transpose_b ? p.k : p.n;
  lt.describe(0, type_of_factor(p, p.b_e5m2), p.transpose_b ? p.n : p.k, b_cols, b_cols, p.batch, p.b_step);
  lt.describe(1, type_of_factor(p, p.a_e5m2), p.transpose_a ? p.k : p.m, a_cols, p.a_row > 0 ? p.a_row : a_cols,
              p.batch, p.a_step);
  lt.describe(2, type_of(p.result), p.m, p.n, p.n, p.batch, p.c_step);
}

uint32_t alignment(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & -address, 256));
}

/// The algorithms that cuBLASLt suggests for the product, best first; empty if it has none. They may differ from call
/// to call.
std::vector<cublasLtMatmulAlgo_t> candidates_of(const Prepared& prepared, const Product& p) {
  const CublasLt& lt = prepared.lt;
  cublasLtMatmulPreference_t preference = nullptr;
  lt.check(lt.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    lt.check(lt.preference_set(preference, attribute, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  // Parts of k are added in f32 even if the result is bf16, which is then rounded once.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.b));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.a));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.residual != nullptr ? p.residual : p.c));
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.c));
  std::vector<cublasLtMatmulHeuristicResult_t> found(kCandidates);
  int count = 0;
  const cublasStatus_t status =
      lt.heuristic(lt.handle, prepared.desc, prepared.layouts[0], prepared.layouts[1], prepared.layouts[2],
                   prepared.layouts[2], preference, kCandidates, found.data(), &count);
  lt.preference_destroy(preference);
  found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(count) : 0);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (const cublasLtMatmulHeuristicResult_t& result : found)
    if (result.state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(result.algo);
  return algorithms;
}

/// The number of a type in keys of kept choices. f16 was added later and has the number 2, so that older keys stay
/// valid.
int64_t number_of(DType type) { return type == DType::f16 ? 2 : type == DType::bf16 ? 1 : 0; }

/// Everything that the choice of an algorithm may depend on.
std::string text_of(const Product& p, cublasLtEpilogue_t epilogue) {
  std::string text;
  for (const int64_t part :
       {p.m, p.n, p.k, p.batch, p.a_row, p.a_step, p.b_step, int64_t{p.transpose_a}, int64_t{p.transpose_b},
        number_of(p.operands), number_of(p.result), int64_t{p.tf32}, int64_t{epilogue}, int64_t{p.accumulate},
        int64_t{p.descend != nullptr}, int64_t{alignment(p.a)}, int64_t{alignment(p.b)}, int64_t{alignment(p.c)}}) {
    text += (text.empty() ? "" : ",") + std::to_string(part);
  }
  if (p.residual != nullptr) text += ",residual" + std::to_string(alignment(p.residual));
  constexpr uint32_t kPack = 16;  // epilogues access at most this many bytes at once
  for (const void* beside : {p.bias, static_cast<const void*>(p.before), p.slope_at, static_cast<const void*>(p.a_sums),
                             static_cast<const void*>(p.b_sums)})
    text += "," + std::to_string(std::min(alignment(beside), kPack));
  if (p.is_fp8())
    text += std::string(",fp8") + (p.a_squares ? "a" : "") + (p.b_squares ? "b" : "") +
            (p.tensor_scales ? "tensor" : "") + (p.a_e5m2 ? "A" : "") + (p.b_e5m2 ? "B" : "");
  return text;
}

/// Chooses the algorithm of a product, or nothing if cuBLASLt suggests none. `prepared` describes the product.
std::optional<cublasLtMatmulAlgo_t> choose(const Prepared& prepared, const Product& p, const std::string& text) {
  const std::vector<cublasLtMatmulAlgo_t> candidates = candidates_of(prepared, p);
  if (candidates.empty()) return std::nullopt;
  AlgorithmTrial trial;
  if (p.m * p.n * p.k * p.batch >= kWorthMeasuring)
    trial.milliseconds =
        measure_on_copies(p, kWorkspace,
                          [&](const Product& copy, const void* alpha, const void* beta, void* workspace,
                              CudaStream stream, const cublasLtMatmulAlgo_t& with) {
                            return prepared.run(copy, alpha, beta, workspace, stream, with) == CUBLAS_STATUS_SUCCESS;
                          });
  trial.can_run = [&](const cublasLtMatmulAlgo_t& with) { return prepared.can_run(with); };
  return choose_algorithm(text, candidates, trial);
}

/// Like choose(), but decided once per process for equal products on GPUs of one model, even if the choice cannot be
/// kept: a GPU that replays the step of another one must add in the same order.
std::optional<cublasLtMatmulAlgo_t> choose_once(const Prepared& prepared, const Product& p,
                                                cublasLtEpilogue_t epilogue) {
  static std::mutex mutex;
  static auto& chosen = *new std::map<std::string, cublasLtMatmulAlgo_t>;
  const std::string text = text_of(p, epilogue), key = text + " " + std::to_string(multiprocessors());
  const std::lock_guard lock(mutex);
  if (const auto known = chosen.find(key); known != chosen.end()) return known->second;
  const std::optional<cublasLtMatmulAlgo_t> choice = choose(prepared, p, text);
  if (choice) chosen.emplace(key, *choice);
  return choice;
}

}  // namespace

std::optional<CudaKernel> prepare_cublas(const Product& p, CudaScratch& scratch) {
  const std::optional<cublasLtEpilogue_t> epilogue = epilogue_of(p);
  if (!epilogue || (p.is_fp8() && cublaslt().version() < kFirstWithScales)) return std::nullopt;
  auto prepared = std::make_shared<Prepared>();
  describe(*prepared, p, *epilogue);
  const std::optional<cublasLtMatmulAlgo_t> algorithm = choose_once(*prepared, p, *epilogue);
  if (!algorithm) return std::nullopt;
  prepared->algorithm = *algorithm;
  scratch.need(static_cast<int64_t>(kScalarBytes + kWorkspace));
  return [prepared, p, memory = &scratch](CudaStream stream) {
    auto* const scalars = static_cast<float*>(memory->memory());
    void* const workspace = static_cast<char*>(memory->memory()) + kScalarBytes;
    const float one = 1.0f, zero = 0.0f;
    const void *alpha = &one, *beta = p.accumulate || p.residual != nullptr ? &one : &zero;
    if (p.descend != nullptr) {
      write_descent_scalars(p.descend, scalars, stream);
      alpha = scalars;
      beta = scalars + 1;
    }
    prepared->lt.check(prepared->run(p, alpha, beta, workspace, stream, prepared->algorithm), "cublasLtMatmul");
  };
}

}  // namespace trainctl::cuda
