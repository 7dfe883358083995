// Sets the environment of torch/distributed/elastic/agent/server/local_elastic_agent.py.
#include "cli/run/launch/command_workload.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include "cli/run/launch/script_check.h"
#include "cli/text/launch_report.h"
#include "engine/base/error.h"
#include "launcher/hosts/copies.h"
#include "launcher/hosts/placeholders.h"
#include "launcher/protocol.h"
#include "launcher/rank_error.h"
#include "launcher/torch_error.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

bool can_run(const fs::path& program) {
  std::error_code error;
  return fs::is_regular_file(program, error) && access(program.c_str(), X_OK) == 0;
}

/// Searches like exec: in PATH, unless the name has a slash; then it is relative to working_dir.
bool is_there(const std::string& program, const JobSpec& spec) {
  if (program.find('/') != std::string::npos) return can_run(fs::path(spec.working_dir) / program);
  const auto own = spec.env.find("PATH");
  const char* inherited = std::getenv("PATH");
  std::istringstream folders(own != spec.env.end() ? own->second : inherited != nullptr ? inherited : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (can_run(fs::path(spec.working_dir) / (folder.empty() ? "." : folder) / program)) return true;
  return false;
}

std::string text(int number) { return std::to_string(number); }

bool is_launcher_of_ranks(const std::string& program) {
  static constexpr std::string_view kLaunchers[] = {"torchrun", "accelerate", "deepspeed", "mpirun",
                                                    "mpiexec",  "horovodrun", "srun"};
  return std::find(std::begin(kLaunchers), std::end(kLaunchers), program) != std::end(kLaunchers);
}

}  // namespace

void require_program(const JobSpec& spec) {
  std::error_code error;
  if (const std::string starter = fs::path(spec.command.front()).filename();
      spec.launch.ranks > std::max(1, cluster_of(spec).num_hosts()) && is_launcher_of_ranks(starter))
    throw SpecError(spec.position("command[0]"), "command[0]",
                    starter + " starts several processes itself, and trainctl would start it once per rank",
                    "name the program alone, such as [python3, train.py], and set launch.ranks");
  if (!fs::is_directory(spec.working_dir, error))
    throw SpecError(spec.position("working_dir"), "working_dir", "the folder " + spec.working_dir + " does not exist",
                    "paths are relative to the job file");
  const std::string& program = spec.command.front();
  if (is_there(program, spec)) return require_script(spec);
  const bool has_path = program.find('/') != std::string::npos;
  const fs::path path = fs::path(spec.working_dir) / program;
  if (has_path && fs::exists(path, error))
    throw SpecError(spec.position("command[0]"), "command[0]", path.lexically_normal().string() + " cannot be executed",
                    "make it executable with chmod +x, or name its interpreter: [python3, " + program + "]");
  if (has_path)
    throw SpecError(spec.position("command[0]"), "command[0]",
                    "the program " + path.lexically_normal().string() + " does not exist",
                    "paths are relative to working_dir, which is " + spec.working_dir);
  const bool beside = fs::exists(path, error);
  throw SpecError(spec.position("command[0]"), "command[0]", "the program '" + program + "' is not in PATH",
                  beside ? "write ./" + program + " to start the one in working_dir"
                         : "install it, write its whole path, or set env: {PATH: …}");
}

CommandWorkload::CommandWorkload(JobSpec spec)
    : spec_(std::move(spec)),
      cluster_(cluster_of(spec_)),
      id_(store::random_token().substr(0, 16)),
      states_(static_cast<size_t>(spec_.launch.ranks)) {
  require_program(spec_);
}

nlohmann::ordered_json CommandWorkload::plan() const { return command_report(spec_); }

void CommandWorkload::prepare(int attempt, const RunDirectory& directory) {
  attempt_ = attempt;
  directory_.emplace(directory);
  // A restart uses another port, bound while the last one is still held: leftover processes of the last attempt must
  // not reach the new ranks.
  if (!spec_.launch.has_hosts()) port_ = std::make_unique<ReservedPort>();
  std::fill(states_.begin(), states_.end(), "starting");
}

ProcessCommand CommandWorkload::command(const RankPlace& place, int) {
  const std::string rank = text(place.rank), ranks = text(spec_.launch.ranks);
  ProcessCommand command;
  const bool has_hosts = spec_.launch.has_hosts();
  // The words in braces are filled in on the host; a user's own braces are literal everywhere.
  const std::string folder =
      has_hosts ? "{logs}/" + text(directory_->run()) : fs::absolute(directory_->path()).string();
  const std::string error_file =
      folder + "/" + directory_->names().folder(place.rank) + "/" + std::string(kTorchErrorFile);
  const auto of_user = [&](const std::string& word) { return has_hosts ? hosts::literal(word) : word; };
  for (const std::string& word : spec_.command) command.argv.push_back(of_user(word));
  const auto copied = hosts::copied_folder(spec_.launch.copy, spec_.working_dir);
  command.working_dir = has_hosts && copied ? "{folder}/" + of_user(*copied) : of_user(spec_.working_dir);
  if (const std::optional<size_t> script = script_word(spec_.command); has_hosts && script)
    command.script = of_user(spec_.command[*script]);
  command.environment = {
      {"RANK", rank},
      {"LOCAL_RANK", text(place.local_rank)},
      {"WORLD_SIZE", ranks},
      {"LOCAL_WORLD_SIZE", text(place.local_ranks)},
      {"GROUP_RANK", text(place.host_number)},
      {"GROUP_WORLD_SIZE", text(cluster_.num_hosts())},
      {"ROLE_RANK", rank},
      {"ROLE_WORLD_SIZE", ranks},
      {"ROLE_NAME", "default"},
      {"MASTER_ADDR", has_hosts ? "{first_address}" : "127.0.0.1"},
      {"MASTER_PORT", has_hosts ? "{first_port}" : text(port_->port())},
      {"TORCHELASTIC_RUN_ID", id_},
      {"TORCHELASTIC_RESTART_COUNT", text(attempt_)},
      {"TORCHELASTIC_MAX_RESTARTS", text(spec_.launch.max_restarts)},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},  // rank 0 opens the store
      {"TORCHELASTIC_ERROR_FILE", error_file},
      {"TRAINCTL_RUN_DIR", folder},
      {"TRAINCTL_SEED", std::to_string(spec_.seed)},
  };
  if (std::getenv("PYTHONUNBUFFERED") == nullptr) command.environment.emplace_back("PYTHONUNBUFFERED", "1");
  if (std::getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING") == nullptr)
    command.environment.emplace_back("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  for (const auto& [name, value] : spec_.env) command.environment.emplace_back(name, of_user(value));
  states_[static_cast<size_t>(place.rank)] = "running";
  return command;
}

void CommandWorkload::configure(Launch& launch) { launch.limits.ranks_explain = false; }

void CommandWorkload::started(int rank, int pid) {
  if (pid > 0) stopped_.started(rank, pid);
}

void CommandWorkload::ended(int rank, bool failed) {
  stopped_.ended(rank);
  states_[static_cast<size_t>(rank)] = failed ? "failed" : "done";
}

bool CommandWorkload::is_up() const {
  return std::none_of(states_.begin(), states_.end(), [](const std::string& state) { return state == "starting"; });
}

void CommandWorkload::describe(LiveStatus& status) {
  std::vector<std::string> texts = states_;
  stopped_.describe(texts, steady_seconds());
  status.ranks = group_ranks(texts);
}

}  // namespace trainctl
