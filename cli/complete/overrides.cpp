// The fields of a job file, from the parser's table.
#include <optional>

#include "cli/complete/complete.h"
#include "engine/base/error.h"
#include "engine/spec/fields.h"
#include "engine/spec/parse.h"

namespace trainctl {
namespace {

std::optional<JobSpec> read_job(const std::string& file) {
  if (file.empty()) return {};
  try {
    return load_job(file);
  } catch (const std::exception&) {
    return {};  // the file may be invalid while it is being written
  }
}

class Overrides {
 public:
  Overrides(std::string typed, std::optional<JobSpec> job) : typed_(std::move(typed)), job_(std::move(job)) {}

  std::vector<Candidate> find() {
    add_section(job_section(), "");
    return std::move(found_);
  }

 private:
  bool belongs(const Field& field) const {
    if (!job_) return true;
    return belongs_to(field, job_->has_command() ? JobKind::command : JobKind::network);
  }

  void add_section(const Section& section, const std::string& path) {
    for (const Field& field : section.fields) {
      if (!belongs(field)) continue;
      const std::string name = path + field.name;
      if (field.kind == FieldKind::section) {
        add_section(*field.section, name + ".");
      } else if (field.kind == FieldKind::strategy_map || field.kind == FieldKind::stage_map) {
        add_layers(name + ".", field);
      } else if (field.kind == FieldKind::variables) {
        found_.push_back({name + ".", field.doc});
      } else if (field.kind != FieldKind::layers && field.kind != FieldKind::modules) {
        add(name, field);
      }
    }
  }

  void add_layers(const std::string& path, const Field& field) {
    if (!job_) return;
    for (const LayerSpec& layer : job_->network) found_.push_back({path + layer.name + "=", field.doc});
  }

  /// Adds the field, or its values once its name is complete.
  void add(const std::string& path, const Field& field) {
    const std::string key = path + "=";
    if (!typed_.starts_with(key)) {
      found_.push_back({key, field.doc});
      return;
    }
    for (const std::string& choice : field.choices) found_.push_back({key + choice, ""});
    if (field.kind == FieldKind::flag)
      for (const char* value : {"true", "false"}) found_.push_back({key + value, ""});
  }

  const std::string typed_;
  const std::optional<JobSpec> job_;
  std::vector<Candidate> found_;
};

}  // namespace

std::vector<Candidate> complete_override(const std::string& typed, const std::string& job) {
  return Overrides(typed, read_job(job)).find();
}

}  // namespace trainctl
