// Opens the Source that dataset.type and its fields describe.
#include "engine/train/data/open_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "engine/base/error.h"
#include "engine/spec/read_value.h"
#include "engine/train/data/mnist.h"
#include "engine/train/data/source_set.h"
#include "engine/train/data/sources/arrays.h"
#include "engine/train/data/sources/audio_folder.h"
#include "engine/train/data/sources/cifar.h"
#include "engine/train/data/sources/csv.h"
#include "engine/train/data/sources/csv_text.h"
#include "engine/train/data/sources/file_list.h"
#include "engine/train/data/sources/image_folder.h"
#include "engine/train/data/sources/mix.h"
#include "engine/train/data/sources/split.h"
#include "engine/train/data/sources/table_source.h"
#include "engine/train/data/sources/tar.h"
#include "engine/train/data/sources/without_labels.h"
#include "engine/train/data/tables/formats.h"
#include "engine/train/data/tables/table_file.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// A folder of IDX files: data, u8 [h, w, 1], and label.
class MnistSource final : public Source {
 public:
  explicit MnistSource(const DatasetSpec& spec)
      : set_(spec.paths.front(), spec.split), folder_(spec.paths.front()), fields_(mnist_fields(set_.sample_shape())) {}
  int64_t size() const override { return set_.size(); }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    if (wanted[0]) {
      const std::span<const uint8_t> image = set_.image(sample);
      out[0].resize(image.size());
      std::ranges::copy(std::as_bytes(image), out[0].begin());
    }
    if (wanted[1]) out[1].assign(1, static_cast<std::byte>(set_.label(sample)));
  }
  std::string where(int64_t sample) const override { return folder_ + ": sample " + std::to_string(sample); }
  int64_t memory_bytes() const override { return set_.size() * (num_elements(set_.sample_shape()) + 1); }
  const std::vector<std::string>& class_names() const override { return no_names_; }

 private:
  MnistSet set_;
  std::string folder_;
  std::vector<SourceField> fields_;
  std::vector<std::string> no_names_;
};

/// Images [c, h, w] of a source as [h, w, c], which transforms take.
class ImagesChannelsLast final : public Source {
 public:
  explicit ImagesChannelsLast(std::unique_ptr<Source> inner) : inner_(std::move(inner)), fields_(inner_->fields()) {
    Shape& shape = fields_.front().shape;
    channels_ = shape[0];
    pixels_ = shape[1] * shape[2];
    shape = {shape[1], shape[2], shape[0]};
  }
  int64_t size() const override { return inner_->size(); }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    inner_->read(sample, wanted, out);
    if (!wanted[0]) return;
    thread_local FieldBytes planes;
    planes.swap(out[0]);
    out[0].resize(planes.size());
    for (int64_t c = 0; c < channels_; ++c)
      for (int64_t i = 0; i < pixels_; ++i)
        out[0][static_cast<size_t>(i * channels_ + c)] = planes[static_cast<size_t>(c * pixels_ + i)];
  }
  void expect(int64_t sample) const override { inner_->expect(sample); }
  std::string where(int64_t sample) const override { return inner_->where(sample); }
  int64_t memory_bytes() const override { return inner_->memory_bytes(); }
  const std::vector<std::string>& class_names() const override { return inner_->class_names(); }

 private:
  std::unique_ptr<Source> inner_;
  std::vector<SourceField> fields_;
  int64_t channels_ = 0, pixels_ = 0;
};

/// A source with some of the fields of another one, under other names.
class ChosenFields final : public Source {
 public:
  ChosenFields(std::unique_ptr<Source> inner, const std::vector<std::pair<std::string, std::string>>& chosen)
      : inner_(std::move(inner)) {
    for (const auto& [name, of] : chosen) {
      const std::vector<SourceField>& all = inner_->fields();
      const auto at = std::find_if(all.begin(), all.end(), [&](const SourceField& f) { return f.name == of; });
      check(at != all.end(), "a chosen field is one of the source's");
      from_.push_back(static_cast<size_t>(at - all.begin()));
      fields_.push_back(*at);
      fields_.back().name = name;
    }
  }
  int64_t size() const override { return inner_->size(); }
  const std::vector<SourceField>& fields() const override { return fields_; }
  void read(int64_t sample, const std::vector<bool>& wanted, std::span<FieldBytes> out) const override {
    thread_local std::vector<bool> inner_wanted;
    thread_local std::vector<FieldBytes> bytes;
    inner_wanted.assign(inner_->fields().size(), false);
    bytes.resize(inner_->fields().size());
    for (size_t i = 0; i < from_.size(); ++i) inner_wanted[from_[i]] = wanted[i];
    for (size_t i = 0; i < from_.size(); ++i) bytes[from_[i]].swap(out[i]);
    inner_->read(sample, inner_wanted, std::span(bytes).first(inner_->fields().size()));
    for (size_t i = 0; i < from_.size(); ++i) bytes[from_[i]].swap(out[i]);
  }
  void expect(int64_t sample) const override { inner_->expect(sample); }
  std::string where(int64_t sample) const override { return inner_->where(sample); }
  int64_t memory_bytes() const override { return inner_->memory_bytes(); }
  const std::vector<std::string>& class_names() const override { return inner_->class_names(); }

 private:
  std::unique_ptr<Source> inner_;
  std::vector<SourceField> fields_;
  std::vector<size_t> from_;
};

std::unique_ptr<Source> open_cifar_folder(const DatasetSpec& spec) {
  const fs::path folder(spec.paths.front());
  const bool is_test = spec.split == "test";
  CifarOptions options;
  options.classes = spec.type == "cifar10" ? 10 : 100;
  if (options.classes == 10)
    options.paths = {(folder / (is_test ? "test_batch.bin" : "data_batch_*.bin")).string()};
  else
    options.paths = {(folder / (is_test ? "test.bin" : "train.bin")).string()};
  const std::string label = options.classes == 100 && spec.label_set == "coarse" ? "coarse" : "label";
  return std::make_unique<ChosenFields>(
      std::make_unique<ImagesChannelsLast>(open_cifar(options)),
      std::vector<std::pair<std::string, std::string>>{{"image", "image"}, {"label", label}});
}

std::vector<SampleFieldSpec> fields_or(const DatasetSpec& spec, std::vector<SampleFieldSpec> fallback) {
  return spec.fields.empty() ? std::move(fallback) : spec.fields;
}

ArrayFileOptions array_options(const DatasetSpec& spec) {
  ArrayFileOptions options;
  options.paths = spec.paths;
  for (const SampleFieldSpec& field : fields_or(spec, {{"data", {"data"}}, {"label", {"label"}}}))
    options.fields.push_back({field.name, field.parts.front()});
  return options;
}

NpyOptions npy_options(const DatasetSpec& spec) {
  NpyOptions options;
  for (const SampleFieldSpec& field : spec.fields)
    options.fields.push_back({field.name, {(fs::path(spec.paths.front()) / field.parts.front()).string()}});
  return options;
}

/// An array file takes the place of the folder whose files `fields` names.
NpyOptions npy_options_without_label(const DatasetSpec& spec) {
  std::error_code ignored;
  if (spec.paths.size() == 1 && fs::is_directory(spec.paths[0], ignored)) return npy_options(spec);
  if (spec.fields.size() > 1)
    throw SpecError(
        {}, "dataset.path",
        fmt::format("a sample has {} fields without its label, so one .npy file is not enough", spec.fields.size()),
        "name a folder with a file for each field, as in the job");
  return {{{spec.fields.front().name, spec.paths}}};
}

TarOptions tar_options(const DatasetSpec& spec) {
  TarOptions options;
  options.paths = spec.paths;
  for (const SampleFieldSpec& field : fields_or(spec, {{"image", {"jpg", "jpeg", "png"}}, {"label", {"cls"}}}))
    options.fields.push_back({field.name, field.parts});
  return options;
}

/// The values of the first row of the first file, and the names of its columns if it has a header.
struct FirstRow {
  std::vector<std::string> names, values;

  explicit FirstRow(const DatasetSpec& spec, char delimiter) {
    constexpr int64_t kMostBytes = int64_t{1} << 20;
    const InputFile file(list_files(spec.paths, "dataset.path").front());
    std::string text(static_cast<size_t>(std::min(file.bytes(), kMostBytes)), '\0');
    file.read(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
    std::string_view rest = text;
    if (rest.starts_with("\xef\xbb\xbf")) rest.remove_prefix(3);  // the byte order mark
    if (spec.header) names = next_row(rest, delimiter);
    values = next_row(rest, delimiter);
  }

  /// Returns whether that column contains text that is not a number.
  bool has_word(const std::string& column) const {
    const auto named = std::find(names.begin(), names.end(), column);
    size_t place = static_cast<size_t>(named - names.begin());
    if (named == names.end()) {
      const std::optional<double> number = parse_number(column);
      place = number && *number >= 1 ? static_cast<size_t>(*number) - 1 : values.size();
    }
    if (place >= values.size()) return false;  // the source says what is wrong
    std::string text = values[place];
    text.erase(0, text.find_first_not_of(" \t"));
    text.erase(text.find_last_not_of(" \t") + 1);
    char* end = nullptr;
    std::strtod(text.c_str(), &end);
    return text.empty() || *end != '\0';
  }

 private:
  static std::vector<std::string> next_row(std::string_view& rest, char delimiter) {
    while (true) {
      const size_t bytes = row_bytes(rest, delimiter, true).value_or(rest.size());
      std::string row(rest.substr(0, bytes));
      rest.remove_prefix(bytes);
      if (is_blank_row(row) && !rest.empty()) continue;
      std::vector<std::string_view> found;
      split_row(row, delimiter, found);
      return {found.begin(), found.end()};
    }
  }
};

/// The words of a column of the training set: a word has the same number in all sets of a job.
std::vector<std::string> words_of_training(const DatasetSpec& spec, const CsvField& column, CsvOptions options) {
  options.paths = spec.class_paths;
  options.fields = {column};
  return open_csv(options)->class_names();
}

/// Returns whether the transforms of a field begin with type_cast: i32.
bool begins_with_integers(const DatasetSpec& spec, const std::string& field) {
  std::vector<SourceField> names;
  for (const SampleFieldSpec& one : spec.fields) names.push_back({one.name, Encoding::array, ElementType::f32, {}});
  const std::vector<TransformSpec> transforms = transforms_of(spec, names, field);
  return !transforms.empty() && transforms[0].name == "type_cast" && transforms[0].attrs.text("dtype") == "i32";
}

/// Options for a csv file. Labels have the type label_dtype. All other fields are f32, or i32 if their transforms begin
/// with type_cast: i32. Integers may be words: the column then has a first value that is not a number.
CsvOptions csv_options(const DatasetSpec& spec, const std::vector<std::string>& classes) {
  CsvOptions options;
  options.paths = spec.paths;
  options.header = spec.header;
  options.delimiter = spec.delimiter == "tab" ? '\t' : spec.delimiter.front();
  const FirstRow first(spec, options.delimiter);
  for (const SampleFieldSpec& field : spec.fields) {
    const bool is_label = field.name == "label";
    const bool to_integers = begins_with_integers(spec, field.name);
    CsvField column;
    column.name = field.name;
    column.columns = field.parts;
    column.scalar = is_label && field.parts.size() == 1;
    column.words =
        (is_label && spec.label_dtype == "class") ||
        ((!is_label || spec.label_dtype == "i32") &&
         std::all_of(field.parts.begin(), field.parts.end(), [&](const auto& c) { return first.has_word(c); }));
    column.type =
        column.words || to_integers || (is_label && spec.label_dtype != "f32") ? ElementType::i32 : ElementType::f32;
    if (column.words && is_label) column.classes = classes;
    if (column.words && !is_label && !spec.class_paths.empty())
      column.classes = words_of_training(spec, column, options);
    options.fields.push_back(std::move(column));
  }
  return options;
}

/// Returns whether all files of a table are text tables, which open_csv() reads.
bool is_csv(const std::vector<std::string>& files) {
  return std::all_of(files.begin(), files.end(),
                     [](const std::string& file) { return file.ends_with(".csv") || file.ends_with(".tsv"); });
}

std::vector<std::string> table_files(const DatasetSpec& spec) { return list_table_files(spec.paths, "dataset.path"); }

DatasetSpec as_csv(DatasetSpec spec, const std::vector<std::string>& files) {
  spec.paths = files;
  spec.type = "csv";
  if (const char delimiter = csv_delimiter(files.front()); delimiter != ',')
    spec.delimiter = delimiter == '\t' ? "tab" : std::string(1, delimiter);
  return spec;
}

TableOptions table_options(const DatasetSpec& spec, const std::vector<std::string>& files,
                           const std::vector<std::string>& classes) {
  TableOptions options{files, {}};
  for (const std::string& file : files)
    if (!is_table_file(file))
      throw SpecError(
          {}, "dataset.path", fmt::format("'{}' is not a table that trainctl reads", file),
          "tables are *.jsonl, *.parquet, *.arrow, *.feather, *.tfrecord, *.mdb, *.h5, and folders of MDS and Hugging "
          "Face; *.csv cannot be mixed with them");
  for (const SampleFieldSpec& field : spec.fields) {
    const bool is_label = field.name == "label";
    TableField column{field.name, field.parts, is_label && field.parts.size() == 1, false, {}};
    column.distinct = is_label && spec.label_dtype == "class";
    column.integers = (is_label && spec.label_dtype != "f32") || begins_with_integers(spec, field.name);
    if (is_label) column.classes = classes;
    options.fields.push_back(std::move(column));
  }
  return options;
}

/// Sets the words of the columns, so that they have the numbers that they have in the training set.
TableOptions with_words_of_training(TableOptions options, const DatasetSpec& spec) {
  if (spec.class_paths.empty()) return options;
  for (TableField& field : options.fields) {
    if (!field.classes.empty()) continue;
    TableOptions training{list_table_files(spec.class_paths, "dataset.path"), {field}};
    field.classes = open_table(training)->class_names();
  }
  return options;
}

AudioFolderOptions audio_options(const DatasetSpec& spec, const std::vector<std::string>& classes) {
  return {spec.paths,
          classes,
          spec.labels,
          spec.length,
          spec.sample_rate,
          spec.audio == "mel",
          {spec.sample_rate, spec.mel_bins, spec.window, spec.hop}};
}

std::unique_ptr<Source> open_files(const DatasetSpec& spec, const std::vector<std::string>& classes);

std::unique_ptr<Source> open_table_files(const DatasetSpec& spec, const std::vector<std::string>& classes) {
  const std::vector<std::string> files = table_files(spec);
  if (is_csv(files)) return open_files(as_csv(spec, files), classes);
  return open_table(with_words_of_training(table_options(spec, files, classes), spec));
}

std::unique_ptr<Source> open_files(const DatasetSpec& spec, const std::vector<std::string>& classes) {
  if (spec.type == "image_folder") return open_image_folder({spec.paths, classes});
  if (spec.type == "tar") return open_tar(tar_options(spec));
  if (spec.type == "csv") return open_csv(csv_options(spec, classes));
  if (spec.type == "table") return open_table_files(spec, classes);
  if (spec.type == "audio_folder") return open_audio_folder(audio_options(spec, classes));
  if (spec.type == "npy") return open_npy(spec.labels ? npy_options(spec) : npy_options_without_label(spec));
  if (spec.type == "npz") return open_npz(array_options(spec));
  if (spec.type == "safetensors") return open_safetensors(array_options(spec));
  if (spec.type == "mnist") return std::make_unique<MnistSource>(spec);
  check(spec.type == "cifar10" || spec.type == "cifar100", "a type that reads files is one of these");
  return open_cifar_folder(spec);
}

/// The fields that the job reads from the files, without the label.
std::vector<SampleFieldSpec> fields_without_label(const DatasetSpec& spec) {
  std::vector<SampleFieldSpec> fields = spec.fields;
  if (fields.empty() && spec.type == "tar") fields = {{"image", {"jpg", "jpeg", "png"}}};
  if (fields.empty()) fields = {{"data", {"data"}}};
  std::erase_if(fields, [](const SampleFieldSpec& field) { return field.name == "label"; });
  return fields;
}

/// The label field of samples that have no label. A table says how many numbers its label has; arrays take the label of
/// the training set.
SourceField label_field(const DatasetSpec& spec) {
  if (spec.type != "csv" && spec.type != "table" && spec.type != "audio_folder" && spec.has_source() &&
      !spec.class_paths.empty()) {
    DatasetSpec training = spec;
    training.labels = true;
    training.paths = spec.class_paths;
    const std::unique_ptr<Source> source = open_files(training, {});
    for (const SourceField& field : source->fields())
      if (field.name == "label") return field;
  }
  SourceField field{"label", Encoding::array, spec.label_dtype == "f32" ? ElementType::f32 : ElementType::i32, {}};
  for (const SampleFieldSpec& one : spec.fields)
    if ((spec.type == "csv" || spec.type == "table") && one.name == "label" && one.parts.size() > 1)
      field.shape = {static_cast<int64_t>(one.parts.size())};
  return field;
}

bool ends_in_tar(const std::string& path) { return path.ends_with(".tar"); }

/// The files of a set without labels: images for every set of images, otherwise files of the set's type.
std::unique_ptr<Source> open_files_without_labels(DatasetSpec spec) {
  const bool has_images = spec.type == "image_folder" || spec.has_file_splits() ||
                          (spec.type == "tar" && std::none_of(spec.paths.begin(), spec.paths.end(), ends_in_tar));
  if (spec.type == "mnist" && spec.paths.size() == 1 && is_idx_file(spec.paths[0]))
    return open_idx_images(spec.paths[0]);
  if (has_images) return open_images(spec.paths);
  spec.fields = fields_without_label(spec);
  return open_files(spec, {});
}

std::shared_ptr<const Source> open_unlabelled(const DatasetSpec& spec) {
  std::string first;  // images have their own field name in a folder
  if (spec.type == "mnist") first = "data";
  if (spec.type == "tar" && !spec.fields.empty()) first = fields_without_label(spec).front().name;
  return std::make_shared<WithoutLabels>(open_files_without_labels(spec), label_field(spec), first, spec.fields);
}

std::shared_ptr<const Source> with_share(std::shared_ptr<const Source> set, const DatasetSpec& spec, uint64_t seed) {
  if (!spec.has_shares()) return set;
  SplitOptions options;
  const double rest = std::max(0.0, 1 - spec.train_share - spec.validation_share);
  options.parts = {{"train", spec.train_share}, {"validation", spec.validation_share}, {"rest", rest}};
  options.part = spec.takes_validation_share ? "validation" : "train";
  options.seed = seed;
  options.by_name =
      spec.type == "image_folder" || spec.type == "audio_folder";  // Files that are added to such a set leave the other
                                                                   // files in their parts.
  options.folders = spec.paths;
  return open_split(std::move(set), options);
}

}  // namespace

std::vector<SourceField> mnist_fields(const Shape& image) {
  return {{"data", Encoding::array, ElementType::u8, image}, {"label", Encoding::array, ElementType::u8, {}}};
}

bool reads_words(const DatasetSpec& spec) {
  if (spec.type == "table") {
    const std::vector<std::string> files = table_files(spec);
    if (is_csv(files)) return reads_words(as_csv(spec, files));
    const std::unique_ptr<TableFile> first = open_table_file(files.front());
    for (const SampleFieldSpec& field : fields_without_label(spec)) {
      const int column = first->find(field.parts.front());
      if (column >= 0 && first->columns()[static_cast<size_t>(column)].kind == ColumnKind::text) return true;
    }
    return false;
  }
  if (spec.type != "csv") return false;
  DatasetSpec samples = spec;
  samples.class_paths.clear();
  samples.fields = fields_without_label(spec);
  const CsvOptions options = csv_options(samples, {});
  return std::any_of(options.fields.begin(), options.fields.end(), [](const CsvField& field) { return field.words; });
}

void check_source_files(const DatasetSpec& spec) {
  if (spec.type == "npz") check_npz(array_options(spec));
}

std::shared_ptr<const Source> open_source(const DatasetSpec& spec, uint64_t seed) {
  if (!spec.labels) return open_unlabelled(spec);
  std::vector<std::string> classes;
  if (!spec.class_paths.empty()) {  // a class has the number that it has in the training set
    DatasetSpec training = spec;
    training.paths = spec.class_paths;
    classes = open_files(training, {})->class_names();
  }
  if (spec.weights.empty()) return with_share(open_files(spec, classes), spec, seed);
  std::vector<MixedSet> sets;
  for (size_t i = 0; i < spec.paths.size(); ++i) {
    DatasetSpec one = spec;
    one.paths = {spec.paths[i]};
    sets.push_back({with_share(open_files(one, classes), spec, seed), spec.weights[i]});
  }
  return open_mix(std::move(sets));
}

}  // namespace trainctl
