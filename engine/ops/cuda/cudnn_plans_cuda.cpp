// The one file that includes NVIDIA's front end, which takes a minute to compile. The front end looks up each function
// of cuDNN in `cudnn_dlhandle`, and those of CUDA in the runtime's shared library.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>

#include "engine/base/dynamic_library.h"
#include "engine/base/error.h"
#include "engine/ops/cuda/cudnn_plans.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace trainctl::cuda {
namespace {

namespace fe = cudnn_frontend;

// 9.15.1: in older versions attention is wrong at lengths other than multiples of 128.
constexpr size_t kOldest = 91501;

std::string in_words(size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

/// Opens cuDNN and the libraries that its front end needs. Throws EnvError if one is missing or too old.
void open_library() {
  // The front end opens CUDA's runtime by this name, and finds what is open already.
  const DynamicLibrary runtime("the CUDA runtime, which the cuDNN front end needs",
                               {"libcudart.so.13", "libcudart.so.12"});
  ::setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", runtime.path().c_str(), 0);
  // cuDNN opens its parts (libcudnn_graph, libcudnn_ops, ..) itself, and refuses parts of another version.
  const DynamicLibrary library("cuDNN", {"libcudnn.so.9"});
  decltype(&cudnnGetVersion) get_version = nullptr;
  library.bind(get_version, "cudnnGetVersion");
  const size_t version = get_version();
  if (version < kOldest)
    throw EnvError("cuDNN: " + library.path() + " has version " + in_words(version) + ", at least " +
                   in_words(kOldest) +
                   " is required: earlier versions compute wrong attention results for some "
                   "lengths");
  fe::cudnn_dlhandle = library.handle();
}

/// The handle of cuDNN for the current device. Throws EnvError if cuDNN refuses the device.
cudnnHandle_t handle_of_device() {
  static std::mutex mutex;
  static std::map<int, cudnnHandle_t> by_device;
  const std::lock_guard lock(mutex);
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) throw EnvError("cudaGetDevice failed");
  const auto known = by_device.find(device);
  if (known != by_device.end()) return known->second;
  cudnnHandle_t handle = nullptr;
  const cudnnStatus_t status = fe::detail::create_handle(&handle);
  if (status != CUDNN_STATUS_SUCCESS)
    throw EnvError(std::string("cudnnCreate: cuDNN reports ") + fe::detail::get_error_string(status));
  by_device.emplace(device, handle);
  return handle;
}
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;

/// A graph of the front end that gives access to every engine, not only to the one that the front end chooses.
class Graph : public fe::graph::Graph {
 public:
  int64_t chosen() const { return plans.candidate; }
  /// Checks that an engine is permitted, fits the workspace and supports this graph. Builds nothing.
  fe::error_t support_of(int64_t engine) { return plans.check_support_at_index(engine); }
};

fe::DataType_t type_of(DType dtype) {
  return dtype == DType::bf16  ? fe::DataType_t::BFLOAT16
         : dtype == DType::f16 ? fe::DataType_t::HALF
                               : fe::DataType_t::FLOAT;
}

class Plan : public CudnnPlan {
 public:
  Plan(std::shared_ptr<Graph> graph, int64_t engine, int64_t workspace)
      : graph_(std::move(graph)), engine_(engine), workspace_(workspace) {}

  int64_t workspace() const override { return workspace_; }

  void run(CudaStream stream, const std::vector<const void*>& tensors, void* workspace) const override {
    static std::mutex mutex;  // a handle has one stream at a time
    const std::lock_guard lock(mutex);
    std::unordered_map<int64_t, void*> pointers;
    for (size_t i = 0; i < tensors.size(); ++i) pointers[static_cast<int64_t>(i) + 1] = const_cast<void*>(tensors[i]);
    const cudnnHandle_t handle = handle_of_device();
    if (fe::detail::set_stream(handle, stream) != CUDNN_STATUS_SUCCESS) throw EnvError("cudnnSetStream failed");
    fe::error_t status = graph_->execute_plan_at_index(handle, pointers, workspace, engine_);
    if (status.is_bad()) throw EnvError("cuDNN: " + status.get_message());
  }

 private:
  std::shared_ptr<Graph> graph_;
  int64_t engine_, workspace_;
};

/// Adds an input tensor to the graph. `id`: its position in the signature, counted from 1.
Tensor input(Graph& graph, const CudnnTensor& tensor, int64_t id, fe::DataType_t type) {
  return graph.tensor(
      Tensor_attributes().set_uid(id).set_dim(tensor.dims).set_stride(tensor.strides).set_data_type(type));
}

void set_output(const Tensor& to, const CudnnTensor& tensor, int64_t id, fe::DataType_t type) {
  to->set_output(true).set_uid(id).set_dim(tensor.dims).set_stride(tensor.strides).set_data_type(type);
}

/// Builds the plan of a graph. Null if no engine is left without the `refused` numerical notes.
CudnnPlanPtr build(std::shared_ptr<Graph> graph, const std::vector<fe::NumericalNote_t>& refused) {
  const cudnnHandle_t handle = handle_of_device();
  if (graph->validate().is_bad() || graph->build_operation_graph(handle).is_bad()) return nullptr;
  if (graph->create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}).is_bad()) return nullptr;
  graph->deselect_numeric_notes(refused);
  graph->deselect_workspace_greater_than(kMostCudnnWorkspace);
  if (graph->check_support().is_bad() || graph->build_plans().is_bad()) return nullptr;
  int64_t workspace = 0;
  if (graph->get_workspace_size(workspace).is_bad() || workspace > kMostCudnnWorkspace) return nullptr;
  const int64_t engine = graph->chosen();
  return std::make_shared<Plan>(std::move(graph), engine, workspace);
}

/// The plan of a signature on the current device, made at the first call. It also records that there is none (null).
template <class Make>
CudnnPlanPtr shared(const std::string& signature, const Make& make) {
  static std::mutex mutex;
  static auto& plans = *new std::map<std::string, CudnnPlanPtr>;  // never destroyed: the driver may end before
  const std::lock_guard lock(mutex);
  int device = 0;
  cudaGetDevice(&device);
  const auto [at, is_new] = plans.try_emplace(std::to_string(device) + " " + signature);
  if (is_new) at->second = make();
  return at->second;
}

std::string text_of(const CudnnTensor& tensor) { return to_string(tensor.dims) + to_string(tensor.strides); }

template <class Options>
void set_mask(Options& options, const CudnnAttention& a) {
  if (!a.causal) return;
  const bool square = a.q.dims[2] == a.k.dims[2];
  options.set_diagonal_alignment(square ? fe::DiagonalAlignment_t::TOP_LEFT : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
  options.set_diagonal_band_right_bound(0);
  if (a.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(a.window));  // key + window > row
}

/// Builds the graph of attention or its gradient, and its plan.
CudnnPlanPtr make(const CudnnAttention& a) {
  const auto graph = std::make_shared<Graph>();
  const fe::DataType_t type = type_of(a.dtype), floats = fe::DataType_t::FLOAT;
  graph->set_io_data_type(type).set_intermediate_data_type(floats).set_compute_data_type(floats);
  const Tensor q = input(*graph, a.q, 1, type), k = input(*graph, a.k, 2, type), v = input(*graph, a.v, 3, type);
  if (!a.backward) {
    fe::graph::SDPA_attributes options;
    options.set_name("attention").set_generate_stats(true).set_attn_scale(a.scale);
    set_mask(options, a);
    const auto [out, stats] = graph->sdpa(q, k, v, options);
    set_output(out, a.out, 4, type);
    set_output(stats, a.logs, 5, floats);
  } else {
    fe::graph::SDPA_backward_attributes options;
    options.set_name("attention_grad").set_attn_scale(a.scale).set_deterministic_algorithm(true);
    set_mask(options, a);
    const Tensor out = input(*graph, a.out, 4, type), stats = input(*graph, a.logs, 5, floats);
    const Tensor dy = input(*graph, a.out, 6, type);
    const auto [dq, dk, dv] = graph->sdpa_backward(q, k, v, out, dy, stats, options);
    set_output(dq, a.q, 7, type);
    set_output(dk, a.dk.dims.empty() ? a.k : a.dk, 8, type);
    set_output(dv, a.dv.dims.empty() ? a.v : a.dv, 9, type);
  }
  return build(graph, {fe::NumericalNote_t::NONDETERMINISTIC});
}

/// Builds the graph of a convolution or of one of its gradients, with the bias and relu if they are fused.
std::shared_ptr<Graph> graph_of(const CudnnConvolution& c) {
  auto graph = std::make_shared<Graph>();
  const fe::DataType_t type = type_of(c.dtype), floats = fe::DataType_t::FLOAT;
  graph->set_io_data_type(type).set_intermediate_data_type(floats).set_compute_data_type(floats);
  const auto with_shape = [&](auto options) {
    options.set_pre_padding(c.before).set_post_padding(c.after).set_stride(c.stride).set_dilation(c.dilation);
    return options;
  };
  const auto mode = [](fe::PointwiseMode_t which) { return fe::graph::Pointwise_attributes().set_mode(which); };
  switch (c.kind) {
    case CudnnConvolution::Kind::forward: {
      const Tensor x = input(*graph, c.x, 1, type), w = input(*graph, c.w, 2, type);
      Tensor y = graph->conv_fprop(x, w, with_shape(fe::graph::Conv_fprop_attributes()));
      if (c.bias) {
        const int64_t outputs = c.y.dims[1];
        const CudnnTensor bias{{1, outputs, 1, 1}, {outputs, 1, outputs, outputs}};
        y = graph->pointwise(y, input(*graph, bias, 3, type), mode(fe::PointwiseMode_t::ADD));
      }
      if (c.relu) y = graph->pointwise(y, mode(fe::PointwiseMode_t::RELU_FWD));
      set_output(y, c.y, c.bias ? 4 : 3, type);
      break;
    }
    case CudnnConvolution::Kind::data: {
      const Tensor dy = input(*graph, c.y, 1, type), w = input(*graph, c.w, 2, type);
      set_output(graph->conv_dgrad(dy, w, with_shape(fe::graph::Conv_dgrad_attributes())), c.x, 3, type);
      break;
    }
    case CudnnConvolution::Kind::weight: {
      const Tensor dy = input(*graph, c.y, 1, type), x = input(*graph, c.x, 2, type);
      set_output(graph->conv_wgrad(dy, x, with_shape(fe::graph::Conv_wgrad_attributes())), c.w, 3, type_of(c.w_dtype));
      break;
    }
  }
  return graph;
}

/// Collects the reasons for which engines were rejected, for the message that none remains.
class LeftOut {
 public:
  void add(const std::string& why) {
    const size_t at = why.find("workspace violation. Requires ");
    if (at == std::string::npos) {
      ++(why.find("Deselecting") != std::string::npos ? not_permitted_ : unfit_);
      return;
    }
    ++too_large_;
    least_ = std::min(least_, std::strtod(why.c_str() + why.find_last_of(' '), nullptr));
  }
  std::string text() const {
    std::string text;
    const auto add = [&](int count, const std::string& why) {
      if (count > 0) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + why;
    };
    add(not_permitted_, "not deterministic or of lower precision");
    add(too_large_, "with too much workspace (the least: " + std::to_string(int64_t(least_ / 1e6)) + " MB)");
    add(unfit_, "refused by the library");
    return text.empty() ? "no engine" : "engines: " + text;
  }

 private:
  int not_permitted_ = 0, too_large_ = 0, unfit_ = 0;
  double least_ = 1e18;
};

class ConvolutionEngines : public CudnnEngines {
 public:
  ConvolutionEngines(const CudnnConvolution& c, int64_t most_workspace)
      : graph_(graph_of(c)), most_workspace_(most_workspace) {
    const cudnnHandle_t handle = handle_of_device();
    for (const auto& step : {+[](Graph&g, cudnnHandle_t) { return g.validate(); },
                             +[](Graph&g, cudnnHandle_t h) { return g.build_operation_graph(h); },
                             +[](Graph&g, cudnnHandle_t) {
                               return g.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
                             }}) {
      fe::error_t status = step(*graph_, handle);
      if (!status.is_bad()) continue;
      fault_ = status.get_message();
      return;
    }
    std::vector<fe::NumericalNote_t> refused = {fe::NumericalNote_t::NONDETERMINISTIC};
    if (c.dtype == DType::f32 && !c.tf32) refused.push_back(fe::NumericalNote_t::TENSOR_CORE);
    graph_->deselect_numeric_notes(refused);
    graph_->deselect_workspace_greater_than(most_workspace);
    list();
  }

  CudnnPlanPtr plan(size_t engine) override {
    const int64_t index = indices_[engine];
    fe::error_t status = graph_->build_plan_at_index(index);
    int64_t workspace = 0;
    if (!status.is_bad()) status = graph_->get_workspace_size_plan_at_index(index, workspace);
    if (status.is_bad()) fault_ = status.get_message();
    if (status.is_bad() || workspace > most_workspace_) return nullptr;
    return std::make_shared<Plan>(graph_, index, workspace);
  }

 private:
  void list() {
    LeftOut left_out;
    for (int64_t i = 0; i < graph_->get_execution_plan_count(); ++i) {
      std::string name;
      fe::error_t status = graph_->get_plan_name_at_index(i, name);
      if (!status.is_bad()) status = graph_->support_of(i);
      if (status.is_bad()) {
        left_out.add(status.get_message());
        continue;
      }
      std::replace(name.begin(), name.end(), ' ', '_');
      if (std::find(names_.begin(), names_.end(), name) != names_.end()) continue;  // suggested twice
      names_.push_back(name);
      indices_.push_back(i);
    }
    if (names_.empty()) fault_ = left_out.text();
  }

  std::shared_ptr<Graph> graph_;
  int64_t most_workspace_;
  std::vector<int64_t> indices_;  ///< index in the graph of the engine of each name
};

}  // namespace

const std::string& cudnn_fault() {
  static const std::string fault = []() -> std::string {
    try {
      open_library();
      handle_of_device();
      return "";
    } catch (const EnvError& error) {
      return error.what();
    }
  }();
  return fault;
}

CudnnPlanPtr cudnn_plan(const CudnnAttention& a) {
  std::ostringstream signature;
  signature << "attention " << text_of(a.q) << text_of(a.k) << text_of(a.v) << text_of(a.out) << text_of(a.logs)
            << text_of(a.dk) << text_of(a.dv) << a.causal << a.backward << " " << a.window << " " << to_string(a.dtype)
            << " " << std::hexfloat << a.scale;
  return shared(signature.str(), [&] { return make(a); });
}

std::string cudnn_version() { return std::to_string(fe::detail::get_backend_version()); }

std::unique_ptr<CudnnEngines> cudnn_engines(const CudnnConvolution& convolution, int64_t most_workspace) {
  return std::make_unique<ConvolutionEngines>(convolution, most_workspace);
}

}  // namespace trainctl::cuda
