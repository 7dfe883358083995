// trainctl render: writes the files that start a job under a queue, Kubernetes or docker compose. Starts nothing.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/job_arguments.h"
#include "cli/errors.h"
#include "cli/run/clusters/rendered.h"
#include "engine/base/error.h"
#include "engine/spec/hosts.h"
#include "launcher/clusters/fill.h"

namespace trainctl {
namespace {

struct RenderArguments {
  JobArguments job;
  std::string folder;
};

/// The command that starts the job from the rendered files.
std::string next_command(const JobSpec& spec, const std::string& folder) {
  if (spec.launch.target == Target::slurm) return "sbatch " + clusters::shell_word(folder + "/job.sbatch");
  if (spec.launch.target == Target::pbs) return "qsub " + clusters::shell_word(folder + "/job.pbs");
  if (spec.launch.target == Target::lsf) return "bsub < " + clusters::shell_word(folder + "/job.lsf");
  if (spec.launch.target == Target::kubernetes) return "kubectl apply -f " + clusters::shell_word(folder);
  return "docker compose -f " + clusters::shell_word(folder + "/compose.yaml") + " up";
}

/// A container has no folder of this host, unless a volume brings it.
void warn_of_working_dir(const JobSpec& spec) {
  const bool has_image = spec.launch.target == Target::kubernetes || spec.launch.target == Target::compose;
  if (!has_image || !spec.has_command()) return;
  for (const VolumeSpec& volume : spec.launch.kubernetes.volumes)
    if (spec.working_dir == volume.path || spec.working_dir.starts_with(volume.path + "/")) return;
  const std::string& folder = spec.working_dir;
  const std::string image = spec.launch.kubernetes.image;
  print_warnings(
      {{spec.position(spec.positions.contains("working_dir") ? "working_dir" : "command"), "working_dir",
        "the program starts in " + folder + ", a folder of this host that the image " + image + " may not contain",
        "set working_dir to a folder of the image, or mount this one: launch.kubernetes.volumes=\"" + folder + ":" +
            folder + "\""}});
}

int render(const RenderArguments& options) {
  const JobSpec spec = options.job.load();
  print_warnings(spec);
  warn_of_working_dir(spec);
  if (spec.launch.target == Target::hosts)
    throw SpecError(spec.position("launch.target"), "launch.target", "jobs with launch.target: hosts need no files",
                    "set launch.target=slurm, pbs, lsf, kubernetes or compose on the command line");
  const std::string name = clusters::name_of_pods(spec.name) + "." + std::string(to_string(spec.launch.target));
  const std::string folder = options.folder.empty() ? name : options.folder;
  const auto files = render_job(options.job, spec, folder);
  write_manifests(files, folder);
  if (is_batch(spec.launch.target))  // queues do not create the folder of the output
    std::filesystem::create_directories(spec.launch.log_dir);
  for (const clusters::Manifest& file : files) std::cout << folder << "/" << file.name << "\n";
  std::cout << "next: " << next_command(spec, folder) << "\n";
  return kExitDone;
}

}  // namespace

void add_render_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<RenderArguments>();
  auto* command =
      app.add_subcommand("render", "Write the files that start a job under Slurm, PBS, LSF, Kubernetes or compose");
  options->job.add_to(*command);
  command->add_option("-o,--output", options->folder, "Folder to write to; default: NAME.TARGET");
  command->footer(
      R"(Plans the job and writes the files that a cluster manager needs to start it, as selected by launch.target. Existing
files are replaced, except symbolic links, which are an error.

Examples:
  trainctl render job.yaml launch.target=slurm -o batch         then: sbatch batch/job.sbatch
  trainctl render job.yaml launch.target=pbs -o batch           then: qsub batch/job.pbs
  trainctl render job.yaml launch.target=lsf -o batch           then: bsub < batch/job.lsf
  trainctl render job.yaml launch.target=kubernetes -o pods     then: kubectl apply -f pods
  trainctl render job.yaml launch.target=compose -o compose     then: docker compose -f compose/compose.yaml up)");
  command->callback([&chosen, options] { chosen = [options] { return render(*options); }; });
}

}  // namespace trainctl
