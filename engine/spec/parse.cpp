// YAML text -> JobSpec: the steps in which a job is read.
#include "engine/spec/parse.h"

#include <filesystem>

#include "engine/base/error.h"
#include "engine/spec/overrides.h"
#include "engine/spec/read_job.h"
#include "engine/spec/validate.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// The job may be saved elsewhere (a run's folder) and ranks may run elsewhere: only an absolute path means the
/// same everywhere.
void resolve(const fs::path& folder, std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(folder / (path.empty() ? "." : path), error);
  if (error) return;
  path = absolute.lexically_normal().string();
  if (path.size() > 1 && path.back() == '/') path.pop_back();
}

void resolve_paths(JobSpec& job, const fs::path& folder) {
  for (std::string& path : job.dataset.paths) resolve(folder, path);
  if (job.validation)
    for (std::string& path : job.validation->dataset.paths) resolve(folder, path);
  if (job.has_command()) resolve(folder, job.working_dir);
  if (!job.launch.hostfile.empty()) resolve(folder, job.launch.hostfile);
  for (std::string& path : job.launch.copy) resolve(folder, path);
}

}  // namespace

JobSpec parse_job(const JobText& from, const std::vector<std::string>& overrides) {
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
  read_job(root, job, problems);
  if (job.positions.empty()) problems.throw_if_any();  // nothing was read, for an expression is wrong
  validate(job, problems);
  problems.throw_if_any();
  resolve_paths(job, from.folder);
  return job;
}

JobSpec parse_job(std::string_view text, const std::string& file, const std::vector<std::string>& overrides) {
  return parse_job({file, std::string(text), fs::path(file).parent_path()}, overrides);
}

JobSpec load_job(const std::string& file, const std::vector<std::string>& overrides) {
  return parse_job(read_job_text(file), overrides);
}

}  // namespace trainctl
