#include "engine/ops/cuda/cudnn_library_cuda.h"

#include <cuda.h>
#include <nvrtc.h>

#include <map>
#include <mutex>

#include "engine/base/dynamic_library.h"
#include "engine/ops/cuda/driver_function_cuda.h"
#include "engine/ops/cuda/launch_cuda.h"

namespace trainctl::cuda {
namespace {

constexpr size_t kOldest = 91501;  // before, attention is wrong at lengths that are not multiples of 128

struct Cudnn {
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnGetErrorString) error_string;
  decltype(&cudnnGetLastErrorString) last_error;
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnGetStream) get_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;
  decltype(&cudnnBackendPopulateCudaGraph) populate_graph;
  decltype(&cudnnBackendUpdateCudaGraph) update_graph;
  decltype(&cudnnCreateFilterDescriptor) create_filter;
  decltype(&cudnnDestroyFilterDescriptor) destroy_filter;
  decltype(&cudnnSetFilterNdDescriptor) set_filter;
};

std::string in_words(size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Cudnn open_library() {
  // It opens its parts (libcudnn_graph, libcudnn_ops, ..) itself, from its own folder, and refuses others' versions.
  const DynamicLibrary library("cuDNN", {"libcudnn.so.9"});
  Cudnn dnn{};
  library.bind(dnn.version, "cudnnGetVersion");
  const size_t version = dnn.version();
  if (version < kOldest)
    throw EnvError("cuDNN: " + library.path() + " has version " + in_words(version) + ", at least " +
                   in_words(kOldest) + " is needed: earlier ones compute a wrong attention at some lengths");
  library.bind(dnn.error_string, "cudnnGetErrorString");
  library.bind(dnn.last_error, "cudnnGetLastErrorString");
  library.bind(dnn.create, "cudnnCreate");
  library.bind(dnn.destroy, "cudnnDestroy");
  library.bind(dnn.set_stream, "cudnnSetStream");
  library.bind(dnn.get_stream, "cudnnGetStream");
  library.bind(dnn.create_descriptor, "cudnnBackendCreateDescriptor");
  library.bind(dnn.destroy_descriptor, "cudnnBackendDestroyDescriptor");
  library.bind(dnn.set_attribute, "cudnnBackendSetAttribute");
  library.bind(dnn.get_attribute, "cudnnBackendGetAttribute");
  library.bind(dnn.finalize, "cudnnBackendFinalize");
  library.bind(dnn.execute, "cudnnBackendExecute");
  library.bind(dnn.populate_graph, "cudnnBackendPopulateCudaGraph");
  library.bind(dnn.update_graph, "cudnnBackendUpdateCudaGraph");
  library.bind(dnn.create_filter, "cudnnCreateFilterDescriptor");
  library.bind(dnn.destroy_filter, "cudnnDestroyFilterDescriptor");
  library.bind(dnn.set_filter, "cudnnSetFilterNdDescriptor");
  return dnn;
}

const Cudnn& cudnn() {
  static const Cudnn library = open_library();
  return library;
}

}  // namespace

void open_cudnn() { cudnn(); }

cudnnHandle_t cudnn_handle() {
  static std::mutex mutex;
  static std::map<int, cudnnHandle_t> by_device;
  const std::lock_guard lock(mutex);
  int device = 0;
  cuda_check(cudaGetDevice(&device), "cudaGetDevice");
  const auto [at, is_new] = by_device.try_emplace(device, nullptr);
  if (is_new) {
    const cudnnStatus_t status = cudnn().create(&at->second);
    if (status != CUDNN_STATUS_SUCCESS) {
      by_device.erase(at);
      char text[512] = "";
      cudnn().last_error(text, sizeof text);
      throw EnvError(std::string("cudnnCreate: cuDNN says ") + cudnn().error_string(status) + " " + text);
    }
  }
  return at->second;
}

}  // namespace trainctl::cuda

// The names that the front end calls. Hidden, so that the library's own parts do not find them.
using trainctl::cuda::cudnn;

extern "C" {
#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN size_t cudnnGetVersion() { return cudnn().version(); }
HIDDEN const char* cudnnGetErrorString(cudnnStatus_t status) { return cudnn().error_string(status); }
HIDDEN void cudnnGetLastErrorString(char* message, size_t size) { cudnn().last_error(message, size); }
HIDDEN cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) { return cudnn().create(handle); }
HIDDEN cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) { return cudnn().destroy(handle); }
HIDDEN cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return cudnn().set_stream(handle, stream);
}
HIDDEN cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  return cudnn().get_stream(handle, stream);
}
HIDDEN cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* made) {
  return cudnn().create_descriptor(type, made);
}
HIDDEN cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  return cudnn().destroy_descriptor(descriptor);
}
HIDDEN cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  return cudnn().set_attribute(descriptor, name, type, count, values);
}
HIDDEN cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t asked, int64_t* count,
                                              void* values) {
  return cudnn().get_attribute(descriptor, name, type, asked, count, values);
}
HIDDEN cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) { return cudnn().finalize(descriptor); }
HIDDEN cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                         cudnnBackendDescriptor_t operands) {
  return cudnn().execute(handle, plan, operands);
}
HIDDEN cudnnStatus_t cudnnBackendPopulateCudaGraph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                                   cudnnBackendDescriptor_t operands, cudaGraph_t graph) {
  return cudnn().populate_graph(handle, plan, operands, graph);
}
HIDDEN cudnnStatus_t cudnnBackendUpdateCudaGraph(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                                 cudnnBackendDescriptor_t operands, cudaGraph_t graph) {
  return cudnn().update_graph(handle, plan, operands, graph);
}
HIDDEN cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* made) { return cudnn().create_filter(made); }
HIDDEN cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) {
  return cudnn().destroy_filter(filter);
}
HIDDEN cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type,
                                                cudnnTensorFormat_t format, int dims, const int sizes[]) {
  return cudnn().set_filter(filter, type, format, dims, sizes);
}
#undef HIDDEN
}
