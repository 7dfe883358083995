// See the header.
#include "cli/run/launch/network_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "cli/run/launch/command_workload.h"
#include "cli/run/launch/losses.h"
#include "cli/run/worker/host_memory.h"
#include "cli/run/worker/host_share.h"
#include "cli/run/worker/rank_failure.h"
#include "cli/run/worker/rank_output.h"
#include "cli/run/worker/rendezvous.h"
#include "cli/text/launch_report.h"
#include "cli/text/start_up_report.h"
#include "cli/text/workers_report.h"
#include "engine/base/dynamic_library.h"
#include "engine/base/text.h"
#include "engine/compile/report/product_flops.h"
#include "engine/compile/report/report.h"
#include "engine/plan/served.h"
#include "engine/planning/compile_job.h"
#include "engine/planning/memory_limit.h"
#include "engine/planning/plan_job.h"
#include "engine/runtime/routes.h"
#include "engine/spec/error_positions.h"
#include "engine/spec/parse.h"
#include "engine/train/checkpoint/checkpoint_report.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/order.h"
#include "engine/train/data/read_and_plan.h"
#include "engine/train/data/sample_check.h"
#include "engine/train/files/digest.h"
#include "engine/train/servers/server.h"
#include "engine/train/trainer/prediction.h"
#include "engine/train/trainer/tensor_histograms.h"
#include "engine/train/trainer/trainer.h"
#include "launcher/hosts/placeholders.h"
#include "launcher/own_program.h"
#include "launcher/protocol.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// A start on CPUs that takes less time is not reported.
constexpr double kReportAfterSeconds = 1;

/// Routes of messages between ranks.
std::vector<Route> routes_of(const RankClasses& classes) {
  std::vector<Route> routes;
  for (int rank = 0; rank < classes.num_ranks(); ++rank)
    for (const Instruction& i : classes.program_of(rank).instructions)
      if (i.opcode == Opcode::send) routes.push_back({rank, classes.peer(rank, i)});
  return routes;
}

/// Routes between each worker and each server.
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

/// Warns if the schedule ends before the run, so that later steps have no effect: a resumed run often has more epochs.
std::string end_of_rate_warning(const PlannedJob& job) {
  const ScheduleSpec& rate = job.spec.optimizer.learning_rate;
  if (rate.type != "cosine" || rate.total_steps == 0 || rate.min != 0) return "";
  const int64_t steps = total_steps(job.spec.train, steps_per_epoch(job.spec.dataset, job.data.samples));
  if (steps <= rate.total_steps) return "";
  return fmt::format(
      "warning: the learning rate is 0 after step {} (optimizer.learning_rate.total_steps), but the run "
      "has {} steps; later steps have no effect. Set total_steps: {}, or set min",
      rate.total_steps, steps, steps);
}

/// A line that names the files of printed tensors, if there are any.
std::string printed_tensors_line(const JobSpec& spec, const RunDirectory& directory) {
  const std::string folder = directory.file("tensors");
  std::error_code error;
  if (spec.print.format != PrintFormat::npy || !std::filesystem::is_directory(folder, error)) return "";
  return "printed tensors in " + folder + "/step.N/NAME.npy";
}

}  // namespace

NetworkWorkload::NetworkWorkload(PlannedJob job, Device asked, const CudaDevices& found, const WorkloadOptions& options,
                                 boost::asio::io_context& loop)
    : job_(std::move(job)),
      options_(options),
      cluster_(cluster_of(job_.spec)),
      start_up_(options.start_up),
      classes_(options.evaluate ? compile_validation_classes(job_, false) : compile_classes(job_)),
      flops_(model_flops(job_.graph, job_.plan)),
      validation_(job_.validation && !options.evaluate ? std::optional(compile_validation_classes(job_))
                                                       : std::nullopt),
      checkpoints_(job_, options.evaluate ? ResumeOptions{.from = options.evaluate->checkpoint} : options.resume,
                   options.evaluate ? CheckpointUse::evaluate : CheckpointUse::train),
      loop_(loop),
      states_(classes_) {
  saves_after_ = save_after();
  if (!options.evaluate) warning_ = end_of_rate_warning(job_);
  start_up_.ended("plan");
  require_sound_samples(job_);
  require_precision(job_.spec);
  if (validation_) make_room_for(*validation_, classes_);
  require_memory_limit(job_, classes_.programs);
  if (!options.evaluate) require_room_for_final_weights();
  if (job_.spec.train.histograms > 0 && !options.evaluate) routes_ = routes_of_histograms(classes_.num_ranks());
  if (job_.spec.launch.device == Device::cuda && has_hosts()) {
    device_ = "GPUs of their hosts";  // each rank finds its GPU there
    arena_bytes_.assign(classes_.class_of.size(), 0);
    return;
  }
  if (job_.spec.launch.device == Device::cuda) {
    gpus_ = gpus_of_ranks(job_, classes_, found);
    device_ = describe_gpus(gpus_, found);
    if (job_.plan.servers == 0 || options.evaluate) {
      arena_bytes_.assign(classes_.class_of.size(), 0);
      require_host_memory();
      return;
    }
  } else {
    device_ = describe_cpus(job_.spec, asked, found);
  }
  for (int rank = 0; rank < classes_.num_ranks(); ++rank) {
    const Program& program = classes_.program_of(rank);
    const bool serves = serves_by_event(job_.plan) && program.server >= 0;
    arena_bytes_.push_back(serves ? server_arena_bytes(job_, program) : program.arena_bytes);
  }
  if (!needs_store(job_.spec)) {
    if (!job_.plan.is_asynchronous()) add_routes(routes_of(classes_));
    if (serves_by_event(job_.plan)) add_routes(routes_of(job_.plan));
  }
  if (validation_) run_beside(*validation_);
  require_host_memory();
}

/// The validation programs use the arenas and the routes of the training.
void NetworkWorkload::run_beside(const RankClasses& others) {
  for (int rank = 0; rank < others.num_ranks(); ++rank) {
    int64_t& bytes = arena_bytes_[static_cast<size_t>(rank)];
    bytes = std::max(bytes, others.program_of(rank).arena_bytes);
  }
  if (needs_store(job_.spec) || job_.plan.is_asynchronous()) return;
  add_routes(routes_of(others));
}

void NetworkWorkload::add_routes(const std::vector<Route>& more) {
  routes_.insert(routes_.end(), more.begin(), more.end());
}

/// The launcher gathers the state that ranks of other hosts save before it is written.
void NetworkWorkload::require_room_for_final_weights() const {
  if (!has_hosts() || !checkpoints_.are_saved() || job_.spec.train.saves_state()) return;
  const int64_t bytes = final_weights_report(job_, classes_.programs)["bytes"], available = available_memory();
  if (bytes <= available) return;
  throw EnvError("the final weights (" + format_bytes(bytes) +
                 ") are gathered on this host before they are written, but " + "it has only " +
                 format_bytes(available) +
                 " of memory available; start the run from a host with more memory, or set train.checkpoint: none");
}

void NetworkWorkload::require_host_memory() const {
  if (has_hosts()) return;  // the memory of other hosts is not known here
  int64_t bytes = job_.data.bytes;
  if (job_.validation) bytes += job_.validation->data.bytes;
  std::vector<int64_t> arenas = arena_bytes_;
  std::fill_n(arenas.begin(), gpus_.size(), 0);  // GPU ranks touch only what servers and workers exchange
  require_memory(arenas, bytes, job_.spec.position("dataset"));
}

nlohmann::ordered_json NetworkWorkload::plan() const {
  nlohmann::ordered_json report = plan_report(job_.spec, job_.graph, job_.plan, classes_);
  if (!job_.tables.empty()) report["tables"] = tables_json(job_.tables, job_.spec.optimizer);
  report["launch"] = launch_report(job_.spec, classes_);
  if (const ResumePoint* point = checkpoints_.resumed_from())
    report["launch"]["resumed"] = {{"checkpoint", point->path}, {"step", point->manifest.step}};
  return report;
}

void NetworkWorkload::prepare(int attempt, const RunDirectory& directory) {
  if (attempt > 0) start_up_ = {};
  for (int rank = 0; has_hosts() && rank < classes_.num_ranks(); ++rank) {
    std::error_code ignored;
    fs::remove(directory.rank_file(rank, kTrafficFile), ignored);  // left by an earlier attempt
  }
  start_up_reported_ = false;
  memory_ = has_hosts() ? SharedMemory::create(std::vector<int64_t>(arena_bytes_.size(), 0))
                        : SharedMemory::create(arena_bytes_, routes_);
  states_ = RankStates(classes_);
  cache_ = classes_.num_ranks() > 1 ? SharedCache::create() : SharedCache();
  checkpoints_.prepare(attempt, directory, memory_);
  saves_.reset();
  if (has_hosts() && checkpoints_.are_saved())
    saves_.emplace(memory_, checkpoints_.images(), checkpoints_.first_step(), saves_after_);
  rescued_.reset();
  if (keeps_snapshots()) rescued_.emplace(job_);
  prepare_batches(job_, checkpoints_.first_step(), *memory_);
  if (!needs_store(job_.spec) || has_hosts()) return;
  const std::string token = store::random_token();
  store_.reset();
  store_ = std::make_unique<StoreServer>(loop_, token);
  store_access_ = std::make_unique<StoreAccess>(store_->port(), token);
}

/// The loss of a host costs at most the steps since the last save that was due, even if only saves contain its part of
/// the state; the loss of the only host ends the run. With sink_steps a save is complete only steps later, and with
/// async: false steps wait for the disk anyway.
SaveAfter NetworkWorkload::save_after() const {
  const TrainSpec& train = job_.spec.train;
  const bool is_needed = keeps_snapshots() && cluster_.num_hosts() > 1 && train.saving().async && train.sink_steps == 1;
  return is_needed && !is_each_loss_covered(job_) ? SaveAfter::whole : SaveAfter::written;
}

std::string NetworkWorkload::for_agents() const {
  auto routes = nlohmann::ordered_json::array();
  for (const auto& [from, to] : std::set(routes_.begin(), routes_.end())) routes.push_back({from, to});
  nlohmann::json json = {{"arena_bytes", arena_bytes_}, {"routes", routes}};
  const ResumePoint* point = checkpoints_.resumed_from();
  if (checkpoints_.are_saved()) json["saves_from"] = point == nullptr ? -1 : checkpoints_.first_step();
  json["holds"] = keeps_snapshots();
  json["steps_await_saves"] = saves_after_ == SaveAfter::whole;
  if (point == nullptr) return json.dump();
  std::ostringstream manifest;
  manifest << std::ifstream(fs::path(point->path) / kManifestName, std::ios::binary).rdbuf();
  json["resume"] = {{"folder", fs::absolute(point->path).string()}, {"digest", digest_of(manifest.str())}};
  return json.dump();
}

/// The checkpoint that the ranks resume from, without files that only other programs read.
std::map<std::string, std::string> NetworkWorkload::given() const {
  const ResumePoint* point = checkpoints_.resumed_from();
  if (point == nullptr) return {};
  std::map<std::string, std::string> files;
  const std::string manifest(kManifestName);
  files[manifest] = point->path + "/" + manifest;
  for (const std::string& file : files_with_pieces(point->manifest)) files[file] = point->path + "/" + file;
  return files;
}

/// The words in braces are filled in on the host.
ProcessCommand NetworkWorkload::agents_command(const RankPlace& place, const RunDirectory& directory) const {
  std::vector<int> ranks(static_cast<size_t>(cluster_.num_hosts()));
  for (const RankPlace& other : cluster_.places) ++ranks[static_cast<size_t>(other.host_number)];
  std::vector<std::string> texts;
  for (const int count : ranks) texts.push_back(std::to_string(count));
  ProcessCommand command;
  command.argv = {"{trainctl}",  "worker",
                  "{logs}",      std::to_string(directory.run()),
                  "--rank",      std::to_string(place.rank),
                  "--memory-fd", kMemoryPlaceholder,
                  "--hosts",     join(texts, ","),
                  "--address",   "{address}"};
  if (checkpoints_.are_saved()) command.argv.insert(command.argv.end(), {"--image-fd", kImagePlaceholder});
  if (keeps_snapshots()) command.argv.insert(command.argv.end(), {"--held-fd", kSnapshotPlaceholder});
  checkpoints_.add_attempt_to(command);
  if (checkpoints_.resumed_from() != nullptr)
    command.argv.insert(command.argv.end(), {"--resume-from", kCheckpointPlaceholder});
  if (options_.evaluate) command.argv.emplace_back("--evaluate");
  if (options_.record) command.argv.emplace_back("--record");
  if (job_.spec.launch.device == Device::cuda) {
    command.argv.insert(command.argv.end(), {"--take-gpu", std::to_string(place.local_rank)});
    command.environment.push_back(cuda_queues(classes_.program_of(place.rank)));
    if (!job_.spec.launch.interface.empty())
      command.environment.emplace_back("NCCL_SOCKET_IFNAME", "=" + hosts::literal(job_.spec.launch.interface));
    if (const char* folders = std::getenv(kCudaLibraryPath); folders != nullptr)
      command.environment.emplace_back(kCudaLibraryPath, hosts::literal(folders));
  }
  for (const auto& [name, value] : job_.spec.env) command.environment.emplace_back(name, hosts::literal(value));
  return command;
}

ProcessCommand NetworkWorkload::command(const RankPlace& place, const RunDirectory& directory) {
  if (has_hosts()) return agents_command(place, directory);
  ProcessCommand command;
  command.argv = {own_program(),
                  "worker",
                  job_.spec.launch.log_dir,
                  std::to_string(directory.run()),
                  "--rank",
                  std::to_string(place.rank),
                  "--memory-fd",
                  std::to_string(memory_->fd()),
                  "--start-up",
                  start_up_.to_text()};
  if (options_.evaluate) command.argv.emplace_back("--evaluate");
  if (options_.evaluate && !options_.evaluate->layer.empty())
    command.argv.insert(command.argv.end(),
                        {"--predict", options_.evaluate->layer, "--output", options_.evaluate->output});
  if (options_.record) command.argv.emplace_back("--record");
  if (options_.profile) command.argv.insert(command.argv.end(), {"--profile", to_string(options_.profile->steps)});
  if (store_) store_access_->add_to(command);
  if (static_cast<size_t>(place.rank) < gpus_.size()) {
    const CudaDevice& gpu = gpus_[static_cast<size_t>(place.rank)];
    command.argv.insert(command.argv.end(), {"--gpu", std::to_string(gpu.index)});
    command.environment.emplace_back("CUDA_VISIBLE_DEVICES", gpu.uuid);  // CUDA does not initialize the others
    command.environment.push_back(cuda_queues(classes_.program_of(place.rank)));
  }
  for (const auto& [name, value] : job_.spec.env) command.environment.emplace_back(name, value);
  command.inherited_fds.push_back(memory_->fd());
  if (cache_.fd() >= 0) {
    command.argv.insert(command.argv.end(), {"--cache-fd", std::to_string(cache_.fd())});
    command.inherited_fds.push_back(cache_.fd());
  }
  checkpoints_.add_to(command, place.rank);
  return command;
}

void NetworkWorkload::connect(Launch& launch) {
  launch.on_rank_started = [this](int rank, int pid) {
    if (pid > 0) stopped_.started(rank, pid);
  };
  launch.on_rank_ended = [this](int rank, bool failed) {
    stopped_.ended(rank);
    if (!failed) return;
    memory_->status(rank).state = RankState::failed;  // peers stop waiting for it
    if (rank < job_.plan.own_workers) memory_->batches().set_gone(rank);
  };
  launch.on_rejoin = [this](int rank) {
    RankStatus& status = memory_->status(rank);
    status.pid = 0;
    status.state = RankState::starting;
    memory_->batches().announce(rank);
  };
  launch.doing = [this](int rank) { return describe_position(memory_->status(rank), classes_.program_of(rank)); };
  launch.ask_to_stop = [this] { memory_->gate().ask_to_stop(); };
  if (job_.spec.train.saves_state()) launch.on_user_signal = [this] { memory_->saves().ask(); };
  launch.stopped_at = [this] { return stopped_at(); };
  launch.progress = [this](int rank) { return progress_of(memory_->status(rank), classes_.program_of(rank)); };
  launch.limits.timeout_seconds = job_.spec.launch.timeout_seconds;
  launch.limits.on_their_own = job_.plan.own_workers;
  if (!has_hosts()) bind_to_gpus(gpus_, read_topology(), launch.bindings);
}

std::optional<int64_t> NetworkWorkload::stopped_at() const {
  const auto last = job_.plan.is_asynchronous() ? finished_steps() : static_cast<int64_t>(memory_->gate().highest());
  const int64_t total = total_steps();
  if (!memory_->gate().asked_to_stop() || (total > 0 && last >= total)) return std::nullopt;
  return last;
}

/// Number of steps that the whole run has finished.
int64_t NetworkWorkload::finished_steps() const {
  if (!job_.plan.is_asynchronous()) return static_cast<int64_t>(memory_->status(0).finished_steps.load());
  return memory_->batches().first() + memory_->batches().finished();
}

/// An asynchronous worker whose validation has ended the run reports fewer steps; it need not be rank 0.
int64_t NetworkWorkload::total_steps() const {
  auto least = static_cast<int64_t>(memory_->status(0).total_steps.load());
  for (int rank = 1; rank < job_.plan.own_workers; ++rank)
    if (const auto steps = static_cast<int64_t>(memory_->status(rank).total_steps.load()); steps > 0)
      least = std::min(least, steps);
  return least;
}

double NetworkWorkload::samples_per_second() const {
  double sum = 0;
  for (int rank = 0; rank < std::max(1, job_.plan.own_workers); ++rank)
    sum += static_cast<double>(memory_->status(rank).samples_per_second.load());
  return sum;
}

bool NetworkWorkload::is_up() const {
  for (int rank = 0; rank < classes_.num_ranks(); ++rank)
    if (memory_->status(rank).state.load() < RankState::training) return false;
  return true;
}

Metrics NetworkWorkload::metrics() const {
  const RankStatus& first = memory_->status(0);
  Metrics all;
  for (size_t i = 0; i < job_.graph.metrics.size(); ++i)
    all.emplace_back(job_.graph.metrics[i].name, static_cast<double>(first.metrics[i].load()));
  return all;
}

void NetworkWorkload::describe(LiveStatus& status) {
  const RankStatus& first = memory_->status(0);
  status.epoch = first.epoch.load();
  status.epochs = first.total_epochs.load();
  status.step = first.step.load();
  status.steps = static_cast<int64_t>(first.total_steps.load());
  if (job_.spec.loss && status.epoch > 0) {  // set by its first report
    status.loss = first.loss.load();
    status.metrics = metrics();
  }
  status.samples_per_second = samples_per_second();
  status.tokens_per_second = status.samples_per_second * static_cast<double>(job_.spec.dataset.length);
  status.share_of_peak = share_of_peak(status.samples_per_second);
  const int64_t steps_left = status.steps - finished_steps();
  if (status.samples_per_second > 0)
    status.seconds_left =
        static_cast<double>(steps_left) * static_cast<double>(job_.spec.dataset.batch) / status.samples_per_second;
  const double now = steady_seconds();
  std::vector<std::string> texts = states_.describe(*memory_, now);
  status.slowest = states_.slowest();
  for (const CudaDevice& gpu : gpus_) status.gpus.push_back(gpu.index);
  stopped_.describe(texts, now);
  status.ranks = group_ranks(texts, {job_.spec.launch.ranks});
}

/// Only on GPUs: the peak rate of CPU cores that ranks share is not known.
double NetworkWorkload::share_of_peak(double samples_per_second) const {
  if (gpus_.empty() || job_.plan.is_asynchronous()) return 0;
  const DType type = job_.spec.precision == Precision::bf16 ? DType::bf16 : DType::f32;
  const double rate = job_.cost.machine().product_rate(type, job_.spec.precision == Precision::tf32).value;
  const double steps = samples_per_second / static_cast<double>(job_.spec.dataset.batch);
  return rate > 0 ? flops_ * steps / (rate * classes_.num_ranks()) : 0;
}

std::vector<std::string> NetworkWorkload::news(const RunDirectory& directory) {
  std::vector<std::string> lines = checkpoints_.news();
  if (!warning_.empty()) lines.push_back(std::exchange(warning_, ""));
  watch_gpu();
  if (start_up_reported_) return lines;
  for (int rank = 0; rank < job_.spec.processes(); ++rank) {
    if (memory_->status(rank).epoch.load() == 0) return lines;  // its first step is not finished
  }
  start_up_reported_ = true;
  lines.push_back(start_up_line(read_start_ups(directory, job_.spec.processes()),
                                gpus_.empty() ? kReportAfterSeconds : 0, directory.names()));
  return lines;
}

/// Watches the GPU from the first profiled step on.
void NetworkWorkload::watch_gpu() {
  if (!options_.profile || gpus_.empty()) return;
  if (static_cast<int64_t>(memory_->status(0).finished_steps.load()) + 1 < options_.profile->steps.first) return;
  if (!gpu_watch_) gpu_watch_.emplace(gpus_[0].index);
  gpu_watch_->look();
}

std::string NetworkWorkload::write_rescued(const RunDirectory& directory) {
  if (!rescued_ || !rescued_->has_begun()) return "";
  if (!rescued_->is_complete()) {
    const std::string why = rescued_->why().empty() ? "it was not received in time" : rescued_->why();
    return "the whole state could not be recovered from the memory of the hosts: " + why;
  }
  const int64_t step = rescued_->step();
  if (step <= std::max(memory_->saves().written_step(), checkpoints_.first_step())) return "";
  const auto images = rescued_->images(classes_.num_ranks());
  int64_t bytes = 0;
  for (const auto& image : images) bytes += static_cast<int64_t>(image.size());
  checkpoints_.write(step, rescued_->position(), {images.begin(), images.end()}, directory);
  return "recovered the state after step " + std::to_string(step) + " from the memory of the hosts, " +
         format_bytes(bytes);
}

/// The bytes that the current attempt has moved within and between hosts, and those that its plan predicts.
nlohmann::ordered_json NetworkWorkload::record(const RunDirectory& directory) const {
  nlohmann::ordered_json record = nlohmann::ordered_json::object();
  if (!has_hosts() || options_.evaluate) return record;
  const nlohmann::ordered_json planned = launch_report(job_.spec, classes_).value("traffic", nlohmann::ordered_json());
  int64_t steps = -1, within = 0, between = 0;
  for (int rank = 0; planned.is_object() && rank < classes_.num_ranks(); ++rank) {
    const std::optional<RankTraffic> traffic = read_traffic(directory, rank);
    if (!traffic) return record;
    steps = traffic->steps;
    within += traffic->within;
    between += traffic->between;
  }
  if (steps > 0)
    record["traffic"] = {{"steps", steps},
                         {"within", within},
                         {"between", between},
                         {"planned_within", steps * planned["within"].get<int64_t>()},
                         {"planned_between", steps * planned["between"].get<int64_t>()}};
  return record;
}

/// Why the state that the ranks ended with is not on the disk; "" if it is, or the job does not save it.
std::string NetworkWorkload::unsaved() const {
  if (!checkpoints_.are_saved()) return "";
  const SaveBoard& board = memory_->saves();
  // Asynchronous ranks may end at other steps than the servers have applied: the servers' final state, or the one that
  // they began to save, must be saved.
  const int64_t of_servers = std::max<int64_t>({board.last_step(), board.awaits_room(), 1});
  const int64_t step = job_.plan.is_asynchronous() ? of_servers : finished_steps();
  const int64_t first = checkpoints_.first_step(), newest = std::max(board.written_step(), first);
  if (finished_steps() <= first || newest >= step) return "";
  const bool is_state = job_.spec.train.saves_state();
  std::string text =
      (is_state ? "the state after step " : "the final weights after step ") + with_commas(finished_steps()) +
      (is_state ? " was not saved: " : " were not saved: ") +
      (checkpoints_.trouble().empty() ? "the ranks were stopped before they could save them" : checkpoints_.trouble());
  if (is_state)
    text += newest > 0 ? "\n  the newest checkpoint of this run is from step " + with_commas(newest) +
                             "; --resume continues from the newest in its folder"
                       : "\n  no checkpoint of this run was written";
  return text;
}

RunResult NetworkWorkload::result() const {
  const RankStatus& first = memory_->status(0);
  RunResult result;
  result.step = finished_steps();
  result.steps = total_steps();
  if (options_.evaluate) return result;
  if (checkpoints_.are_saved()) result.saved_step = std::max<int64_t>(0, memory_->saves().written_step());
  result.unsaved = unsaved();
  if (job_.spec.loss && result.step > 0) {
    result.loss = first.loss.load();
    result.metrics = metrics();
  }
  return result;
}

std::string NetworkWorkload::report(const RunDirectory& directory) {
  std::string text = printed_tensors_line(job_.spec, directory);
  if (job_.plan.is_asynchronous() && !options_.evaluate)
    text += (text.empty() ? "" : "\n") + workers_report(memory_->batches(), job_.spec.dataset.batch);
  if (serves_tables_alone(job_.plan) && !options_.evaluate)
    text += (text.empty() ? "" : "\n") + staleness_report(memory_->batches());
  if (!options_.profile) return text;
  std::vector<Program> programs;
  for (int rank = 0; rank < classes_.num_ranks(); ++rank) programs.push_back(classes_.of_rank(rank));
  const std::string profile = collect_profile(*options_.profile, programs, job_.spec.name, directory,
                                              job_.cost.machine(), gpu_watch_ ? gpu_watch_->middle() : std::nullopt);
  return text.empty() ? profile : text + "\n" + profile;
}

nlohmann::ordered_json Workload::record(const RunDirectory&) const { return nlohmann::ordered_json::object(); }

void require_possible(const JobSpec& spec, const WorkloadOptions& options) {
  if (options.evaluate && (spec.has_command() || !spec.validation))
    throw SpecError(
        spec.position("validation"), "validation", "the job has no validation data set",
        "set validation: {dataset: {path: ...}} in the job, or validation.dataset.split=test on the command line");
  if (spec.launch.has_hosts() && options.evaluate && !options.evaluate->layer.empty())
    throw SpecError(spec.position("launch.hosts"), "launch.hosts", "trainctl predict does not support several hosts",
                    "set launch.hosts=[] on the command line");
  if (spec.launch.has_hosts() && options.profile)
    throw SpecError({}, "--profile", "profiling does not support several hosts", "remove --profile or launch.hosts");
  for (size_t i = 0; spec.launch.has_hosts() && i < spec.launch.copy.size(); ++i) {
    std::error_code error;
    if (!fs::exists(spec.launch.copy[i], error))
      throw SpecError(spec.position("launch.copy[" + std::to_string(i) + "]"), "launch.copy",
                      spec.launch.copy[i] + " does not exist", "relative paths start at the folder of the job file");
  }
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

namespace {

/// GPUs of other hosts are not known before their agents run, so they are used only if the job requests them.
void choose_device(JobSpec& spec, CudaDevices& found) {
  if (spec.launch.has_hosts() && spec.launch.device == Device::automatic) spec.launch.device = Device::cpu;
  const bool looks = spec.launch.device != Device::cpu && !spec.launch.has_hosts();
  found = looks ? find_cuda_devices() : CudaDevices{};
  spec.launch.device = resolve_device(spec, found);
}

}  // namespace

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
  const PlannedJob* ahead = options.plans ? options.plans->find(spec) : nullptr;
  PlannedJob job = ahead != nullptr ? *ahead : plan_job(std::move(spec));
  try {
    check_files(job.spec.dataset);
  } catch (const SpecError& error) {
    throw with_positions(error, job.spec);
  }
  try {
    if (job.validation) check_files(job.validation->set);
  } catch (const SpecError& error) {
    throw with_validation_positions(error, job.spec);
  }
  if (options.evaluate && !options.evaluate->layer.empty()) predict_layer(job, options.evaluate->layer);
  return std::make_unique<NetworkWorkload>(std::move(job), asked, found, later, loop);
}

}  // namespace trainctl
