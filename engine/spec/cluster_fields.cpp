// The fields of launch.slurm, launch.pbs, launch.lsf and launch.kubernetes. Volumes, selectors and tolerations use the
// command-line syntax of container tools, separated by commas:
//
//   volumes: data:/data, /mnt/sets:/sets            a claim, or a folder of the host
//   node_selector: gpu=h100, zone=b
//   tolerations: nvidia.com/gpu:NoSchedule, team=ml:NoExecute, spot
#include "engine/spec/cluster_fields.h"

#include "engine/base/text.h"
#include "engine/spec/field_makers.h"

namespace trainctl {
namespace {

using K = KubernetesSpec;

std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    std::string item = text.substr(at, end - at);
    item.erase(0, std::min(item.find_first_not_of(' '), item.size()));
    item.erase(item.find_last_not_of(' ') + 1);
    if (!item.empty()) items.push_back(std::move(item));
    at = end + 1;
  }
  return items;
}

/// Returns the text before and after the last `separator`; the second is empty if there is none.
std::pair<std::string, std::string> cut(const std::string& text, char separator) {
  const size_t at = text.rfind(separator);
  if (at == std::string::npos) return {text, ""};
  return {text.substr(0, at), text.substr(at + 1)};
}

void set_volumes(void* object, const Value& value) {
  auto& volumes = static_cast<K*>(object)->volumes;
  volumes.clear();
  for (const std::string& item : items_of(std::get<std::string>(value))) {
    const auto [source, path] = cut(item, ':');
    VolumeSpec volume{.path = path};
    (source.starts_with("/") ? volume.host_path : volume.claim) = source;
    volumes.push_back(std::move(volume));
  }
}

Value volumes(const void* object) {
  std::vector<std::string> items;
  for (const VolumeSpec& volume : static_cast<const K*>(object)->volumes)
    items.push_back(volume.claim + volume.host_path + ":" + volume.path);
  return join(items);
}

void set_selector(void* object, const Value& value) {
  auto& selector = static_cast<K*>(object)->node_selector;
  selector.clear();
  for (const std::string& item : items_of(std::get<std::string>(value))) {
    const auto [key, label] = cut(item, '=');
    selector[key] = label;
  }
}

Value selector(const void* object) {
  std::vector<std::string> items;
  for (const auto& [key, label] : static_cast<const K*>(object)->node_selector) items.push_back(key + "=" + label);
  return join(items);
}

void set_tolerations(void* object, const Value& value) {
  auto& tolerations = static_cast<K*>(object)->tolerations;
  tolerations.clear();
  for (const std::string& item : items_of(std::get<std::string>(value))) {
    const auto [taint, effect] = cut(item, ':');
    const auto [key, label] = cut(taint, '=');
    std::map<std::string, std::string> toleration{{"key", key}, {"operator", label.empty() ? "Exists" : "Equal"}};
    if (!label.empty()) toleration["value"] = label;
    if (!effect.empty()) toleration["effect"] = effect;
    tolerations.push_back(std::move(toleration));
  }
}

Value tolerations(const void* object) {
  std::vector<std::string> items;
  for (const auto& one : static_cast<const K*>(object)->tolerations) {
    std::string item = one.at("key");
    if (one.contains("value")) item += "=" + one.at("value");
    if (one.contains("effect")) item += ":" + one.at("effect");
    items.push_back(std::move(item));
  }
  return join(items);
}

Field items(std::string name, void (*set)(void*, const Value&), Value (*get)(const void*), std::string doc) {
  Field f = make_field(std::move(name), FieldKind::text, std::move(doc));
  f.set = set;
  f.get = get;
  return f;
}

}  // namespace

const Section& slurm_section() {
  using S = SlurmSpec;
  static const Section section{
      "launch.slurm",
      "Slurm options of the batch script. Omitted options use Slurm's defaults.",
      {
          field<&S::partition>("partition", "Partition to which the job is submitted."),
          field<&S::account>("account", "Account to charge."),
          field<&S::qos>("qos", "Quality of service (QOS)."),
          field<&S::constraint>("constraint", "Required node features, e.g. \"a100&ib\"."),
          field<&S::time>("time",
                          "Time limit: minutes, H:MM:SS, or D-H. Before it expires, the job saves a checkpoint and is "
                          "queued again."),
          field<&S::nodes>("nodes", "Number of nodes; ranks are distributed evenly over them.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&S::gpus_per_node>("gpus_per_node", "GPUs per node.").at_least(0),
          field<&S::requeue>("requeue",
                             "If the job saves checkpoints, requeue it after it reaches its time limit or loses a "
                             "node; it resumes from the newest checkpoint."),
          list_field<&S::extra>("extra", FieldKind::any_names,
                                "Additional sbatch options, one per #SBATCH line, e.g. [--mem=8G, --exclusive]."),
      }};
  return section;
}

namespace {

Field queue_nodes() {
  return field<&QueueSpec::nodes>("nodes", "Number of hosts; ranks are distributed evenly over them.")
      .at_least(1)
      .at_most(kMaxRanks);
}
Field queue_gpus() { return field<&QueueSpec::gpus_per_node>("gpus_per_node", "GPUs per host.").at_least(0); }

}  // namespace

const Section& pbs_section() {
  using Q = QueueSpec;
  static const Section section{
      "launch.pbs",
      "PBS options of the batch script. Omitted options use the defaults of the queue.",
      {
          field<&Q::queue>("queue", "Queue to which the job is submitted."),
          field<&Q::account>("account", "Account to charge."),
          field<&Q::time>("time",
                          "Time limit: H:MM:SS or seconds. Before it expires, the job saves a checkpoint and the "
                          "script resubmits itself."),
          queue_nodes(),
          queue_gpus(),
          field<&Q::requeue>(
              "requeue",
              "If the job saves checkpoints, resubmit it after it reaches its time limit or receives a spot notice, "
              "and let PBS rerun it after the loss of a host; it resumes from the newest checkpoint."),
          list_field<&Q::extra>("extra", FieldKind::any_names,
                                "Additional qsub options, one per #PBS line, e.g. [-l place=excl, -m e]."),
      }};
  return section;
}

const Section& lsf_section() {
  using Q = QueueSpec;
  static const Section section{
      "launch.lsf",
      "LSF options of the batch script. Omitted options use the defaults of the queue.",
      {
          field<&Q::queue>("queue", "Queue to which the job is submitted."),
          field<&Q::account>("account", "Project to charge."),
          field<&Q::time>("time",
                          "Time limit: minutes or H:MM. Before it expires, the job saves a checkpoint and is queued "
                          "again."),
          queue_nodes(),
          queue_gpus(),
          field<&Q::requeue>("requeue",
                             "If the job saves checkpoints, requeue it after it reaches its time limit, receives a "
                             "spot notice, or loses a host; it resumes from the newest checkpoint."),
          list_field<&Q::extra>("extra", FieldKind::any_names,
                                "Additional bsub options, one per #BSUB line, e.g. [-x, -u me@example.org]."),
      }};
  return section;
}

const Section& kubernetes_section() {
  static const Section section{
      "launch.kubernetes",
      "Pod settings. The target compose uses only image, pods, gpus_per_pod, and volumes.",
      {
          field<&K::kind>("kind",
                          "Kind of workload. job: an Indexed Job with a headless service. jobset: a JobSet. volcano: a "
                          "Volcano Job. trainjob: a Kubeflow TrainJob with its runtime.")
              .one_of({"job", "jobset", "volcano", "trainjob"}),
          field<&K::queue>("queue",
                           "Queue to which the job is submitted: a Volcano queue with `kind: volcano`, otherwise a "
                           "Kueue LocalQueue. If omitted, no queue is used."),
          field<&K::image>("image", "Container image; it must contain trainctl."),
          field<&K::name_space>("namespace",
                                "Namespace of the pods; if omitted, the namespace of the current context."),
          field<&K::service_account>("service_account", "Service account of the pods."),
          field<&K::pods>("pods", "Number of pods; ranks are distributed evenly over them.")
              .at_least(1)
              .at_most(kMaxRanks),
          field<&K::gpus_per_pod>("gpus_per_pod", "GPUs per pod.").at_least(0),
          field<&K::cpu>("cpu", "CPU cores per pod, e.g. \"4\" or \"500m\"; if omitted, one per rank."),
          field<&K::memory>("memory", "Memory per pod, e.g. \"8Gi\"; if omitted, derived from the plan."),
          items("volumes", set_volumes, volumes,
                "Volume claims and host folders to mount, separated by commas, e.g. \"data:/data, /mnt/sets:/sets\"."),
          items("node_selector", set_selector, selector,
                "Required node labels, separated by commas, e.g. \"gpu=h100, zone=b\"."),
          items("tolerations", set_tolerations, tolerations,
                "Node taints that the pods tolerate, separated by commas, e.g. \"nvidia.com/gpu:NoSchedule, "
                "team=ml:NoExecute\"."),
          field<&K::backoff_limit>("backoff_limit", "Number of pod failures tolerated before the job fails.")
              .at_least(0),
      }};
  return section;
}

}  // namespace trainctl
