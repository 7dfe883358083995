// One call of a function of a plugin: the C structs of trainctl_plugin.h for our operands, and what happens when the
// function fails.
#include "engine/ops/plugins/plugin_call.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/plugins.h"

namespace trainctl {
namespace {

thread_local const char* running_now = nullptr;

int32_t c_type(DType type) {
  return type == DType::f32 ? TRAINCTL_F32 : type == DType::bf16 ? TRAINCTL_BF16 : TRAINCTL_I32;
}

trainctl_tensor c_tensor(const TensorArg& arg) {
  trainctl_tensor tensor{};
  tensor.data = arg.data;
  tensor.shape.dtype = c_type(arg.dtype);
  tensor.shape.ndim = static_cast<int32_t>(arg.shape.size());
  std::copy(arg.shape.begin(), arg.shape.end(), tensor.shape.dims);
  std::copy(arg.global_shape.begin(), arg.global_shape.end(), tensor.whole);
  std::copy(arg.offset.begin(), arg.offset.end(), tensor.offset);
  tensor.adds = arg.accumulate ? 1 : 0;
  return tensor;
}

std::vector<trainctl_tensor> c_tensors(std::span<const TensorArg> args) {
  std::vector<trainctl_tensor> tensors;
  for (const TensorArg& arg : args) tensors.push_back(c_tensor(arg));
  return tensors;
}

std::vector<TensorArg> whole_args(Infos infos) {
  std::vector<TensorArg> args;
  for (const TensorInfo& info : infos)
    args.push_back({nullptr, info.dtype, info.shape, info.shape, Shape(info.shape.size(), 0)});
  return args;
}

}  // namespace

const char* running_plugin() { return running_now; }

RunningPlugin::RunningPlugin(const char* what) : outer_(running_now) { running_now = what; }
RunningPlugin::~RunningPlugin() { running_now = outer_; }

PluginCall::PluginCall(const PluginOp& op, const Attrs& attrs) : op_(op), attrs_(attrs) {
  const auto count = static_cast<size_t>(op.c.num_attributes);
  texts_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const trainctl_attribute& field = op.c.attributes[i];
    trainctl_value value{};
    switch (field.kind) {
      case TRAINCTL_FLAG:
        value.flag = attrs_.flag(field.name) ? 1 : 0;
        break;
      case TRAINCTL_INTEGER:
        value.integer = attrs_.integer(field.name);
        break;
      case TRAINCTL_NUMBER:
        value.number = attrs_.number(field.name);
        break;
      default:
        value.text = texts_.emplace_back(attrs_.text(field.name)).c_str();
    }
    values_.push_back(value);
  }
  set_pointers();
}

void PluginCall::set_pointers() {
  call_.attributes = values_.data();
  call_.inputs = inputs_.data();
  call_.outputs = outputs_.data();
  call_.output_grads = output_grads_.data();
  call_.input_grads = input_grads_.data();
  call_.num_inputs = static_cast<int32_t>(inputs_.size());
  call_.num_outputs = static_cast<int32_t>(outputs_.size());
  call_.threads = std::max(1, call_.threads);
  call_.error = error_.data();
  call_.error_size = error_.size();
}

void PluginCall::bind_forward(std::span<const TensorArg> in, std::span<const TensorArg> out) {
  inputs_ = c_tensors(in);
  outputs_ = c_tensors(out);
  set_pointers();
}

void PluginCall::bind_backward(std::span<const TensorArg> in, std::span<const TensorArg> out) {
  const BackwardOperands operands = backward_operands(attrs_);
  inputs_.assign(op_.operands(), {});
  outputs_.assign(static_cast<size_t>(op_.c.num_outputs), {});
  output_grads_ = outputs_;
  input_grads_ = inputs_;
  size_t next = 0;
  for (const int64_t o : operands.output_grads) output_grads_[static_cast<size_t>(o)] = c_tensor(in[next++]);
  for (size_t i = 0; i < inputs_.size(); ++i)
    if (op_.reads_input(i)) inputs_[i] = c_tensor(in[next++]);
  for (size_t o = 0; o < outputs_.size(); ++o)
    if (op_.reads_output(o)) outputs_[o] = c_tensor(in[next++]);
  check(next == in.size() && operands.input_grads.size() == out.size(), "a backward node of a plugin has all operands");
  for (size_t k = 0; k < out.size(); ++k) input_grads_[static_cast<size_t>(operands.input_grads[k])] = c_tensor(out[k]);
  set_pointers();
}

void PluginCall::bind(PluginPass pass, Infos in, Infos out) {
  const std::vector<TensorArg> ins = whole_args(in), outs = whole_args(out);
  if (pass == PluginPass::forward)
    bind_forward(ins, outs);
  else
    bind_backward(ins, outs);
}

void PluginCall::run(PluginFunction what, const std::function<int(trainctl_call*)>& function) {
  error_[0] = '\0';
  std::string thrown;
  const std::string placed = place_.empty() ? "" : fmt::format("{} ({})", op_.running(what), place_);
  const char* const name = place_.empty() ? op_.running(what) : placed.c_str();
  try {
    const RunningPlugin running(name);
    if (function(&call_) == 0) return;
  } catch (const std::exception& error) {
    thrown = std::string("it threw: ") + error.what();
  } catch (...) {
    thrown = "it threw an exception that is no std::exception";
  }
  error_.back() = '\0';
  const std::string message = !thrown.empty() ? thrown : error_[0] != '\0' ? error_.data() : "it returned an error";
  throw PluginFailure(fmt::format("{}: {}", name, message));
}

}  // namespace trainctl
