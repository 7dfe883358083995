// Chooses a job's workload, and checks that it can run.
#include "cli/run/launch/workload.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/run/launch/command_workload.h"
#include "cli/run/launch/device_choice.h"
#include "cli/run/launch/network_workload.h"
#include "cli/run/saves/start_weights.h"
#include "engine/base/error.h"
#include "engine/planning/plan_job.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/data/sample_check.h"
#include "engine/train/trainer/generator.h"
#include "engine/train/trainer/prediction.h"

namespace trainctl {
namespace {

/// GPUs of other hosts are not known before their agents run, so they are used only if the job requests them.
void choose_device(JobSpec& spec, CudaDevices& found) {
  if (spec.launch.has_hosts() && spec.launch.device == Device::automatic) spec.launch.device = Device::cpu;
  const bool looks = spec.launch.device != Device::cpu && !spec.launch.has_hosts();
  found = looks ? find_cuda_devices() : CudaDevices{};
  spec.launch.device = resolve_device(spec, found);
}

/// Throws SpecError for an option that a job on several hosts cannot follow, or a file to copy that does not exist.
void require_possible_on_hosts(const JobSpec& spec, const WorkloadOptions& options) {
  if (options.generates() || (options.evaluate && !options.evaluate->layer.empty()))
    throw SpecError(
        spec.position("launch.hosts"), "launch.hosts",
        std::string("trainctl ") + (options.generates() ? "generate" : "predict") + " does not support several hosts",
        "set launch.hosts=[] on the command line");
  if (options.profile)
    throw SpecError({}, "--profile", "profiling does not support several hosts", "remove --profile or launch.hosts");
  for (size_t i = 0; i < spec.launch.copy.size(); ++i) {
    std::error_code error;
    if (!std::filesystem::exists(spec.launch.copy[i], error))
      throw SpecError(spec.position("launch.copy[" + std::to_string(i) + "]"), "launch.copy",
                      spec.launch.copy[i] + " does not exist", "paths are relative to the job file");
  }
}

}  // namespace

nlohmann::ordered_json WorkloadReports::record() const { return nlohmann::ordered_json::object(); }

bool WorkloadOptions::loads_checkpoint() const {
  return evaluate ? !evaluate->checkpoint.empty() : resume.resume || !resume.from.empty();
}

void require_possible(const JobSpec& spec, const WorkloadOptions& options) {
  if (options.generates() && spec.has_command())
    throw SpecError(spec.position("command"), "command", "a program cannot generate text", "name a job with a network");
  if (options.evaluate && spec.has_command())
    throw SpecError(spec.position("command"), "command", "a program has no network that trainctl can evaluate",
                    "name a job with a network");
  if (options.evaluate && !options.generates() && !spec.validation)
    throw SpecError(
        spec.position("validation"), "validation", "the job has no validation data set",
        "set validation: {dataset: {path: ...}} in the job, or validation.dataset.split=test on the command line");
  if (options.evaluate && options.evaluate->checkpoint.empty() && !spec.weights)
    throw SpecError({}, "--checkpoint", "is missing, and the job has no weights to start from",
                    "name a checkpoint or a run, or set weights: {from: DIR}");
  if (spec.launch.has_hosts()) require_possible_on_hosts(spec, options);
  if (!spec.has_command()) return;
  if (options.profile) {
    throw SpecError({}, "--profile", "only networks can be profiled, but this job runs a program",
                    "use the profiler of the program");
  }
  if (options.record) {
    throw SpecError({}, "--record", "only collectives of networks can be recorded, but this job runs a program",
                    "remove --record; for NCCL, set env.NCCL_DEBUG=INFO");
  }
}

void PlansAhead::plan(JobSpec spec) {
  CudaDevices found;
  choose_device(spec, found);
  const std::string text = to_yaml(spec);
  if (!plans_.contains(text)) plans_.emplace(text, plan_job(std::move(spec)));
}

const PlannedJob* PlansAhead::find(const JobSpec& spec) const {
  const auto found = plans_.find(to_yaml(spec));
  return found == plans_.end() ? nullptr : &found->second;
}

std::unique_ptr<Workload> make_workload(JobSpec spec, const WorkloadOptions& options, boost::asio::io_context& loop) {
  require_possible(spec, options);
  if (spec.has_command()) return std::make_unique<CommandWorkload>(std::move(spec));
  if (options.evaluate && spec.servers() > 0)
    spec.parallel.mode = ParallelMode::data_parallel;  // evaluation updates nothing
  const Device asked = spec.launch.device;
  WorkloadOptions later = options;
  later.start_up.ended("job");
  CudaDevices found;
  choose_device(spec, found);
  later.start_up.ended("devices");
  if (options.generates()) {
    PlannedJob job = plan_generation(std::move(spec), options.evaluate->generate->request.size);
    require_known_tokens(job, options.evaluate->generate->request);
    if (job.spec.weights && !options.loads_checkpoint())
      start_weights(job).require_equal_ties(job.spec.weights->partial);
    return std::make_unique<NetworkWorkload>(std::move(job), asked, found, later, loop);
  }
  const PlannedJob* ahead = options.plans ? options.plans->find(spec) : nullptr;
  PlannedJob job = ahead != nullptr ? *ahead : plan_job(std::move(spec));
  require_intact_files(job);
  if (!options.loads_checkpoint()) require_start_weights(job, true);
  if (options.evaluate && options.evaluate->has_loss && !may_predict(job, options.evaluate->layer)) {
    later.evaluate->layer.clear();
    later.evaluate->has_loss = false;
  }
  if (later.evaluate && !later.evaluate->layer.empty())
    predict_layer(job, later.evaluate->layer, later.evaluate->has_loss);
  return std::make_unique<NetworkWorkload>(std::move(job), asked, found, later, loop);
}

}  // namespace trainctl
