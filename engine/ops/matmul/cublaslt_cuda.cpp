// cuBLASLt, opened at first use: a job without large products needs neither the library nor its load time.
#include "engine/ops/matmul/cublaslt_cuda.h"

#include <map>
#include <mutex>

#include "engine/base/dynamic_library.h"
#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl::cuda {
namespace {

/// Opens cuBLASLt and looks up its functions. Throws EnvError if it is missing.
CublasLt open_library() {
  // The structures and enumerations that we use are the same in versions 12 and 13.
  const DynamicLibrary library("cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"});
  CublasLt lt{};
  library.bind(lt.create, "cublasLtCreate");
  library.bind(lt.version, "cublasLtGetVersion");
  library.bind(lt.status_string, "cublasLtGetStatusString");
  library.bind(lt.desc_create, "cublasLtMatmulDescCreate");
  library.bind(lt.desc_destroy, "cublasLtMatmulDescDestroy");
  library.bind(lt.desc_set, "cublasLtMatmulDescSetAttribute");
  library.bind(lt.layout_create, "cublasLtMatrixLayoutCreate");
  library.bind(lt.layout_destroy, "cublasLtMatrixLayoutDestroy");
  library.bind(lt.layout_set, "cublasLtMatrixLayoutSetAttribute");
  library.bind(lt.preference_create, "cublasLtMatmulPreferenceCreate");
  library.bind(lt.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  library.bind(lt.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  library.bind(lt.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  library.bind(lt.algo_check, "cublasLtMatmulAlgoCheck");
  library.bind(lt.matmul, "cublasLtMatmul");
  return lt;
}

}  // namespace

void CublasLt::check(cublasStatus_t status, const char* what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw EnvError(std::string(what) + ": cuBLASLt reports " + status_string(status));
}

const CublasLt& cublaslt() {
  static std::mutex mutex;
  static std::map<int, CublasLt> by_device;
  const std::lock_guard lock(mutex);
  static const CublasLt library = open_library();
  int device = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  const auto [at, is_new] = by_device.try_emplace(device, library);
  if (is_new) library.check(library.create(&at->second.handle), "cublasLtCreate");
  return at->second;
}

}  // namespace trainctl::cuda
