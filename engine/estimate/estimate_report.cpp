// The step that `trainctl plan` predicts.
#include "engine/estimate/estimate_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace trainctl {
const Program& largest_program(const std::vector<Program>& programs) {
  return *std::max_element(programs.begin(), programs.end(),
                           [](const Program& a, const Program& b) { return a.memory.total() < b.memory.total(); });
}

std::optional<DeviceNeed> device_need(const std::vector<Program>& programs, const Machine& machine) {
  if (machine.memory.value <= 0 || programs.empty()) return std::nullopt;
  const Program& most = largest_program(programs);
  const auto has = [&](auto... opcodes) {
    return std::any_of(most.instructions.begin(), most.instructions.end(),
                       [&](const Instruction& now) { return (... || (now.opcode == opcodes)); });
  };
  const Bytes reserved = machine.reserved_memory(has(Opcode::collective), has(Opcode::send, Opcode::recv));
  return DeviceNeed{most.rank, most.memory.total(), static_cast<int64_t>(reserved.value),
                    static_cast<int64_t>(machine.memory.value)};
}

nlohmann::ordered_json estimate_report(const RankClasses& classes, const Machine& machine, const Simulation& step) {
  constexpr double kNineOfTen = 1.645;  // 90 % of a normal distribution are within this many standard deviations
  nlohmann::ordered_json parts = nlohmann::ordered_json::object(), of_classes = nlohmann::ordered_json::array();
  for (size_t p = 0; p < kParts; ++p)
    if (step.parts[p] > Seconds{}) parts[std::string(to_string(static_cast<Part>(p)))] = step.parts[p].value;
  for (size_t c = 0; c < classes.programs.size(); ++c) {
    Seconds compute, communication;
    for (size_t i = 0; i < step.spans[c].size(); ++i) {
      const SimulatedSpan& span = step.spans[c][i];
      const Opcode opcode = classes.programs[c].instructions[i].opcode;
      if (opcode == Opcode::kernel || opcode == Opcode::load) compute += span.end - span.begin;
      if (opcode == Opcode::collective || opcode == Opcode::send) communication += span.end - span.begin;
    }
    of_classes.push_back(
        {{"rank", classes.ranks[c].front()}, {"compute", compute.value}, {"communication", communication.value}});
  }
  nlohmann::ordered_json report = {{"machine", machine.name},
                                   {"source", machine.source},
                                   {"seconds", step.step.value},
                                   {"low", std::max(step.step - kNineOfTen * step.deviation, Seconds{}).value},
                                   {"high", (step.step + kNineOfTen * step.deviation).value},
                                   {"parts", std::move(parts)},
                                   {"classes", std::move(of_classes)}};
  if (const std::optional<DeviceNeed> need = device_need(classes.programs, machine)) {
    report["memory"] = {{"rank", need->rank},
                        {"bytes", need->bytes},
                        {"reserved", need->reserved},
                        {"device", need->device},
                        {"fits", need->fits()}};
  }
  return report;
}

}  // namespace trainctl
