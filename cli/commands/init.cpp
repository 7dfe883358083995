// trainctl init: writes a commented job file to start from: a template, which is embedded in the binary, or the job of
// a model folder.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iostream>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/job_of_data.h"
#include "cli/text/job_templates.h"
#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/put_all.h"
#include "engine/base/text.h"
#include "engine/model_folder/model_folder.h"
#include "engine/train/data/class_text_set.h"
#include "engine/train/files/input_file.h"

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
  if (std::filesystem::exists(name))
    throw SpecError({}, "init", "'" + name + "' is data, not a template",
                    "for a folder with one folder of images per class, a table or a text: trainctl init --data " +
                        name + " -o job.yaml; to fine-tune a model on it add --from MODEL and --finetune text or chat");
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

struct InitArguments {
  std::string name = "mlp";
  bool has_name = false;               ///< the user gave it
  std::string from;                    ///< a model folder; empty: the template
  std::string file;                    ///< empty: stdout
  std::string task, data, validation;  ///< --finetune and its data
  std::string target, target_type;     ///< the label column of a table, and its kind
};

/// The number of classes in the data of a classifier: of folders of images, or of texts.
int64_t count_classes(const InitArguments& options) {
  if (std::filesystem::is_directory(options.data))
    return static_cast<int64_t>(open_images(options.data)->class_names().size());
  DatasetSpec spec;
  spec.paths = {options.data};
  spec.type = "text";
  spec.tokenizer = options.from;
  spec.label_field = "label";
  spec.length = 1;
  const ClassTextSet set(spec);
  int64_t classes = 2;
  for (int64_t i = 0; i < set.size(); ++i) classes = std::max<int64_t>(classes, int64_t{set.label(i)} + 1);
  return classes;
}

Finetune finetune_of(const InitArguments& options) {
  Finetune tuning;
  if (options.task.empty()) return tuning;
  if (options.from.empty() || options.data.empty())
    throw SpecError({}, "init", "--finetune needs the model and the data", "add --from FOLDER and --data PATH");
  if (!std::filesystem::exists(options.data)) throw EnvError(options.data + ": no such file or folder");
  tuning.task = finetune_tasks().at(options.task);
  tuning.data = path_for_job(options.data, options.file);
  tuning.validation = path_for_job(options.validation, options.file);
  if (tuning.is_classifier()) tuning.classes = count_classes(options);
  return tuning;
}

/// The files that a template names, or whose folder it names.
std::vector<JobTemplate> files_of(std::string_view text) {
  std::vector<JobTemplate> files;
  for (const JobTemplate& file : template_files()) {
    const std::string folder = std::filesystem::path(file.name).parent_path().string();
    const bool has_own_folder = folder.find('/') != std::string::npos;  // "finetune/model", not "finetune"
    if (text.find(has_own_folder ? std::string_view(folder) : file.name) != std::string_view::npos)
      files.push_back(file);
  }
  return files;
}

/// Writes the data of a template to the job's folder. A file that an earlier template wrote is the same and is kept.
/// Returns the folder; empty if the template names no data.
std::string write_template_data(std::string_view text, const std::string& job) {
  namespace fs = std::filesystem;
  std::string folder;
  for (const JobTemplate& file : files_of(text)) {
    const fs::path path = fs::path(job).parent_path() / file.name;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    folder = (fs::path(job).parent_path() / *fs::path(file.name).begin()).string();
    if (fs::exists(path, error) && read_whole_file(path.string()) == file.text) continue;
    write_file(path.string(), file.text);
  }
  return folder;
}

/// Writes the job of a template, a model folder or data, to a file or to stdout.
int init(const InitArguments& options) {
  FolderJob made;
  const bool is_of_data = !options.data.empty() && options.task.empty();
  if (is_of_data && options.has_name && options.name != "image_folder")
    throw SpecError({}, "init",
                    "--data is for photos, texts, tables, or --from with --finetune, not for another template",
                    "trainctl init --data " + options.data + " -o job.yaml");
  if (is_of_data)
    made.text = job_of_data({options.data, options.validation, options.file, options.target, options.target_type});
  const Finetune tuning = finetune_of(options);
  if (!options.from.empty()) made = job_of_folder(options.from, path_for_job(options.from, options.file), tuning);
  const bool is_template = options.from.empty() && !is_of_data;
  const std::string_view text = is_template ? find_template(options.name) : std::string_view(made.text);
  std::string data;
  if (options.file.empty()) {
    std::cout << text;
    if (is_template && !files_of(text).empty())
      std::cerr << "note: with -o FILE, the data that this job names are written next to it\n";
  } else {
    write_file(options.file, text);
    if (is_template) data = write_template_data(text, options.file);
  }
  for (const std::string& note : made.notes) std::cerr << "note: " << note << "\n";
  if (!options.file.empty())
    std::cout << options.file << ": written" << (data.empty() ? "" : ", with its data in " + data)
              << "; next: trainctl plan " << options.file << "\n";
  return kExitDone;
}

}  // namespace

void add_init_command(CLI::App& app, Action& chosen) {
  auto options = std::make_shared<InitArguments>();
  auto* command = app.add_subcommand("init", "Write a commented job file to start from");
  auto* name =
      command->add_option("template", options->name, "One of: " + join(template_names()))->capture_default_str();
  command
      ->add_option("--from", options->from,
                   "Model folder in Hugging Face format (config.json, model.safetensors): write a job for this model")
      ->excludes(name);
  auto* task =
      command
          ->add_option(
              "--finetune", options->task,
              "With --from: what to train on --data: chat (conversations), text, dpo (preferences) or classifier")
          ->check(CLI::IsMember(finetune_tasks()));
  auto* data =
      command->add_option("--data", options->data,
                          "Training data: a folder with one folder of images per class, a table (*.csv, *.parquet, "
                          "*.jsonl, …) or a text (*.txt); with --finetune, JSON Lines or such a folder");
  task->needs(data);
  command
      ->add_option("--validation", options->validation,
                   "Validation data in the same form as --data, evaluated after each epoch")
      ->needs(data);
  command
      ->add_option(
          "--target", options->target,
          "With a table: the column to predict; default: the one named label, target or class, otherwise the last one")
      ->needs(data);
  command
      ->add_option(
          "--target-type", options->target_type,
          "Whether the target is a class or a number; default: words and small sets of small integers are classes")
      ->check(CLI::IsMember({"class", "number"}))
      ->needs(data);
  command->add_option("-o,--output", options->file, "File to write; default: stdout");
  command->footer(R"(Examples:
  trainctl init mlp -o job.yaml && trainctl check job.yaml
  trainctl init --data photos -o job.yaml        photos/cat/1.jpg, photos/dog/2.png, … or photos/train and photos/val
  trainctl init --data book.txt --validation held_out.txt -o job.yaml
  trainctl init --data houses.csv --target price -o job.yaml         also *.parquet, *.jsonl and other tables
  trainctl init finetune_chat -o talk.yaml && trainctl run talk.yaml
  trainctl init --from SmolLM2-135M -o smol.yaml && trainctl check smol.yaml
  trainctl init --from SmolLM2-135M --finetune chat --data talks.jsonl -o tune.yaml)");
  command->callback([&chosen, options, name] {
    options->has_name = name->count() > 0;
    chosen = [options] { return init(*options); };
  });
}

}  // namespace trainctl
