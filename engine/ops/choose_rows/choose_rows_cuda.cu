// choose_rows: y = x_id of each row.  masked_rows: x in the rows of one id, else 0. A thread takes an element.
#include "engine/ops/cuda/cuda_kernel.h"
#include "engine/ops/cuda/data_check_cuda.cuh"
#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl {
namespace {

constexpr int kChooseThreads = 256;
constexpr int kMostChoices = 64;

struct Choices {
  const void* of[kMostChoices];
};

// Kernels

/// ids [rows], each choice and y [rows, width].
template <class T>
__global__ void __launch_bounds__(kChooseThreads)
    choose_rows_kernel(Choices choices, int count, const int32_t* ids, int64_t width, int64_t all, T* y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = int64_t{blockIdx.x} * kChooseThreads + threadIdx.x;
  if (i >= all) return;
  const int32_t id = ids[i / width];
  if (id < 0 || id >= count)
    data_is_wrong("choose_rows: the data contains a number for which there is no input (or adapter) to choose");
  y[i] = static_cast<const T*>(choices.of[id])[i];
}

template <class T>
__global__ void __launch_bounds__(kChooseThreads)
    masked_rows_kernel(const int32_t* ids, int32_t number, const T* x, int64_t width, int64_t all, T* y) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int64_t i = int64_t{blockIdx.x} * kChooseThreads + threadIdx.x;
  if (i < all) y[i] = ids[i / width] == number ? x[i] : from_f32<T>(0.0f);
}

// Launchers

CudaKernel prepare_choose_rows(const CudaKernelCall& call) {
  const int64_t all = call.out[0].size(), rows = call.in[0].size();
  const auto count = static_cast<int>(call.in.size()) - 1;
  check(count <= kMostChoices, "choose_rows has at most 64 inputs to choose from");
  if (all == 0) return [](CudaStream) {};
  Choices choices{};
  for (int i = 0; i < count; ++i) choices.of[i] = call.in[static_cast<size_t>(i) + 1].data;
  return with_any_float_type(call.out[0].dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel(
        [=, ids = static_cast<const int32_t*>(call.in[0].as<int32_t>()), y = call.out[0].as<T>()](CudaStream stream) {
          launch(choose_rows_kernel<T>, static_cast<unsigned>(ceil_div(all, kChooseThreads)), kChooseThreads, 0, stream,
                 "choose_rows", choices, count, ids, all / rows, all, y);
        });
  });
}

CudaKernel prepare_masked_rows(const CudaKernelCall& call) {
  const int64_t all = call.out[0].size(), rows = call.in[0].size();
  if (all == 0) return [](CudaStream) {};
  return with_any_float_type(call.out[0].dtype, [&](auto t) {
    using T = decltype(t);
    return CudaKernel([=, ids = static_cast<const int32_t*>(call.in[0].as<int32_t>()),
                       number = static_cast<int32_t>(call.attrs.integer("number", 0)),
                       x = static_cast<const T*>(call.in[1].as<T>()), y = call.out[0].as<T>()](CudaStream stream) {
      launch(masked_rows_kernel<T>, static_cast<unsigned>(ceil_div(all, kChooseThreads)), kChooseThreads, 0, stream,
             "masked_rows", ids, number, x, all / rows, all, y);
    });
  });
}

}  // namespace

extern const CudaKernels choose_rows_cuda = {{"choose_rows", prepare_choose_rows, kTakesF16},
                                             {"masked_rows", prepare_masked_rows, kTakesF16}};

}  // namespace trainctl
