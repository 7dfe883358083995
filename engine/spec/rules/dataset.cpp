// Rules about dataset: its files, samples and labels.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/text.h"
#include "engine/base/url.h"
#include "engine/spec/batch_transforms.h"
#include "engine/spec/fields.h"
#include "engine/spec/rules/rules.h"

namespace trainctl::rules {

void blocks_are_shuffled(RuleContext& r) {
  if (!r.fine({"dataset.shuffle", "dataset.shuffle_block"})) return;
  if (r.job.dataset.shuffle || r.job.dataset.shuffle_block == 0) return;
  r.wrong("dataset.shuffle_block", "shuffle_block has no effect, because dataset.shuffle is false",
          "remove it, or set dataset.shuffle: true");
}

void labels_suit_the_loss(RuleContext& r) {
  if (!r.job.loss || !r.fine({"loss", "dataset.label_dtype", "dataset.type"})) return;
  const EntryType& loss = *find_type(loss_types(), r.job.loss->type);
  if (!loss.has_label) return;
  if (has_soft_labels(r.job.dataset)) {  // Soft labels are f32 regardless of label_dtype.
    if (r.job.loss->attrs.has("ignore_index"))
      r.wrong("loss.ignore_index", "cannot be used, because one_hot turns the labels into class probabilities",
              "remove it");
    return;
  }
  const std::string& type = r.job.dataset.type;
  const bool distinct = r.job.dataset.label_dtype == "class";
  if (distinct && type != "csv" && type != "table")
    r.wrong("dataset.label_dtype", "class is for tables, whose distinct labels are the classes, not for type: " + type,
            "set label_dtype: i32");
  const std::string wanted = loss.labels_are_classes ? "i32" : "f32";
  const std::string given = distinct ? "i32" : r.job.dataset.label_dtype;
  if (r.job.dataset.noise_steps > 0) {
    if (wanted == "i32")
      r.wrong("loss", r.job.loss->type + " needs classes, but with dataset.noise_steps the label is the noise",
              "use mse, which a diffusion model minimises");
    return;
  }
  if (r.job.dataset.has_class_texts() && wanted != "i32")
    r.wrong("loss", r.job.loss->type + " needs f32 labels, but dataset.label_field has classes",
            "use softmax_cross_entropy for classes");
  const bool has_pairs = r.job.dataset.type == "preference";
  if (has_pairs != (r.job.loss->type == "dpo"))
    r.wrong("loss",
            has_pairs ? "the labels of a preference data set are for dpo, not for " + r.job.loss->type
                      : "dpo compares chosen and rejected answers, which a data set of type " + r.job.dataset.type +
                            " does not have",
            has_pairs ? "loss: {type: dpo}" : "use a data set of type preference");
  if (r.job.dataset.has_class_texts() || has_pairs) return;
  if (r.job.dataset.has_tokens()) {
    if (wanted != "i32")
      r.wrong(
          "loss",
          r.job.loss->type + " needs f32 labels, but the labels of a " + r.job.dataset.type + " data set are tokens",
          "use softmax_cross_entropy for tokens");
    return;
  }
  const bool has_class_shares =
      loss.takes_class_shares && r.job.dataset.label_dtype == "f32" &&
      !r.job.dataset.has_file_splits();  // as many numbers as classes: checked with the shapes
  if (given != wanted && !has_class_shares)
    r.wrong(r.job.positions.contains("dataset.label_dtype") ? "dataset.label_dtype" : "loss",
            r.job.loss->type + " needs " + wanted + " labels, but dataset.label_dtype is " + r.job.dataset.label_dtype,
            wanted == "f32" ? "for labels that are numbers set dataset.label_dtype: f32; for classes use loss: "
                              "softmax_cross_entropy"
                            : "for labels that are classes set dataset.label_dtype: i32; for numbers use loss: mse");
}

void object_stores_suit_the_type(RuleContext& r) {
  const DatasetSpec& set = r.job.dataset;
  if (!r.fine({"dataset.type", "dataset.path"})) return;
  const std::vector<std::string> types = {"tar",    "csv",  "npy",  "npz",        "safetensors",
                                          "tokens", "text", "chat", "preference", "table"};
  const bool reads_stores = std::find(types.begin(), types.end(), set.type) != types.end();
  for (size_t i = 0; i < set.paths.size(); ++i) {
    const std::string field =
        set.paths.size() > 1 ? "dataset.path[" + number(static_cast<int64_t>(i)) + "]" : "dataset.path";
    if (is_url(set.paths[i]) && !reads_stores)
      r.wrong(field, "a data set of type " + set.type + " cannot be read from an object store",
              set.type == "image_folder" ? "write the images into tar shards, which can" : "download its files");
    const bool has_user = is_url(set.paths[i]) && set.paths[i].starts_with("http") &&
                          shown_url(set.paths[i]) != set.paths[i].substr(0, set.paths[i].find_first_of("?#"));
    if (has_user)
      r.wrong(field, "must not contain a user name or password",
              "job files are saved with each run; use a signed URL or an object store");
  }
  if (is_url(set.tokenizer))
    r.wrong("dataset.tokenizer", "cannot be read from an object store", "download the tokenizer");
}

void dataset_is_one_folder(RuleContext& r) {
  if (r.fine({"dataset.type", "dataset.path"}) && is_one_folder(r.job.dataset) && r.job.dataset.paths.size() > 1 &&
      r.job.dataset.labels)
    r.wrong("dataset.path", "a " + r.job.dataset.type + " data set is one folder, not " +
                                number(static_cast<int64_t>(r.job.dataset.paths.size())));
}

void sample_fields_suit_the_type(RuleContext& r) {
  if (!r.fine({"dataset"}) || !r.job.dataset.has_source()) return;
  const DatasetSpec& d = r.job.dataset;
  const bool by_file = d.has_file_splits();
  if (d.has_shares() && by_file)
    r.wrong("dataset.split", "a " + d.type + " data set has separate files for validation",
            "validation: {dataset: {split: test}}");
  if (!by_file && r.job.positions.contains("dataset.split") && !d.has_shares())
    r.wrong("dataset.split", "split: " + d.split + " is only for the types mnist, cifar10 and cifar100",
            "e.g. {train: 0.9, validation: 0.1}");
  if (d.fields.empty() && (d.type == "csv" || d.type == "table" || d.type == "npy"))
    r.wrong("dataset", "a " + d.type + " data set needs 'fields'",
            d.type != "npy" ? "e.g. fields: {features: [age, height], label: species}"
                            : "e.g. fields: {data: images.npy, label: labels.npy}");
  for (const SampleFieldSpec& field : d.fields)
    if (field.parts.size() > 1 && d.type != "csv" && d.type != "table" && d.type != "tar")
      r.wrong("dataset.fields." + field.name, "a field of a " + d.type + " data set comes from one array, not " +
                                                  number(static_cast<int64_t>(field.parts.size())));
  if (d.fields.size() > kMaxSampleFields)
    r.wrong("dataset.fields", "a sample has at most " + number(static_cast<int64_t>(kMaxSampleFields)) +
                                  " fields, not " + number(static_cast<int64_t>(d.fields.size())));
  if (!d.weights.empty() && d.weights.size() != d.paths.size())
    r.wrong("dataset.weights",
            number(static_cast<int64_t>(d.weights.size())) + " weights for " +
                number(static_cast<int64_t>(d.paths.size())) + " paths",
            "give one weight per path");
  if (d.type == "csv" && d.delimiter.size() != 1 && d.delimiter != "tab")
    r.wrong("dataset.delimiter", "'" + d.delimiter + "' is not one character", "e.g. ';', or tab");
  if (d.channels == 2) r.wrong("dataset.channels", "an image has 1 or 3 channels, not 2");
  const std::vector<std::string> names = d.field_names();
  const bool has_label = r.job.loss && r.fine({"loss"}) && find_type(loss_types(), r.job.loss->type)->has_label;
  if (has_label && std::find(names.begin(), names.end(), "label") == names.end())
    r.wrong("loss", "the loss needs a sample field 'label', but the samples have only " + join(names),
            "call one of dataset.fields 'label'");
}

void random_integers_have_classes(RuleContext& r) {
  const DatasetSpec& d = r.job.dataset;
  if (!r.fine({"dataset.type", "dataset.dtype", "dataset.label_dtype", "dataset.classes"}) || d.type != "random")
    return;
  if (d.classes > 0 || !(d.dtype == "i32" || (r.job.loss && d.label_dtype == "i32"))) return;
  r.wrong("dataset.classes", "a random data set of integers needs 'classes'",
          "integers are drawn from 0 to classes - 1");
}

void shapes_are_images(RuleContext& r) {
  const DatasetSpec& d = r.job.dataset;
  if (!r.fine({"dataset.type", "dataset.shape"}) || d.type != "shapes" || d.shape.size() == 3) return;
  r.wrong("dataset.shape", "a data set of type shapes has images, whose shape has 3 numbers",
          "[channels, height, width], e.g. [1, 32, 32]");
}

void constant_integers_are_whole(RuleContext& r) {
  const DatasetSpec& d = r.job.dataset;
  if (!r.fine({"dataset.type", "dataset.dtype", "dataset.value"}) || d.type != "constant" || d.dtype != "i32") return;
  if (d.value == std::trunc(d.value) && std::abs(d.value) <= std::numeric_limits<int32_t>::max()) return;
  r.wrong("dataset.value", "the value of i32 data cannot be " + to_string(Value(d.value)),
          "use an integer below 2^31, or set dataset.dtype: f32");
}

void batches_have_a_bounded_size(RuleContext& r) {
  if (!r.fine({"dataset"})) return;
  for (const auto& [name, shape] : {std::pair{"dataset.shape", r.job.dataset.shape},
                                    {"dataset.label_shape", r.job.dataset.label_shape},
                                    {"dataset.length", Ints{r.job.dataset.length}}}) {
    double elements = static_cast<double>(r.job.dataset.batch);
    for (const int64_t size : shape) elements *= static_cast<double>(size);
    if (shape.size() > static_cast<size_t>(kMaxDims))
      r.wrong(name, "a sample has at most " + number(static_cast<int64_t>(kMaxDims)) + " dims, not " +
                        number(static_cast<int64_t>(shape.size())));
    else if (elements > static_cast<double>(kMaxBatchElements))
      r.wrong(name, "a batch of " + number(r.job.dataset.batch) + " samples of " + format_list(shape) +
                        " has more than " + with_commas(kMaxBatchElements) + " elements");
  }
}

}  // namespace trainctl::rules
