// The time of profiled steps by component: products, attention, norms, …, gaps; each with the least time that the
// machine allows.
#include "engine/train/profile/step_components.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "engine/compile/report/report.h"
#include "engine/machine/host_bus.h"
#include "engine/ops/op_family.h"
#include "engine/train/profile/stretches.h"
#include "engine/train/profile/waiting.h"
#include "engine/train/profile/work.h"

namespace trainctl {
namespace {

using Interval = std::pair<int64_t, int64_t>;

bool is_loss(const Instruction& instruction) {
  const KernelDef* kernel = kernel_of(instruction);
  return kernel != nullptr && family_of(*kernel).losses.size() > 0;
}

/// The tensors that losses read, and what has the name of one: the product that makes it, and its gradients.
class Heads {
 public:
  explicit Heads(const Program& program) {
    for (const Instruction& loss : program.instructions)
      if (is_loss(loss) && !loss.inputs.empty()) predictions_.push_back(loss.inputs[0].tensor);
    for (const Instruction& product : program.instructions) {
      if (product.opcode != Opcode::kernel || product.phase != Phase::forward || product.outputs.empty()) continue;
      if (kernel_of(product)->is_product && is_prediction(product.outputs[0].tensor)) names_.push_back(product.name);
    }
  }
  /// "head.matmul", "head.matmul.grad_weight"
  bool has(const Instruction& instruction) const {
    return std::any_of(names_.begin(), names_.end(),
                       [&](const std::string& name) { return instruction.name.starts_with(name); });
  }

 private:
  bool is_prediction(const std::string& tensor) const {
    return std::find(predictions_.begin(), predictions_.end(), tensor) != predictions_.end();
  }
  std::vector<std::string> predictions_, names_;
};

std::string part_name(const Instruction& instruction, const Heads& heads) {
  const KernelDef* kernel = kernel_of(instruction);
  if (kernel == nullptr) return "loading";
  const OpFamily& family = family_of(*kernel);
  if (family.losses.size() > 0) return "loss";
  if (family.optimizers.size() > 0) return "optimizer";
  if (heads.has(instruction)) return "head";
  const std::string direction = instruction.phase == Phase::forward ? " forward" : " backward";
  if (family.profile_part != nullptr) return family.profile_part + direction;
  return kernel->is_product || kernel->has_products ? "products" + direction : "element-wise, copies";
}

DType product_type(const Instruction& instruction) {
  const bool halves = std::any_of(instruction.inputs.begin(), instruction.inputs.end(),
                                  [](const Operand& operand) { return is_half(operand.dtype); });
  return halves ? DType::bf16 : DType::f32;
}

double kernel_limit(const Instruction& instruction, const Machine& machine) {
  const Cost work = kernel_work(instruction);
  const FlopsPerSecond rate = instruction.attrs.flag("fp8")
                                  ? machine.products.bf16 * 2
                                  : machine.product_rate(product_type(instruction), instruction.attrs.flag("tf32"));
  return std::max(Flops{work.flops} / rate, Bytes{work.bytes} / machine.memory_rate).value;
}

double transfer_limit(const Program& program, const Instruction& instruction, const Machine& machine) {
  int64_t bytes = instruction.bytes();
  if (instruction.opcode == Opcode::copy) return (Bytes{static_cast<double>(bytes)} / host_bus_rate(machine)).value;
  if (instruction.opcode == Opcode::collective) {
    const auto size = static_cast<int>(program.groups[static_cast<size_t>(instruction.group)].size());
    bytes = wire_bytes(instruction.collective, bytes, size);
  }
  return (Bytes{static_cast<double>(bytes)} / machine.links.front().bandwidth).value;
}

/// Sums over all profiled steps of one rank, in nanoseconds; limits in seconds.
class RankParts {
 public:
  RankParts(const RankProfile& profile, const std::vector<int64_t>& waited_ns, const Machine& machine)
      : program_(*profile.program), machine_(machine), heads_(program_) {
    for (size_t i = 0; i < profile.spans.size(); ++i) add(profile.spans[i], waited_ns[i]);
    add_rest();
  }

  std::map<std::string, StepComponent> parts;

 private:
  const Instruction& instruction_at(int32_t index) const { return program_.instructions[static_cast<size_t>(index)]; }

  void add(const TimeSpan& span, int64_t waited_ns) {
    Interval& step = steps_.try_emplace(span.step, std::numeric_limits<int64_t>::max(), 0).first->second;
    step = {std::min(step.first, span.ready_ns), std::max(step.second, span.end_ns)};
    const Instruction& instruction = instruction_at(span.instruction);
    const int64_t arrived = span.begin_ns + waited_ns;
    waiting_.emplace_back(span.ready_ns, arrived);
    if (instruction.opcode == Opcode::wait || span.launched == 0) return;
    if (communicates(instruction) || instruction.opcode == Opcode::copy) {
      moving_.emplace_back(arrived, span.end_ns);
      transfers_.limit_seconds += transfer_limit(program_, instruction, machine_);
      transfers_.launches += 1;
      return;
    }
    kernels_.emplace_back(arrived, span.end_ns);
    StepComponent& part = parts[part_name(instruction, heads_)];
    part.seconds += static_cast<double>(span.end_ns - arrived) / 1e9;
    part.launches += 1;
    for (int32_t i = 0; i < span.launched; ++i)
      part.limit_seconds += kernel_limit(instruction_at(span.instruction + i), machine_);
  }

  /// Adds the time that no kernel covers: transfers, then waiting, then nothing at all, within steps and between them.
  void add_rest() {
    const Stretches kernels(kernels_), moving(moving_), waiting(waiting_);
    const Stretches busy = kernels.joined(moving), all = busy.joined(waiting);
    std::vector<Interval> steps;
    for (const auto& [number, step] : steps_) steps.push_back(step);
    const Stretches in_steps(steps);
    const int64_t window = steps.back().second - steps.front().first;
    if (transfers_.launches > 0) parts["communication not hidden"] = transfers_;
    add_time("communication not hidden", busy.length() - kernels.length());
    add_time("waiting for peers", all.length() - busy.length());
    add_time("gaps between kernels", in_steps.length() - in_steps.common(all));
    add_time("between steps: host and data", window - in_steps.length());
  }

  void add_time(const std::string& name, int64_t ns) {
    if (ns > 0 || parts.contains(name)) parts[name].seconds = static_cast<double>(ns) / 1e9;
  }

  const Program& program_;
  const Machine& machine_;
  const Heads heads_;
  std::map<uint32_t, Interval> steps_;
  std::vector<Interval> kernels_, moving_, waiting_;
  StepComponent transfers_;
};

}  // namespace

std::vector<StepComponent> step_components(std::span<const RankProfile> profiles, const Machine& machine) {
  const Waiting waiting = find_waiting(profiles);
  std::map<std::string, StepComponent> sums;
  uint32_t first = std::numeric_limits<uint32_t>::max(), last = 0;
  for (size_t i = 0; i < profiles.size(); ++i) {
    for (const TimeSpan& span : profiles[i].spans) {
      first = std::min(first, span.step);
      last = std::max(last, span.step);
    }
    for (const auto& [name, part] : RankParts(profiles[i], waiting.waited_ns[i], machine).parts) {
      StepComponent& sum = sums[name];
      sum.seconds += part.seconds;
      sum.limit_seconds += part.limit_seconds;
      sum.launches += part.launches;
    }
  }
  const double times = static_cast<double>(profiles.size()) * (static_cast<double>(last) - first + 1);
  std::vector<StepComponent> parts;
  for (const auto& [name, sum] : sums)
    parts.push_back({name, sum.seconds / times, sum.limit_seconds / times, sum.launches / times});
  std::stable_sort(parts.begin(), parts.end(),
                   [](const StepComponent& a, const StepComponent& b) { return a.seconds > b.seconds; });
  return parts;
}

}  // namespace trainctl
