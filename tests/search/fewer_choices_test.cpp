// The searches that fix fields which a job leaves open, and trials that several searches share.
#include "engine/search/choices/fewer_choices.h"

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/planning/trials.h"
#include "engine/search/choices/open_choices.h"
#include "engine/spec/parse.h"
#include "tests/search/drawn_jobs.h"

using namespace trainctl;

namespace {

/// The given number of stages and level of optimizer_shard; -1: open.
using Given = std::pair<int, int>;

Given given(const JobSpec& job) {
  return {gives_stages(job) ? job.parallel.stages : -1, gives_level(job) ? job.parallel.optimizer_shard.level : -1};
}

/// The fields of all searches of a job.
std::set<Given> searches_of(const std::vector<std::string>& settings) {
  std::vector<std::string> all = {"parallel.mode=auto_parallel", "launch.ranks=4"};
  all.insert(all.end(), settings.begin(), settings.end());
  const JobSpec job = parse_job(gpt(2, 64), "job.yaml", all);
  std::set<Given> searches = {given(job)};
  for (const JobSpec& narrower : with_fewer_choices(job)) searches.insert(given(narrower));
  return searches;
}

}  // namespace

TEST_CASE("search: whatever a job with a fixed field searches, a job without it searches too") {
  const std::set<Given> free = searches_of({});
  CHECK(free.size() == 8);
  for (const char* field : {"parallel.stages=1", "parallel.optimizer_shard=1", "parallel.optimizer_shard=3",
                            "parallel.optimizer_shard.level=2"}) {
    CAPTURE(field);
    const std::set<Given> fixed = searches_of({field});
    CHECK(fixed.size() < free.size());
    for (const Given& one : fixed) CHECK(free.contains(one));
  }
  CHECK(searches_of({"parallel.stages=1", "parallel.optimizer_shard=2"}).size() == 1);
  CHECK(searches_of({"parallel.optimizer_shard.min_kb=0"}) == free);
  CHECK(searches_of({"parallel.search.effort=low"}).size() == 1);
}

TEST_CASE("search: a trial is the same when it is repeated, also after its graph was taken") {
  const PlannedJob job = planned(gpt(2, 64), {"launch.ranks=2", "parallel.mode=data_parallel"});
  Trials trials(job);
  JobSpec spec = job.spec;
  spec.parallel.mode = ParallelMode::semi_auto_parallel;
  const Trial first = trials.run(spec, TriedRanks::one_per_stage), again = trials.run(spec, TriedRanks::one_per_stage);
  CHECK(first.seconds > 0);
  CHECK(again.seconds == first.seconds);
  CHECK(again.memory == first.memory);
  REQUIRE(trials.graph_of(spec) != nullptr);
  CHECK(trials.take(spec).graph.has_value());
  CHECK(trials.graph_of(spec) == nullptr);
  CHECK(!trials.take(spec).graph.has_value());
  CHECK(trials.run(spec, TriedRanks::one_per_stage).seconds == first.seconds);
  spec.parallel.tensor = 2;
  const Trial other = trials.run(spec, TriedRanks::one_per_stage);
  CHECK(other.fault.empty());
  CHECK(other.seconds != first.seconds);
}
