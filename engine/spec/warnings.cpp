// Warns about jobs that run, but probably do not do what was intended: one function per rule.
#include "engine/spec/warnings.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <tuple>

#include "engine/base/entry_types.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

struct Warnings {
  const JobSpec& job;
  std::vector<Diagnostic> found;

  void add(const std::string& path, const std::string& message, const std::string& hint) {
    const SourcePos pos = job.position(path);
    // A layer of a module that is used twelve times has one path.
    const bool known = std::any_of(found.begin(), found.end(), [&](const Diagnostic& d) { return d.path == path; });
    if (!known) found.push_back({pos, path, message, hint});
  }
};

/// Returns all names by which the outputs of layers are read.
std::set<std::string> names_read(const JobSpec& job) {
  std::set<std::string> names(job.print.tensors.begin(), job.print.tensors.end());
  for (const LayerSpec& layer : job.network) names.insert(layer.inputs.begin(), layer.inputs.end());
  for (const LossSpec* loss : job.losses())
    for (const std::string& output : loss->outputs_read()) names.insert(output);
  return names;
}

/// Returns the data set field that shows that the set has labels; "" if there is none.
std::string label_field(const JobSpec& job) {
  for (const char* field : {"dataset.label_dtype", "dataset.label_shape", "dataset.label_value"})
    if (job.positions.contains(field)) return field;
  const std::string& type = job.dataset.type;
  const std::vector<std::string> fields = job.dataset.field_names();
  const bool has_label = job.dataset.has_source() && std::find(fields.begin(), fields.end(), "label") != fields.end();
  return type == "mnist" || job.dataset.has_tokens() || has_label ? "dataset.type" : "";
}

/// Returns the first loss in the reference whose labels have the type of the data set's labels.
std::string fitting_loss(const JobSpec& job) {
  const bool classes = job.dataset.label_dtype != "f32";
  const auto fits = [&](const EntryType& loss) { return loss.labels_are_classes == classes; };
  return std::find_if(loss_types().begin(), loss_types().end(), fits)->name;
}

void training_needs_a_loss(Warnings& w) {
  if (w.job.loss) return;
  const std::string hint = "add a loss, e.g. loss: " + fitting_loss(w.job);
  if (w.job.positions.contains("optimizer")) {
    w.add("optimizer", "there is no loss, so the job runs only the forward pass and the optimizer has no effect",
          hint + ", or remove the optimizer");
    return;
  }
  const std::string field = label_field(w.job);
  if (!field.empty() && !names_read(w.job).contains("label"))
    w.add(field, "there is no loss, so the job runs only the forward pass and the labels are unused", hint);
}

void layers_are_read(Warnings& w) {
  const std::set<std::string> read = names_read(w.job);
  for (const LayerSpec& layer : w.job.network) {
    const bool is_result = !w.job.loss && &layer == &w.job.network.back();
    const std::vector<std::string> outputs = layer.output_names();
    if (is_result || std::any_of(outputs.begin(), outputs.end(), [&](const auto& name) { return read.contains(name); }))
      continue;
    w.add(layer.path, "the output of layer '" + layer.name + "' is unused",
          "add the layer to the inputs of another layer, to loss.input or to print, or remove it");
  }
}

void probabilities_are_computed_once(Warnings& w) {
  if (!w.job.loss || w.job.loss->type != "softmax_cross_entropy") return;
  for (const LayerSpec& layer : w.job.network)
    if (layer.name == w.job.loss->input && layer.type == "softmax")
      w.add(layer.path, "the loss softmax_cross_entropy computes a softmax too, so the network has two of them",
            "remove this layer; `trainctl predict` shows probabilities without it");
}

/// Images are [h, w, c] until hwc2chw, and layers of images read [c, h, w].
void images_have_channels_first(Warnings& w) {
  const DatasetSpec& set = w.job.dataset;
  if (set.type != "image_folder" && set.type != "mnist" && set.type != "cifar10" && set.type != "cifar100") return;
  const bool is_moved = std::any_of(set.transforms.begin(), set.transforms.end(), [](const TransformSpec& step) {
    return step.name == "hwc2chw" || step.name == "transpose" || step.name == "reshape";
  });
  if (is_moved || w.job.network.empty()) return;
  const LayerSpec& first = w.job.network.front();
  const bool reads_images = first.type == "conv2d" || first.type == "max_pool2d" || first.type == "avg_pool2d";
  if (reads_images && !first.attrs.has("layout"))
    w.add(first.path,
          "this layer reads images [channels, height, width], but those of the data set are [height, width, channels]",
          "add hwc2chw to the end of dataset.transforms");
}

/// Returns whether two files or patterns may refer to the same file: each path component of one equals or matches that
/// of the other, or they are links to one file.
bool may_be_one_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code is_missing;
  if (std::filesystem::equivalent(a, b, is_missing)) return true;
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& part, const auto& other) {
    return part == other || glob_match(part.string(), other.string()) || glob_match(other.string(), part.string());
  });
}

void validation_reads_other_samples(Warnings& w) {
  if (!w.job.validation || w.job.dataset.has_shares()) return;
  const DatasetSpec& training = w.job.dataset;
  const DatasetSpec set = w.job.validation_set();
  if (training.paths.empty() || set.split != training.split) return;
  const bool is_same = std::any_of(set.paths.begin(), set.paths.end(), [&](const std::string& path) {
    return std::any_of(training.paths.begin(), training.paths.end(),
                       [&](const std::string& trained) { return may_be_one_file(path, trained); });
  });
  if (is_same)
    w.add("validation.dataset", "the validation evaluates training samples",
          "its results do not show how the model generalises; use separate files for validation");
}

void inputs_do_not_contain_the_label(Warnings& w) {
  const std::vector<SampleFieldSpec>& fields = w.job.dataset.fields;
  const auto label =
      std::find_if(fields.begin(), fields.end(), [](const auto& field) { return field.name == "label"; });
  if (label == fields.end() || !w.job.loss || (w.job.dataset.type != "csv" && w.job.dataset.type != "table")) return;
  for (const SampleFieldSpec& field : fields)
    for (const std::string& column : field.parts)
      if (&field != &*label && std::find(label->parts.begin(), label->parts.end(), column) != label->parts.end())
        w.add("dataset.fields", "the column '" + column + "' is the label and also an input (" + field.name + ")",
              "the network can read its answer; remove the column from " + field.name);
}

/// Words by which a shell joins programs.
void command_needs_no_shell(Warnings& w) {
  static const std::set<std::string> kOfShells = {"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1", "&>", "|&"};
  const std::vector<std::string>& words = w.job.command;
  if (words.size() > 1 && words[1].starts_with("-") && words[1].ends_with("c")) return;  // [bash, -lc, "a | b"]
  for (size_t i = 1; i < words.size(); ++i)
    if (kOfShells.contains(words[i]))
      return w.add("command[" + std::to_string(i) + "]",
                   "'" + words[i] + "' is passed to the program as a word: no shell reads the command",
                   "to use a shell write command: [sh, -c, '" + join(words, " ") + "']");
}

}  // namespace

std::vector<Diagnostic> warnings(const JobSpec& job) {
  Warnings w{job, {}};
  if (job.has_command()) {
    command_needs_no_shell(w);
    return w.found;
  }
  inputs_do_not_contain_the_label(w);
  training_needs_a_loss(w);
  layers_are_read(w);
  probabilities_are_computed_once(w);
  images_have_channels_first(w);
  validation_reads_other_samples(w);
  std::stable_sort(w.found.begin(), w.found.end(), [](const Diagnostic& a, const Diagnostic& b) {
    return std::tie(a.pos.line, a.pos.column) < std::tie(b.pos.line, b.pos.column);
  });
  return w.found;
}

}  // namespace trainctl
