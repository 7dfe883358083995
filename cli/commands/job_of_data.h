// Jobs that `trainctl init --data` writes for the data of the user: photos, a text, or a table.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/train/data/source.h"

namespace trainctl {

struct UserData {
  std::string path, validation;  ///< validation: held-out data; empty: a share of `path`, or none
  std::string file;              ///< the job file; empty: stdout
  std::string target;            ///< the column of a table that the job predicts; empty: chosen by its name or place
  std::string target_type;       ///< class | number; empty: by the values of the column
};

/// A path as the job file `file` names it, relative to its own folder unless the user gave an absolute one.
std::string path_for_job(const std::string& path, const std::string& file);
std::shared_ptr<const Source> open_images(const std::string& folder);

/// The job of a folder of images, a text or a table, by the kind of the data. Throws SpecError for anything else.
std::string job_of_data(const UserData& data);

// Parts of job_of_data.

/// Returns whether the path is a file or folder with a table.
bool has_table(const std::string& path);
/// The job predicts a column of the table from all others that are complete.
std::string job_of_table(const UserData& data);
/// A text as YAML: in quotes unless it is plain.
std::string yaml_text(const std::string& text);
/// With few samples, epochs are short: about `steps` steps then, at most `most` epochs.
int64_t epochs_for(int64_t samples, int64_t batch, int64_t steps, int64_t most);

}  // namespace trainctl
