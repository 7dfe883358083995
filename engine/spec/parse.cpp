// YAML text -> JobSpec: the steps in which a job is read.
#include "engine/spec/parse.h"

#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/url.h"
#include "engine/spec/overrides.h"
#include "engine/spec/plugins.h"
#include "engine/spec/read_job.h"
#include "engine/spec/trackers.h"
#include "engine/spec/validate.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

void resolve(const fs::path& folder, std::string& path) {
  if (!is_url(path)) path = absolute_path(folder.string(), path);
}

void resolve_paths(JobSpec& job, const fs::path& folder) {
  const auto of_set = [&](DatasetSpec& set) {
    for (std::string& path : set.paths) resolve(folder, path);
    if (!set.tokenizer.empty()) resolve(folder, set.tokenizer);
    for (auto& [source, paths] : set.source_paths)
      for (std::string& path : paths) resolve(folder, path);
  };
  of_set(job.dataset);
  for (DatasetSpec& source : job.dataset.sources) of_set(source);
  if (job.dataset.is_mix() && !job.dataset.sources.empty()) {  // all sources have the same
    job.dataset.length = job.dataset.sources.front().length;
    job.dataset.tokenizer = job.dataset.sources.front().tokenizer;
  }
  if (job.validation) of_set(job.validation->dataset);
  if (job.validation && job.validation->generate) resolve(folder, job.validation->generate->prompts);
  if (job.weights) resolve(folder, job.weights->from);
  if (job.weights && job.weights->map_is_file()) resolve(folder, job.weights->map);
  if (job.adapters.lora && !job.adapters.lora->from.empty()) resolve(folder, job.adapters.lora->from);
  if (job.has_command()) resolve(folder, job.working_dir);
  if (!job.launch.hostfile.empty()) resolve(folder, job.launch.hostfile);
  for (std::string& path : job.launch.copy) resolve(folder, path);
  for (TrackerSpec& tracker : job.track)
    if (tracker.type == "mlflow" && is_tracking_folder(tracker.to)) resolve(folder, tracker.to);
}

bool is_text(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t length = utf8_length(bytes);
    const char first = bytes.front();
    if (length == 0 || (first >= 0 && first < ' ') || first == '\x7f') return false;
    bytes.remove_prefix(length);
  }
  return true;
}

/// Throws EnvError if a path is not UTF-8 text: job files, records of runs and lines of output contain paths.
void require_text(const fs::path& path) {
  if (is_text(path.native())) return;
  throw EnvError("the path " + printable(path.native()) +
                 " contains invalid UTF-8 or a control character such as a newline, so it cannot be written to a job "
                 "file\n  rename that file or folder, or use another folder");
}

/// Checks the folders that become part of the job's paths with require_text.
void require_text_paths(const JobText& from) {
  std::error_code error;
  const fs::path here = fs::current_path(error);
  if (!error) require_text(here);
  require_text(from.name);
  if (const fs::path folder = fs::absolute(from.folder, error); !error) require_text(folder);
}

}  // namespace

JobSpec parse_job(const JobText& from, const std::vector<std::string>& overrides) {
  require_text_paths(from);
  const std::string_view text = from.text;
  const std::string& file = from.name;
  JobSpec job;
  job.file = file;
  job.source = text.starts_with("\xEF\xBB\xBF") ? text.substr(3) : text;
  Problems problems;
  YamlNode root = read_yaml(text, file);
  if (root.is_null() && overrides.empty())
    throw SpecError({file, 1, 1}, "", "the job file is empty", "start from `trainctl init mlp`");
  for (const std::string& override_text : overrides) apply_override(root, override_text, problems);
  read_job(root, from, job, problems);
  // If a plugin could not be loaded, layers have unknown types; if an expression is wrong, the job was not read at all.
  // In both cases further checks would report only consequences.
  if (job.positions.empty() || problems.touch("plugins")) problems.throw_if_any();
  validate(job, problems);
  problems.throw_if_any();
  resolve_paths(job, from.folder);
  return job;
}

JobSpec parse_job(std::string_view text, const std::string& file, const std::vector<std::string>& overrides) {
  return parse_job({file, std::string(text), fs::path(file).parent_path()}, overrides);
}

JobSpec load_run_job(const std::string& file) {
  JobText text = read_job_text(file);
  text.any_plugins = true;
  return parse_job(text);
}

JobSpec load_job(const std::string& file, const std::vector<std::string>& overrides) {
  return parse_job(read_job_text(file), overrides);
}

}  // namespace trainctl
