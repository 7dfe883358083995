// Rules about parallel.mode: parameter_server.
#include <string>
#include <utility>

#include "engine/spec/fields.h"
#include "engine/spec/rules/rules.h"

namespace trainctl::rules {
namespace {

/// Checks jobs with parallel.sync: false.
void check_asynchronous_workers(RuleContext& r) {
  if (r.fine({"launch.comm"}) && r.job.launch.comm == "gloo")
    r.wrong("launch.comm", "asynchronous workers exchange messages through shared memory, not gloo",
            "set launch.comm: shm, or parallel.sync: true");
  if (r.fine({"launch.ranks"}) && r.job.launch.ranks > kMostAsyncWorkers)
    r.wrong("launch.ranks",
            number(r.job.launch.ranks) + " asynchronous workers exceed the limit of " + number(kMostAsyncWorkers),
            "set parallel.sync: true, or reduce launch.ranks");
  if (r.fine({"train.histograms"}) && r.job.train.histograms > 0)
    r.wrong("train.histograms", "histograms need steps that all workers share, and asynchronous workers have none",
            "set histograms: 0, or parallel.sync: true");
  if (r.fine({"train.fingerprints"}) && r.job.train.fingerprints > 0)
    r.wrong("train.fingerprints", "fingerprints need steps that all workers share, and asynchronous workers have none",
            "set fingerprints: 0, or parallel.sync: true");
}

/// Checks jobs with parallel.sync: true and parallel.tables.
void check_workers_with_tables(RuleContext& r) {
  if (r.fine({"launch.comm"}) && r.job.launch.comm == "gloo")
    r.wrong("launch.comm", "table rows are exchanged through shared memory, not gloo", "set launch.comm: shm");
  if (r.fine({"launch.ranks"}) && r.job.launch.ranks > kMostAsyncWorkers)
    r.wrong(
        "launch.ranks",
        number(r.job.launch.ranks) + " workers that pull table rows exceed the limit of " + number(kMostAsyncWorkers),
        "reduce launch.ranks");
  for (const auto& [field, every] :
       {std::pair("histograms", r.job.train.histograms), std::pair("fingerprints", r.job.train.fingerprints)}) {
    const std::string path = std::string("train.") + field;
    if (r.fine({path.c_str()}) && every > 0)
      r.wrong(path,
              std::string(field) + " need all weights in step, but the servers of parallel.tables answer at any time",
              std::string("set ") + field + ": 0, or remove parallel.tables");
  }
}

void optimizer_fits_servers(RuleContext& r) {
  if (!r.fine({"optimizer"})) return;
  const OptimizerSpec& optimizer = r.job.optimizer;
  const EntryType* type = find_type(optimizer_types(), optimizer.type);
  if (type == nullptr) return;
  const char* const other_mode = "use another parallel.mode, e.g. data_parallel";
  if (optimizer.average || type->averages)
    r.wrong(type->averages ? "optimizer.type" : "optimizer.average",
            "parameter servers keep no averages of the weights", other_mode);
  const bool clips = optimizer.clip_parameter_norm > 0;
  if (clips || (!type->fits_servers && !type->averages))
    r.wrong(clips ? "optimizer.clip_parameter_norm" : "optimizer.type",
            (clips ? "clip_parameter_norm" : type->name) +
                " needs whole parameters, which parameter_server does not keep on a rank",
            other_mode);
}

}  // namespace

void parameter_servers_suit_the_job(RuleContext& r) {
  if (!r.fine({"parallel.mode"}) || r.job.servers() == 0) return;
  const ParallelSpec& parallel = r.job.parallel;
  optimizer_fits_servers(r);
  if (r.job.is_asynchronous()) check_asynchronous_workers(r);
  if (!r.job.is_asynchronous() && !parallel.tables.empty()) check_workers_with_tables(r);
  if (r.fine({"parallel.stages"}) && parallel.stages > 1)
    r.wrong("parallel.stages", "parameter_server supports one pipeline stage, not " + number(parallel.stages),
            "set parallel.stages: 1, or parallel.mode: data_parallel");
  if (r.fine({"parallel.optimizer_shard.level"}) && parallel.optimizer_shard.level > 0)
    r.wrong("parallel.optimizer_shard.level",
            "parameter_server stores the optimizer state on the servers, so the "
            "workers have nothing to shard",
            "set level: 0, or parallel.mode: data_parallel");
  if (r.fine({"parallel.offload.optimizer"}) && parallel.offload.optimizer == StatePlace::host)
    r.wrong("parallel.offload.optimizer",
            "parameter_server stores the optimizer state on the servers, so the workers have nothing to offload",
            "remove offload, or set parallel.mode: data_parallel");
  if (r.fine({"launch.device", "precision"}) && r.job.launch.device == Device::cuda &&
      r.job.precision == Precision::bf16)
    r.wrong("precision", "servers run on CPU cores and update in fp32, so workers on GPUs cannot use bf16",
            "set precision: tf32 or fp32, or parallel.mode: data_parallel");
  if (r.fine({"launch.ranks", "parallel.servers"}) && r.job.processes() > kMaxRanks)
    r.wrong("parallel.servers", number(r.job.launch.ranks) + " workers and " + number(parallel.servers) +
                                    " servers exceed the limit of " + number(kMaxRanks) + " processes");
}

}  // namespace trainctl::rules
