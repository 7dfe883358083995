// cuBLASLt, opened at first use: a job without large products needs neither the library nor its load time.
#pragma once

#include <cublasLt.h>

#include <string>

namespace trainctl::cuda {

/// The library's functions, and a handle for one device.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) algo_check;
  decltype(&cublasLtMatmul) matmul;
  cublasLtHandle_t handle = nullptr;

  /// Throws EnvError that names the failed call.
  void check(cublasStatus_t status, const char* what) const;
};

/// The library with a handle for the current device. Throws EnvError if it is missing, too old, or refuses the device.
const CublasLt& cublaslt();

}  // namespace trainctl::cuda
