// The batch scripts of PBS (qsub) and LSF (bsub).
#include "launcher/clusters/queue_scripts.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "engine/base/error.h"
#include "launcher/clusters/fill.h"
#include "launcher/clusters/manifest_parts.h"
#include "launcher/spot_watch.h"

namespace trainctl::clusters {
namespace {

constexpr int kSecondsPerMinute = 60;

bool is_requeued(const JobSpec& job, const QueueSpec& queue) { return queue.requeue && job.train.saves_state(); }

bool asks_for(const QueueSpec& queue, const std::string& option) {
  return std::any_of(queue.extra.begin(), queue.extra.end(),
                     [&](const std::string& line) { return line.starts_with(option); });
}

/// Throws for values that cannot be in a line of options.
void require_lines(const JobSpec& job, const QueueSpec& queue, const std::string& section) {
  for (size_t i = 0; i < queue.extra.size(); ++i) {
    const std::string at = section + ".extra[" + std::to_string(i) + "]";
    if (!queue.extra[i].starts_with("-") || queue.extra[i].find('\n') != std::string::npos)
      throw SpecError(job.position(at), at, "'" + queue.extra[i] + "' is not an option", "e.g. -m e");
  }
  if (job.launch.log_dir.find_first_of(" \t\n'\"\\%#") != std::string::npos)
    throw SpecError(job.position("launch.log_dir"), "launch.log_dir",
                    "'" + job.launch.log_dir + "' cannot be used in a batch script",
                    "use a path without blanks, quotes, \\, % and #");
  for (const std::string* text : {&queue.queue, &queue.account, &queue.time})
    if (text->find_first_of(" \n'\"") != std::string::npos)
      throw SpecError(job.position(section), section, "'" + *text + "' must not contain blanks or quotes");
}

Values script_values(const JobSpec& job, const ManifestOptions& options, const QueueSpec& queue) {
  return {{"made_by", made_by(job, options)},
          {"name", name_of_pods(job.name)},
          {"log_dir", job.launch.log_dir},
          {"trainctl", shell_word(options.trainctl)},
          {"job_file", shell_word(options.folder + "/job.yaml")},
          {"requeue_code", std::to_string(kExitRequeue)},
          {"requeue", is_requeued(job, queue) ? "yes" : "no"}};
}

std::string pbs_options(const JobSpec& job) {
  const QueueSpec& queue = job.launch.pbs;
  std::vector<std::string> lines;
  std::string chunk =
      std::to_string(queue.nodes) + ":ncpus=" + std::to_string(ranks_per_host(job, queue.nodes)) + ":mpiprocs=1";
  if (queue.gpus_per_node > 0) chunk += ":ngpus=" + std::to_string(queue.gpus_per_node);
  if (!asks_for(queue, "-l select")) lines.push_back("-l select=" + chunk);
  if (!asks_for(queue, "-l place")) lines.emplace_back("-l place=scatter");
  if (!queue.time.empty()) lines.push_back("-l walltime=" + queue.time);
  if (!queue.queue.empty()) lines.push_back("-q " + queue.queue);
  if (!queue.account.empty()) lines.push_back("-A " + queue.account);
  lines.emplace_back(is_requeued(job, queue) ? "-r y" : "-r n");
  lines.insert(lines.end(), queue.extra.begin(), queue.extra.end());
  return in_lines(lines);
}

/// The #BSUB lines, without those that the user's own options contain. `stop_minutes`: how long before its time limit
/// the job is asked to stop.
std::string lsf_options(const JobSpec& job, int stop_minutes) {
  const QueueSpec& queue = job.launch.lsf;
  const int per_host = ranks_per_host(job, queue.nodes);
  std::vector<std::string> lines;
  if (!asks_for(queue, "-n")) lines.push_back("-n " + std::to_string(per_host * queue.nodes));
  if (!asks_for(queue, "-R")) lines.push_back("-R \"span[ptile=" + std::to_string(per_host) + "]\"");
  if (queue.gpus_per_node > 0 && !asks_for(queue, "-gpu"))
    lines.push_back("-gpu \"num=" + std::to_string(queue.gpus_per_node) + "\"");
  if (!queue.time.empty()) {
    lines.push_back("-W " + queue.time);
    lines.push_back("-wa USR2 -wt " + std::to_string(stop_minutes));
  }
  if (!queue.queue.empty()) lines.push_back("-q " + queue.queue);
  if (!queue.account.empty()) lines.push_back("-P " + queue.account);
  if (is_requeued(job, queue)) {
    lines.emplace_back("-r");  // also after the loss of a host
    lines.push_back("-Q \"" + std::to_string(kExitRequeue) + "\"");
  } else {
    lines.emplace_back("-rn");
  }
  lines.insert(lines.end(), queue.extra.begin(), queue.extra.end());
  return in_lines(lines);
}

}  // namespace

int64_t pbs_seconds(const std::string& time) {
  int64_t seconds = 0;
  std::string_view left = time;
  for (int parts = 0; !left.empty() && parts < 3; ++parts) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(left.data(), left.data() + left.size(), number);
    if (error != std::errc{} || number < 0) return 0;
    seconds = seconds * kSecondsPerMinute + number;
    left.remove_prefix(static_cast<size_t>(end - left.data()));
    if (left.empty()) return seconds;
    if (left.front() != ':') return 0;
    left.remove_prefix(1);
  }
  return 0;
}

std::vector<Manifest> pbs_manifests(const JobSpec& job, const ManifestOptions& options, const Template& text_of) {
  const QueueSpec& queue = job.launch.pbs;
  require_lines(job, queue, "launch.pbs");
  const int64_t limit = pbs_seconds(queue.time), before = stop_seconds(job, options.needs);
  if (!queue.time.empty() && limit == 0)
    throw SpecError(job.position("launch.pbs.time"), "launch.pbs.time", "'" + queue.time + "' is not a time limit",
                    "write seconds, or H:MM:SS such as 1:00:00");
  if (limit > 0 && limit <= before)
    throw SpecError(
        job.position("launch.pbs.time"), "launch.pbs.time",
        queue.time + " leaves no time to train: stopping and saving takes up to " + std::to_string(before) + " s",
        "set a longer time limit");
  Values values = script_values(job, options, queue);
  values["options"] = pbs_options(job);
  values["warned_after"] = limit > 0 ? std::to_string(limit - before) : "0";
  values["script"] = shell_word(options.folder + "/job.pbs");
  return {{"job.yaml", options.job_text, has_secrets(job)}, {"job.pbs", fill(text_of("pbs.sh"), values)}};
}

std::vector<Manifest> lsf_manifests(const JobSpec& job, const ManifestOptions& options, const Template& text_of) {
  const QueueSpec& queue = job.launch.lsf;
  require_lines(job, queue, "launch.lsf");
  const int before = stop_seconds(job, options.needs);
  Values values = script_values(job, options, queue);
  values["options"] = lsf_options(job, (before + kSecondsPerMinute - 1) / kSecondsPerMinute);
  return {{"job.yaml", options.job_text, has_secrets(job)}, {"job.lsf", fill(text_of("lsf.sh"), values)}};
}

}  // namespace trainctl::clusters
