// YAML text -> JobSpec. Only this folder uses yaml-cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/base/output_file.h"
#include "engine/spec/job_spec.h"
#include "engine/spec/job_text.h"

namespace trainctl {

/// Reads and validates a job file; `overrides` are "parallel.stages=2" as given on the command line (values in YAML
/// syntax). Throws SpecError with all errors, not only the first; a file that cannot be read is a SpecError too. Throws
/// EnvError if the current folder or the path of the file is not UTF-8, or has a control character.
JobSpec load_job(const std::string& file, const std::vector<std::string>& overrides = {});

/// The job of a run that has ended, job.yaml in its folder. Its plugins may have been compiled again since.
JobSpec load_run_job(const std::string& file);

/// The same as load_job, from text that was read before, so that a caller of read_job_text can show the lines that
/// errors refer to.
JobSpec parse_job(const JobText& from, const std::vector<std::string>& overrides = {});
/// The same from text; relative paths in it are taken relative to the folder of `file`.
JobSpec parse_job(std::string_view text, const std::string& file, const std::vector<std::string>& overrides = {});

/// The job as YAML, with defaults filled in and overrides applied; parsing it gives the same JobSpec.
std::string to_yaml(const JobSpec& spec);

// Values of env may be secrets, so files that other users may read must not contain them.

/// The readers that a file with to_yaml(spec) may have: only its owner if the job sets env.
FileReaders readers_of(const JobSpec& spec);
/// The job with an empty env.
JobSpec without_env(JobSpec spec);
/// A text of to_yaml with "…" in place of the values of env.
std::string hide_env(const std::string& yaml);

/// The JSON Schema of a job file, from the same field table that the parser uses.
std::string job_schema();

}  // namespace trainctl
