// The part of the CUDA runtime that this program's kernels and host code use, on top of the emulator. A call has
// finished its work when it returns. Only one thread at a time may call.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <zstd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tools/cuda_emulator/device_limits.h"
#include "tools/cuda_emulator/faults.h"
#include "tools/cuda_emulator/machine.h"
#include "tools/cuda_emulator/runtime_state.h"
#include "tools/cuda_emulator/tensor_map.h"

namespace trainctl::emulator {

Runtime& runtime() {
  static Runtime r;
  return r;
}

cudaError_t outcome(cudaError_t own) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  const std::string faults = take_faults();
  if (!faults.empty() && faults_fail_calls()) {
    r.message = faults;
    own = cudaErrorLaunchFailure;
  }
  if (own != cudaSuccess) r.last = own;
  return own;
}

void settle() { runtime().before.clear(); }

void submit(Work work) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  r.capturing == std::this_thread::get_id() ? r.captured.push_back(std::move(work)) : work();
}

namespace {

Function* function_of(const void* stub) {
  const auto found = runtime().functions.find(stub);
  return found == runtime().functions.end() ? nullptr : &found->second;
}

void run(Launch one, cudaStream_t stream) {
  Runtime& r = runtime();
  one.number = ++r.launches;
  one.before = one.may_overlap ? r.before[stream] : 0;
  global_memory().adopt(one.parameters, one.kernel->parameter_bytes, true);
  try {
    run_launch(one);
  } catch (const Trap& trap) {
    report_fault(trap.what(), trap.what());
  }
  global_memory().forget(one.parameters);
  r.before[stream] = one.number;
}

cudaError_t launch(const void* stub, dim3 grid, dim3 block, void** arguments, size_t shared, unsigned cluster,
                   bool may_overlap, cudaStream_t stream) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  Function* f = function_of(stub);
  if (f == nullptr) return outcome(cudaErrorInvalidDeviceFunction);
  const Kernel& kernel = f->module->kernel(f->name);
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const bool fits = threads > 0 && threads <= static_cast<uint64_t>(kernel.max_threads) && grid.x > 0 && grid.y > 0 &&
                    grid.z > 0 && grid.y <= 65535 && grid.z <= 65535 && grid.x <= 0x7fffffff &&
                    shared <= f->most_dynamic_shared && kernel.dynamic_shared_at - 1024 + shared <= kMostSharedOfBlock;
  if (!fits) return outcome(cudaErrorInvalidConfiguration);
  if (cluster > 1 && (grid.x % cluster != 0 || cluster > (f->large_clusters ? 16u : 8u)))
    return outcome(cudaErrorInvalidClusterSize);
  auto memory = std::make_shared<std::vector<std::byte>>(kernel.parameter_bytes + 256);
  // 128 bytes: parameters may be tensor maps.
  std::byte* parameters = memory->data() + (128 - reinterpret_cast<uintptr_t>(memory->data()) % 128) % 128;
  for (size_t i = 0; i < kernel.parameters.size(); ++i)
    std::memcpy(parameters + kernel.parameters[i].offset, arguments[i], kernel.parameters[i].bytes);
  Launch one;
  one.kernel = &kernel;
  one.grid = {grid.x, grid.y, grid.z};
  one.block = {block.x, block.y, block.z};
  one.cluster = cluster;
  one.dynamic_shared = shared;
  one.parameters = parameters;
  one.may_overlap = may_overlap && EMULATED_CAPABILITY >= 90;  // earlier cards have no such launches
  submit([one, memory, stream] { run(one, stream); });
  return cudaSuccess;  // a launch does not report how it ends
}

CUresult encode_tiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  const bool known = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 && rank == 2 &&
                     interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
                     (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || swizzle == CU_TENSOR_MAP_SWIZZLE_128B) &&
                     fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && steps[0] == 1 && steps[1] == 1;
  const bool legal = reinterpret_cast<uint64_t>(address) % 16 == 0 && strides[0] % 16 == 0 && box[0] <= 256 &&
                     box[1] <= 256 && box[0] > 0 && box[1] > 0 && box[0] * 4 % 16 == 0 &&
                     (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || box[0] * 4 <= 128) && sizes[0] > 0 && sizes[1] > 0;
  if (!known || !legal) return CUDA_ERROR_INVALID_VALUE;
  TensorMap map;
  map.mark = TensorMap::kMark;
  map.address = reinterpret_cast<uint64_t>(address);
  map.sizes[0] = sizes[0];
  map.sizes[1] = sizes[1];
  map.line_bytes = strides[0];
  map.box[0] = box[0];
  map.box[1] = box[1];
  map.element_bytes = 4;
  map.swizzle_bytes = swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 128 : 0;
  std::memset(to, 0, sizeof *to);
  std::memcpy(to, &map, sizeof map);
  return CUDA_SUCCESS;
}

/// The PTX for the emulated GPU in a fat binary:
///
///   u32 magic, u16 version, u16 header bytes, u64 bytes of all entries; then per entry
///   u16 kind (1 = PTX), u16, u32 header bytes, u64 bytes, 12 more bytes, u32 compute capability at byte 28, ...
///
/// nvcc compresses PTX with zstd, and pads entries to 8 bytes. Throws std::runtime_error where a fat binary has no PTX
/// for the emulated GPU.
std::string ptx_of(const std::byte* data) {
  const auto read = [data]<class T>(uint64_t at, T) {
    T value;
    std::memcpy(&value, data + at, sizeof value);
    return value;
  };
  const uint64_t first = read(6, uint16_t{}), end = first + read(8, uint64_t{});
  for (uint64_t at = first; at < end; at += read(at + 4, uint32_t{}) + read(at + 8, uint64_t{})) {
    if (read(at, uint16_t{}) != 1 || read(at + 28, uint32_t{}) != EMULATED_CAPABILITY) continue;
    const std::byte* text = data + at + read(at + 4, uint32_t{});
    const uint64_t bytes = read(at + 8, uint64_t{});
    std::string ptx(reinterpret_cast<const char*>(text), bytes);
    if (read(at + read(at + 4, uint32_t{}), uint32_t{}) == ZSTD_MAGICNUMBER) {
      ptx.resize(ZSTD_getFrameContentSize(text, bytes));
      const size_t got = ZSTD_decompress(ptx.data(), ptx.size(), text, ZSTD_findFrameCompressedSize(text, bytes));
      if (ZSTD_isError(got)) throw std::runtime_error(std::string("PTX of a fat binary: ") + ZSTD_getErrorName(got));
    }
    ptx.resize(ptx.find_last_not_of('\0') + 1);
    return ptx;
  }
  throw std::runtime_error("a fat binary has no PTX for the emulated GPU, sm_" + std::to_string(EMULATED_CAPABILITY));
}

}  // namespace
}  // namespace trainctl::emulator

using namespace trainctl::emulator;

extern "C" {

// Entry points that nvcc's host code calls.
void** __cudaRegisterFatBinary(void* wrapper) {
  struct Wrapper {
    int magic, version;
    const std::byte* data;
  };
  runtime().modules.push_back(std::make_unique<Module>(ptx_of(static_cast<Wrapper*>(wrapper)->data)));
  return reinterpret_cast<void**>(runtime().modules.back().get());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** module, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  runtime().functions[stub] = {reinterpret_cast<Module*>(module), name};
}
void __cudaRegisterVar(void** module, char* host, char*, const char* name, int, size_t, int, int) {
  runtime().variables[host] = {reinterpret_cast<Module*>(module), name};
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  runtime().configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const auto c = runtime().configurations.back();
  runtime().configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                               cudaStream_t stream) {
  return launch(kernel, grid, block, arguments, shared, 1, false, stream);
}

cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** arguments, size_t shared,
                             cudaStream_t stream) {
  return launch(stub, grid, block, arguments, shared, 1, false, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void** arguments) {
  unsigned cluster = 1;
  bool overlap = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& a = config->attrs[i];
    if (a.id == cudaLaunchAttributeClusterDimension)
      cluster = a.val.clusterDim.x;
    else if (a.id == cudaLaunchAttributeProgrammaticStreamSerialization)
      overlap = a.val.programmaticStreamSerializationAllowed != 0;
    else
      return outcome(cudaErrorNotSupported);
  }
  return launch(stub, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, cluster, overlap,
                config->stream);
}
cudaError_t cudaFuncSetAttribute(const void* stub, cudaFuncAttribute attribute, int value) {
  Function* f = function_of(stub);
  if (f == nullptr) return outcome(cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    const size_t fixed = f->module->kernel(f->name).dynamic_shared_at - 1024;
    if (static_cast<size_t>(value) + fixed > kMostSharedOfBlock) return outcome(cudaErrorInvalidValue);
    f->most_dynamic_shared = static_cast<size_t>(value);
  } else if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) {
    f->large_clusters = value != 0;
  }
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* to, const void* stub) {
  Function* f = function_of(stub);
  if (f == nullptr) return outcome(cudaErrorInvalidDeviceFunction);
  const Kernel& kernel = f->module->kernel(f->name);
  *to = {};
  to->ptxVersion = to->binaryVersion = EMULATED_CAPABILITY;
  to->maxThreadsPerBlock = kernel.max_threads;
  to->sharedSizeBytes = kernel.shared_bytes - 1024;
  to->maxDynamicSharedSizeBytes = static_cast<int>(f->most_dynamic_shared);
  to->numRegs = kRegistersOfThread;
  to->localSizeBytes = kernel.local_bytes;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* stub, int threads,
                                                                   size_t shared, unsigned) {
  Function* f = function_of(stub);
  if (f == nullptr) return outcome(cudaErrorInvalidDeviceFunction);
  const size_t each = f->module->kernel(f->name).dynamic_shared_at + shared;  // includes the system's part
  *blocks = std::min(
      {2048 / threads, 65536 / (kRegistersOfThread * threads), static_cast<int>(kSharedOfMultiprocessor / each), 32});
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* stub, const cudaLaunchConfig_t* config) {
  int blocks = 0;
  const cudaError_t status = cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      &blocks, stub, static_cast<int>(config->blockDim.x), config->dynamicSmemBytes, 0);
  int size = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension)
      size = static_cast<int>(config->attrs[i].val.clusterDim.x);
  }
  const Function* f = function_of(stub);
  if (f != nullptr && size > (f->large_clusters ? 16 : 8)) return outcome(cudaErrorInvalidClusterSize);
  *clusters = std::min(blocks * multiprocessors / size, most_clusters);
  return status;
}

cudaError_t cudaGetSymbolAddress(void** to, const void* host) {
  const auto found = runtime().variables.find(host);
  if (found == runtime().variables.end()) return outcome(cudaErrorInvalidSymbol);
  *to = found->second.first->variable(found->second.second);
  return *to == nullptr ? outcome(cudaErrorInvalidSymbol) : cudaSuccess;
}

// Devices and errors.
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : outcome(cudaErrorInvalidDevice); }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = multiprocessors;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = EMULATED_CAPABILITY / 10;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = kMostSharedOfBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = kSharedOfMultiprocessor;
      break;
    default:
      return outcome(cudaErrorNotSupported);
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int) {
  std::memset(to, 0, sizeof *to);
  std::strcpy(to->name, "emulated H200");
  to->major = EMULATED_CAPABILITY / 10;
  to->multiProcessorCount = multiprocessors;
  to->totalGlobalMem = kMemory;
  to->sharedMemPerBlockOptin = kMostSharedOfBlock;
  to->l2CacheSize = 50 << 20;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** to, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *to = known ? reinterpret_cast<void*>(encode_tiled) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  outcome();
  return std::exchange(runtime().last, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? runtime().message.c_str() : cudaGetErrorName(error);
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidClusterSize:
      return "cudaErrorInvalidClusterSize";
    case cudaErrorInvalidDeviceFunction:
      return "cudaErrorInvalidDeviceFunction";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    default:
      return "an error of the emulated runtime";
  }
}

}  // extern "C"
