// The kernels of plugins on each device. A prepared kernel owns the structs of its call.
#include "engine/ops/plugins/plugin_kernels.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/base/error.h"
#include "engine/ops/plugins/plugin_call.h"

namespace trainctl {
namespace {

std::shared_ptr<PluginCall> prepare_call(const KernelCall& call, PluginPass pass) {
  const PluginOp& op = plugin_op(call.attrs);
  auto prepared = std::make_shared<PluginCall>(op, call.attrs);
  if (pass == PluginPass::forward)
    prepared->bind_forward(call.in, call.out);
  else
    prepared->bind_backward(call.in, call.out);
  trainctl_call& c = prepared->call();
  c.threads = call.threads;
  c.micro_batch = call.micro_batch;
  c.seed = call.seed;
  return prepared;
}

void run_or_throw(PluginCall& call, PluginPass pass, const std::function<int(trainctl_call*)>& function) {
  try {
    call.run(pass == PluginPass::forward ? PluginFunction::forward : PluginFunction::backward, function);
  } catch (const PluginFailure& failure) {
    throw EnvError(failure.what());
  }
}

template <PluginPass kPass>
CpuKernel prepare_plugin_cpu(const KernelCall& call) {
  const trainctl_op& op = plugin_op(call.attrs).c;
  const auto kernel = kPass == PluginPass::forward ? op.forward : op.backward;
  return [prepared = prepare_call(call, kPass), kernel, scalars = call.scalars] {
    if (scalars != nullptr) prepared->call().step = scalars->step;
    run_or_throw(*prepared, kPass, kernel);
  };
}

template <PluginPass kPass>
CudaKernel prepare_plugin_cuda(const CudaKernelCall& call) {
  const trainctl_op& op = plugin_op(call.attrs).c;
  const auto kernel = kPass == PluginPass::forward ? op.forward_cuda : op.backward_cuda;
  return [prepared = prepare_call(call, kPass), kernel](CudaStream stream) {
    run_or_throw(*prepared, kPass, [&](trainctl_call* c) { return kernel(c, stream); });
  };
}

PluginPass pass_of(const PluginOp& op, std::string_view kernel) {
  return kernel == op.name ? PluginPass::forward : PluginPass::backward;
}

/// The definition of a kernel under its own name, which stays valid. Threads may ask at the same time.
template <class Def, class Prepare>
const Def* definition(const PluginOp& op, PluginPass pass, Prepare forward, Prepare backward) {
  static std::mutex mutex;
  static std::map<std::pair<const PluginOp*, PluginPass>, Def> definitions;
  const bool is_forward = pass == PluginPass::forward;
  const Def made = {is_forward ? op.name.c_str() : op.gradient_name.c_str(), is_forward ? forward : backward};
  const std::lock_guard lock(mutex);
  return &definitions.try_emplace({&op, pass}, made).first->second;
}

}  // namespace

const CpuKernelDef* find_plugin_cpu_kernel(std::string_view name) {
  const PluginOp* op = find_plugin_kernel(name);
  if (op == nullptr) return nullptr;
  return definition<CpuKernelDef, PrepareCpuKernel>(*op, pass_of(*op, name), prepare_plugin_cpu<PluginPass::forward>,
                                                    prepare_plugin_cpu<PluginPass::backward>);
}

const CudaKernelDef* find_plugin_cuda_kernel(std::string_view name) {
  const PluginOp* op = find_plugin_kernel(name);
  if (op == nullptr) return nullptr;
  const PluginPass pass = pass_of(*op, name);
  if ((pass == PluginPass::forward ? op->c.forward_cuda : op->c.backward_cuda) == nullptr) return nullptr;
  return definition<CudaKernelDef, PrepareCudaKernel>(*op, pass, prepare_plugin_cuda<PluginPass::forward>,
                                                      prepare_plugin_cuda<PluginPass::backward>);
}

}  // namespace trainctl
