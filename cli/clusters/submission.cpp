// See submission.h.
#include "cli/clusters/submission.h"

#include <sys/stat.h>

#include <filesystem>
#include <iostream>

#include "cli/clusters/rendered.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "launcher/cluster.h"
#include "launcher/clusters/fill.h"
#include "launcher/clusters/slurm.h"
#include "launcher/hosts/bundle.h"
#include "launcher/hosts/scripts.h"
#include "launcher/rank_error.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// Creates the next numbered folder.
std::string next_folder(const std::string& log_dir, bool make) {
  const std::string all = log_dir + "/slurm";
  std::error_code error;
  if (make) fs::create_directories(all, error);
  if (error) throw EnvError("cannot create the folder " + all + ": " + error.message());
  for (int number = 1;; ++number) {
    const std::string folder = all + "/" + std::to_string(number);
    if (make ? mkdir(folder.c_str(), 0777) == 0 : !fs::exists(folder)) return folder;
    if (!fs::is_directory(folder)) throw EnvError("cannot create the folder " + folder);
  }
}

std::string command_line(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  for (const std::string& word : words) quoted.push_back(clusters::shell_word(word));
  return join(quoted, " ");
}

std::string with_log_dir(const std::string& log_dir) {
  return log_dir == LaunchSpec{}.log_dir ? "" : " --log-dir " + clusters::shell_word(log_dir);
}

}  // namespace

bool is_submitted(const JobSpec& spec, const clusters::StartedBy& by) {
  const Target target = spec.launch.target;
  if (target == Target::hosts || by.manager == clusters::Manager::pods) return false;
  if (target == Target::slurm) return by.manager == clusters::Manager::none;
  throw SpecError(spec.position("launch.target"), "launch.target",
                  "trainctl run cannot start jobs for the target " + std::string(to_string(target)),
                  "use trainctl render " + spec.file + " to write its files; it prints the command to start them");
}

int submit(const JobArguments& arguments, const JobSpec& spec, bool dry_run) {
  const std::string folder = next_folder(spec.launch.log_dir, !dry_run);
  const std::vector<clusters::Manifest> files = render_job(arguments, spec, folder);
  const std::string script = fs::absolute(folder + "/job.sbatch").lexically_normal();
  if (dry_run) {
    for (const clusters::Manifest& file : files)
      if (script.ends_with("/" + file.name)) std::cout << file.text << "\n";
    std::cout << command_line(clusters::submit_words(script)) << "\n";
    return kExitDone;
  }
  write_manifests(files, folder);
  std::cout << command_line(clusters::submit_words(script)) << std::endl;
  clusters::SubmittedJob job;
  job.id = clusters::submit(script);
  job.name = spec.name;
  job.log_dir = fs::absolute(spec.launch.log_dir).lexically_normal();
  job.submitted = wall_seconds();
  std::cout << spec.name << ": Slurm job " << job.id << "\n  trainctl ps\n  trainctl logs"
            << with_log_dir(spec.launch.log_dir) << " --follow\n  trainctl stop --slurm " << job.id << "\n";
  clusters::remember(job);
  return kExitDone;
}

int show_commands(const JobSpec& spec, const hosts::Transport* transport) {
  const Cluster cluster = cluster_of(spec);
  if (!spec.launch.has_hosts()) {
    const std::string program = spec.has_command() ? command_line(spec.command) : "trainctl worker";
    for (const RankPlace& place : cluster.places)
      std::cout << "rank " << place.rank << ": RANK=" << place.rank << " " << program << "\n";
    return kExitDone;
  }
  const std::unique_ptr<hosts::Transport> own = transport == nullptr ? hosts::transport_of(spec.launch) : nullptr;
  const hosts::Transport& way = own ? *own : *transport;
  const std::string script = hosts::agent_script(hosts::bundle_of_this_program(), "0", true);
  for (const RankPlace& place : cluster.places)
    if (place.local_rank == 0) std::cout << command_line(way.words(place.host, script)) << "\n";
  return kExitDone;
}

}  // namespace trainctl
