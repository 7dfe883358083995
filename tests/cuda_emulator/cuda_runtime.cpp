// The CUDA runtime as far as this program's kernels and their host code use it, on the emulator. Everything is done
// when a call returns. One thread at a time.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/cuda_emulator/device_limits.h"
#include "tests/cuda_emulator/faults.h"
#include "tests/cuda_emulator/machine.h"
#include "tests/cuda_emulator/module.h"
#include "tests/cuda_emulator/tensor_map.h"

namespace trainctl::emulator {

namespace {

/// A kernel as the host knows it.
struct Function {
  Module* module = nullptr;
  std::string name;
  size_t most_dynamic_shared = 48 * 1024;
  bool large_clusters = false;
};

/// What is done in order on a stream.
using Work = std::function<void()>;

struct Runtime {
  std::recursive_mutex mutex;
  std::vector<std::unique_ptr<Module>> modules;
  std::map<const void*, Function> functions;          ///< by the address of the host's stand-in
  std::map<const void*, std::pair<Module*, std::string>> variables;
  struct Configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
  };
  std::vector<Configuration> configurations;
  cudaError_t last = cudaSuccess;
  std::string message;
  uint64_t launches = 0;
  std::map<cudaStream_t, uint64_t> before;  ///< by stream, the launch that may still run
  std::thread::id capturing;                ///< who puts work into `captured`
  std::vector<Work> captured;
};

Runtime& runtime() {
  static Runtime r;
  return r;
}

/// What a call that can fail returns: faults come first.
cudaError_t outcome(cudaError_t own = cudaSuccess) {
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

Function* function_of(const void* stub) {
  const auto found = runtime().functions.find(stub);
  return found == runtime().functions.end() ? nullptr : &found->second;
}

/// All work so far is over.
void settle() { runtime().before.clear(); }

/// At once, or whenever the graph is launched that is captured now.
void submit(Work work) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  r.capturing == std::this_thread::get_id() ? r.captured.push_back(std::move(work)) : work();
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

cudaError_t launch(const void* stub, dim3 grid, dim3 block, void** arguments, size_t shared, unsigned cluster, bool may_overlap, cudaStream_t stream) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  Function* f = function_of(stub);
  if (f == nullptr) return outcome(cudaErrorInvalidDeviceFunction);
  const Kernel& kernel = f->module->kernel(f->name);
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const bool fits = threads > 0 && threads <= static_cast<uint64_t>(kernel.max_threads) && grid.x > 0 && grid.y > 0 && grid.z > 0 &&
                    grid.y <= 65535 && grid.z <= 65535 && grid.x <= 0x7fffffff && shared <= f->most_dynamic_shared &&
                    kernel.dynamic_shared_at - 1024 + shared <= kMostSharedOfBlock;
  if (!fits) return outcome(cudaErrorInvalidConfiguration);
  if (cluster > 1 && (grid.x % cluster != 0 || cluster > (f->large_clusters ? 16u : 8u))) return outcome(cudaErrorInvalidClusterSize);
  auto memory = std::make_shared<std::vector<std::byte>>(kernel.parameter_bytes + 256);
  // 128 bytes: tensor maps lie in parameters.
  std::byte* parameters = memory->data() + (128 - reinterpret_cast<uintptr_t>(memory->data()) % 128) % 128;
  for (size_t i = 0; i < kernel.parameters.size(); ++i) std::memcpy(parameters + kernel.parameters[i].offset, arguments[i], kernel.parameters[i].bytes);
  Launch one;
  one.kernel = &kernel;
  one.grid = {grid.x, grid.y, grid.z};
  one.block = {block.x, block.y, block.z};
  one.cluster = cluster;
  one.dynamic_shared = shared;
  one.parameters = parameters;
  one.may_overlap = may_overlap;
  submit([one, memory, stream] { run(one, stream); });
  return cudaSuccess;  // a launch says nothing of how it ends
}

bool known_range(const void* memory, size_t bytes) {
  const auto address = reinterpret_cast<uint64_t>(memory);
  const Allocation* a = global_memory().find(address);
  return a != nullptr && (bytes == 0 || a->holds(address, bytes));
}

cudaError_t copy(void* to, const void* from, size_t bytes) {
  const std::lock_guard lock(runtime().mutex);
  settle();
  if (bytes == 0) return outcome();
  Allocation* target = global_memory().find(reinterpret_cast<uint64_t>(to));
  Allocation* source = global_memory().find(reinterpret_cast<uint64_t>(from));
  if ((target != nullptr && !known_range(to, bytes)) || (source != nullptr && !known_range(from, bytes))) return outcome(cudaErrorInvalidValue);
  std::memmove(to, from, bytes);
  if (target != nullptr && target->written != nullptr) {
    uint8_t* written = target->written.get() + (reinterpret_cast<uint64_t>(to) - target->first);
    if (source != nullptr && source->written != nullptr) std::memmove(written, source->written.get() + (reinterpret_cast<uint64_t>(from) - source->first), bytes);
    else std::memset(written, 1, bytes);
  }
  return outcome();
}

/// 0xff is what tests poison memory with: nobody is to read it then, so it counts as not written.
cudaError_t set(void* to, int value, size_t bytes) {
  const std::lock_guard lock(runtime().mutex);
  settle();
  if (bytes == 0) return outcome();
  if (!known_range(to, bytes)) return outcome(cudaErrorInvalidValue);
  std::memset(to, value, bytes);
  Allocation* target = global_memory().find(reinterpret_cast<uint64_t>(to));
  if (target->written != nullptr) std::memset(target->written.get() + (reinterpret_cast<uint64_t>(to) - target->first), value == 0xff ? 0 : 1, bytes);
  return outcome();
}

cudaError_t synchronize() {
  settle();
  return outcome();
}

CUresult encode_tiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* sizes, const cuuint64_t* strides,
                      const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  const bool known = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 && rank == 2 && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
                     (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || swizzle == CU_TENSOR_MAP_SWIZZLE_128B) && fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE &&
                     steps[0] == 1 && steps[1] == 1;
  const bool legal = reinterpret_cast<uint64_t>(address) % 16 == 0 && strides[0] % 16 == 0 && box[0] <= 256 && box[1] <= 256 && box[0] > 0 && box[1] > 0 &&
                     box[0] * 4 % 16 == 0 && (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || box[0] * 4 <= 128) && sizes[0] > 0 && sizes[1] > 0;
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

}  // namespace
}  // namespace trainctl::emulator

using namespace trainctl::emulator;

extern "C" {

// What nvcc's host code calls.
void** __cudaRegisterFatBinary(void* wrapper) {
  struct Wrapper {
    int magic, version;
    const std::byte* data;
  };
  const std::byte* data = static_cast<Wrapper*>(wrapper)->data;
  uint16_t header = 0;
  uint64_t all = 0;
  std::memcpy(&header, data + 6, 2);
  std::memcpy(&all, data + 8, 8);
  std::string ptx;
  for (uint64_t at = header; at < header + all;) {
    uint16_t kind = 0;
    uint32_t entry_header = 0;
    uint64_t bytes = 0;
    std::memcpy(&kind, data + at, 2);
    std::memcpy(&entry_header, data + at + 4, 4);
    std::memcpy(&bytes, data + at + 8, 8);
    if (kind == 1) ptx.assign(reinterpret_cast<const char*>(data + at + entry_header), bytes);
    at += entry_header + bytes;
  }
  while (!ptx.empty() && ptx.back() == '\0') ptx.pop_back();
  runtime().modules.push_back(std::make_unique<Module>(std::move(ptx)));
  return reinterpret_cast<void**>(runtime().modules.back().get());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** module, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
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
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  return launch(kernel, grid, block, arguments, shared, 1, false, stream);
}

cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
  return launch(stub, grid, block, arguments, shared, 1, false, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void** arguments) {
  unsigned cluster = 1;
  bool overlap = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& a = config->attrs[i];
    if (a.id == cudaLaunchAttributeClusterDimension) cluster = a.val.clusterDim.x;
    else if (a.id == cudaLaunchAttributeProgrammaticStreamSerialization) overlap = a.val.programmaticStreamSerializationAllowed != 0;
    else return outcome(cudaErrorNotSupported);
  }
  return launch(stub, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, cluster, overlap, config->stream);
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
  to->ptxVersion = to->binaryVersion = 90;
  to->maxThreadsPerBlock = kernel.max_threads;
  to->sharedSizeBytes = kernel.shared_bytes - 1024;
  to->maxDynamicSharedSizeBytes = static_cast<int>(f->most_dynamic_shared);
  to->numRegs = kRegistersOfThread;
  to->localSizeBytes = kernel.local_bytes;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* stub, int threads, size_t shared, unsigned) {
  Function* f = function_of(stub);
  if (f == nullptr) return outcome(cudaErrorInvalidDeviceFunction);
  const size_t each = f->module->kernel(f->name).dynamic_shared_at + shared;  // with the system's
  *blocks = std::min({2048 / threads, 65536 / (kRegistersOfThread * threads), static_cast<int>(kSharedOfMultiprocessor / each), 32});
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* stub, const cudaLaunchConfig_t* config) {
  int blocks = 0;
  const cudaError_t status = cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, stub, static_cast<int>(config->blockDim.x), config->dynamicSmemBytes, 0);
  int size = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) size = static_cast<int>(config->attrs[i].val.clusterDim.x);
  }
  const Function* f = function_of(stub);
  if (f != nullptr && size > (f->large_clusters ? 16 : 8)) return outcome(cudaErrorInvalidClusterSize);
  *clusters = blocks * kMultiprocessors / size;
  return status;
}

// Memory.
cudaError_t cudaMalloc(void** to, size_t bytes) {
  const std::lock_guard lock(runtime().mutex);
  *to = bytes == 0 ? nullptr : global_memory().allocate(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  const std::lock_guard lock(runtime().mutex);
  settle();
  if (memory == nullptr) return cudaSuccess;
  return global_memory().free(memory) ? cudaSuccess : outcome(cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void** to, size_t bytes, unsigned) {
  const std::lock_guard lock(runtime().mutex);
  *to = global_memory().allocate(bytes, true);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) { return copy(to, from, bytes); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  submit([=] { copy(to, from, bytes); });
  return outcome();
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return set(to, value, bytes); }
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  submit([=] { set(to, value, bytes); });
  return outcome();
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all) {
  *all = kMemory;
  *free_bytes = kMemory - std::min(kMemory, global_memory().bytes_in_use());
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** to, const void* host) {
  const auto found = runtime().variables.find(host);
  if (found == runtime().variables.end()) return outcome(cudaErrorInvalidSymbol);
  *to = found->second.first->variable(found->second.second);
  return *to == nullptr ? outcome(cudaErrorInvalidSymbol) : cudaSuccess;
}

// Devices, streams, events, errors.
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : outcome(cudaErrorInvalidDevice); }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = kMultiprocessors; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kMostSharedOfBlock; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = kSharedOfMultiprocessor; break;
    default: return outcome(cudaErrorNotSupported);
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int) {
  std::memset(to, 0, sizeof *to);
  std::strcpy(to->name, "emulated H200");
  to->major = 9;
  to->multiProcessorCount = kMultiprocessors;
  to->totalGlobalMem = kMemory;
  to->sharedMemPerBlockOptin = kMostSharedOfBlock;
  to->l2CacheSize = 50 << 20;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return synchronize(); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return *stream = reinterpret_cast<cudaStream_t>(new int), cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) { return cudaStreamCreateWithFlags(stream, flags); }
cudaError_t cudaDeviceGetStreamPriorityRange(int* low, int* high) { return *low = 0, *high = -5, cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return outcome(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  submit(settle);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete reinterpret_cast<int*>(stream), cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return synchronize(); }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = reinterpret_cast<cudaEvent_t>(new std::chrono::steady_clock::time_point);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete reinterpret_cast<std::chrono::steady_clock::time_point*>(event), cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  submit([event] { *reinterpret_cast<std::chrono::steady_clock::time_point*>(event) = std::chrono::steady_clock::now(); });
  return outcome();
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) { return cudaEventRecord(event, stream); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return synchronize(); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  using Time = std::chrono::steady_clock::time_point;
  *ms = std::chrono::duration<float, std::milli>(*reinterpret_cast<Time*>(to) - *reinterpret_cast<Time*>(from)).count();
  return cudaSuccess;
}
// Graphs: work that is kept. In the order in which it was enqueued, which is one of those that its events allow.
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  r.capturing = std::this_thread::get_id();
  r.captured.clear();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  Runtime& r = runtime();
  const std::lock_guard lock(r.mutex);
  r.capturing = {};
  *graph = reinterpret_cast<cudaGraph_t>(new std::vector<Work>(std::exchange(r.captured, {})));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* to, cudaGraph_t graph, unsigned long long) {
  *to = reinterpret_cast<cudaGraphExec_t>(new std::vector<Work>(*reinterpret_cast<std::vector<Work>*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  for (const Work& work : *reinterpret_cast<std::vector<Work>*>(graph)) submit(work);
  return outcome();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete reinterpret_cast<std::vector<Work>*>(graph), cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return delete reinterpret_cast<std::vector<Work>*>(graph), cudaSuccess; }

// There is one device, and no other process has memory of it.
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return outcome(cudaErrorNotSupported); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) { return outcome(cudaErrorNotSupported); }
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) { return outcome(cudaErrorNotSupported); }
cudaError_t cudaIpcCloseMemHandle(void*) { return outcome(cudaErrorNotSupported); }

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** to, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *to = known ? reinterpret_cast<void*>(encode_tiled) : nullptr;
  *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  outcome();
  return std::exchange(runtime().last, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) { return error == cudaErrorLaunchFailure ? runtime().message.c_str() : cudaGetErrorName(error); }
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidClusterSize: return "cudaErrorInvalidClusterSize";
    case cudaErrorInvalidDeviceFunction: return "cudaErrorInvalidDeviceFunction";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "an error of the emulated runtime";
  }
}

}  // extern "C"
