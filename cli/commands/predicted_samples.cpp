// The samples that the user gives to `trainctl predict`.
#include "cli/commands/predicted_samples.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/mnist.h"
#include "engine/train/data/open_source.h"
#include "engine/train/data/sources/without_labels.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

std::string absolute_path(const std::string& path) {
  return is_url(path) ? path : fs::absolute(path).lexically_normal().string();
}

/// Paths of the command line start at the current folder, in contrast to those of a job file.
void require_there(const std::string& path) {
  std::error_code error;
  if (is_url(path) || is_glob(path) || fs::exists(path, error)) return;
  std::vector<std::string> names;
  const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(folder, error)) names.push_back(entry.path().filename().string());
  const std::string near = did_you_mean(fs::path(path).filename().string(), names);
  throw SpecError({}, "FILE", "there is no file '" + path + "' in " + fs::current_path(error).string(),
                  near.empty() ? "paths on the command line are relative to the current folder" : near);
}

/// The size of the images of a set whose files all have the same.
Ints image_size(const DatasetSpec& set) {
  if (set.type != "mnist") return {32, 32};
  try {
    const Shape shape = read_mnist_header(set.paths.front(), set.split).sample_shape;
    return {shape[0], shape[1]};
  } catch (const SpecError&) {  // the training set is not there
    return {28, 28};
  }
}

/// Images of any size get that of the training set. A job whose transforms choose the size needs nothing.
void add_resize(DatasetSpec& set, const Ints& size) {
  const bool has_size = std::any_of(set.transforms.begin(), set.transforms.end(), [](const TransformSpec& transform) {
    return transform.name == "resize" || transform.name.ends_with("_crop");
  });
  if (has_size) return;
  const std::string field = set.transforms.empty() ? "" : set.transforms.front().field;
  const auto to_float = std::find_if(set.transforms.begin(), set.transforms.end(),
                                     [](const TransformSpec& transform) { return transform.name == "to_float"; });
  const auto at = to_float == set.transforms.end() ? set.transforms.begin() : std::next(to_float);  // it reads bytes
  set.transforms.insert(at, {"resize", {{"size", size}}, "dataset.transforms[0]", field});
}

/// Only the training set determines the number of a word in a column, and the shape of the labels of arrays.
bool needs_training_set(const DatasetSpec& set) {
  const bool has_arrays = set.type == "npy" || set.type == "npz" || set.type == "safetensors";
  return has_arrays || ((set.type == "csv" || set.type == "table") && reads_words(set));
}

void require_sample_files(const JobSpec& spec) {
  if (spec.dataset.is_mix())
    throw SpecError(spec.position("dataset.type"), "dataset.type",
                    "the job has a mixture, and the files do not show which of its sources they belong to",
                    "use a job with a single source");
  const DatasetSpec& set = spec.dataset;
  if (set.has_source() || set.type == "mnist" || set.has_class_texts()) return;
  const bool has_text = set.has_tokens() || set.type == "preference";
  throw SpecError(spec.position("dataset.type"), "dataset.type",
                  "a data set of type " + set.type + " has no files with one sample each",
                  has_text ? "trainctl generate continues a text; without files, predict uses the validation set"
                           : "leave out the files to predict the validation set");
}

}  // namespace

PredictedWords split_words(const std::vector<std::string>& words) {
  PredictedWords split;
  std::error_code ignored;
  for (const std::string& word : words) {
    const bool is_override = word.find('=') != std::string::npos && !fs::exists(word, ignored);
    (is_override ? split.overrides : split.files).push_back(word);
  }
  return split;
}

JobSpec with_samples(JobSpec spec, const std::vector<std::string>& files) {
  if (spec.has_command()) return spec;
  require_sample_files(spec);
  std::for_each(files.begin(), files.end(), require_there);
  std::vector<std::string> paths;
  std::transform(files.begin(), files.end(), std::back_inserter(paths), absolute_path);
  DatasetSpec& set = spec.dataset;
  DatasetSpec given = set;
  given.paths = paths;
  given.labels = false;
  spec.validation.emplace();
  if (needs_training_set(given)) {
    spec.positions["validation.dataset.path"] = kCommandLine;
    spec.validation->dataset.paths = paths;
    spec.validation->dataset.labels = false;
    set.train_share = set.validation_share = 0;
    return spec;
  }
  spec.positions["dataset.path"] = spec.positions["validation.dataset.path"] = kCommandLine;
  given.train_share = given.validation_share = 0;
  given.weights.clear();
  given.on_error = "stop";  // no other sample may take the place of a broken one
  given.cache = "none";
  given.shuffle = false;
  given.shuffle_block = 0;
  given.drop_last = false;
  given.repeat = 1;
  if (set.has_file_splits() && !is_idx_file(paths.front())) add_resize(given, image_size(set));
  set = std::move(given);
  set.batch = std::clamp<int64_t>(read_data_size(set, spec.seed), 1, set.batch);
  return spec;
}

}  // namespace trainctl
