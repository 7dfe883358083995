// A job as given by the user: a file, and fields that override those of the file.
#include "cli/run/job_file.h"

#include "cli/text/sources.h"
#include "engine/base/error.h"
#include "engine/spec/parse.h"

namespace trainctl {
namespace {

/// The field of a job that starts the program.
std::string command_of(const std::string& program) {
  const std::string words = program.ends_with(".py")                 ? "python3, " + program
                            : program.ends_with(".sh")               ? "sh, " + program
                            : program.find('/') == std::string::npos ? "./" + program
                                                                     : program;
  return "command: [" + words + "]";
}

void refuse_missing_labels(const JobSpec& spec, const char* path, const DatasetSpec& dataset) {
  if (!dataset.labels)
    throw SpecError(spec.position(path), path, "only trainctl predict reads samples without labels",
                    "remove it; trainctl predict JOB FILES sets it");
}

}  // namespace

JobSpec JobFile::load() const {
  if (!text_) text_ = std::make_shared<const JobText>(read_job_text(file));
  const JobText& text = *text_;
  if (file.ends_with(".py") || file.ends_with(".sh") || text.text.starts_with("#!"))
    throw SpecError({text.name, 0, 0}, "", "this is a program, not a job file",
                    "name it in a job file: " + command_of(file) + "; trainctl init command writes a template");
  keep_source(text.name, text.text);
  JobSpec spec = parse_job(text, overrides);
  refuse_missing_labels(spec, "dataset.labels", spec.dataset);
  if (spec.validation) refuse_missing_labels(spec, "validation.dataset.labels", spec.validation->dataset);
  return spec;
}

JobFile JobFile::with(const std::vector<std::string>& more) const {
  JobFile all = *this;
  all.overrides.insert(all.overrides.end(), more.begin(), more.end());
  return all;
}

}  // namespace trainctl
