// The text of `trainctl plan`: its first lines, its sections, and its width.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/render/plan_report.h"
#include "cli/run/launch/job_report.h"
#include "cli/text/display_width.h"
#include "cli/text/launch_report.h"
#include "cli/text/table.h"
#include "cli/text/wrap.h"
#include "engine/compile/report/parallel_sizes.h"
#include "engine/spec/parse.h"
#include "engine/train/data/read_and_plan.h"
#include "tests/cli/command.h"
#include "tests/jobs/jobs.h"

using namespace trainctl;

namespace {

nlohmann::ordered_json report_on(const std::string& job, const std::vector<std::string>& fields) {
  return report_of(plan_job(job_spec(job, fields)), false).json;
}

std::optional<ParallelSizes> sizes_of(const std::string& job, const std::vector<std::string>& fields) {
  const PlannedJob planned = plan_job(job_spec(job, fields));
  return parallel_sizes(planned.graph, planned.plan);
}

std::vector<int> numbers_of_sizes(const std::optional<ParallelSizes>& sizes) {
  if (!sizes) return {};
  return {sizes->data, sizes->tensor, sizes->context, sizes->pipeline, sizes->replicas};
}

const std::string kSemi = "parallel.mode=semi_auto_parallel";
const std::vector<std::string> kGpus = {"launch.device=cuda", "launch.machine=h100x8"};

std::vector<std::string> on_gpus(std::vector<std::string> fields) {
  fields.insert(fields.end(), kGpus.begin(), kGpus.end());
  return fields;
}

}  // namespace

/// The cuts that Megatron-LM uses for the blocks of tests/jobs/gpt.yaml.
std::string megatron(int data, int tensor, const std::string& more = "") {
  std::string all;
  for (const char* layer : {"qkv", "up"}) all += fmt::format("'h.*.{}': [[{}, 1, 1], [{}, 1]], ", layer, data, tensor);
  for (const char* layer : {"proj", "down"})
    all += fmt::format("'h.*.{0}': [[{1}, 1, {2}], [1, {2}]], ", layer, data, tensor);
  return "parallel.strategies={" + all +
         fmt::format("wte: [[{0}, 1], [{1}, 1]], head: [[{0}, 1, 1], [{1}, 1]], {2}}}", data, tensor, more);
}

TEST_CASE("a plan is named as a product of data, tensor, context and pipeline parallelism, or as mixed") {
  using Sizes = std::vector<int>;
  const auto sizes = [](const std::vector<std::string>& fields) { return numbers_of_sizes(sizes_of("gpt", fields)); };
  CHECK(sizes({"launch.ranks=1"}) == Sizes{1, 1, 1, 1, 1});
  CHECK(sizes({"launch.ranks=4", "parallel.mode=data_parallel"}) == Sizes{4, 1, 1, 1, 1});
  CHECK(sizes({"launch.ranks=4", "parallel={mode: data_parallel, stages: 2, micro_batches: 2}"}) ==
        Sizes{2, 1, 1, 2, 1});
  CHECK(sizes({"launch.ranks=2", kSemi, megatron(1, 2)}) == Sizes{1, 2, 1, 1, 1});
  CHECK(sizes({"launch.ranks=6", kSemi, megatron(3, 2)}) == Sizes{3, 2, 1, 1, 1});
  const std::string norms = "'h.*.ln?': [[1, 3, 1]], ln_f: [[1, 3, 1]]";
  const auto sequence = sizes_of("gpt", {"launch.ranks=3", kSemi, megatron(1, 3, norms)});
  CHECK(numbers_of_sizes(sequence) == Sizes{1, 3, 1, 1, 1});
  CHECK(sequence->sequence_parallel);
  const std::string rows =
      "parallel.strategies={'*.qkv': [[1, 2, 1]], '*.proj': [[1, 2, 1]], '*.up': [[1, 2, 1]], "
      "'*.down': [[1, 2, 1]], head: [[1, 2, 1]]}";
  CHECK(sizes({"launch.ranks=2", kSemi, rows}) == Sizes{1, 1, 2, 1, 1});
  // Outside the moe layers, the ranks of an expert group share the batch, or the rows of sequences.
  CHECK(numbers_of_sizes(sizes_of("moe", {"launch.ranks=4", kSemi, "parallel.expert=2"})) == Sizes{4, 1, 1, 1, 1});
  CHECK(numbers_of_sizes(sizes_of("moe", {"launch.ranks=4", kSemi, "parallel.expert=4", "parallel.context=2"})) ==
        Sizes{2, 1, 2, 1, 1});
  const std::string mixed = "parallel.strategies={'*.qkv': [[2, 1, 1]], '*.up': [[1, 1, 1], [2, 1]]}";
  CHECK_FALSE(sizes_of("gpt", {"launch.ranks=2", kSemi, mixed}).has_value());
}

TEST_CASE("the headline has throughput, utilization, memory and idle time of the estimate") {
  const nlohmann::ordered_json report =
      report_on("gpt", on_gpus({"launch.ranks=2", "parallel.mode=data_parallel", "precision=bf16"}));
  const nlohmann::ordered_json& h = report["headline"];
  const double step = report["estimate"]["seconds"];
  CHECK(h["tokens_per_second"].get<double>() == doctest::Approx(12 * 12 / step));
  CHECK(h["samples_per_second"].get<double>() == doctest::Approx(12 / step));
  CHECK(h["flops_per_step"].get<double>() > report["flops_per_step"].get<double>());  // attention too
  CHECK(h["mfu"].get<double>() == doctest::Approx(h["flops_per_step"].get<double>() / step / 2 / 989.4e12));
  CHECK(h["idle_share"].get<double>() > 0);
  CHECK(h["idle_share"].get<double>() < 1);
  CHECK(h["memory"]["available"] == report["estimate"]["memory"]["device"]);
  const std::string text = render_plan(report, {});
  for (const char* part :
       {"\n  parallel     data 2 x tensor 1 x context 1 x pipeline 1\n", "\n  step time    ", " tokens/s, ",
        "\n  utilization  MFU ", " per GPU (data sheet: 989)", "\n  idle         ", " of 80.0 GiB on rank 0, plus "})
    CHECK_MESSAGE(text.find(part) != std::string::npos, part);
  CHECK(render_plan(report_on("mlp", {}), {}).find("not predicted; set launch.machine") != std::string::npos);
}

TEST_CASE("layers and moves are shown on demand, and one rank has no columns about cuts") {
  const nlohmann::ordered_json one = report_on("gpt", {"launch.ranks=1"});
  CHECK(render_plan(one, {}).find("\nlayers\n") == std::string::npos);
  const std::string layers = render_plan(one, {.layers = true});
  CHECK(layers.find("[12, 12, 24]") != std::string::npos);
  CHECK(layers.find("1.80 K") != std::string::npos);  // qkv: 24 x 72 and 72
  CHECK(layers.find("[1, 1, 1]") == std::string::npos);
  CHECK(layers.find("redistributions") == std::string::npos);
  CHECK(render_plan(one, {.moves = true}).find("\nredistributions and transfers") != std::string::npos);
}

TEST_CASE("no line of a plan is wider than the terminal") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> jobs = {
      {"gpt", on_gpus({"launch.ranks=6", kSemi, megatron(3, 2), "train={steps: 2, checkpoint: {every_steps: 1}}",
                       "validation={dataset: {samples: 12}}"})},
      {"llama", on_gpus({"launch.ranks=8", "parallel={mode: auto_parallel}"})},
      {"resnet", on_gpus({"launch.ranks=4", "parallel={mode: data_parallel, stages: 2, micro_batches: 4}"})},
      {"mlp", {"launch.ranks=3", "parallel={mode: parameter_server, servers: 2}"}},
      {"hybrid_groups", {"launch.ranks=8"}}};
  for (const auto& [job, fields] : jobs) {
    CAPTURE(job);
    const nlohmann::ordered_json report = report_on(job, fields);
    for (const size_t width : {80, 100, 120})
      for (const bool full : {false, true}) {
        std::stringstream lines(render_plan(report, {.full = full, .layers = true, .moves = true, .width = width}) +
                                render_launch(report["launch"], width));
        for (std::string line; std::getline(lines, line);) CHECK_MESSAGE(display_width(line) <= width, line);
      }
  }
}

TEST_CASE("text wraps between words, and table columns that do not fit follow below the others") {
  CHECK(wrap("one two three", 8) == std::vector<std::string>{"one two", "three"});
  CHECK(wrap("a/very/long/path", 8) == std::vector<std::string>{"a/very/", "long/", "path"});
  CHECK(wrap("", 8) == std::vector<std::string>{""});
  CHECK(fit_lines("  one two three\n", 10) == "  one two\n    three\n");
  Table table({">ranks", ">weights", ">gradients", ">optimizer"});
  table.add({"0-7", "1.5 GiB", "2.5 GiB", "3.5 GiB"});
  CHECK(table.str(2, 28) ==
        "  ranks  weights  gradients\n    0-7  1.5 GiB    2.5 GiB\n  ranks  optimizer\n    0-7    3.5 GiB\n");
  Table layers({">stage", "layer", "reason"});
  layers.add({"0", "first.layer", "it follows its input, no redistribution"});
  layers.add_line("second, 3 times:");
  CHECK(layers.str(2, 60) ==
        "  stage  layer        reason\n      0  first.layer  it follows its input, no\n                      "
        "redistribution\n"
        "         second, 3 times:\n");
  CHECK(layers.str(2, 40) ==
        "  stage  layer\n      0  first.layer\n           it follows its input, no\n           redistribution\n"
        "         second, 3 times:\n");
}
