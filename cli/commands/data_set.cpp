// trainctl data check, show and index: inspect a data set, and show its samples as the network sees them.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/commands/data_files.h"
#include "cli/commands/document_reports.h"
#include "cli/commands/job_arguments.h"
#include "cli/render/terminal.h"
#include "cli/text/table.h"
#include "cli/watch_files.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/planning/mixture.h"
#include "engine/planning/run_length.h"
#include "engine/runtime/comm/event.h"
#include "engine/spec/error_positions.h"
#include "engine/train/data/check_source.h"
#include "engine/train/data/contact_sheet.h"
#include "engine/train/data/dataset.h"
#include "engine/train/data/file_patterns.h"
#include "engine/train/data/image/decode.h"
#include "engine/train/data/image/png_file.h"
#include "engine/train/data/mixed_set.h"
#include "engine/train/data/open_source.h"
#include "engine/train/data/order.h"
#include "engine/train/data/sources/tar_index.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// The data set with all of its samples, ignoring the fraction that a job uses.
DatasetSpec without_shares(DatasetSpec spec) {
  spec.train_share = spec.validation_share = 0;
  spec.weights.clear();
  return spec;
}

/// The job's training set, and its validation set if it has separate files. A folder of images stands for a job.
struct CheckedSets {
  JobSpec job;
  DatasetSpec training;
  std::optional<DatasetSpec> validation = {};
};

CheckedSets sets_to_check(const JobArguments& job) {
  if (fs::is_directory(job.file)) {
    CheckedSets folder;
    folder.training.type = "image_folder";
    folder.training.paths = {job.file};
    return folder;
  }
  const JobSpec whole = job.load();
  const DatasetSpec& spec = whole.dataset;
  if (!whole.has_command() && spec.is_mix()) {
    CheckedSets sets{whole, spec};
    if (whole.validation) sets.validation = whole.validation_set();
    return sets;
  }
  if (whole.has_command() ||
      !(spec.has_source() || spec.has_documents() || spec.has_class_texts() || spec.type == "mnist"))
    throw SpecError(whole.position("dataset.type"), "dataset.type",
                    "a data set of type " + spec.type + " has no sample files to check",
                    "supported types: image_folder, tar, csv, table, npy, npz, safetensors, cifar10, cifar100, "
                    "audio_folder, mnist, chat, "
                    "and text with a "
                    "tokenizer; for token files, use trainctl data info");
  CheckedSets sets{whole, without_shares(spec)};
  if (whole.validation && !(whole.validation->dataset.paths.empty() && whole.validation->dataset.split.empty()))
    sets.validation = without_shares(whole.validation_set());
  return sets;
}

/// "images of [32, 32, 3]", or "images from [68, 120, 3] to [4000, 6000, 3]".
std::string images_text(const FieldReport& field) {
  if (field.least == field.most) return "images of " + to_string(field.least);
  return "images from " + to_string(field.least) + " to " + to_string(field.most);
}

std::string class_name(const Source& source, int64_t number) {
  const std::vector<std::string>& names = source.class_names();
  const bool has_name = number >= 0 && static_cast<size_t>(number) < names.size();
  return has_name ? fmt::format("{} ({})", number, printable(names[static_cast<size_t>(number)]))
                  : std::to_string(number);
}

std::string classes_text(const Source& source, const FieldReport& field) {
  constexpr size_t kMost = 12;
  std::vector<std::string> texts;
  int64_t others = 0;
  for (const auto& [number, count] : field.classes) {
    if (texts.size() < kMost)
      texts.push_back(class_name(source, number) + ": " + with_commas(count));
    else
      others += count;
  }
  if (others > 0) texts.push_back("others: " + with_commas(others));
  return join(texts);
}

/// Prints the number of samples, what each field contains, and the first broken samples.
void print_report(const Source& source, const SourceReport& report, const std::string& title) {
  std::cout << title << with_commas(report.samples) << " samples, " << with_commas(report.broken) << " broken\n";
  const int64_t good = report.samples - report.broken;
  for (size_t i = 0; i < source.fields().size(); ++i) {
    const SourceField& field = source.fields()[i];
    const FieldReport& found = report.fields[i];
    const bool is_image = field.encoding == Encoding::image;
    std::cout << "  " << printable(field.name) << ": "
              << (is_image ? images_text(found)
                           : fmt::format("{} of {}", to_string(field.shape), to_string(field.type)));
    if (good > 0 && found.least_bytes != found.most_bytes)
      std::cout << fmt::format("; {} to {}, {} in total", format_bytes(found.least_bytes),
                               format_bytes(found.most_bytes), format_bytes(found.total_bytes));
    std::cout << "\n";
    if (found.many_values)
      std::cout << "    more than " << with_commas(static_cast<int64_t>(kMostCountedValues)) << " distinct values\n";
    if (found.not_finite > 0)
      std::cout << fmt::format("    {} {} non-finite values; first: {}: {}\n", with_commas(found.not_finite),
                               found.not_finite == 1 ? "sample has" : "samples have",
                               printable(found.first_not_finite.where), printable(found.first_not_finite.error));
    if (!found.classes.empty()) std::cout << "    " << classes_text(source, found) << "\n";
  }
  for (const BrokenSample& broken : report.first_broken) {
    const bool is_named = broken.error.find(broken.where) != std::string::npos;  // decoders do not know the file name
    std::cout << "  broken: " << printable((is_named ? "" : broken.where) + broken.error) << "\n";
  }
  const auto listed = static_cast<int64_t>(report.first_broken.size());
  if (report.broken > listed) std::cout << "  and " << with_commas(report.broken - listed) << " more\n";
}

/// Returns whether all samples of the set can be read and are finite. `title` is printed before the report.
bool is_sound(const DatasetSpec& spec, const std::string& title);

/// All sources of a mixture.
bool are_sources_sound(const DatasetSpec& mix, const std::string& title) {
  bool are_sound = true;
  for (const DatasetSpec& source : mix.sources) {
    const std::string name = title + printable(source.name) + ": ";
    try {
      if (source.has_source() || source.has_documents() || source.has_class_texts() || source.type == "mnist")
        are_sound = is_sound(without_shares(source), name) && are_sound;
      else
        std::cout << name << with_commas(read_data_size(source, 0)) << " samples of type " << source.type << "\n";
    } catch (const SpecError& error) {
      throw of_source(error, source.name);
    }
  }
  return are_sound;
}

/// Reads every sample of the set and prints a report. Returns whether all can be read and are finite.
bool is_sound(const DatasetSpec& spec, const std::string& title) {
  if (spec.is_mix()) return are_sources_sound(spec, title);
  if (spec.has_documents() || spec.has_class_texts()) {
    if (spec.has_documents())
      report_documents(spec, title);
    else
      report_class_texts(spec, title);
    return true;
  }
  const std::shared_ptr<const Source> source = open_source(spec, 0);  // the seed has no effect without shares
  check_files(spec);
  CheckOptions options;
  options.threads = comm::usable_cores();
  options.image_shape = [](std::span<const std::byte> file) -> Shape {
    thread_local Image image;
    decode_image(file, "", {}, image);
    return {image.view().height, image.view().width, image.view().channels};
  };
  const bool redraws = can_redraw(STDERR_FILENO);
  options.on_progress = [&](int64_t done, int64_t broken) {
    if (redraws)
      std::cerr << fmt::format("\r\33[Kchecked {} of {} samples, {} broken", with_commas(done),
                               with_commas(source->size()), with_commas(broken))
                << std::flush;
    return true;
  };
  const SourceReport report = check_source(*source, options);
  if (redraws) std::cerr << "\r\33[K";
  print_report(*source, report, title);
  return report.broken == 0 && std::all_of(report.fields.begin(), report.fields.end(),
                                           [](const FieldReport& field) { return field.not_finite == 0; });
}

int check_sets(const JobArguments& job) {
  if (is_table_path(job.file)) return check_table(job.file) ? kExitDone : kExitEnv;
  const CheckedSets sets = sets_to_check(job);
  const auto watch = watch_files(sets.job.launch.timeout_seconds);
  bool are_sound = true;
  try {
    are_sound = is_sound(sets.training, "");
  } catch (const SpecError& error) {
    throw with_positions(error, sets.job);
  }
  try {
    if (sets.validation && !is_sound(*sets.validation, "validation: ")) are_sound = false;
  } catch (const SpecError& error) {
    throw with_validation_positions(error, sets.job);
  }
  return are_sound ? kExitDone : kExitEnv;
}

struct ShowOptions {
  JobArguments job;
  int64_t count = 16;
  std::string output = "samples.png";
  std::string field;
  bool validation = false, tokens = false;
};

/// The values of each field that is not a picture: "label 3 (dog)".
std::string values_text(const SampleField& field, const Source* source, const std::vector<std::byte>& bytes) {
  constexpr int64_t kMost = 8;
  const int64_t count = std::min(field.elements(), kMost);
  std::vector<std::string> texts;
  if (field.is_integer) {
    std::vector<int32_t> values(static_cast<size_t>(field.elements()));
    load_field(field, bytes.data(), DType::i32, values.data());
    for (int64_t i = 0; i < count; ++i) {
      const int32_t value = values[static_cast<size_t>(i)];
      texts.push_back(source != nullptr && field.name == "label" ? class_name(*source, value) : std::to_string(value));
    }
  } else {
    std::vector<float> values(static_cast<size_t>(field.elements()));
    load_field(field, bytes.data(), DType::f32, values.data());
    for (int64_t i = 0; i < count; ++i) texts.push_back(fmt::format("{:.4g}", values[static_cast<size_t>(i)]));
  }
  return printable(field.name) + " " + join(texts) + (field.elements() > kMost ? ", …" : "");
}

int show_token_rows(const JobSpec& job, const DatasetSpec& spec, int64_t count) {
  if (!spec.has_documents())
    throw SpecError(job.position("dataset.type"), "dataset.type", "has no rows of documents to show",
                    "--tokens is for type: chat, and for type: text with a tokenizer");
  try {
    show_tokens(spec, job.seed, count);
  } catch (const SpecError& error) {
    throw with_positions(error, job);
  }
  return kExitDone;
}

using Picture = std::vector<SampleField>::const_iterator;

/// Returns the field whose values are drawn: the one of --field, or the first that is a picture. The end of `fields` if
/// no field is a picture.
Picture picture_of(const std::vector<SampleField>& fields, const std::string& chosen) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const SampleField& field) {
    return chosen.empty() ? is_picture(field.shape) : field.name == chosen;
  });
  if (found != fields.end() && is_picture(found->shape)) return found;
  if (chosen.empty()) return fields.end();
  std::vector<std::string> all;
  for (const SampleField& field : fields) all.push_back(field.name + " " + to_string(field.shape));
  throw SpecError({}, "--field", chosen + " is not a picture",
                  "fields: " + join(all) + "; a picture has shape [h, w, 1 or 3] or [1 or 3, h, w]");
}

/// Prints the first `count` samples in the order of training, one per line, and draws their pictures on `sheet`.
void print_samples(const JobSpec& job, const DatasetSpec& spec, Dataset& set, const Source* source, int64_t count,
                   Picture picture, std::optional<ContactSheet>& sheet) {
  const std::vector<SampleField>& fields = set.fields();
  SampleOrder order(spec, set, job.seed);
  std::vector<std::vector<std::byte>> bytes;
  std::vector<void*> to;
  for (const SampleField& field : fields) to.push_back(bytes.emplace_back(static_cast<size_t>(field.bytes())).data());
  const auto at = static_cast<size_t>(picture - fields.begin());
  std::vector<float> values(sheet ? static_cast<size_t>(picture->elements()) : 0);
  ReadState state;
  set.prepare(state);
  for (int64_t i = 0; i < count; ++i) {
    const std::span<const int64_t> batch = order.batch(0, i / order.batch_size());
    const auto row = static_cast<size_t>(i % order.batch_size());
    state.rng = SampleRng(job.seed, order.passes()[row], batch[row]);
    set.read(batch[row], state, to);
    if (sheet) {
      load_field(*picture, bytes[at].data(), DType::f32, values.data());
      sheet->draw(i, values);
    }
    std::cout << fmt::format("{:4}  {}", i + 1, printable(set.where(batch[row])));
    for (size_t f = 0; f < fields.size(); ++f)
      if (f != at && !is_picture(fields[f].shape)) std::cout << "  " << values_text(fields[f], source, bytes[f]);
    std::cout << "\n";
  }
}

/// Prints the first samples in the order of training; pictures go to a contact sheet.
int show_samples(const ShowOptions& options) {
  if (is_table_path(options.job.file)) return show_table(options.job.file, options.count), kExitDone;
  const JobSpec job = options.job.load();
  if (job.has_command()) throw SpecError(job.position("command"), "command", "a job with a command has no data set");
  if (options.validation && !job.validation)
    throw SpecError({}, "--validation", "the job has no validation set", "omit --validation to show the training set");
  const auto watch = watch_files(job.launch.timeout_seconds);
  DatasetSpec spec = options.validation ? job.validation_set() : job.dataset;
  if (options.tokens) return show_token_rows(job, spec, options.count);
  if (spec.has_source()) spec.cache = "none";
  std::shared_ptr<const Source> source;
  std::unique_ptr<Dataset> set;
  try {
    if (spec.has_source()) source = open_source(spec, job.seed);
    set = open_dataset(spec, job.seed);
  } catch (const SpecError& error) {
    throw with_positions(error, job);
  }
  const Picture picture = picture_of(set->fields(), options.field);
  const int64_t count = std::min(options.count, set->size());
  std::optional<ContactSheet> sheet;
  if (picture != set->fields().end()) sheet.emplace(picture->shape, count);
  print_samples(job, spec, *set, source.get(), count, picture, sheet);
  if (!sheet) return kExitDone;
  write_png(options.output, sheet->image());
  std::cout << fmt::format("{}: {} samples of {} {}, {} per row\n", printable(options.output), count,
                           printable(picture->name), to_string(picture->shape), sheet->columns());
  return kExitDone;
}

struct MixOptions {
  JobArguments job;
  int64_t first = 1, count = 10, every = 1;
  bool samples = false;
};

void print_rows(const Dataset& set, SampleOrder& order, int64_t step) {
  const std::span<const int64_t> batch = order.batch(step / order.steps_per_epoch(), step % order.steps_per_epoch());
  for (size_t row = 0; row < batch.size(); ++row)
    std::cout << fmt::format("step {} row {}: sample {} in pass {}, {}\n", step + 1, row, batch[row],
                             order.passes()[row] + 1, printable(set.where(batch[row])));
}

/// Prints how many samples each step takes from each source of the mixture, and how many passes over it have been made
/// by then.
int show_mixture(const MixOptions& options) {
  const JobSpec job = options.job.load();
  if (job.has_command() || !job.dataset.has_mixture())
    throw SpecError(job.position("dataset.type"), "dataset.type", "the job has no mixture",
                    "dataset: {type: mix, sources: {…}, mix: {…}} draws from several data sets");
  const auto watch = watch_files(job.launch.timeout_seconds);
  try {
    const DataHeader header = read_data_header(job.dataset, job.seed);
    require_epoch(job.dataset, header.samples);
    Mixture mixture(job.dataset, header.sources);
    std::unique_ptr<Dataset> set;
    std::optional<SampleOrder> order;
    if (options.samples) {
      set = open_dataset(job.dataset, job.seed);
      order.emplace(job.dataset, *set, job.seed);
    }
    std::vector<std::string> head = {">step"};
    for (const SourceHeader& source : mixture.sources()) head.push_back(">" + source.name);
    Table table(head);
    for (int64_t i = 0; i < options.count; ++i) {
      const int64_t step = options.first - 1 + i * options.every;
      const std::vector<int64_t> before(mixture.drawn_before(step).begin(), mixture.drawn_before(step).end());
      const std::span<const int64_t> counts = mixture.counts(step);
      std::vector<std::string> cells = {with_commas(step + 1)};
      for (size_t s = 0; s < counts.size(); ++s)
        cells.push_back(fmt::format("{} ({:.3f})", counts[s],
                                    static_cast<double>(before[s] + counts[s]) /
                                        static_cast<double>(std::max<int64_t>(1, mixture.sources()[s].samples))));
      table.add(std::move(cells));
      if (order) print_rows(*set, *order, step);
    }
    for (const SourceHeader& source : mixture.sources())
      std::cout << fmt::format("{}: {} samples{}\n", printable(source.name), with_commas(source.samples),
                               source.tokens > 0 ? fmt::format(" of {:.1f} tokens on average", source.tokens) : "");
    std::cout << table.str();
  } catch (const SpecError& error) {
    throw with_positions(error, job);
  }
  return kExitDone;
}

int write_indexes(const std::vector<std::string>& shards) {
  for (const std::string& shard : shards) {
    const std::string index = tar_index_path(shard);
    const int64_t samples = write_tar_index(shard, index);
    std::cout << printable(index) << ": " << with_commas(samples) << " samples\n";
  }
  return kExitDone;
}

void add_check_of_data(CLI::App& data, Action& chosen) {
  auto checked = std::make_shared<JobArguments>();
  auto* check =
      data.add_subcommand("check", "Read every sample of a data set, and report its contents and broken samples");
  checked->add_to(*check, "JOB.yaml");
  check->footer(
      R"(Reads and decodes every sample of the training set and the validation set on all cores, and reports the number of
samples, their shapes and classes, broken files, and non-finite values. A folder of images is checked as an image_folder, and a table (*.parquet, *.jsonl …) as it is. The exit
code is 3 if a sample is broken or has a non-finite value.

Examples:
  trainctl data check photos
  trainctl data check data.parquet
  trainctl data check job.yaml)");
  check->callback([&chosen, checked] { chosen = [checked] { return check_sets(*checked); }; });
}

void add_show_of_data(CLI::App& data, Action& chosen) {
  auto shown = std::make_shared<ShowOptions>();
  auto* show = data.add_subcommand("show", "Draw or print the first samples as the network sees them");
  shown->job.add_to(*show);
  show->add_option("-n,--samples", shown->count, "Number of samples")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  show->add_option("-o,--output", shown->output, "PNG file to write")->capture_default_str();
  show->add_option("--field", shown->field, "Field to draw; default: the first one that is a picture");
  show->add_flag("--tokens", shown->tokens, "Print rows of chat and text: trained tokens, and borders of documents");
  show->add_flag("--validation", shown->validation, "Draw samples of the validation set");
  show->footer(
      R"(Draws the samples of the first steps of a run, after their transforms. The contrast of each picture is stretched to
its smallest and largest value. Samples without a picture are printed, and so are the rows of a table (*.parquet …).

Examples:
  trainctl data show job.yaml -n 16 -o samples.png
  trainctl data show talks.yaml --tokens -n 2)");
  show->callback([&chosen, shown] { chosen = [shown] { return show_samples(*shown); }; });
}

void add_mix_of_data(CLI::App& data, Action& chosen) {
  auto mixed = std::make_shared<MixOptions>();
  auto* mix = data.add_subcommand("mix", "Print how many samples of each source of a mixture each step draws");
  mixed->job.add_to(*mix);
  mix->add_option("--from", mixed->first, "First step, counted from 1")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  mix->add_option("-n,--steps", mixed->count, "Number of steps")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  mix->add_option("--every", mixed->every, "Print every n-th step")->check(CLI::PositiveNumber)->capture_default_str();
  mix->add_flag("--samples", mixed->samples, "Also print the sample in each row of each batch");
  mix->footer(
      R"(For a job with dataset: {type: mix}. Each line is a step: the samples of its batch by source and, in parentheses, the
passes over the source after the step. The same steps draw the same samples on any number of ranks, and after a resume.

Examples:
  trainctl data mix job.yaml
  trainctl data mix job.yaml --from 1000 -n 5 --samples)");
  mix->callback([&chosen, mixed] { chosen = [mixed] { return show_mixture(*mixed); }; });
}

void add_index_of_data(CLI::App& data, Action& chosen) {
  auto shards = std::make_shared<std::vector<std::string>>();
  auto* index = data.add_subcommand("index", "Write NAME.tar.idx next to tar shards, so that jobs open them quickly");
  index->add_option("SHARD", *shards, "Tar files")->required();
  index->footer(R"(Without an index, a job reads the headers of all files of a shard at startup.

Examples:
  trainctl data index shards/*.tar)");
  index->callback([&chosen, shards] { chosen = [shards] { return write_indexes(*shards); }; });
}

}  // namespace

void add_data_set_commands(CLI::App& data, Action& chosen) {
  add_check_of_data(data, chosen);
  add_show_of_data(data, chosen);
  add_mix_of_data(data, chosen);
  add_index_of_data(data, chosen);
}

}  // namespace trainctl
