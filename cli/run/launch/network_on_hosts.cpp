// launch.hosts: the launcher's side of a network whose ranks run on other hosts.
#include "cli/run/launch/network_on_hosts.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "cli/run/launch/device_choice.h"
#include "cli/run/launch/lost_hosts.h"
#include "cli/run/launch/metrics_file.h"
#include "cli/run/worker/host_memory.h"
#include "cli/run/worker/host_share.h"
#include "cli/run/worker/metrics_log.h"
#include "cli/run/worker/rank_output.h"
#include "cli/text/launch_report.h"
#include "engine/base/dynamic_library.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/checkpoint/checkpoint_report.h"
#include "engine/train/files/digest.h"
#include "launcher/hosts/placeholders.h"

namespace trainctl {

namespace fs = std::filesystem;

NetworkOnHosts::NetworkOnHosts(const PlannedJob& job, const RankClasses& classes, Checkpoints& checkpoints,
                               const WorkloadOptions& options)
    : job_(job),
      classes_(classes),
      checkpoints_(checkpoints),
      options_(options),
      cluster_(cluster_of(job.spec)),
      save_after_(save_after()) {
  if (!options.evaluate) require_room_for_final_weights();
}

/// The launcher gathers the state that ranks of other hosts save before it is written.
void NetworkOnHosts::require_room_for_final_weights() const {
  if (!checkpoints_.are_saved() || job_.spec.train.saves_state()) return;
  const int64_t bytes = final_weights_report(job_, classes_.programs)["bytes"], available = available_memory();
  if (bytes <= available) return;
  throw EnvError("the final weights (" + format_bytes(bytes) +
                 ") are gathered on this host before they are written, but it has only " + format_bytes(available) +
                 " of memory available; start the run from a host with more memory, or set train.checkpoint: none");
}

/// The loss of a host costs at most the steps since the last save that was due, even if only saves contain its part of
/// the state; the loss of the only host ends the run. With sink_steps a save is complete only steps later, and with
/// async: false steps wait for the disk anyway.
SaveAfter NetworkOnHosts::save_after() const {
  const TrainSpec& train = job_.spec.train;
  const bool is_needed = keeps_snapshots() && cluster_.num_hosts() > 1 && train.saving().async && train.sink_steps == 1;
  return is_needed && !is_each_lost_host_covered(job_) ? SaveAfter::gathered : SaveAfter::on_disk;
}

void NetworkOnHosts::prepare(int attempt, const RunDirectory& directory, const std::shared_ptr<SharedMemory>& board,
                             const HostMemory& memory) {
  attempt_ = attempt;
  directory_.emplace(directory);
  memory_ = memory;
  for (int rank = 0; rank < classes_.num_ranks(); ++rank) {
    std::error_code ignored;
    for (const char* file : {kTrafficFile, kTokenBytesFile})  // left by an earlier attempt
      fs::remove(directory.rank_file(rank, file), ignored);
  }
  saves_.reset();
  rescued_.reset();
  changes_.clear();
  board_ = board;
  for (int host = 0; host < cluster_.num_hosts(); ++host) {
    std::vector<int> others;
    for (const RankPlace& place : cluster_.places)
      if (place.host_number != host) others.push_back(place.rank);
    changes_.emplace_back(*board_, std::move(others));
  }
  if (checkpoints_.are_saved()) saves_.emplace(board_, checkpoints_.images(), checkpoints_.first_step(), save_after_);
  if (keeps_snapshots()) rescued_.emplace(job_);
}

nlohmann::json NetworkOnHosts::for_agents() const {
  auto routes = nlohmann::json::array();
  for (const auto& [from, to] : std::set(memory_.routes.begin(), memory_.routes.end())) routes.push_back({from, to});
  nlohmann::json json = {{"arena_bytes", memory_.arena_bytes}, {"routes", routes}};
  const ResumePoint* point = checkpoints_.resumed_from();
  if (checkpoints_.are_saved()) json["saves_from"] = point == nullptr ? -1 : checkpoints_.first_step();
  json["holds"] = keeps_snapshots();
  json["steps_await_saves"] = save_after_ == SaveAfter::gathered;
  if (point == nullptr) return json;
  std::ostringstream manifest;
  manifest << std::ifstream(fs::path(point->path) / kManifestName, std::ios::binary).rdbuf();
  json["resume"] = {{"folder", fs::absolute(point->path).string()}, {"digest", digest_of(manifest.str())}};
  return json;
}

/// The checkpoint that the ranks resume from, without files that only other programs read.
std::map<std::string, std::string> NetworkOnHosts::given() const {
  const ResumePoint* point = checkpoints_.resumed_from();
  if (point == nullptr) return {};
  std::map<std::string, std::string> files;
  const std::string manifest(kManifestName);
  files[manifest] = point->path + "/" + manifest;
  for (const std::string& file : files_with_pieces(point->manifest)) files[file] = point->path + "/" + file;
  return files;
}

std::map<std::string, int64_t> NetworkOnHosts::kept_bytes() const {
  if (attempt_ == 0) return {};
  return {{kMetricsFile, keep_metrics(*directory_, checkpoints_.first_step())}};
}

/// "2,2": the number of ranks of each host.
std::string NetworkOnHosts::host_sizes() const {
  std::vector<int> ranks(static_cast<size_t>(cluster_.num_hosts()));
  for (const RankPlace& place : cluster_.places) ++ranks[static_cast<size_t>(place.host_number)];
  std::vector<std::string> texts;
  for (const int count : ranks) texts.push_back(std::to_string(count));
  return join(texts, ",");
}

ProcessCommand NetworkOnHosts::command(const RankPlace& place) const {
  ProcessCommand command;
  command.argv = {"{trainctl}",  "worker",
                  "{logs}",      std::to_string(directory_->run()),
                  "--rank",      std::to_string(place.rank),
                  "--memory-fd", kMemoryPlaceholder,
                  "--hosts",     host_sizes(),
                  "--address",   "{address}"};
  if (checkpoints_.are_saved()) command.argv.insert(command.argv.end(), {"--image-fd", kImagePlaceholder});
  if (keeps_snapshots()) command.argv.insert(command.argv.end(), {"--snapshot-fd", kSnapshotPlaceholder});
  checkpoints_.add_attempt_to(command);
  if (checkpoints_.resumed_from() != nullptr)
    command.argv.insert(command.argv.end(), {"--resume-from", kCheckpointPlaceholder});
  if (options_.evaluate) command.argv.emplace_back("--evaluate");
  if (options_.record) command.argv.emplace_back("--record");
  if (job_.spec.launch.device == Device::cuda) {
    command.argv.insert(command.argv.end(), {"--take-gpu", std::to_string(place.local_rank)});
    if (job_.spec.train.audit_every > 0 && !options_.evaluate) command.argv.emplace_back("--audits");
    command.environment.push_back(cuda_queues(classes_.program_of(place.rank)));
    if (!job_.spec.launch.interface.empty())
      command.environment.emplace_back("NCCL_SOCKET_IFNAME", "=" + hosts::literal(job_.spec.launch.interface));
    if (const char* folders = std::getenv(kCudaLibraryPath); folders != nullptr)
      command.environment.emplace_back(kCudaLibraryPath, hosts::literal(folders));
  }
  command.environment.push_back(openmp_spin_limit());
  for (const auto& [name, value] : job_.spec.env) command.environment.emplace_back(name, hosts::literal(value));
  return command;
}

bool NetworkOnHosts::apply(std::string_view changes, const std::vector<int>& ranks) {
  return apply_changes(changes, ranks, *board_);
}

void NetworkOnHosts::stop_after(uint64_t step) { board_->gate().stop_after(step); }

bool NetworkOnHosts::take(const hosts::SaveMessage& message, const std::vector<int>& ranks) {
  if (rescued_ && RescuedState::knows(message)) return rescued_->take(message, ranks);
  return saves_ && saves_->take(message, ranks);
}

std::vector<hosts::SaveMessage> NetworkOnHosts::messages() {
  std::vector<hosts::SaveMessage> messages = saves_ ? saves_->messages() : std::vector<hosts::SaveMessage>();
  if (!rescued_) return messages;
  for (hosts::SaveMessage& message : rescued_->messages()) messages.push_back(std::move(message));
  return messages;
}

void NetworkOnHosts::gates_held(uint64_t highest) {
  if (saves_) saves_->gates_held(highest);
}

std::optional<int64_t> NetworkOnHosts::rescue(const std::vector<std::vector<int>>& hosts) {
  if (!may_rescue_ || !rescued_) return std::nullopt;
  if (!rescued_->has_begun()) rescued_->begin(hosts);
  return rescued_->waits();
}

std::string NetworkOnHosts::write_rescued() {
  if (!rescued_ || !rescued_->has_begun()) return "";
  if (!rescued_->is_complete()) {
    const std::string why = rescued_->why().empty() ? "it was not received in time" : rescued_->why();
    return "the whole state could not be recovered from the memory of the hosts: " + why;
  }
  const int64_t step = rescued_->step();
  if (step <= std::max(board_->saves().written_step(), checkpoints_.first_step())) return "";
  const auto images = rescued_->images(classes_.num_ranks());
  int64_t bytes = 0;
  for (const auto& image : images) bytes += static_cast<int64_t>(image.size());
  checkpoints_.write(step, rescued_->position(), {images.begin(), images.end()}, *directory_);
  return "recovered the state after step " + std::to_string(step) + " from the memory of the hosts, " +
         format_bytes(bytes);
}

nlohmann::ordered_json NetworkOnHosts::traffic() const {
  nlohmann::ordered_json record = nlohmann::ordered_json::object();
  if (options_.evaluate) return record;
  const nlohmann::ordered_json planned = launch_report(job_.spec, classes_).value("traffic", nlohmann::ordered_json());
  int64_t steps = -1, within = 0, between = 0;
  for (int rank = 0; planned.is_object() && rank < classes_.num_ranks(); ++rank) {
    const std::optional<RankTraffic> traffic = read_traffic(*directory_, rank);
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

}  // namespace trainctl
