// Tests of the folded report of `trainctl plan`: each line is true of everything that it stands for, and nothing is
// missing.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "cli/render/fold.h"
#include "cli/render/move_rows.h"
#include "cli/render/plan_report.h"
#include "cli/render/progress.h"
#include "cli/render/schedule_drawing.h"
#include "cli/text/display_width.h"
#include "engine/base/error.h"
#include "engine/compile/report/report.h"
#include "engine/planning/compile_job.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/cli/command.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
using Json = nlohmann::ordered_json;

namespace {

using Cells = std::vector<std::string>;

/// "0-7", "0-12:4", "0,1,4-7".
std::vector<int64_t> numbers_in(const std::string& ranges) {
  std::vector<int64_t> numbers;
  std::stringstream parts(ranges);
  for (std::string part; std::getline(parts, part, ',');) {
    int64_t first = 0, last = 0, step = 1;
    const int read = std::sscanf(part.c_str(), "%ld-%ld:%ld", &first, &last, &step);
    if (read < 2) last = first;
    for (int64_t n = first; n <= last; n += step) numbers.push_back(n);
  }
  return numbers;
}

/// The names that a pattern stands for, in order.
std::vector<std::string> expanded(const std::string& pattern) {
  const size_t open = pattern.find('{'), close = pattern.find('}');
  if (open == std::string::npos) return {pattern};
  std::vector<std::string> names;
  for (int64_t n : numbers_in(pattern.substr(open + 1, close - open - 1)))
    for (const std::string& rest : expanded(pattern.substr(close + 1)))
      names.push_back(pattern.substr(0, open) + std::to_string(n) + rest);
  return names;
}

/// The cells of a line, which are separated by two blanks or more.
Cells cells_of(const std::string& line) {
  Cells cells;
  for (size_t at = line.find_first_not_of(' '); at != std::string::npos; at = line.find_first_not_of(' ', at)) {
    const size_t end = std::min(line.find("  ", at), line.size());
    cells.push_back(line.substr(at, end - at));
    at = end;
  }
  return cells;
}

/// The rows of the section with this heading, without the line of column names.
std::vector<Cells> section(const std::string& text, const std::string& head) {
  const size_t at = text.find("\n" + head + "\n");
  if (at == std::string::npos) return {};
  std::stringstream lines(text.substr(at + head.size() + 2));
  std::vector<Cells> rows;
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && !line.empty()) rows.push_back(cells_of(line));
  return rows;
}

bool is_head(const Cells& cells) { return cells.size() == 1 && cells[0].ends_with(" times:"); }

struct Texts {
  std::string folded, full;
};

Texts texts_of(const std::string& yaml) {
  const PlannedJob job = plan_job(parse_job(yaml, "job.yaml"));
  const Json report = plan_report(job.spec, job.graph, job.plan, compile_classes(job));
  return {render_plan(report, {.layers = true, .moves = true, .width = 0}),
          render_plan(report, {.full = true, .width = 0})};
}

/// Checks that each layer is in exactly one line, with the type, cuts and layouts that --full gives it.
void check_layers(const Texts& texts) {
  std::map<std::string, Cells> full;
  for (const Cells& row : section(texts.full, "layers")) full[row.at(1)] = row;
  size_t layers = 0;
  for (const Cells& row : section(texts.folded, "layers")) {
    if (is_head(row)) continue;
    REQUIRE(row.size() >= 6);
    std::set<int64_t> stages;
    for (const std::string& name : expanded(row[1])) {
      INFO(name);
      REQUIRE(full.contains(name));
      const Cells& other = full[name];
      for (size_t c = 2; c < 6; ++c) CHECK(row[c] == other[c]);
      stages.insert(std::stol(other[0]));
      ++layers;
    }
    const std::vector<int64_t> said = numbers_in(row[0]);
    CHECK(std::set<int64_t>(said.begin(), said.end()) == stages);
  }
  CHECK(layers == full.size());
}

/// Checks that each redistribution is in exactly one line and the right stage, with the pass, kind and bytes that
/// --full gives it.
void check_moves(const Texts& texts) {
  const std::string head = "redistributions and transfers, per micro-batch";
  std::multiset<Cells> full;
  for (const Cells& row : section(texts.full, head)) full.insert({row[0], row[1], row[2], row[3], row[4]});
  std::multiset<Cells> folded;
  for (const Cells& row : section(texts.folded, head)) {
    const std::vector<std::string> names = expanded(row.at(3));
    const std::vector<int64_t> stages = numbers_in(row[0]);
    std::vector<size_t> counts(stages.size(), names.size() / stages.size());
    if (const size_t at = row[4].find('('); at != std::string::npos && row[4].find('+') != std::string::npos) {
      std::stringstream words(row[4].substr(at + 1));
      counts.clear();
      for (std::string word; std::getline(words, word, '+');) counts.push_back(std::stoul(word));
    }
    REQUIRE(counts.size() == stages.size());
    CHECK(std::stoul(row[4]) == names.size());
    size_t name = 0;
    for (size_t s = 0; s < stages.size(); ++s)
      for (size_t i = 0; i < counts[s]; ++i)
        folded.insert({std::to_string(stages[s]), row[1], row[2], names.at(name++), row[5]});
    CHECK(name == names.size());
  }
  CHECK(folded == full);
}

/// Repeated blocks of layers, some nested, some numbered by hand.
class RandomBlocks {
 public:
  explicit RandomBlocks(unsigned seed) : random_(seed) {}

  std::string text() {
    const int stages = pick({1, 1, 2, 3, 4}), in_stage = pick({1, 2, 4, 8}), micro = pick({1, 2, 8, 16});
    const char* mode = in_stage > 1 ? "semi_auto_parallel" : "data_parallel";
    std::string job = fmt::format(
        "dataset: {{type: random, shape: [8], label_shape: [8], label_dtype: f32, batch: {}}}\n"
        "modules:\n  inner:\n{}  block:\n{}    - {{module: inner, name: i, repeat: {}}}\n",
        8 * in_stage * micro, layers(4), layers(4), pick({1, 2, 5}));
    job += fmt::format(
        "network:\n  - {{name: first, type: dense, units: 8}}\n  - {{module: block, name: h, repeat: {}}}\n",
        pick({1, 2, 7, 12}));
    for (int l = 1; l <= pick({0, 3, 9}); ++l)
      job += fmt::format("  - {{name: fc{0}, type: dense, units: {1}}}\n  - {{name: act{0}, type: relu}}\n", l,
                         random_() % 7 == 0 ? 16 : 8);
    job += "  - {name: out, type: dense, units: 8}\nloss: mse\n";
    job += fmt::format("launch: {{ranks: {}}}\nparallel:\n  mode: {}\n  stages: {}\n  micro_batches: {}\n",
                       stages * in_stage, mode, stages, micro);
    if (in_stage > 1 && pick({0, 1}) == 1)
      job += fmt::format("  strategies: {{'h.*.l0': [[1, 1], [{}, 1]]}}\n", in_stage);
    return job;
  }

 private:
  int pick(const std::vector<int>& from) { return from[random_() % from.size()]; }

  std::string layers(int most) {
    std::string text = "    - {name: l0, type: dense, units: 8}\n";
    static const char* const kTypes[] = {"relu", "layer_norm", "gelu", "dense, units: 8", "sigmoid"};
    for (int l = 1; l <= static_cast<int>(random_() % static_cast<unsigned>(most)); ++l)
      text += fmt::format("    - {{name: l{}, type: {}}}\n", l, kTypes[random_() % 5]);
    return text;
  }

  std::mt19937 random_;
};

std::string blocks_job(int repeat, const std::string& more) {
  return fmt::format(R"(
dataset: {{type: random, shape: [8], label_shape: [8], label_dtype: f32, batch: 512}}
modules:
  block:
    - {{name: ln, type: layer_norm}}
    - {{name: fc1, type: dense, units: 32}}
    - {{name: act, type: gelu}}
    - {{name: fc2, type: dense, units: 8}}
    - {{name: sum, type: add, inputs: [fc2, input]}}
network:
  - {{name: first, type: dense, units: 8}}
  - {{module: block, name: h, repeat: {}}}
  - {{name: out, type: dense, units: 8}}
loss: mse
{})",
                     repeat, more);
}

size_t plan_fold_lines_of(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

std::string line_with(const std::string& text, const std::string& part) {
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (contains(line, part)) return line;
  return "";
}

}  // namespace

TEST_CASE("numbers are ranges with their ends, evenly spaced ones with their step") {
  CHECK(number_ranges({0, 1, 2, 3}) == "0-3");
  CHECK(number_ranges({0, 4, 8, 12}) == "0-12:4");
  CHECK(number_ranges({5}) == "5");
  CHECK(number_ranges({0, 1}) == "0,1");
  CHECK(number_ranges({0, 1, 4, 5, 6, 9}) == "0,1,4-6,9");
  CHECK(number_ranges({3, 2, 1}) == "3,2,1");
  CHECK(number_ranges({}) == "");
}

TEST_CASE("names become a pattern only if it matches exactly these names") {
  CHECK(name_pattern({"h.0.fc", "h.1.fc", "h.2.fc"}) == "h.{0-2}.fc");
  CHECK(name_pattern({"h.0.b.0", "h.0.b.1", "h.1.b.0", "h.1.b.1"}) == "h.{0,1}.b.{0,1}");
  CHECK_FALSE(name_pattern({"h.0.b.0", "h.1.b.1"}));
  CHECK_FALSE(name_pattern({"a0", "b0"}));
  CHECK_FALSE(name_pattern({"fc07", "fc08"}));
  CHECK(name_pattern({"only"}) == "only");
}

TEST_CASE("groups of ranks are ranges") {
  CHECK(groups_text({{0, 1, 2, 3}, {4, 5, 6, 7}}) == "{0-3} {4-7}");
  CHECK(groups_text({{0, 4, 8, 12}, {1, 5, 9, 13}}) == "{0-12:4} {1-13:4}");
  CHECK(groups_text({{0}, {1}, {2}, {3}}) == "each of 0-3");
  CHECK(groups_text({{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}}) == "{0,1} {2,3} … {8,9}, 5 groups");
}

TEST_CASE("rows fold only if their facts are equal, and every row is in one line") {
  std::vector<FoldRow> rows;
  for (int i = 0; i < 6; ++i)
    for (const char* name : {"a", "b", "c"}) rows.push_back({fmt::format("h.{}.{}", i, name), name});
  const std::vector<FoldLine> lines = fold_rows(rows);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].times == 6);
  CHECK(lines[0].name == "h.0 … h.5");
  CHECK(lines[1].name == "h.{0-5}.a");
  rows[7].facts = "other";  // h.2.b
  size_t covered = 0;
  for (const FoldLine& line : fold_rows(rows)) {
    for (size_t row : line.rows) CHECK(rows[row].facts == rows[line.rows.front()].facts);
    covered += line.rows.size();
  }
  CHECK(covered == rows.size());
}

TEST_CASE("for any job with repeated blocks the folded plan agrees with --full line by line") {
  int folded = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    const std::string job = RandomBlocks(seed).text();
    CAPTURE(job);
    Texts texts;
    try {
      texts = texts_of(job);
    } catch (const SpecError&) {
      continue;
    }
    check_layers(texts);
    check_moves(texts);
    if (plan_fold_lines_of(texts.folded) < plan_fold_lines_of(texts.full)) ++folded;
  }
  CHECK(folded > 20);
}

TEST_CASE("48 blocks on 64 ranks are a plan of less than 80 lines") {
  for (const char* parallel :
       {"{mode: data_parallel}", "{mode: semi_auto_parallel, stages: 4, micro_batches: 8}",
        "{mode: semi_auto_parallel, stages: 8, micro_batches: 32, optimizer_shard: 1}",
        "{mode: semi_auto_parallel, stages: 2, micro_batches: 8, strategies: {'h.*.fc1': [[8, 1], [4, 1]]}}"}) {
    INFO(parallel);
    const Texts texts = texts_of(blocks_job(48, fmt::format("launch: {{ranks: 64}}\nparallel: {}\n", parallel)));
    check_layers(texts);
    check_moves(texts);
    CHECK(plan_fold_lines_of(texts.folded) < 80);
    CHECK(plan_fold_lines_of(texts.full) > 240);
    CHECK(contains(texts.folded, "h.0 … h.47, 48 times:"));
  }
}

TEST_CASE("the plan states the parameters and the operations of a step, in total and per rank") {
  // two layers of 8 x 8 and 8; products: 2 * 16 * 8 * 8 forward, as much for each weight's gradient, and for the
  // gradient of the second layer's input
  const std::string job =
      "dataset: {type: random, shape: [8], label_shape: [8], label_dtype: f32, batch: 16}\n"
      "network: [{type: dense, units: 8}, {type: dense, units: 8}]\nloss: mse\n";
  const std::string one = texts_of(job).folded;
  CHECK(contains(one, "\n  parameters   144\n"));
  CHECK(contains(one, "\n  flops        10.2 K (10,240)\n"));
  const std::string two =
      texts_of(job + "parallel: {mode: data_parallel, micro_batches: 2}\nlaunch: {ranks: 2}\n").folded;
  CHECK(contains(two, "\n  parameters   144; per rank 144\n"));
  CHECK(contains(two, "\n  flops        10.2 K (10,240); per rank 5.12 K (5,120)\n"));
  const std::string cut = texts_of(job +
                                   "parallel: {mode: semi_auto_parallel, strategies: {dense: [[1, 1], [2, 1]], "
                                   "dense_1: [[1, 2], [1, 2]]}}\nlaunch: {ranks: 2}\n")
                              .folded;
  CHECK(contains(cut, "\n  parameters   144; per rank 76\n"));
  CHECK(contains(cut, "; per rank 5.12 K (5,120)\n"));
}

TEST_CASE("recomputation and repeated work count for the rank, not for the model") {
  const std::string job =
      "dataset: {type: random, shape: [8], label_shape: [8], label_dtype: f32, batch: 16}\n"
      "network: [{name: a, type: dense, units: 8}, {name: b, type: dense, units: 8}]\nloss: mse\n";
  const std::string again = texts_of(job + "parallel: {recompute: [a]}\n").folded;
  CHECK(contains(again, "\n  parameters   144\n  flops        10.2 K (10,240); per rank 12.3 K (12,288)\n"));
  const Json report = [&] {
    const PlannedJob planned = plan_job(parse_job(job + "parallel: {recompute: [a]}\n", "job.yaml"));
    return plan_report(planned.spec, planned.graph, planned.plan, compile_classes(planned));
  }();
  CHECK(report["flops_per_step"] == 10240);
  CHECK(report["rank_classes"][0]["flops_per_step"] == 10240 + 2 * 16 * 8 * 8);
  CHECK(report["parameters"] == 144);
}

TEST_CASE("a long schedule is not wider than the limit and shows every task") {
  const Pipeline pipeline{.stages = 4, .micro_batches = 64};
  const TaskTimes times = task_times(pipeline);
  Json tasks = Json::array();
  for (int s = 0; s < 4; ++s) {
    Json of_stage = Json::array();
    for (const Task& task : stage_tasks(pipeline, s)) of_stage.push_back(to_string(task, 1));
    tasks.push_back({{"stage", s}, {"tasks", of_stage}, {"starts", times.starts[s]}, {"ends", times.ends[s]}});
  }
  for (const size_t width : {40, 80, 120}) {
    const std::string drawing = draw_schedule(tasks, width);
    std::stringstream lines(drawing);
    for (std::string line; std::getline(lines, line);) CHECK(display_width(line) <= std::max<size_t>(width, 60));
    CHECK(contains(drawing, "]x"));
    for (const char* task : {"F0 ", "B63"}) CHECK(contains(drawing, task));
  }
  const std::string whole = draw_schedule(tasks);
  for (int m = 0; m < 64; ++m) {
    CHECK(contains(whole, fmt::format("F{} ", m)));
    CHECK(contains(whole, fmt::format("B{} ", m)));
  }
  CHECK(plan_fold_lines_of(whole) == 5);
  // idle is a fact of the schedule, not of the drawing
  CHECK(line_with(whole, "idle") == line_with(draw_schedule(tasks, 80), "idle"));
}

TEST_CASE("plan --full prints every layer, and plan as a file or pipe folds as on a terminal") {
  const Scratch scratch;
  std::ofstream(scratch.path() + "/job.yaml")
      << blocks_job(12, "launch: {ranks: 4}\nparallel: {mode: data_parallel}\n");
  const CommandResult folded = trainctl_command(scratch.path(), {"plan", "job.yaml", "--layers"});
  const CommandResult full = trainctl_command(scratch.path(), {"plan", "job.yaml", "--full"});
  CHECK(folded.exit_code == kExitDone);
  CHECK(contains(folded.out, "h.0 … h.11, 12 times:"));
  CHECK_FALSE(contains(folded.out, "h.5.fc1"));
  CHECK(full.exit_code == kExitDone);
  for (int h = 0; h < 12; ++h) CHECK(contains(full.out, fmt::format("h.{}.fc1", h)));
}
