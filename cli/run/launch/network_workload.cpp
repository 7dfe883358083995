// A network, trained by one `trainctl worker` per rank: plan, programs, and the ranks' shared memory.
#include "cli/run/launch/network_workload.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/run/launch/job_report.h"
#include "cli/run/worker/host_memory.h"
#include "cli/run/worker/rank_failure.h"
#include "cli/run/worker/take_gpu.h"
#include "cli/text/launch_report.h"
#include "engine/base/error.h"
#include "engine/base/round_up.h"
#include "engine/compile/report/report.h"
#include "engine/plan/served.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/memory_limit.h"
#include "engine/planning/plan_generation.h"
#include "engine/planning/plan_job.h"
#include "engine/runtime/routes.h"
#include "engine/train/data/sample_check.h"
#include "engine/train/servers/server.h"
#include "engine/train/trainer/expert_loads.h"
#include "engine/train/trainer/shared_weights.h"
#include "engine/train/trainer/tensor_histograms.h"
#include "engine/train/trainer/token_steps.h"
#include "launcher/own_program.h"
#include "launcher/protocol.h"

namespace trainctl {
namespace {

constexpr int64_t kArenaAlignment = 64;

/// Returns the routes of messages between ranks.
std::vector<Route> routes_of(const RankClasses& classes) {
  std::vector<Route> routes;
  for (int rank = 0; rank < classes.num_ranks(); ++rank)
    for (const Instruction& i : classes.program_of(rank).instructions)
      if (i.opcode == Opcode::send) routes.push_back({rank, classes.peer(rank, i)});
  return routes;
}

/// Returns the routes between each worker and each server.
std::vector<Route> routes_of(const Plan& plan) {
  std::vector<Route> routes;
  const int workers = num_workers(plan);
  for (int worker = 0; worker < workers; ++worker) {
    for (int server = workers; server < workers + plan.servers; ++server) {
      routes.push_back({worker, server});
      routes.push_back({server, worker});
    }
  }
  return routes;
}

/// Compiles the programs that the ranks run.
RankClasses classes_of(const PlannedJob& job, const WorkloadOptions& options) {
  return options.evaluate && !options.generates() ? compile_validation_classes(job, false) : compile_classes(job);
}

/// Compiles the other programs that run in the same arenas.
std::optional<RankClasses> classes_beside(const PlannedJob& job, const WorkloadOptions& options) {
  if (options.generates()) return compile_prefill_classes(job);
  if (!job.validation || options.evaluate) return std::nullopt;
  if (validates_averages(job)) compile_exchange_classes(job);  // proves it; its groups are those of the training
  return compile_validation_classes(job);
}

/// Compiles the program by which replicas synchronize, which runs in the same arenas.
std::optional<RankClasses> synchronization_of(const PlannedJob& job, const WorkloadOptions& options) {
  if (!job.plan.has_replicas() || options.evaluate) return std::nullopt;
  return compile_synchronization_classes(job);
}

CheckpointUse checkpoint_use(const WorkloadOptions& options) {
  if (options.generates()) return CheckpointUse::generate;
  return options.evaluate ? CheckpointUse::evaluate : CheckpointUse::train;
}

}  // namespace

NetworkWorkload::NetworkWorkload(PlannedJob job, Device asked, const CudaDevices& found, const WorkloadOptions& options,
                                 boost::asio::io_context& loop)
    : job_(std::move(job)),
      options_(options),
      start_up_(options.start_up),
      classes_(classes_of(job_, options)),
      beside_(classes_beside(job_, options)),
      synchronization_(synchronization_of(job_, options)),
      texts_(options.evaluate ? std::nullopt : plan_texts(job_)),
      checkpoints_(job_, options.evaluate ? ResumeOptions{.from = options.evaluate->checkpoint} : options.resume,
                   checkpoint_use(options)),
      loop_(loop) {
  start_up_.ended("plan");
  if (!options.generates()) require_sound_samples(job_);
  if (beside_) make_room_for(*beside_, classes_);
  if (synchronization_) make_room_for(*synchronization_, classes_);
  if (texts_) make_room_for(*texts_, classes_);
  require_memory_limit(job_, classes_.programs);
  if (has_hosts()) on_hosts_.emplace(job_, classes_, checkpoints_, options_);
  if ((job_.spec.train.histograms > 0 || job_.spec.train.fingerprints > 0 || reports_expert_loads(job_)) &&
      !options.evaluate)
    memory_.routes = routes_of_histograms(classes_.num_ranks());
  if (options.generates()) memory_.routes = routes_of_generation(classes_.num_ranks());
  if (texts_) add_routes(routes_of_generation(classes_.num_ranks()));
  choose_devices(asked, found);
  reports_.emplace(job_, classes_, checkpoints_, options_, gpus_, on_hosts_ ? &*on_hosts_ : nullptr);
}

/// Finds the devices of the ranks, and with them the host memory and the routes that the ranks share.
void NetworkWorkload::choose_devices(Device asked, const CudaDevices& found) {
  if (job_.spec.launch.device == Device::cuda && has_hosts()) {
    device_ = "GPUs of their hosts";  // each rank finds its GPU there
    memory_.arena_bytes.assign(classes_.class_of.size(), 0);
    return;
  }
  if (job_.spec.launch.device == Device::cuda) {
    gpus_ = gpus_of_ranks(job_, classes_, found);
    const bool audits = job_.spec.train.audit_every > 0 && !options_.evaluate;
    for (size_t rank = 0; rank < gpus_.size(); ++rank) visible_gpus_.push_back(visible_gpus(found.list, rank, audits));
    device_ = describe_gpus(gpus_, found);
    if (job_.plan.servers == 0 || options_.evaluate) {
      memory_.arena_bytes.assign(classes_.class_of.size(), 0);
      require_host_memory();
      return;
    }
  } else {
    device_ = describe_cpus(job_.spec, asked, found);
  }
  for (int rank = 0; rank < classes_.num_ranks(); ++rank) {
    const Program& program = classes_.program_of(rank);
    const bool serves = serves_by_event(job_.plan) && program.server >= 0;
    memory_.arena_bytes.push_back(serves ? server_arena_bytes(job_, program) : program.arena_bytes);
  }
  if (!needs_store(job_.spec)) {
    if (!job_.plan.is_asynchronous()) add_routes(routes_of(classes_));
    if (serves_by_event(job_.plan)) add_routes(routes_of(job_.plan));
  }
  if (beside_) run_beside(*beside_);
  if (synchronization_) run_beside(*synchronization_);
  if (texts_) make_room_for_texts();
  require_host_memory();
}

/// Adds programs that use the arenas and routes of the programs of classes_.
void NetworkWorkload::run_beside(const RankClasses& others) {
  for (int rank = 0; rank < others.num_ranks(); ++rank) {
    int64_t& bytes = memory_.arena_bytes[static_cast<size_t>(rank)];
    bytes = std::max(bytes, others.program_of(rank).arena_bytes);
  }
  if (needs_store(job_.spec) || job_.plan.is_asynchronous()) return;
  add_routes(routes_of(others));
}

/// Reserves memory for the arena of text generation, which follows that of the training.
void NetworkWorkload::make_room_for_texts() {
  for (int rank = 0; rank < classes_.num_ranks(); ++rank) {
    int64_t& bytes = memory_.arena_bytes[static_cast<size_t>(rank)];
    bytes = round_up(bytes, kArenaAlignment) + round_up(texts_->arena_bytes(rank), kArenaAlignment);
  }
  if (needs_store(job_.spec)) return;
  add_routes(routes_of(texts_->decode));
  add_routes(routes_of(texts_->prefill));
}

void NetworkWorkload::add_routes(const std::vector<Route>& more) {
  memory_.routes.insert(memory_.routes.end(), more.begin(), more.end());
}

void NetworkWorkload::require_host_memory() const {
  if (has_hosts()) return;  // the memory of other hosts is not known here
  int64_t bytes = job_.data.bytes;
  if (job_.validation) bytes += job_.validation->data.bytes;
  if (texts_) bytes += SharedWeights::bytes(job_) / classes_.num_ranks();  // once for all ranks of the host
  std::vector<int64_t> arenas = memory_.arena_bytes;
  std::fill_n(arenas.begin(), gpus_.size(), 0);  // GPU ranks touch only what servers and workers exchange
  require_memory(arenas, bytes, job_.spec.position("dataset"));
}

nlohmann::ordered_json NetworkWorkload::plan() const {
  nlohmann::ordered_json report;
  if (options_.evaluate) {  // nothing is trained or saved
    report = plan_report(job_.spec, job_.graph, job_.plan, classes_);
    report["launch"] = launch_report(job_.spec, classes_);
  } else {
    const std::optional<JobEstimate> estimate = estimate_of(job_, classes_, false);
    report = job_json(job_, classes_, beside_ ? &*beside_ : nullptr, texts_ ? &*texts_ : nullptr,
                      estimate ? &*estimate : nullptr);
  }
  if (const ResumePoint* point = checkpoints_.resumed_from())
    report["launch"]["resumed"] = {{"checkpoint", point->path}, {"step", point->manifest.step}};
  return report;
}

void NetworkWorkload::prepare(int attempt, const RunDirectory& directory) {
  if (attempt > 0) start_up_ = {};
  run_ = directory.run();
  board_ = has_hosts() ? SharedMemory::create(std::vector<int64_t>(memory_.arena_bytes.size(), 0))
                       : SharedMemory::create(memory_.arena_bytes, memory_.routes);
  cache_ = classes_.num_ranks() > 1 ? SharedCache::create() : SharedCache();
  checkpoints_.prepare(attempt, directory, board_);
  reports_->begin(board_, directory);
  if (options_.generates()) directory.write(kGenerationRequestName, options_.evaluate->generate->request.to_json());
  if (texts_) directory.write(kGenerationRequestName, texts_->request.to_json());
  passed_weights_ = texts_ && classes_.num_ranks() > 1 ? SharedCache::create() : SharedCache();
  if (on_hosts_) on_hosts_->prepare(attempt, directory, board_, memory_);
  prepare_batches(job_, checkpoints_.first_step(), *board_);
  if (!needs_store(job_.spec) || has_hosts()) return;
  const std::string token = store::random_token();
  store_.reset();
  store_ = std::make_unique<StoreServer>(loop_, token);
  store_access_ = std::make_unique<StoreAccess>(store_->port(), token);
}

void NetworkWorkload::configure(Launch& launch) {
  launch.stops_after_step = true;
  launch.limits.timeout_seconds = job_.spec.launch.timeout_seconds;
  launch.limits.independent_ranks = job_.plan.own_workers;
  if (!has_hosts()) bind_to_gpus(gpus_, read_topology(), launch.bindings);
}

ProcessCommand NetworkWorkload::command(const RankPlace& place, int) {
  if (on_hosts_) return on_hosts_->command(place);
  ProcessCommand command;
  command.argv = {own_program(),
                  "worker",
                  job_.spec.launch.log_dir,
                  std::to_string(run_),
                  "--rank",
                  std::to_string(place.rank),
                  "--memory-fd",
                  std::to_string(board_->fd()),
                  "--start-up",
                  start_up_.to_text()};
  if (options_.generates()) {
    const int fd = options_.evaluate->generate->output_fd;
    command.argv.insert(command.argv.end(), {"--generate", std::to_string(fd)});
    if (place.rank == 0) command.inherited_fds.push_back(fd);
  } else if (options_.evaluate) {
    command.argv.emplace_back("--evaluate");
  }
  if (options_.evaluate && !options_.evaluate->layer.empty())
    command.argv.insert(command.argv.end(),
                        {"--predict", options_.evaluate->layer, "--output", options_.evaluate->output});
  if (options_.evaluate && options_.evaluate->has_loss) command.argv.emplace_back("--with-loss");
  if (options_.record) command.argv.emplace_back("--record");
  if (options_.profile) command.argv.insert(command.argv.end(), {"--profile", to_string(options_.profile->steps)});
  if (store_) store_access_->add_to(command);
  if (static_cast<size_t>(place.rank) < gpus_.size()) {
    const CudaDevice& gpu = gpus_[static_cast<size_t>(place.rank)];
    command.argv.insert(command.argv.end(), {"--gpu", std::to_string(gpu.index)});
    command.environment.emplace_back("CUDA_VISIBLE_DEVICES", visible_gpus_[static_cast<size_t>(place.rank)]);
    command.environment.push_back(cuda_queues(classes_.program_of(place.rank)));
  }
  command.environment.push_back(openmp_spin_limit());
  for (const auto& [name, value] : job_.spec.env) command.environment.emplace_back(name, value);
  command.inherited_fds.push_back(board_->fd());
  if (cache_.fd() >= 0) {
    command.argv.insert(command.argv.end(), {"--cache-fd", std::to_string(cache_.fd())});
    command.inherited_fds.push_back(cache_.fd());
  }
  if (passed_weights_.fd() >= 0) {
    command.argv.insert(command.argv.end(), {"--weights-fd", std::to_string(passed_weights_.fd())});
    command.inherited_fds.push_back(passed_weights_.fd());
  }
  checkpoints_.add_to(command, place.rank);
  return command;
}

void NetworkWorkload::started(int rank, int pid) {
  if (pid > 0) reports_->rank_started(rank, pid);
}

void NetworkWorkload::ended(int rank, bool failed) {
  reports_->rank_ended(rank);
  if (!failed) return;
  board_->status(rank).state = RankState::failed;  // peers stop waiting for it
  if (rank < job_.plan.own_workers) board_->batches().set_gone(rank);
}

void NetworkWorkload::rejoins(int rank) {
  RankStatus& status = board_->status(rank);
  status.pid = 0;
  status.state = RankState::starting;
  board_->batches().announce(rank);
}

std::string NetworkWorkload::doing(int rank) {
  return describe_position(board_->status(rank), classes_.program_of(rank));
}

std::optional<RankProgress> NetworkWorkload::progress(int rank) {
  return progress_of(board_->status(rank), classes_.program_of(rank));
}

bool NetworkWorkload::save_now() {
  if (!job_.spec.train.saves_state()) return false;
  board_->saves().ask();
  return true;
}

void NetworkWorkload::stop_after_step() { board_->gate().ask_to_stop(); }

}  // namespace trainctl
