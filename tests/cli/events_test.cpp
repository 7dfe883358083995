// The TensorBoard event file that a run writes, compared with its metrics.jsonl.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"
#include "launcher/run_directory.h"
#include "tests/cli/command.h"
#include "tests/jobs/jobs.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"
#include "tests/train/event_reader.h"

using namespace trainctl;

namespace {

std::vector<ReadEvent> events_of(const RunDirectory& run) {
  std::string path;
  for (const auto& entry : std::filesystem::directory_iterator(run.path()))
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) path = entry.path().string();
  return read_events(slurp(path));
}

std::map<std::string, float> without_seconds(std::map<std::string, float> scalars) {
  std::erase_if(scalars, [](const auto& scalar) { return scalar.first.ends_with("seconds"); });
  return scalars;
}

}  // namespace

TEST_CASE("a run's TensorBoard events have the steps and numbers of metrics.jsonl, and its job") {
  const Scratch scratch;
  small_job(scratch.path());
  REQUIRE(trainctl_command(scratch.path(), {"run", "job.yaml", "train.epochs=2"}).exit_code == kExitDone);
  const RunDirectory run(scratch.path() + "/log_output", 1);
  const std::vector<ReadEvent> events = events_of(run);
  REQUIRE(events.size() > 4);
  CHECK(events[0].file_version == "brain.Event:2");
  CHECK(events[1].texts.at("job") == "```yaml\n" + slurp(run.file("job.yaml")) + "```\n");

  CHECK(events[2].hparams.contains("_hparams_/session_start_info"));
  CHECK(events.back().hparams.contains("_hparams_/session_end_info"));

  size_t next = 3;
  std::istringstream lines(slurp(run.file("metrics.jsonl")));
  for (std::string text; std::getline(lines, text);) {
    const nlohmann::json line = nlohmann::json::parse(text);
    CAPTURE(text);
    std::map<std::string, float> expected;
    int64_t step = 0;
    if (line.contains("loss")) {
      expected = {{"train/loss", line["loss"]}, {"train/learning_rate", line["learning_rate"]}};
      step = line["run_step"];
    } else if (line.contains("epoch_end")) {
      expected = {{"epoch/mean_loss", line["mean_loss"]}};
      step = line["last_step"];
    } else if (!line.contains("start_up")) {
      continue;  // not a number over steps
    }
    REQUIRE(next < events.size());
    CHECK(events[next].step == step);
    const auto found = without_seconds(events[next].scalars);
    REQUIRE(found.size() == expected.size());
    for (const auto& [tag, value] : expected) CHECK(found.at(tag) == doctest::Approx(value).epsilon(1e-6));
    ++next;
  }
  CHECK(next + 1 == events.size());
}
