// Makes the files of `trainctl render`, and those that `trainctl run launch.target=slurm` submits.
#include "cli/run/clusters/rendered.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cli/run/launch/job_report.h"
#include "cli/text/job_templates.h"
#include "engine/base/error.h"
#include "engine/base/output_file.h"
#include "engine/base/text.h"
#include "engine/spec/hosts.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "launcher/clusters/manifests.h"
#include "launcher/own_program.h"
#include "launcher/protocol.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

constexpr double kSlowNetwork = 100e6;  // bytes per second of a 1 Gb/s link
/// NCCL's buffers, and the queues of a program's data loaders.
constexpr int64_t kShmBytes = int64_t{1} << 30;

std::string_view template_called(std::string_view name) {
  for (const JobTemplate& item : cluster_templates())
    if (item.name == name) return item.text;
  check(false, "the template of a manifest is embedded: " + std::string(name));
  return {};
}

/// Memory of the host that needs the most; ranks are numbered host by host.
clusters::HostNeeds needs_of(const JobSpec& spec) {
  clusters::HostNeeds needs{.shm_bytes = kShmBytes};
  if (spec.has_command()) return needs;
  const JobReport report = report_of(plan_job(spec), false);
  const RankClasses& classes = report.classes;
  const int hosts = managed_hosts(spec.launch), per_host = (classes.num_ranks() + hosts - 1) / hosts;
  for (int first = 0; first < classes.num_ranks(); first += per_host) {
    int64_t bytes = 0;
    for (int rank = first; rank < std::min(first + per_host, classes.num_ranks()); ++rank)
      bytes += classes.program_of(rank).arena_bytes;
    needs.memory_bytes = std::max(needs.memory_bytes, bytes);
  }
  if (report.json.contains("checkpoint")) {
    const auto saved = report.json["checkpoint"].value("bytes", int64_t{0});
    needs.save_seconds = report.json["checkpoint"].value("seconds", 0.0);
    if (hosts > 1)
      needs.save_seconds += static_cast<double>(saved) / kSlowNetwork;  // sent to the launcher, which writes it
    needs.memory_bytes += hosts > 1 ? saved + saved / hosts : saved;  // the first host has copies of all ranks' states
  }
  if (report.json.contains("final_weights"))
    needs.memory_bytes += report.json["final_weights"].value("bytes", int64_t{0});  // in one set of buffers
  return needs;
}

/// Fails now rather than after the job has waited in a queue, if it cannot run on this number of hosts.
void require_hosts(const JobFile& file, int hosts) {
  if (hosts < 2) return;
  std::vector<std::string> names;
  for (int host = 0; host < hosts; ++host) names.push_back("host-" + std::to_string(host));
  file.with({"launch.target=hosts", "launch.hosts=[" + join(names) + "]"}).load();
}

/// Deletes files of earlier renderings that this one does not write: `kubectl apply -f` takes all files of a folder.
void delete_earlier(const std::vector<clusters::Manifest>& files, const std::string& folder) {
  for (const char* name : {"config.yaml", "job.yaml", "jobset.yaml", "volcano.yaml", "trainjob.yaml"}) {
    const auto is_it = [&](const clusters::Manifest& file) { return file.name == name; };
    if (std::any_of(files.begin(), files.end(), is_it)) continue;
    std::string line;
    std::getline(std::ifstream(folder + "/" + name), line);
    std::error_code ignored;
    if (line.starts_with(clusters::kWrittenBy)) fs::remove(folder + "/" + name, ignored);
  }
}

}  // namespace

std::vector<clusters::Manifest> render_job(const JobFile& file, const JobSpec& spec, const std::string& folder) {
  require_hosts(file, managed_hosts(spec.launch));
  JobSpec job = spec;
  if (is_batch(job.launch.target)) {
    job.launch.log_dir = fs::absolute(job.launch.log_dir).lexically_normal();
    if (auto& saves = job.train.checkpoint; saves && !saves->dir.empty())
      saves->dir = fs::absolute(saves->dir).lexically_normal();
  }
  clusters::ManifestOptions options;
  options.needs = needs_of(spec);
  options.trainctl = own_program();
  options.folder = fs::absolute(folder).lexically_normal();
  options.job_text = to_yaml(job);
  options.token = store::random_token();
  options.version = TRAINCTL_VERSION;
  return clusters::manifests(job, options, template_called);
}

void write_manifests(const std::vector<clusters::Manifest>& files, const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw EnvError("cannot create the folder " + folder + ": " + error.message());
  delete_earlier(files, folder);
  for (const clusters::Manifest& file : files)
    write_output(folder + "/" + file.name, file.text, file.is_secret ? FileReaders::owner : FileReaders::all);
}

}  // namespace trainctl
