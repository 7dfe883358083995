// YAML text -> JobSpec: the steps in which a job is read.
#include "engine/spec/parse.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "engine/spec/overrides.h"
#include "engine/spec/read_job.h"
#include "engine/spec/validate.h"
#include "engine/spec/yaml_tree.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

std::string read_file(const std::string& file) {
  const auto fail = [&](const std::string& why) {
    throw SpecError({file, 0, 0}, "", "cannot read the job file: " + why);
  };
  std::error_code error;
  if (fs::is_directory(file, error)) fail("it is a folder");
  std::ifstream in(file, std::ios::binary);
  if (!in) fail(std::strerror(errno));
  // One byte past the limit is enough for read_yaml to refuse it.
  std::string text(kMaxYamlBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) fail(std::strerror(errno));
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

/// The job may be saved elsewhere (a run's folder) and ranks may run elsewhere: only an absolute path means the
/// same everywhere.
void resolve(const JobSpec& job, std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(fs::path(job.file).parent_path() / (path.empty() ? "." : path), error);
  if (error) return;
  path = absolute.lexically_normal().string();
  if (path.size() > 1 && path.back() == '/') path.pop_back();
}

void resolve_paths(JobSpec& job) {
  if (!job.dataset.path.empty()) resolve(job, job.dataset.path);
  if (job.has_command()) resolve(job, job.working_dir);
}

}  // namespace

JobSpec parse_job(std::string_view text, const std::string& file, const std::vector<std::string>& overrides) {
  JobSpec job;
  job.file = file;
  job.source = text.starts_with("\xEF\xBB\xBF") ? text.substr(3) : text;
  Problems problems;
  YamlNode root = read_yaml(text, file);
  if (root.is_null() && overrides.empty())
    throw SpecError({file, 1, 1}, "", "the job file is empty", "start from `trainctl init mlp`");
  for (const std::string& override_text : overrides) apply_override(root, override_text, problems);
  read_job(root, job, problems);
  validate(job, problems);
  problems.throw_if_any();
  resolve_paths(job);
  return job;
}

JobSpec load_job(const std::string& file, const std::vector<std::string>& overrides) {
  return parse_job(read_file(file), file, overrides);
}

}  // namespace trainctl
