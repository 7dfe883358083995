// trainctl init: writes a commented job file to start from. The templates are embedded in the binary.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <iostream>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/text/job_templates.h"
#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/put_all.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

std::vector<std::string> template_names() {
  std::vector<std::string> names;
  for (const JobTemplate& item : job_templates()) names.emplace_back(item.name);
  return names;
}

std::string_view find_template(const std::string& name) {
  for (const JobTemplate& item : job_templates()) {
    if (item.name == name) return item.text;
  }
  const std::string near = did_you_mean(name, template_names());
  throw SpecError({}, "init", "unknown template '" + name + "'",
                  near + (near.empty() ? "" : " ") + "available templates: " + join(template_names()));
}

/// Writes a new file; never overwrites an existing one.
void write_file(const std::string& path, std::string_view text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0 && errno == EEXIST) throw EnvError(path + " already exists; choose another name with -o");
  const bool is_written = fd >= 0 && put_all(fd, text);
  const int error = errno;
  if (fd >= 0) close(fd);
  if (is_written) return;
  if (fd >= 0) unlink(path.c_str());
  throw EnvError("cannot write " + path + ": " + describe_errno(error));
}

}  // namespace

void add_init_command(CLI::App& app, Action& chosen) {
  struct Options {
    std::string name = "mlp";
    std::string file;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("init", "Write a commented job file to start from");
  command->add_option("template", options->name, "One of: " + join(template_names()))->capture_default_str();
  command->add_option("-o,--output", options->file, "File to write; default: stdout");
  command->footer(R"(Examples:
  trainctl init mlp -o job.yaml && trainctl check job.yaml)");
  command->callback([&chosen, options] {
    chosen = [options] {
      const std::string_view text = find_template(options->name);
      if (options->file.empty()) {
        std::cout << text;
      } else {
        write_file(options->file, text);
        std::cout << options->file << ": written; next: trainctl plan " << options->file << "\n";
      }
      return kExitDone;
    };
  });
}

}  // namespace trainctl
