// Jobs that `trainctl init --data` writes for the data of the user: photos, a text, or a table.
#include "cli/commands/job_of_data.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "cli/text/job_templates.h"
#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/data/open_source.h"

namespace trainctl {
namespace {

std::string template_text(std::string_view name) {
  for (const JobTemplate& item : job_templates())
    if (item.name == name) return std::string(item.text);
  check(false, "there is a template of this name");
  return "";
}

/// Replaces one line of a template.
void replace_line(std::string& text, const std::string& begin, const std::string& line) {
  const size_t at = text.find("\n" + begin);
  check(at != std::string::npos, "the template has a line " + begin);
  const size_t end = text.find('\n', at + 1);
  text.replace(at + 1, end - at - 1, line);
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

/// The template image_folder for --data, a folder with a folder of images per class, or with train and val of these.
std::string job_of_images(UserData options) {
  if (!std::filesystem::is_directory(options.path))
    throw SpecError(
        {}, "init",
        "--data " + options.path + " is not a folder with one folder of images per class, a table or a text",
        "tables are *.csv, *.tsv, *.jsonl, *.parquet, *.arrow and the like, texts *.txt and *.md; for "
        "conversations add --from MODEL and --finetune chat; docs/data.md shows jobs of tar shards and "
        "arrays");
  const std::string name = name_of_data(options.path);
  const std::string train = part_of(options.path, {"train", "training"});
  const std::string held_out = part_of(options.path, {"val", "validation", "valid", "test"});
  if (!train.empty() && !held_out.empty() && options.validation.empty()) {
    options.path = train;
    options.validation = held_out;
  }
  const std::shared_ptr<const Source> images = open_images(options.path);
  std::string text(template_text("image_folder"));
  const std::string path = path_for_job(options.path, options.file);
  if (!name.empty()) replace_line(text, "name: ", "name: " + yaml_text(name));
  replace_line(text, "  path: ", "  path: " + yaml_text(path));
  replace_line(text, "  - {name: out, type: dense",
               "  - {name: out, type: dense, units: " + std::to_string(images->class_names().size()) +
                   "}         # one per folder of " + path);
  constexpr int64_t kBatch = 16;
  replace_line(text, "train: ",
               "train: {epochs: " + std::to_string(epochs_for(images->size(), kBatch, 600, 40)) +
                   ", checkpoint: {every_epochs: 1, keep_best: accuracy}}   # predict and evaluate take the best");
  if (options.validation.empty()) return text;
  open_images(options.validation);  // says what is wrong with it
  const std::string held_out_path = yaml_text(path_for_job(options.validation, options.file));
  replace_line(text, "  split: ", "");
  text.erase(text.find("\n\n  on_error"), 1);
  replace_line(text, "validation: ", "validation: {every_epochs: 1, dataset: {path: " + held_out_path + "}}");
  return text;
}

bool is_text_file(const std::string& path) {
  const std::string end = std::filesystem::path(path).extension();
  return std::filesystem::is_regular_file(path) && (end == ".txt" || end == ".md" || end == ".text");
}

/// The template gpt2 for --data, a text: a small model of its bytes, which trains on a CPU within minutes.
std::string job_of_text(const UserData& options) {
  std::string text(template_text("gpt2"));
  const std::string path = yaml_text(path_for_job(options.path, options.file));
  const size_t begin = text.find("# A trainctl job"), end = text.find("\n", begin);
  text.replace(begin, end - begin,
               "# A trainctl job: a small GPT-2 that learns the bytes of a text. For whole words: trainctl data "
               "train-tokenizer, and dataset.tokenizer.");
  replace_line(
      text, "#   trainctl data tokens",
      "#   trainctl generate FILE \"The first words\" --max-tokens 100     continue a text after the training");
  replace_line(text, "name: ", "name: " + yaml_text(std::filesystem::path(options.path).stem()));
  replace_line(text, "precision: ", "precision: fp32                    # bf16 on GPUs");
  replace_line(text, "vars: ", "vars: {layers: 4, heads: 4, d: 128, length: 128, vocab: 256}");
  const size_t data = text.find("\ndataset:") + 1, modules = text.find("\nmodules:");
  const std::string validation =
      options.validation.empty()
          ? "# validation: {dataset: {path: held_out.txt}}     # text that the training does not read\n"
          : "validation: {dataset: {path: " + yaml_text(path_for_job(options.validation, options.file)) + "}}\n";
  text.replace(data, modules - data,
               "dataset:\n  type: text\n  path: " + path + "\n  length: \"${length}\"\n  batch: 16\n" + validation);
  replace_line(text, "  learning_rate: ", "  learning_rate: {type: cosine, base: 0.002, warmup_steps: 20}");
  replace_line(text, "train: ", "train: {epochs: 3, log_every: 10, checkpoint: auto}");
  return text;
}

}  // namespace

std::string path_for_job(const std::string& path, const std::string& file) {
  namespace fs = std::filesystem;
  if (path.empty()) return path;
  if (fs::path(path).is_absolute()) return fs::path(path).lexically_normal().string();
  const fs::path folder = file.empty() ? fs::current_path() : fs::absolute(file).parent_path();
  return fs::absolute(path).lexically_normal().lexically_proximate(folder.lexically_normal()).string();
}

std::shared_ptr<const Source> open_images(const std::string& folder) {
  DatasetSpec spec;
  spec.type = "image_folder";
  spec.paths = {folder};
  return open_source(spec, 0);
}

std::string yaml_text(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
  constexpr std::string_view kLetters = kPlain.substr(0, 52);
  static const std::set<std::string, std::less<>> kWords = {"true", "false", "null", "yes", "no",
                                                            "on",   "off",   "y",    "n"};
  const bool is_plain = text.find_first_not_of(kPlain) == std::string::npos &&
                        text.find_first_of(kLetters) != std::string::npos && text.front() != '-';
  if (is_plain && kWords.find(lower_case(text)) == kWords.end()) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("''") : std::string(1, c);
  return quoted + "'";
}

int64_t epochs_for(int64_t samples, int64_t batch, int64_t steps, int64_t most) {
  constexpr int64_t kLeast = 3;
  return std::clamp(steps / std::max<int64_t>(1, samples / batch), kLeast, most);
}

std::string job_of_data(const UserData& data) {
  if (!std::filesystem::exists(data.path)) throw EnvError(data.path + ": no such file or folder");
  if (has_table(data.path)) return job_of_table(data);
  if (!data.target.empty() || !data.target_type.empty())
    throw SpecError({}, "init", "--target and --target-type are for tables, and " + data.path + " is none",
                    "leave them out: the classes of images are their folders");
  return is_text_file(data.path) ? job_of_text(data) : job_of_images(data);
}

}  // namespace trainctl
