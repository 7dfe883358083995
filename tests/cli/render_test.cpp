// Text that the user sees.
#include <doctest/doctest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/render/progress.h"
#include "cli/run/launch/run_end.h"
#include "cli/text/display_width.h"
#include "cli/text/launch_report.h"
#include "cli/text/start_up_report.h"
#include "cli/text/tensor_text.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

std::string floats(const std::vector<float>& values, const Shape& shape, int indent = 0) {
  return tensor_text(values.data(), shape, DType::f32, indent);
}

}  // namespace

TEST_CASE("tensors look as numpy prints them") {
  CHECK(floats({1, 1, 1, 1}, {2, 2}) == "[[1. 1.]\n [1. 1.]]");
  CHECK(floats({1, 1, 1, 1}, {2, 2}, 3) == "[[1. 1.]\n    [1. 1.]]");
  CHECK(floats({1, 2.5, -3, 0.1f}, {4}) == "[ 1.   2.5 -3.   0.1]");
  CHECK(floats({1, 2, 3, 4}, {2, 1, 2}) == "[[[1. 2.]]\n\n [[3. 4.]]]");
  CHECK(floats({1e-10f, 1}, {2}) == "[1.e-10 1.e+00]");
  CHECK(floats({0}, {1}) == "[0.]");
  CHECK(floats({7}, {}) == "7.");
  const std::vector<int32_t> integers = {1, -20, 3};
  CHECK(tensor_text(integers.data(), {3}, DType::i32) == "[  1 -20   3]");
}

TEST_CASE("large tensors show their ends") {
  const std::vector<float> ones(2000, 1.0f);
  CHECK(floats(ones, {2000}) == "[1. 1. 1. ... 1. 1. 1.]");
  CHECK(floats(ones, {2, 1000}) == "[[1. 1. 1. ... 1. 1. 1.]\n [1. 1. 1. ... 1. 1. 1.]]");
  CHECK(floats(std::vector<float>(1000, 1.0f), {1000}).size() == 2 + 3000 - 1);
}

TEST_CASE("a tensor that has no elements is an empty list") { CHECK(floats({}, {0}) == "[]"); }

namespace {

LiveStatus training() {
  LiveStatus status;
  status.state = "running";
  status.epoch = 3;
  status.epochs = 10;
  status.step = 101;
  status.steps = 440;
  status.loss = 1.20314f;
  status.samples_per_second = 20431.5;
  status.ranks = {{"0-7", "training"}};
  return status;
}

}  // namespace

TEST_CASE("the user sees how long the slowest rank took to start, and for what") {
  const std::vector<nlohmann::ordered_json> ranks = {
      nlohmann::ordered_json::parse(
          R"({"seconds": 3.1, "alone": 1.0, "phases": {"CUDA": 0.99, "data": 0.01, "NCCL": 2.1}})"),
      nlohmann::ordered_json::parse(
          R"({"seconds": 3.0, "alone": 2.0, "phases": {"CUDA": 1.96, "data": 0.04, "NCCL": 1.0}})")};
  const std::string line = "first step after 3.00 s (rank 1 was the slowest): CUDA 1.96, NCCL 1.00, rest 0.04";
  CHECK(start_up_line(ranks, 0) == line);
  CHECK(start_up_line(ranks, 3) == line);
  CHECK(start_up_line(ranks, 3.01).empty());
  CHECK(start_up_line({ranks[0]}, 0) == "first step after 3.10 s: CUDA 0.99, NCCL 2.10, rest 0.01");
  CHECK(start_up_line({}, 0).empty());
}

TEST_CASE("start-up times that are not numbers count as 0") {
  const std::vector<nlohmann::ordered_json> ranks = {
      nlohmann::ordered_json::parse(R"({"seconds": "x", "alone": [], "phases": {"CUDA": "y"}})"),
      nlohmann::ordered_json::parse(R"({"seconds": 2.0, "alone": 1.0, "phases": {"CUDA": {}, "data": 1.0}})")};
  CHECK(start_up_line(ranks, 0) == "first step after 2.00 s (rank 1 was the slowest): data 1.00, rest 0.00");
  CHECK(start_up_line({ranks[0]}, 0) == "first step after 0.00 s: rest 0.00");
}

TEST_CASE("a run whose outcome has no exit code that is a number has no known end") {
  const Scratch scratch;
  const RunDirectory run = RunDirectory::create(scratch.path(), 1);
  run.write("outcome.json", R"({"exit_code": "0"})");
  CHECK_FALSE(read_run_end(run));
  run.write("outcome.json", R"({"exit_code": 3, "seconds": "x", "unsaved": 5, "stopped_at_step": [], "step": {}})");
  run.write("error.json", R"({"report": 7})");
  const auto end = read_run_end(run);
  REQUIRE(end);
  CHECK(end->ending == "failed");
  CHECK(end->failure.empty());
}

TEST_CASE("the progress line shows a run's progress, and what its ranks do") {
  CHECK(progress_text(LiveStatus{}, 80) == "starting");
  CHECK(progress_text(training(), 80) == "epoch 3/10  step 101/440  loss 1.2031  20,431 samples/s  ranks 0-7 training");
  LiveStatus timed = training();
  timed.seconds_left = 245;
  CHECK(progress_text(timed, 80) == "epoch 3/10  step 101/440  loss 1.2031  20,431 samples/s  4m05s left");
  CHECK(progress_text(timed, 45) == "step 101/440  loss 1.2031  4m05s left");
  timed.loss = -std::numeric_limits<float>::quiet_NaN();
  CHECK(progress_text(timed, 80).find("  loss nan  ") != std::string::npos);
  timed.state = "stopping";
  CHECK(progress_text(timed, 80).find("left") == std::string::npos);
  LiveStatus command;
  command.state = "running";
  command.attempt = 1;
  command.max_restarts = 2;
  command.ranks = {{"0", "running"}};
  CHECK(progress_text(command, 80) == "restart 1/2  rank 0 running");
}

TEST_CASE("the curve of losses, the tokens and the rank for which others wait are shown if there is room") {
  LiveStatus status = training();
  status.tokens_per_second = 2615232;
  status.share_of_peak = 0.414;
  status.slowest = 3;
  const std::vector<float> losses = {8, 4, 2, 1};
  CHECK(progress_text(status, 200, losses) ==
        "epoch 3/10  step 101/440  loss 1.2031  █▄▂▁  20,431 samples/s  2,615,232 tokens/s  41% of peak  waiting for "
        "rank "
        "3  ranks 0-7 training");
  CHECK(progress_text(status, 80, losses) ==
        "epoch 3/10  step 101/440  loss 1.2031  20,431 samples/s  waiting for rank 3");
  CHECK(progress_text(status, 40, losses) == "epoch 3/10  step 101/440  loss 1.2031");
  for (size_t width = 0; width < 200; ++width) CHECK(display_width(progress_text(status, width, losses)) <= width);
}

TEST_CASE("a small curve shows the means of equal ranges and marks values that are not finite") {
  CHECK(sparkline({0, 0, 7, 7}, 2) == "▁█");
  CHECK(sparkline({3, 3, 3}, 8) == "▁▁▁");
  CHECK(sparkline({1, NAN, 0}, 3) == "█x▁");
  CHECK(sparkline({}, 8).empty());
}

TEST_CASE("on a narrow terminal the least important parts are left out, and no line wraps") {
  CHECK(progress_text(training(), 60) == "epoch 3/10  step 101/440  loss 1.2031  20,431 samples/s");
  CHECK(progress_text(training(), 40) == "epoch 3/10  step 101/440  loss 1.2031");
  CHECK(progress_text(training(), 30) == "step 101/440  loss 1.2031");
  CHECK(progress_text(training(), 12) == "step 101/440");
  CHECK(progress_text(training(), 8) == "step 10…");
  for (size_t width = 0; width < 100; ++width) CHECK(display_width(progress_text(training(), width)) <= width);
}

TEST_CASE("a rank in a different state than the others is never left out") {
  LiveStatus status = training();
  status.ranks = {{"0-5,7", "training"}, {"6", "waiting in all_reduce grad.0 for 3"}};
  CHECK(progress_text(status, 200) ==
        "epoch 3/10  step 101/440  loss 1.2031  20,431 samples/s  "
        "ranks 0-5,7 training  6 waiting in all_reduce grad.0 for 3");
  CHECK(progress_text(status, 70) == "ranks 0-5,7 training  6 waiting in all_reduce grad.0 for 3");
  CHECK(progress_text(status, 40) == "rank 6 waiting in all_reduce grad.0 for…");
}

// The line was cut before the rank that all others waited for.
TEST_CASE("if not all states of ranks fit, that of the rank for which the others wait comes first") {
  LiveStatus status = training();
  const std::string waiting = "waiting in all_reduce grad.h.3.attention.output.weight for 3";
  status.ranks = {{"0-2,4-7", waiting}, {"3", "stopped 12 s"}};
  CHECK(progress_text(status, 200).ends_with("ranks 0-2,4-7 " + waiting + "  3 stopped 12 s"));
  CHECK(progress_text(status, 60).starts_with("rank 3 stopped 12 s  0-2,4-7 waiting in all_reduce"));
  CHECK(progress_text(status, 25).starts_with("rank 3 stopped 12 s"));
  status.ranks = {{"0-2,4-7", waiting}, {"3", "in fc1.matmul"}};
  CHECK(progress_text(status, 60).starts_with("rank 3 in fc1.matmul  0-2,4-7 waiting"));
  status.ranks = {{"0-2,4-7", "running"}, {"3", "stopped 0 s"}};
  CHECK(progress_text(status, 20).starts_with("rank 3 stopped 0 s"));
}

TEST_CASE("the width of a text counts characters, but not color codes") {
  CHECK(display_width("\033[36mé…\033[0m") == 2);
  CHECK(display_width("") == 0);
}

TEST_CASE("the words of a command are quoted for a shell") {
  CHECK(shell_words({"python3", "train.py", "--lr=0.1"}) == "python3 train.py --lr=0.1");
  CHECK(shell_words({"sh", "-c", "echo \"$RANK\"", "", "it's"}) == "sh -c 'echo \"$RANK\"' '' 'it'\\''s'");
}
