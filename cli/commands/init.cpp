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
#include "cli/text/job_templates.h"
#include "engine/base/error.h"
#include "engine/base/machine_limits.h"
#include "engine/base/put_all.h"
#include "engine/base/text.h"
#include "engine/model_folder/model_folder.h"
#include "engine/train/data/class_text_set.h"
#include "engine/train/data/open_source.h"
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
                    "for a folder with a folder of images per class, or a text: trainctl init --data " + name +
                        " -o job.yaml; to fine-tune a model on it add --from MODEL and --finetune text or chat");
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
};

/// A path as the job file names it, relative to its own folder unless the user gave an absolute one.
std::string path_for_job(const std::string& path, const InitArguments& options) {
  namespace fs = std::filesystem;
  if (path.empty()) return path;
  if (fs::path(path).is_absolute()) return fs::path(path).lexically_normal().string();
  const fs::path folder = options.file.empty() ? fs::current_path() : fs::absolute(options.file).parent_path();
  return fs::absolute(path).lexically_normal().lexically_proximate(folder.lexically_normal()).string();
}

std::shared_ptr<const Source> open_images(const std::string& folder) {
  DatasetSpec spec;
  spec.type = "image_folder";
  spec.paths = {folder};
  return open_source(spec, 0);
}

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
  tuning.data = path_for_job(options.data, options);
  tuning.validation = path_for_job(options.validation, options);
  if (tuning.is_classifier()) tuning.classes = count_classes(options);
  return tuning;
}

/// Replaces one line of a template.
void replace_line(std::string& text, const std::string& begin, const std::string& line) {
  const size_t at = text.find("\n" + begin);
  check(at != std::string::npos, "the template has a line " + begin);
  const size_t end = text.find('\n', at + 1);
  text.replace(at + 1, end - at - 1, line);
}

/// A text as YAML: in quotes unless it is plain.
std::string yaml_text(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
  if (text.find_first_not_of(kPlain) == std::string::npos && text.front() != '-') return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("''") : std::string(1, c);
  return quoted + "'";
}

/// The first of these folders in `folder`; empty if it has none.
std::string part_of(const std::string& folder, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const auto path = std::filesystem::path(folder) / name; std::filesystem::is_directory(path)) return path;
  return "";
}

/// "photos" for photos, photos/ and photos/train.
std::string name_of_data(const std::string& folder) {
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  const bool is_part = path.filename() == "train" || path.filename() == "training";
  return (is_part ? path.parent_path() : path).filename();
}

/// With few photos, epochs are short: about 600 steps then, at most 40 epochs.
int64_t epochs_for(int64_t samples, int64_t batch) {
  constexpr int64_t kSteps = 600, kLeast = 3, kMost = 40;
  return std::clamp(kSteps / std::max<int64_t>(1, samples / batch), kLeast, kMost);
}

/// The template image_folder for --data, a folder with a folder of images per class, or with train and val of these.
std::string job_of_images(InitArguments options) {
  if (!std::filesystem::exists(options.data)) throw EnvError(options.data + ": no such file or folder");
  if (!std::filesystem::is_directory(options.data))
    throw SpecError({}, "init", "--data " + options.data + " is not a folder with a folder of images per class",
                    "for texts add --from MODEL and --finetune text or chat; for a table write dataset: {type: csv, "
                    "path: " +
                        options.data + ", fields: {data: [COLUMN, COLUMN], label: COLUMN}} into a job");
  const std::string name = name_of_data(options.data);
  const std::string train = part_of(options.data, {"train", "training"});
  const std::string held_out = part_of(options.data, {"val", "validation", "valid", "test"});
  if (!train.empty() && !held_out.empty() && options.validation.empty()) {
    options.data = train;
    options.validation = held_out;
  }
  const std::shared_ptr<const Source> images = open_images(options.data);
  std::string text(find_template("image_folder"));
  const std::string path = path_for_job(options.data, options);
  if (!name.empty()) replace_line(text, "name: ", "name: " + yaml_text(name));
  replace_line(text, "  path: ", "  path: " + yaml_text(path));
  replace_line(text, "  - {name: out, type: dense",
               "  - {name: out, type: dense, units: " + std::to_string(images->class_names().size()) +
                   "}         # one per folder of " + path);
  constexpr int64_t kBatch = 16;
  replace_line(
      text, "train: ", "train: {epochs: " + std::to_string(epochs_for(images->size(), kBatch)) + ", checkpoint: auto}");
  if (options.validation.empty()) return text;
  open_images(options.validation);  // says what is wrong with it
  const std::string held_out_path = yaml_text(path_for_job(options.validation, options));
  replace_line(text, "  split: ", "");
  text.erase(text.find("\n\n  on_error"), 1);
  replace_line(text, "validation: ", "validation: {every_epochs: 1, dataset: {path: " + held_out_path + "}}");
  return text;
}

bool is_plain_text(const std::string& path) {
  const std::string end = std::filesystem::path(path).extension();
  return std::filesystem::is_regular_file(path) && (end == ".txt" || end == ".md" || end == ".text");
}

/// The template gpt2 for --data, a text: a small model of its bytes, which trains on a CPU within minutes.
std::string job_of_text(const InitArguments& options) {
  std::string text(find_template("gpt2"));
  const std::string path = yaml_text(path_for_job(options.data, options));
  const size_t begin = text.find("# A trainctl job"), end = text.find("\n", begin);
  text.replace(begin, end - begin,
               "# A trainctl job: a small GPT-2 that learns the bytes of a text. For whole words: trainctl data "
               "train-tokenizer, and dataset.tokenizer.");
  replace_line(
      text, "#   trainctl data tokens",
      "#   trainctl generate FILE \"The first words\" --max-tokens 100     continue a text after the training");
  replace_line(text, "name: ", "name: " + yaml_text(std::filesystem::path(options.data).stem()));
  replace_line(text, "precision: ", "precision: fp32                    # bf16 on GPUs");
  replace_line(text, "vars: ", "vars: {layers: 4, heads: 4, d: 128, length: 128, vocab: 256}");
  const size_t data = text.find("\ndataset:") + 1, modules = text.find("\nmodules:");
  const std::string validation =
      options.validation.empty()
          ? "# validation: {dataset: {path: held_out.txt}}     # text that the training does not read\n"
          : "validation: {dataset: {path: " + yaml_text(path_for_job(options.validation, options)) + "}}\n";
  text.replace(data, modules - data,
               "dataset:\n  type: text\n  path: " + path + "\n  length: \"${length}\"\n  batch: 16\n" + validation);
  replace_line(text, "  learning_rate: ", "  learning_rate: {type: cosine, base: 0.002, warmup_steps: 20}");
  replace_line(text, "train: ", "train: {epochs: 3, log_every: 10, checkpoint: auto}");
  return text;
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

int init(const InitArguments& options) {
  FolderJob made;
  const bool is_of_data = !options.data.empty() && options.task.empty();
  if (is_of_data && options.has_name && options.name != "image_folder")
    throw SpecError({}, "init", "--data is for photos, texts, or --from with --finetune, not for another template",
                    "trainctl init --data " + options.data + " -o job.yaml");
  if (is_of_data) made.text = is_plain_text(options.data) ? job_of_text(options) : job_of_images(options);
  const Finetune tuning = finetune_of(options);
  if (!options.from.empty()) made = job_of_folder(options.from, path_for_job(options.from, options), tuning);
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
      ->add_option(
          "--from", options->from,
          "Model folder in the format of Hugging Face (config.json, model.safetensors): write a job for this model")
      ->excludes(name);
  auto* task =
      command
          ->add_option("--finetune", options->task,
                       "With --from: the job trains on --data: chat (conversations), text, dpo (preferences) or "
                       "classifier")
          ->check(CLI::IsMember(finetune_tasks()));
  auto* data = command->add_option("--data", options->data,
                                   "A folder with a folder of images per class, or a text (*.txt): a job that learns "
                                   "them; or the data of --finetune: JSON lines, or such a folder");
  task->needs(data);
  command->add_option("--validation", options->validation, "Data like --data for a validation after each epoch")
      ->needs(data);
  command->add_option("-o,--output", options->file, "File to write; default: stdout");
  command->footer(R"(Examples:
  trainctl init mlp -o job.yaml && trainctl check job.yaml
  trainctl init --data photos -o job.yaml        photos/cat/1.jpg, photos/dog/2.png, … or photos/train and photos/val
  trainctl init --data book.txt --validation held_out.txt -o job.yaml
  trainctl init finetune_chat -o talk.yaml && trainctl run talk.yaml
  trainctl init --from SmolLM2-135M -o smol.yaml && trainctl check smol.yaml
  trainctl init --from SmolLM2-135M --finetune chat --data talks.jsonl -o tune.yaml)");
  command->callback([&chosen, options, name] {
    options->has_name = name->count() > 0;
    chosen = [options] { return init(*options); };
  });
}

}  // namespace trainctl
