// The report that `run --profile` prints after the ranks have ended: how the time of the profiled steps was spent.
#include "cli/text/profile_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/text/table.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

std::string percent(double part) { return fmt::format("{:.1f}%", 100 * part); }

/// A rate in units of 10^9 per second; empty if there is nothing to report.
std::string rate(double amount, double seconds) {
  return amount > 0 && seconds > 0 ? fmt::format("{:.1f}", amount / seconds / 1e9) : "";
}

std::string shares_table(const ProfileSummary& summary) {
  Table table(
      {">rank", ">compute", ">communication", ">waiting", ">idle", ">comm time", ">time hidden", ">bytes hidden"});
  for (const RankShares& r : summary.ranks) {
    const auto steps = static_cast<double>(summary.steps.count());
    table.add({std::to_string(r.rank), percent(r.compute), percent(r.exposed), percent(r.waiting), percent(r.idle),
               duration_text(r.moving_seconds / steps),
               r.moving_seconds > 0 ? percent(r.hidden_seconds / r.moving_seconds) : "",
               r.moved_bytes > 0 ? percent(r.hidden_bytes / r.moved_bytes) : ""});
  }
  return table.str();
}

std::string top_table(const ProfileSummary& summary, size_t top) {
  double all = 0;
  for (const InstructionTotal& total : summary.instructions) all += total.seconds;
  Table table({"instruction", "op", ">time", ">calls", ">mean", ">waited", ">GFLOP/s", ">GB/s"});
  for (size_t i = 0; i < std::min(top, summary.instructions.size()); ++i) {
    const InstructionTotal& t = summary.instructions[i];
    const auto calls = static_cast<double>(t.calls);
    table.add({t.name + (t.recompute ? " (recomputed)" : ""), t.op, percent(all > 0 ? t.seconds / all : 0),
               std::to_string(t.calls), duration_text(t.seconds / calls),
               t.waited_seconds > 0 ? duration_text(t.waited_seconds / calls) : "", rate(t.flops, t.seconds),
               rate(t.bytes, t.seconds)});
  }
  return table.str();
}

}  // namespace

std::string duration_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  if (seconds >= 1e-7 || seconds <= 0) return fmt::format("{:.1f} us", seconds * 1e6);
  return fmt::format("{:.1f} ns", seconds * 1e9);
}

std::string render_parts(std::span<const StepComponent> parts, const Machine& machine,
                         const std::optional<CudaLoad>& load) {
  constexpr double kNear = 0.9;
  double all = 0, near = 0;
  for (const StepComponent& part : parts) all += part.seconds;
  Table table({"part", ">time", ">share", ">limit", ">of limit", ">launches"});
  const StepComponent* first = nullptr;
  const auto over = [](const StepComponent& part) { return part.seconds - part.limit_seconds; };
  for (const StepComponent& part : parts) {
    const bool has_limit = part.limit_seconds > 0;
    table.add({part.name, duration_text(part.seconds), percent(part.seconds / all),
               has_limit ? duration_text(part.limit_seconds) : "",
               has_limit ? percent(part.limit_seconds / part.seconds) : "",
               part.launches > 0 ? fmt::format("{:.0f}", part.launches) : ""});
    if (part.limit_seconds >= kNear * part.seconds) near += part.seconds;
    if (first == nullptr || over(part) > over(*first)) first = &part;
  }
  std::string text = fmt::format("step time by part, compared with the limits of {} ({})\n{}", machine.name,
                                 machine.source, table.str());
  if (first == nullptr) return text;
  text += fmt::format(
      "  {} of the step time reaches {:.0f}% of its limit or more; optimize first: {}, {} above its limit\n",
      percent(near / all), 100 * kNear, first->name, duration_text(over(*first)));
  if (load) {
    text += fmt::format("  clock {:.0f} of {:.0f} MHz, power {:.0f} of {:.0f} W\n", load->clock_mhz,
                        load->most_clock_mhz, load->watts, load->most_watts);
  }
  return text;
}

std::string render_profile(const ProfileSummary& summary, size_t top) {
  const size_t shown = std::min(top, summary.instructions.size());
  return fmt::format(
      "profile of step{} {}: {} per step\n\n{}\n{} of {} instructions, longest first, over all ranks\n{}",
      summary.steps.count() > 1 ? "s" : "", to_string(summary.steps), duration_text(summary.step_seconds),
      shares_table(summary), shown, summary.instructions.size(), top_table(summary, top));
}

}  // namespace trainctl
