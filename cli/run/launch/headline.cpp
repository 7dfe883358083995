// The facts about a plan that come first: throughput, utilization, memory and idle time.
#include "cli/run/launch/headline.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/ranges.h"
#include "engine/compile/report/product_flops.h"
#include "engine/estimate/estimate_report.h"

namespace trainctl {
namespace {

using Json = nlohmann::ordered_json;

/// 0: samples are not sequences of tokens with a label each.
int64_t tokens_per_sample(const DatasetSpec& set) {
  if (set.length > 0) return set.length;
  const bool is_sequence = set.type == "random" && set.dtype == "i32" && set.shape.size() == 1;
  return is_sequence && set.label_shape == set.shape ? set.shape[0] : 0;
}

Json memory_json(const RankClasses& classes, const Machine& machine, bool on_gpus) {
  const Program& most = largest_program(classes.programs);
  Json memory = {{"rank", most.rank}, {"bytes", most.memory.total()}};
  if (on_gpus && machine.kind == DeviceKind::cuda && machine.memory.value > 0)
    memory["available"] = static_cast<int64_t>(machine.memory.value);
  return memory;
}

/// The fraction of the time in which the ranks that the estimate simulated compute nothing.
double idle_share(const Json& report) {
  const Json& estimate = report["estimate"];
  const double step = estimate["seconds"];
  double busy = 0, ranks = 0;
  for (const Json& of_class : estimate["classes"]) {
    double count = 1;  // asynchronous: one worker, and the servers
    if (!report.contains("asynchronous"))
      for (const Json& row : report["rank_classes"])
        if (numbers_of(row["ranks"].get<std::string>()).front() == of_class["rank"].get<int>()) count = row["count"];
    busy += count * of_class["compute"].get<double>();
    ranks += count;
  }
  return step > 0 && ranks > 0 ? std::max(0.0, 1 - busy / (ranks * step)) : 0;
}

}  // namespace

Json headline_json(const PlannedJob& job, const RankClasses& classes, const Json& report) {
  const JobSpec& spec = job.spec;
  const Machine& machine = job.cost.machine();
  const bool on_gpus = spec.launch.device == Device::cuda;
  const double flops = model_flops(job.graph, job.plan) + attention_flops(job.graph, job.plan);
  Json headline = {{"device", on_gpus ? "GPU" : "rank"},
                   {"flops_per_step", flops},
                   {"memory", memory_json(classes, machine, on_gpus && report.contains("estimate"))}};
  const int64_t tokens = tokens_per_sample(spec.dataset);
  if (tokens > 0) headline["tokens_per_sample"] = tokens;
  if (!report.contains("estimate")) return headline;
  const double step = report["estimate"]["seconds"];
  if (step <= 0) return headline;
  const int workers = job.plan.is_asynchronous() ? job.plan.own_workers : 1;  // each takes its own steps
  const double samples = static_cast<double>(spec.dataset.batch) * workers / step;
  headline["step_seconds"] = step;
  headline["samples_per_second"] = samples;
  if (tokens > 0) headline["tokens_per_second"] = samples * static_cast<double>(tokens);
  const double rate = flops / (step * job.plan.ranks);
  headline["flops_per_second"] = rate;
  const DType type = compute_type(spec.precision);
  const double peak = data_sheet_rate(machine, type, spec.precision == Precision::tf32).value;
  if (peak > 0) {
    headline["peak_flops_per_second"] = peak;
    headline["mfu"] = rate / peak;
  }
  headline["idle_share"] = idle_share(report);
  return headline;
}

}  // namespace trainctl
