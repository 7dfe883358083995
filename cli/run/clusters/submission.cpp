// Submits a job to a cluster manager, and lists the commands that would start one.
#include "cli/run/clusters/submission.h"

#include <sys/stat.h>

#include <filesystem>

#include "cli/run/clusters/rendered.h"
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

std::string script_in(const std::string& folder) { return fs::absolute(folder + "/job.sbatch").lexically_normal(); }

}  // namespace

bool is_submitted(const JobSpec& spec, const clusters::StartedBy& by) {
  const Target target = spec.launch.target;
  if (target == Target::hosts || by.manager == clusters::Manager::pods) return false;
  if ((target == Target::pbs || target == Target::lsf) && by.manager == clusters::Manager::queue) return false;
  if (target == Target::slurm) return by.manager == clusters::Manager::none;
  throw SpecError(spec.position("launch.target"), "launch.target",
                  "trainctl run cannot start jobs for the target " + std::string(to_string(target)),
                  "use trainctl render " + spec.file + " to write its files; it prints the command to start them");
}

std::string submission_text(const JobFile& file, const JobSpec& spec) {
  const std::string folder = next_folder(spec.launch.log_dir, false), script = script_in(folder);
  std::string text;
  for (const clusters::Manifest& manifest : render_job(file, spec, folder))
    if (script.ends_with("/" + manifest.name)) text += manifest.text + "\n";
  return text + command_line(clusters::submit_words(script)) + "\n";
}

clusters::SubmittedJob submit(const JobFile& file, const JobSpec& spec,
                              const std::function<void(const std::string&)>& announce) {
  const std::string folder = next_folder(spec.launch.log_dir, true), script = script_in(folder);
  write_manifests(render_job(file, spec, folder), folder);
  announce(command_line(clusters::submit_words(script)));
  clusters::SubmittedJob job;
  job.id = clusters::submit(script);
  job.name = spec.name;
  job.log_dir = fs::absolute(spec.launch.log_dir).lexically_normal();
  job.submitted = wall_seconds();
  return job;
}

std::string start_commands(const JobSpec& spec, const hosts::Transport* transport) {
  const Cluster cluster = cluster_of(spec);
  std::string text;
  if (!spec.launch.has_hosts()) {
    const std::string program = spec.has_command() ? command_line(spec.command) : "trainctl worker";
    for (const RankPlace& place : cluster.places) {
      const std::string rank = std::to_string(place.rank);
      text += "rank " + rank + ": RANK=" + rank + " " + program + "\n";
    }
    return text;
  }
  const std::unique_ptr<hosts::Transport> own = transport == nullptr ? hosts::transport_of(spec.launch) : nullptr;
  const hosts::Transport& way = own ? *own : *transport;
  const std::string script = hosts::agent_script(hosts::bundle_of_this_program(), "0", true);
  for (const RankPlace& place : cluster.places)
    if (place.local_rank == 0) text += command_line(way.words(place.host, script)) + "\n";
  return text;
}

}  // namespace trainctl
