// cuDNN, opened at first use. NVIDIA's front end calls its functions by their names: cudnn_library_cuda.cpp defines
// these, and passes each call on to the library.
#pragma once

#include <cudnn.h>

#include <string>

namespace trainctl::cuda {

/// Opens the library. Throws EnvError if it is missing, in parts of several versions, or older than 9.15.1.
void open_cudnn();

/// For the current device. Throws EnvError if the library refuses it.
cudnnHandle_t cudnn_handle();

}  // namespace trainctl::cuda
