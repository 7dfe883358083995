// The job of `trainctl init --data TABLE`: a small network that predicts one column from the others. Numbers are
// normalized by a batch_norm, and words are rows of an embedding.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <set>

#include "cli/commands/column_facts.h"
#include "cli/commands/job_of_data.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"
#include "engine/spec/read_value.h"
#include "engine/train/data/convert_table.h"
#include "engine/train/data/tables/formats.h"

namespace trainctl {
namespace {

constexpr size_t kMostTargetClasses = 1 << 16;
constexpr size_t kMostNumberClasses = 20;  ///< distinct integers that are classes unless the user says otherwise

/// The column to predict: --target, else one named label, target, class or y, else the last one that a network can
/// predict.
const ColumnFacts& find_target(const std::vector<ColumnFacts>& facts, const UserData& data) {
  const auto is_target = [&](const ColumnFacts& one) { return one.column.name == data.target; };
  auto found = data.target.empty() ? facts.end() : std::find_if(facts.begin(), facts.end(), is_target);
  if (!data.target.empty() && found == facts.end()) {
    std::vector<std::string> names;
    for (const ColumnFacts& one : facts) names.push_back(one.column.name);
    const std::string near = did_you_mean(data.target, names);
    throw SpecError({}, "init", fmt::format("{} has no column '{}'", data.path, data.target),
                    near + (near.empty() ? "" : " ") + "columns: " + printable(shortened(join(names))));
  }
  for (const char* name : {"label", "target", "class", "y"})
    for (auto one = facts.begin(); found == facts.end() && one != facts.end(); ++one)
      if (lower_case(one->column.name) == name && one->problem.empty()) found = one;
  if (found == facts.end()) {
    const auto last = std::find_if(facts.rbegin(), facts.rend(),
                                   [](const ColumnFacts& one) { return one.problem.empty() && !one.is_list(); });
    if (last == facts.rend())
      throw SpecError({}, "init", data.path + " has no column of numbers or words without missing values",
                      "for conversations and texts, add --from MODEL and --finetune chat or text; otherwise fill in "
                      "the missing values");
    found = std::prev(last.base());
  }
  if (!found->problem.empty() || found->is_list())
    throw SpecError({}, "init",
                    fmt::format("the target '{}' {}", printable(shortened(found->column.name)),
                                found->is_list() ? "has lists" : found->problem),
                    "choose another column with --target, or fill in the missing values");
  if (std::max(found->words.size(), found->numbers.size()) < 2)
    throw SpecError(
        {}, "init",
        fmt::format("the target '{}' has the same value in all rows", printable(shortened(found->column.name))),
        "choose another column with --target");
  return *found;
}

/// Its numbers are those of classes: all integers from 0 on.
bool numbers_classes(const ColumnFacts& target) {
  return target.is_whole && !target.numbers.empty() && *target.numbers.begin() == 0 &&
         *target.numbers.rbegin() + 1 == static_cast<double>(target.numbers.size());
}

/// Words, booleans, two different numbers (-1 and 1), and few different integers that repeat are classes.
bool is_class(const ColumnFacts& target, const UserData& data) {
  const size_t distinct = std::max(target.words.size(), target.numbers.size());
  if (data.target_type == "class" && distinct > kMostTargetClasses)
    throw SpecError({}, "init",
                    fmt::format("the target '{}' has {} different values, which are too many classes",
                                target.column.name, distinct),
                    "choose another column with --target, or --target-type number");
  if (data.target_type == "number" && target.is_words())
    throw SpecError({}, "init", fmt::format("the target '{}' has words", target.column.name), "--target-type class");
  if (!data.target_type.empty()) return data.target_type == "class";
  constexpr int64_t kRowsPerClass = 2;
  const bool repeats = kRowsPerClass * static_cast<int64_t>(distinct) <= target.count;
  return target.is_words() || distinct == 2 || (target.is_whole && distinct <= kMostNumberClasses && repeats);
}

/// "[a, b, …]", wrapped.
std::string yaml_list(const std::vector<std::string>& names) {
  std::string text = "[", line;
  constexpr size_t kWidth = 90;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string item = yaml_text(names[i]) + (i + 1 < names.size() ? "," : "");
    if (!line.empty() && line.size() + item.size() > kWidth) {
      text += line + "\n             ";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + item;
  }
  return text + line + "]";
}

/// The inputs of the network: which columns they read, and the layers between them and the first dense layer.
struct TableInputs {
  std::vector<std::string> numbers, words;
  std::string lists;   ///< fields, a line each
  std::string layers;  ///< lines
  std::vector<std::string> names;
};

TableInputs inputs_of(const std::vector<ColumnFacts>& facts, const ColumnFacts& target) {
  TableInputs inputs;
  std::set<std::string, std::less<>> words;
  std::string lists;
  for (const ColumnFacts& one : facts) {
    if (&one == &target || !one.problem.empty()) continue;
    const std::string& name = one.column.name;
    if (one.is_list()) {
      const std::string field = "list" + std::to_string(inputs.names.size() + 1);
      inputs.lists += fmt::format("    {}: {}\n", field, yaml_text(name));
      lists += fmt::format("  - {{name: {0}_flat, type: flatten, inputs: [{0}]}}\n", field);
      inputs.names.push_back(field + "_flat");
    } else if (one.is_words()) {
      inputs.words.push_back(name);
      words.insert(one.words.begin(), one.words.end());
    } else {
      inputs.numbers.push_back(name);
    }
  }
  if (!inputs.numbers.empty()) {
    inputs.layers += "  - {name: scaled, type: batch_norm, inputs: [numbers]}    # mean 0 and deviation 1\n";
    inputs.names.emplace_back("scaled");
  }
  if (!inputs.words.empty()) {
    inputs.layers += fmt::format(
        "  - {{name: vectors, type: embedding, vocab: {}, units: 8, inputs: [words]}}    # a vector per word\n"
        "  - {{name: vectors_flat, type: flatten}}\n",
        words.size());
    inputs.names.emplace_back("vectors_flat");
  }
  inputs.layers += lists;
  if (inputs.names.size() > 1)
    inputs.layers += fmt::format("  - {{name: all, type: concat, inputs: [{}]}}\n", join(inputs.names));
  return inputs;
}

std::string comment_of(const std::vector<ColumnFacts>& facts, const ColumnFacts& target) {
  std::string text;
  for (const ColumnFacts& one : facts)
    if (!one.problem.empty() && &one != &target)
      text += fmt::format("# Left out: the column {}, which {}.\n", yaml_text(printable(shortened(one.column.name))),
                          printable(shortened(one.problem)));
  return text;
}

/// Everything that the text of the job depends on.
struct TableJob {
  const UserData& data;
  int64_t rows = 0;
  const ColumnFacts& target;
  bool is_class = false;
  TableInputs inputs;
  std::string left_out;  ///< comment lines

  bool splits() const {
    constexpr int64_t kFewRows = 20;
    return data.validation.empty() && rows >= kFewRows;
  }
  bool validates() const { return splits() || !data.validation.empty(); }
  int64_t training_rows() const { return splits() ? rows * 4 / 5 : rows; }
  int64_t batch() const {
    constexpr int64_t kMostBatch = 256;
    return static_cast<int64_t>(
        std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(training_rows() / 8, 2, kMostBatch))));
  }
  size_t classes() const { return std::max(target.words.size(), target.numbers.size()); }
  std::string shown_target() const { return yaml_text(printable(shortened(target.column.name))); }
};

std::string head_of(const TableJob& job) {
  const std::string target = job.shown_target();
  std::string text = fmt::format(
      "# A trainctl job: predicts the column {} of a table, {}.\n#\n"
      "#   trainctl data check FILE                         check all rows\n"
      "#   trainctl run FILE                                train it\n"
      "#   trainctl evaluate FILE                           {}\n"
      "#   trainctl predict FILE new.csv -o answers.csv     for rows without the column {}\n#\n",
      target, job.is_class ? fmt::format("one of {} classes", job.classes()) : "a number",
      job.is_class ? "precision and recall of each class" : "mean absolute error and R2", target);
  text += job.left_out;
  if (job.rows > kScannedRows)
    text += fmt::format("# The columns were judged by the first {} of {} rows.\n", with_commas(kScannedRows),
                        with_commas(job.rows));
  return text + "# docs/job.md describes every field, docs/data.md data sets.\n";
}

std::string dataset_of(const TableJob& job) {
  const std::string& path = job.data.path;
  const bool is_csv = path.ends_with(".csv") || path.ends_with(".tsv");
  std::string text = fmt::format("dataset:\n  type: {}\n  path: {}\n", is_csv ? "csv" : "table",
                                 yaml_text(path_for_job(path, job.data.file)));
  if (is_csv && csv_delimiter(path) == '\t')
    text += "  delimiter: tab\n";
  else if (is_csv && csv_delimiter(path) != ',')
    text += fmt::format("  delimiter: '{}'\n", csv_delimiter(path));
  if (job.splits()) text += "  split: {train: 0.8, validation: 0.2}    # by a hash: no row is in both sets\n";
  text += "  fields:\n";
  if (!job.inputs.numbers.empty()) text += "    numbers: " + yaml_list(job.inputs.numbers) + "\n";
  if (!job.inputs.words.empty()) text += "    words: " + yaml_list(job.inputs.words) + "\n";
  text += job.inputs.lists + "    label: " + yaml_text(job.target.column.name) + "\n";
  if (!job.is_class)
    text += "  label_dtype: f32\n";
  else if (!job.target.is_words() && !numbers_classes(job.target))
    text += "  label_dtype: class    # each distinct value is a class\n";
  return text + fmt::format("  batch: {}\n", job.batch());
}

std::string network_of(const TableJob& job) {
  std::string text = "network:\n" + job.inputs.layers +
                     "  - {name: fc1, type: dense, units: 64}\n  - {name: act1, type: relu}\n"
                     "  - {name: fc2, type: dense, units: 64}\n  - {name: act2, type: relu}\n";
  if (job.is_class)
    return text + fmt::format(
                      "  - {{name: out, type: dense, units: {}}}    # one per class\n\n"
                      "loss: softmax_cross_entropy\nmetrics: [accuracy]\n",
                      job.classes());
  const double deviation = job.target.deviation() > 0 ? job.target.deviation() : 1;
  return text +
         fmt::format(
             "  - {{name: out, type: dense, units: 1}}\n"
             "  - {{name: in_units, type: scale, factor: {:.9g}, shift: {:.9g}}}    # deviation and mean of {}\n\n"
             "loss: mse\n",
             deviation, job.target.mean, job.shown_target());
}

std::string training_of(const TableJob& job) {
  std::string text;
  if (!job.data.validation.empty())
    text +=
        "validation: {every_epochs: 1, dataset: {path: " + yaml_text(path_for_job(job.data.validation, job.data.file)) +
        "}}\n";
  else if (job.splits())
    text += "validation: {every_epochs: 1}\n";
  constexpr int64_t kSteps = 2000, kMostEpochs = 60;
  const std::string best = job.is_class ? "accuracy" : "loss";
  return text + fmt::format(
                    "\noptimizer:\n  type: adamw\n  learning_rate: {{type: cosine, base: 0.003, warmup_steps: 5}}\n"
                    "  weight_decay: 0.01\n\ntrain: {{epochs: {}, checkpoint: {}}}\nlaunch: {{ranks: 1}}\n",
                    epochs_for(job.training_rows(), job.batch(), kSteps, kMostEpochs),
                    job.validates() ? "{every_epochs: 1, keep_best: " + best + "}" : "auto");
}

/// A header of numbers is a sample.
void refuse_other_text_tables(const TableFile& table, const std::string& path) {
  if (!path.ends_with(".csv") && !path.ends_with(".tsv")) return;
  const auto is_number = [](const TableColumn& column) {
    return !column.name.empty() && column.name.find_first_not_of("0123456789.+-eE ") == std::string::npos &&
           column.name.find_first_of("0123456789") != std::string::npos;
  };
  if (std::all_of(table.columns().begin(), table.columns().end(), is_number))
    throw SpecError({}, "init", path + " begins with numbers, not with a header",
                    "insert a first line with the names of the columns");
}

/// Spreadsheets of some countries write 1,5 for 1.5, and separate values by semicolons.
void refuse_decimal_commas(const std::vector<ColumnFacts>& facts, const std::string& path) {
  const auto has_comma = [](const std::string& word) {
    const size_t comma = word.find(',');
    std::string point = word;
    if (comma != std::string::npos) point[comma] = '.';
    return comma != std::string::npos && word.find_first_not_of("0123456789+-,") == std::string::npos &&
           parse_number(point).has_value();
  };
  for (const ColumnFacts& one : facts) {
    if (!one.is_words() || one.words.empty() || !std::any_of(one.words.begin(), one.words.end(), has_comma) ||
        !std::all_of(one.words.begin(), one.words.end(),
                     [&](const std::string& word) { return has_comma(word) || parse_number(word).has_value(); }))
      continue;
    throw SpecError({}, "init",
                    fmt::format("{}: the column '{}' has numbers with decimal commas, such as '{}'", path,
                                printable(shortened(one.column.name)), printable(shortened(*one.words.begin()))),
                    "write points, for example with sed 's/,/./g' if commas occur nowhere else");
  }
}

}  // namespace

bool has_table(const std::string& path) {
  if (path.ends_with(".csv") || path.ends_with(".tsv") || is_table_file(path)) return true;
  return std::filesystem::is_directory(path) && !table_files_of_folder(path).empty();
}

std::string job_of_table(const UserData& data) {
  const std::vector<std::unique_ptr<TableFile>> tables = open_tables({data.path});
  int64_t rows = 0;
  for (const auto& table : tables) rows += table->size();
  if (rows == 0) throw SpecError({}, "init", data.path + " has no rows", "add at least one row; each row is a sample");
  refuse_other_text_tables(*tables.front(), data.path);
  if (!data.validation.empty() && !std::filesystem::exists(data.validation))
    throw EnvError(data.validation + ": no such file or folder");
  std::vector<ColumnFacts> facts = read_facts(tables, rows);
  if (data.path.ends_with(".csv")) refuse_decimal_commas(facts, data.path);
  const ColumnFacts& target = find_target(facts, data);
  refuse_identifiers(facts, rows, target.column.name);
  const TableJob job{data, rows, target, is_class(target, data), inputs_of(facts, target), comment_of(facts, target)};
  if (job.inputs.names.empty())
    throw SpecError({}, "init", data.path + " has no column to predict '" + target.column.name + "' from",
                    "it needs another column of numbers or words without gaps; for conversations and texts add "
                    "--from MODEL and --finetune chat or text");
  const std::string name = std::filesystem::path(data.path).lexically_normal().stem().string();
  return head_of(job) + "name: " + yaml_text(name.empty() ? "table" : name) + "\nseed: 1\n\n" + dataset_of(job) + "\n" +
         network_of(job) + training_of(job);
}

}  // namespace trainctl
