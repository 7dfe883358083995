// A few numbers that show where the time of the profiled steps went.
#include "engine/train/profile/summary.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "engine/compile/report/report.h"
#include "engine/train/profile/stretches.h"
#include "engine/train/profile/waiting.h"
#include "engine/train/profile/work.h"

namespace trainctl {
namespace {

const Instruction& instruction_of_interval(const RankProfile& profile, const TimeSpan& span) {
  return profile.program->instructions[static_cast<size_t>(span.instruction)];
}

/// The shares of the profiled steps in which a rank computes, communicates without computing, waits for peers, and is
/// idle. `waited_ns`: by span, the time in which it waited for peers.
RankShares shares_of(const RankProfile& profile, const std::vector<int64_t>& waited_ns) {
  std::vector<std::pair<int64_t, int64_t>> compute, moving, waiting;
  int64_t begin = INT64_MAX, end = INT64_MIN;
  for (size_t i = 0; i < profile.spans.size(); ++i) {
    const TimeSpan& span = profile.spans[i];
    const int64_t arrived = span.begin_ns + waited_ns[i];
    begin = std::min(begin, span.ready_ns);
    end = std::max(end, span.end_ns);
    waiting.emplace_back(span.ready_ns, arrived);
    const Instruction& instruction = instruction_of_interval(profile, span);
    if (instruction.opcode != Opcode::wait)
      (communicates(instruction) ? moving : compute).emplace_back(arrived, span.end_ns);
  }
  const Stretches kernels(compute), bytes(moving), idle_for_peers(waiting);
  const Stretches busy = kernels.joined(bytes), all = busy.joined(idle_for_peers);
  const auto window = static_cast<double>(std::max<int64_t>(end - begin, 1));

  RankShares shares;
  shares.rank = profile.program->rank;
  shares.seconds = window / 1e9;
  shares.compute = static_cast<double>(kernels.length()) / window;
  shares.exposed = static_cast<double>(busy.length() - kernels.length()) / window;
  shares.waiting = static_cast<double>(all.length() - busy.length()) / window;
  shares.idle = 1 - static_cast<double>(all.length()) / window;
  shares.moving_seconds = static_cast<double>(bytes.length()) / 1e9;
  shares.hidden_seconds = static_cast<double>(bytes.common(kernels)) / 1e9;
  for (size_t i = 0; i < profile.spans.size(); ++i) {
    const TimeSpan& span = profile.spans[i];
    const Instruction& instruction = instruction_of_interval(profile, span);
    if (!communicates(instruction)) continue;
    const int64_t arrived = span.begin_ns + waited_ns[i];
    const auto moved = static_cast<double>(instruction.bytes());
    shares.moved_bytes += moved;
    if (span.end_ns > arrived) {
      shares.hidden_bytes += moved * static_cast<double>(kernels.common(arrived, span.end_ns)) /
                             static_cast<double>(span.end_ns - arrived);
    }
  }
  return shares;
}

/// Adds the times, flops and bytes of each instruction of a rank to the totals by name.
void add_totals(std::map<std::tuple<std::string, std::string, bool>, InstructionTotal>& totals,
                const RankProfile& profile, const std::vector<int64_t>& waited_ns) {
  for (size_t i = 0; i < profile.spans.size(); ++i) {
    const TimeSpan& span = profile.spans[i];
    if (span.launched == 0) continue;
    const Instruction& instruction = instruction_of_interval(profile, span);
    const std::string name = name_of(*profile.program, span);
    const std::string op = instruction.opcode == Opcode::kernel       ? instruction.op
                           : instruction.opcode == Opcode::collective ? std::string(to_string(instruction.collective))
                                                                      : std::string(to_string(instruction.opcode));
    InstructionTotal& total = totals[{name, op, instruction.recompute}];
    total.name = name;
    total.op = op;
    total.recompute = instruction.recompute;
    ++total.calls;
    const int64_t waited = waited_ns[i];
    total.seconds += static_cast<double>(span.end_ns - span.begin_ns - waited) / 1e9;
    total.waited_seconds += static_cast<double>(span.begin_ns - span.ready_ns + waited) / 1e9;
    const Cost work = communicates(instruction) ? Cost{.bytes = static_cast<double>(instruction.bytes())}
                                                : work_of(*profile.program, span);
    total.flops += work.flops;
    total.bytes += work.bytes;
  }
}

}  // namespace

ProfileSummary summarize(std::span<const RankProfile> profiles) {
  const Waiting waiting = find_waiting(profiles);
  ProfileSummary summary;
  std::map<std::tuple<std::string, std::string, bool>, InstructionTotal> totals;
  uint32_t first = UINT32_MAX, last = 0;
  for (size_t i = 0; i < profiles.size(); ++i) {
    for (const TimeSpan& span : profiles[i].spans) {
      first = std::min(first, span.step);
      last = std::max(last, span.step);
    }
    summary.ranks.push_back(shares_of(profiles[i], waiting.waited_ns[i]));
    add_totals(totals, profiles[i], waiting.waited_ns[i]);
    summary.step_seconds += summary.ranks.back().seconds / static_cast<double>(profiles.size());
  }
  summary.steps = {int64_t{first} + 1, int64_t{last} + 1};
  summary.step_seconds /= static_cast<double>(summary.steps.count());
  for (auto& [key, total] : totals) summary.instructions.push_back(std::move(total));
  std::stable_sort(summary.instructions.begin(), summary.instructions.end(),
                   [](const InstructionTotal& a, const InstructionTotal& b) { return a.seconds > b.seconds; });
  return summary;
}

}  // namespace trainctl
