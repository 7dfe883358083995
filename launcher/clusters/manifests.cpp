// The files that start a job under a cluster manager.
#include "launcher/clusters/manifests.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/spec/parse.h"
#include "launcher/clusters/fill.h"
#include "launcher/clusters/manifest_parts.h"
#include "launcher/clusters/pods.h"
#include "launcher/clusters/queue_scripts.h"
#include "launcher/spot_watch.h"

namespace trainctl::clusters {

std::string made_by(const JobSpec& job, const ManifestOptions& options) {
  return std::string(kWrittenBy).substr(2) + options.version + ": trainctl render " +
         std::filesystem::path(job.file).filename().string() +
         " launch.target=" + std::string(to_string(job.launch.target));
}

int ranks_per_host(const JobSpec& job, int hosts) { return (job.processes() + hosts - 1) / hosts; }

std::string in_lines(const std::vector<std::string>& lines) { return join(lines, "\n"); }

bool has_secrets(const JobSpec& job) { return readers_of(job) == FileReaders::owner; }

namespace {

constexpr size_t kMostNameBytes = 40;
/// Largest size of a ConfigMap or Secret: 1 MiB.
constexpr size_t kMostJobBytes = 1'000'000;
/// Slurm checks its limits periodically.
constexpr int kMarginSeconds = 30, kLeastStopSeconds = 60;
/// Memory of a rank in addition to its arena: the program, buffers of the data pipeline.
constexpr int64_t kRankBytes = int64_t{512} << 20;

int64_t mebibytes(int64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; }

// Slurm.

bool asks_for(const SlurmSpec& slurm, const std::string& option) {
  return std::any_of(slurm.extra.begin(), slurm.extra.end(),
                     [&](const std::string& line) { return line.starts_with(option); });
}

/// Returns whether Slurm should requeue the job: one that saves nothing would start from the beginning each time.
bool is_queued_again(const JobSpec& job) { return job.launch.slurm.requeue && job.train.saves_state(); }

std::string slurm_options(const JobSpec& job) {
  const SlurmSpec& slurm = job.launch.slurm;
  std::vector<std::string> lines;
  const auto add = [&](const std::string& option, const std::string& value) {
    if (!value.empty() && !asks_for(slurm, "--" + option)) lines.push_back("--" + option + "=" + value);
  };
  add("partition", slurm.partition);
  add("account", slurm.account);
  add("qos", slurm.qos);
  add("constraint", slurm.constraint);
  add("time", slurm.time);
  if (!asks_for(slurm, "--exclusive")) add("cpus-per-task", std::to_string(ranks_per_host(job, slurm.nodes)));
  if (slurm.gpus_per_node > 0) add("gpus-per-node", std::to_string(slurm.gpus_per_node));
  lines.emplace_back(is_queued_again(job) ? "--requeue" : "--no-requeue");
  // The remaining nodes continue, and the launcher replans for them.
  if (job.launch.elastic && !asks_for(slurm, "--no-kill")) lines.emplace_back("--no-kill");
  lines.insert(lines.end(), slurm.extra.begin(), slurm.extra.end());
  return in_lines(lines);
}

/// Throws for values that cannot be in #SBATCH lines, which are split at blanks.
void require_lines(const JobSpec& job) {
  const SlurmSpec& slurm = job.launch.slurm;
  for (size_t i = 0; i < slurm.extra.size(); ++i) {
    const std::string at = "launch.slurm.extra[" + std::to_string(i) + "]";
    if (!slurm.extra[i].starts_with("-") || slurm.extra[i].find('\n') != std::string::npos)
      throw SpecError(job.position(at), at, "'" + slurm.extra[i] + "' is not an sbatch option", "e.g. --mem=8G");
  }
  if (job.launch.log_dir.find_first_of(" \t\n'\"\\%#") != std::string::npos)
    throw SpecError(job.position("launch.log_dir"), "launch.log_dir",
                    "'" + job.launch.log_dir + "' cannot be used in a batch script",
                    "use a path without blanks, quotes, \\, % and #");
  for (const std::string* text : {&slurm.partition, &slurm.account, &slurm.qos, &slurm.constraint, &slurm.time})
    if (text->find_first_of(" \n'\"") != std::string::npos)
      throw SpecError(job.position("launch.slurm"), "launch.slurm",
                      "'" + *text + "' must not contain blanks or quotes");
}

std::vector<Manifest> slurm_manifests(const JobSpec& job, const ManifestOptions& options, const Template& text_of) {
  require_lines(job);
  const Values values{{"made_by", made_by(job, options)},
                      {"name", name_of_pods(job.name)},
                      {"hosts", std::to_string(job.launch.slurm.nodes)},
                      {"options", slurm_options(job)},
                      {"log_dir", job.launch.log_dir},
                      {"stop_seconds", std::to_string(stop_seconds(job, options.needs))},
                      {"trainctl", shell_word(options.trainctl)},
                      {"job_file", shell_word(options.folder + "/job.yaml")},
                      {"requeue_code", std::to_string(kExitRequeue)},
                      {"requeue", is_queued_again(job) ? "yes" : "no"}};
  return {{"job.yaml", options.job_text, has_secrets(job)}, {"job.sbatch", fill(text_of("slurm.sh"), values)}};
}

// Containers.

std::string pods_list(const JobSpec& job, const std::string& begin, const std::string& end) {
  const int pods = job.launch.kubernetes.pods;
  return begin + (pods == 1 ? "0" : "[0-" + std::to_string(pods - 1) + "]") + end;
}

nlohmann::ordered_json tolerations(const KubernetesSpec& spec) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const auto& toleration : spec.tolerations) all.push_back(nlohmann::ordered_json(toleration));
  return all;
}

nlohmann::ordered_json requests(const JobSpec& job, const HostNeeds& needs) {
  const KubernetesSpec& spec = job.launch.kubernetes;
  const int ranks = ranks_per_host(job, spec.pods);
  nlohmann::ordered_json all = {{"cpu", spec.cpu.empty() ? std::to_string(ranks) : spec.cpu}};
  if (!spec.memory.empty()) all["memory"] = spec.memory;
  if (!spec.memory.empty() || job.has_command()) return all;  // the memory of a program is unknown
  const int64_t bytes = needs.memory_bytes + needs.shm_bytes + ranks * kRankBytes;
  all["memory"] = std::to_string(mebibytes(bytes)) + "Mi";
  return all;
}

nlohmann::ordered_json limits(const JobSpec& job, const HostNeeds& needs) {
  const KubernetesSpec& spec = job.launch.kubernetes;
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  const nlohmann::ordered_json requested = requests(job, needs);
  if (requested.contains("memory")) all["memory"] = requested["memory"];
  if (spec.gpus_per_pod > 0) all["nvidia.com/gpu"] = std::to_string(spec.gpus_per_pod);
  return all;
}

void add_volumes(const KubernetesSpec& spec, Values& values) {
  std::vector<std::string> volumes, mounts;
  for (size_t i = 0; i < spec.volumes.size(); ++i) {
    const VolumeSpec& volume = spec.volumes[i];
    const std::string name = "volume-" + std::to_string(i);
    const nlohmann::ordered_json source =
        volume.claim.empty() ? nlohmann::ordered_json{{"hostPath", {{"path", volume.host_path}}}}
                             : nlohmann::ordered_json{{"persistentVolumeClaim", {{"claimName", volume.claim}}}};
    nlohmann::ordered_json entry = {{"name", name}};
    entry.update(source);
    volumes.push_back(entry.dump());
    mounts.push_back(nlohmann::ordered_json{{"name", name}, {"mountPath", volume.path}}.dump());
  }
  values["volumes"] = in_lines(volumes);
  values["mounts"] = in_lines(mounts);
}

/// The parts of a manifest that depend on launch.kubernetes.kind.
struct PodKind {
  const char* kind;
  const char* file;       ///< template, and name of the file
  const char* pods;       ///< between the name of the job and the number of a pod
  const char* uid_field;  ///< field of a pod with the same text for all pods that one object ever starts
  const char* container;
  bool has_own_queues;  ///< else a queue is one of Kueue
};

const PodKind& pod_kind(const std::string& name) {
  static constexpr const char* kJobSetUid = "metadata.labels['jobset.sigs.k8s.io/jobset-uid']";
  static constexpr PodKind kKinds[] = {
      {"job", "job.yaml", "-", "metadata.labels['controller-uid']", "trainctl", false},
      {"jobset", "jobset.yaml", "-ranks-0-", kJobSetUid, "trainctl", false},
      // Volcano names the group of pods by the job and its uid.
      {"volcano", "volcano.yaml", "-ranks-", "metadata.annotations['scheduling.k8s.io/group-name']", "trainctl", true},
      // The trainer of Kubeflow looks for a container of this name.
      {"trainjob", "trainjob.yaml", "-node-0-", kJobSetUid, "node", false}};
  for (const PodKind& kind : kKinds)
    if (name == kind.kind) return kind;
  check(false, "launch.kubernetes.kind is one of the kinds that are rendered");
  return kKinds[0];
}

nlohmann::ordered_json labels(const std::string& name, const KubernetesSpec& spec, const PodKind& kind) {
  nlohmann::ordered_json all = {{"trainctl", name}};
  if (!kind.has_own_queues && !spec.queue.empty()) all["kueue.x-k8s.io/queue-name"] = spec.queue;
  return all;
}

/// The manifests for kubectl: a config map or secret with the job, a service, and the pods.
std::vector<Manifest> kubernetes_manifests(const JobSpec& job, const ManifestOptions& options,
                                           const Template& text_of) {
  const KubernetesSpec& spec = job.launch.kubernetes;
  const std::string name = name_of_pods(job.name);
  const PodKind& kind = pod_kind(spec.kind);
  const bool is_secret = has_secrets(job);
  using Json = nlohmann::ordered_json;
  const Json items = Json::array({{{"key", "job.yaml"}, {"path", "job.yaml"}}});  // the token is not a file in the pod
  const Json from_secret = {{"secretName", name + "-token"}, {"items", items}}, from_config = {{"name", name + "-job"}};
  const Json job_volume = {{"name", "trainctl-job"},
                           {is_secret ? "secret" : "configMap", is_secret ? from_secret : from_config}};
  if (options.job_text.size() > kMostJobBytes)
    throw SpecError({}, "",
                    "the job is " + std::to_string(options.job_text.size()) +
                        " bytes long as YAML, but Kubernetes stores at most 1 MiB");
  Values values{{"made_by", made_by(job, options)},
                {"name", name},
                {"namespace", spec.name_space.empty() ? "" : yaml_text(spec.name_space)},
                {"port", std::to_string(kListenerPort)},
                {"hosts", std::to_string(spec.pods)},
                {"backoff_limit", std::to_string(spec.backoff_limit)},
                {"subdomain", name},
                {"service_account", spec.service_account.empty() ? "" : yaml_text(spec.service_account)},
                {"stop_seconds", std::to_string(stop_seconds(job, options.needs))},
                {"node_selector", spec.node_selector.empty() ? "" : nlohmann::ordered_json(spec.node_selector).dump()},
                {"tolerations", spec.tolerations.empty() ? "" : tolerations(spec).dump()},
                {"image", yaml_text(spec.image)},
                {"pods", yaml_text(pods_list(job, name + kind.pods, "." + name))},
                {"uid_field", kind.uid_field},
                {"container", kind.container},
                {"labels", labels(name, spec, kind).dump()},
                {"queue", spec.queue.empty() ? "" : yaml_text(spec.queue)},
                // Kueue starts what it admits.
                {"suspend", kind.has_own_queues || spec.queue.empty() ? "" : "true"},
                {"secret", name + "-token"},
                {"config_map", name + "-job"},
                {"secret_job_key", is_secret ? "job.yaml: |" : ""},
                {"secret_job", is_secret ? options.job_text : ""},
                {"job_volume", job_volume.dump()},
                {"requests", requests(job, options.needs).dump()},
                {"limits", limits(job, options.needs).dump()},
                {"shm", std::to_string(mebibytes(options.needs.shm_bytes)) + "Mi"},
                {"job_text", options.job_text},
                {"token", yaml_text(options.token)}};
  add_volumes(spec, values);
  values["pod"] = fill(text_of("pod.yaml"), values);
  std::vector<Manifest> files{{"secret.yaml", fill(text_of("secret.yaml"), values), true},
                              {kind.file, fill(text_of(kind.file), values)}};
  if (!is_secret) files.insert(files.begin(), {"config.yaml", fill(text_of("config.yaml"), values)});
  return files;
}

/// The file for docker compose: a service per pod.
std::vector<Manifest> compose_manifests(const JobSpec& job, const ManifestOptions& options, const Template& text_of) {
  const KubernetesSpec& spec = job.launch.kubernetes;
  const std::string name = name_of_pods(job.name);
  std::vector<std::string> mounts;
  for (const VolumeSpec& volume : spec.volumes)
    mounts.push_back(yaml_text((volume.claim.empty() ? volume.host_path : volume.claim) + ":" + volume.path));
  nlohmann::ordered_json deploy;
  if (spec.gpus_per_pod > 0)
    deploy["resources"]["reservations"]["devices"] =
        nlohmann::ordered_json::array({{{"driver", "nvidia"},
                                        {"count", spec.gpus_per_pod},
                                        {"capabilities", nlohmann::ordered_json::array({"gpu"})}}});
  Values values{{"made_by", made_by(job, options)},
                {"name", name},
                {"image", yaml_text(spec.image)},
                {"pods", yaml_text(pods_list(job, name + "-", ""))},
                {"shm_bytes", std::to_string(options.needs.shm_bytes)},
                {"stop_period", std::to_string(stop_seconds(job, options.needs)) + "s"},
                {"mounts", in_lines(mounts)},
                {"deploy", deploy.is_null() ? "" : deploy.dump()}};
  std::string services;
  for (int i = 0; i < spec.pods; ++i) {
    values["host"] = name + "-" + std::to_string(i);
    values["index"] = yaml_text(std::to_string(i));
    services += fill(text_of("service.yaml"), values);
  }
  nlohmann::ordered_json claims = nlohmann::ordered_json::object();
  for (const VolumeSpec& volume : spec.volumes)
    if (!volume.claim.empty()) claims[volume.claim] = nlohmann::ordered_json{{"external", true}};
  values["services"] = services;
  std::string text = fill(text_of("compose.yaml"), values);
  if (!claims.empty()) text += "volumes: " + claims.dump() + "\n";
  return {{"job.yaml", options.job_text, has_secrets(job)},
          {".env", "TRAINCTL_TOKEN=" + options.token + "\n", true},
          {"compose.yaml", text}};
}

}  // namespace

int stop_seconds(const JobSpec& job, const HostNeeds& needs) {
  const double seconds = std::ceil(job.launch.grace_seconds + 2 * needs.save_seconds) + kMarginSeconds;
  return std::max(kLeastStopSeconds, static_cast<int>(seconds));
}

std::string name_of_pods(const std::string& job) {
  std::string name;
  for (const char c : job) {
    const char lower = lower_case(c);
    const bool is_plain = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
    if (is_plain || (!name.empty() && name.back() != '-')) name += is_plain ? lower : '-';
  }
  if (name.empty() || name.front() < 'a' || name.front() > 'z') name = "job-" + name;
  for (const char* not_a_text : {"null", "true", "false", "yes", "no", "on", "off", "y", "n"})  // in YAML
    if (name == not_a_text) return "job-" + name;
  name = name.substr(0, kMostNameBytes);
  name.erase(name.find_last_not_of('-') + 1);
  return name;
}

std::vector<Manifest> manifests(const JobSpec& job, const ManifestOptions& options, const Template& text_of) {
  check(job.launch.target != Target::hosts, "files are rendered for a manager");
  if (job.launch.target == Target::slurm) return slurm_manifests(job, options, text_of);
  if (job.launch.target == Target::pbs) return pbs_manifests(job, options, text_of);
  if (job.launch.target == Target::lsf) return lsf_manifests(job, options, text_of);
  if (job.launch.target == Target::kubernetes) return kubernetes_manifests(job, options, text_of);
  return compose_manifests(job, options, text_of);
}

}  // namespace trainctl::clusters
