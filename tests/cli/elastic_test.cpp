// launch.elastic: the hosts that a run uses after each loss of a host, and the cost of the changes.
#include "cli/run/launch/elastic.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "engine/spec/parse.h"

using namespace trainctl;

namespace {

JobSpec job_of(const std::string& launch) {
  return parse_job(
      "dataset: {type: random, shape: [8], label_dtype: f32, batch: 24}\n"
      "network: [{name: fc, type: dense, units: 4}]\n"
      "loss: mse\n"
      "train: {checkpoint: auto}\n"
      "parallel: {mode: data_parallel}\n"
      "launch: " +
          launch + "\n",
      "job.yaml");
}

std::vector<RankReport> reports_of(const Cluster& cluster, const std::string& host, const std::string& why) {
  std::vector<RankReport> reports(cluster.places.size());
  for (const RankPlace& place : cluster.places)
    if (place.host == host) reports[static_cast<size_t>(place.rank)].host_lost = why;
  return reports;
}

std::vector<std::string> hosts_of(const JobSpec& job) { return job.launch.hosts; }

}  // namespace

TEST_CASE(
    "elastic: if a host is lost, the job continues with the ranks of the other hosts, or fewer, down to min_ranks") {
  const JobSpec job = job_of("{ranks: 6, hosts: ['a:2', 'b:3', 'c:1'], elastic: 2}");
  Elastic elastic(job);
  const Cluster cluster = several_hosts(job);
  CHECK(elastic.note_lost(cluster, reports_of(cluster, "b", "has not responded for 3 s")) ==
        "host b has not responded for 3 s");
  std::string fault;
  const auto jobs = elastic.jobs(fault);
  REQUIRE(jobs.size() == 2);
  CHECK(jobs[0].launch.ranks == 3);
  CHECK(hosts_of(jobs[0]) == std::vector<std::string>{"a:2", "c:1"});
  CHECK(jobs[1].launch.ranks == 2);
  CHECK(hosts_of(jobs[1]) == std::vector<std::string>{"a:2"});
}

TEST_CASE("elastic: a host on which an audit failed is left out like a lost one") {
  const JobSpec job = job_of("{ranks: 4, hosts: ['a:2', 'b:2'], elastic: 1}");
  Elastic elastic(job);
  const Cluster cluster = several_hosts(job);
  std::vector<RankReport> reports(4);
  reports[3].error = RankError{.kind = ErrorKind::audit, .what = "audit: step 8 produced different bits"};
  CHECK(elastic.note_lost(cluster, reports) == "host b computes incorrectly (rank 3: audit: step 8 produced different bits)");
  CHECK(elastic.note_lost(cluster, reports).empty());
  std::string fault;
  for (const JobSpec& on : elastic.jobs(fault))
    for (const std::string& host : hosts_of(on)) CHECK(host.starts_with("a:"));
}

TEST_CASE("elastic: a host that is lost is noted once, and an end without a lost host changes nothing") {
  const JobSpec job = job_of("{ranks: 4, hosts: ['a:2', 'b:2'], elastic: 1}");
  Elastic elastic(job);
  const Cluster cluster = several_hosts(job);
  CHECK(elastic.note_lost(cluster, std::vector<RankReport>(4)).empty());
  CHECK_FALSE(elastic.note_lost(cluster, reports_of(cluster, "a", "lost its agent process")).empty());
  CHECK(elastic.note_lost(cluster, reports_of(cluster, "a", "lost its agent process")).empty());
  CHECK(elastic.take_back().empty());  // it has not answered
}

TEST_CASE("elastic: a host that does not start again is lost too, and one that never started is an error") {
  const JobSpec job = job_of("{ranks: 4, hosts: ['a:2', 'b:2'], elastic: 1}");
  const Cluster cluster = several_hosts(job);
  std::vector<RankReport> reports(4);
  reports[2].start_error = reports[3].start_error = "host b cannot be reached: No route to host";
  Elastic first(job);
  CHECK(first.note_lost(cluster, reports).empty());
  Elastic later(job);
  later.changed({.why = "host a is back"});
  CHECK(later.note_lost(cluster, reports) == "host b cannot be reached: No route to host");
}

TEST_CASE("elastic: of two hosts whose link is broken, the one whose loss costs least is excluded") {
  const JobSpec job = job_of("{ranks: 6, hosts: ['a:2', 'b:1', 'c:3'], elastic: 1}");
  const Cluster cluster = several_hosts(job);
  LostLink link{"a", "c", "a cannot connect to 10.0.0.4: Connection timed out", ""};
  std::string left;
  SUBCASE("the one with fewer ranks") { left = "a"; }
  SUBCASE("the one with more broken links") { left = link.worse = "c"; }
  Elastic elastic(job);
  std::vector<RankReport> reports(6);
  reports[1].lost_link = reports[3].lost_link = link;
  const std::string why = elastic.note_lost(cluster, reports);
  CHECK(why == "the link host " + link.from + " <-> host " + link.to + " is broken: " + link.fault +
                   "; excluding host " + left);
  std::string fault;
  for (const JobSpec& on : elastic.jobs(fault))
    for (const std::string& host : hosts_of(on)) CHECK(!host.starts_with(left));
}

TEST_CASE("elastic: fewer ranks than min_ranks cannot run the job") {
  const JobSpec job = job_of("{ranks: 4, hosts: ['a:1', 'b:3'], elastic: 2}");
  Elastic elastic(job);
  const Cluster cluster = several_hosts(job);
  elastic.note_lost(cluster, reports_of(cluster, "b", "lost its agent process"));
  std::string fault;
  CHECK(elastic.jobs(fault).empty());
}

TEST_CASE("elastic: a change costs the time without a step, and the steps that are done again") {
  Elastic elastic(job_of("{ranks: 4, hosts: ['a:2', 'b:2'], elastic: 1}"));
  for (int64_t step = 1; step <= 100; ++step)
    CHECK(elastic.progressed(step, 10 + 0.1 * static_cast<double>(step)).empty());
  CHECK(elastic.last_step() == 100);
  elastic.changed({.why = "host b has not responded for 3 s",
                   .ranks_before = 4,
                   .ranks = 2,
                   .last_step = 100,
                   .resumed_step = 90,
                   .begin_seconds = elastic.last_step_seconds()});
  CHECK(elastic.progressed(90, 24.5).empty());  // step 90 has already been counted
  CHECK(elastic.progressed(91, 25) ==
        "host b has not responded for 3 s: resumed after step 90 on 2 ranks instead of 4; lost 10 steps and 5.0 s");
  CHECK(elastic.progressed(92, 25.1).empty());
  const auto report = elastic.report();
  REQUIRE(report["changes"].size() == 1);
  CHECK(report["changes"][0]["paused_seconds"].get<double>() == doctest::Approx(5));
  CHECK(report["changes"][0]["redone_seconds"].get<double>() == doctest::Approx(1));
  // From the first step at 10.1 s to 25.1 s, of which 5 s were without a step and 1 s was done again.
  CHECK(report["goodput"].get<double>() == doctest::Approx(9.0 / 15));
  CHECK(elastic.summary().starts_with("goodput 60 %: interrupted 1 times, 10 steps repeated"));
}

TEST_CASE(
    "elastic: a host that persistently takes longer gets less of the work, and its share returns with its speed") {
  const JobSpec job = job_of("{ranks: 4, hosts: ['a:2', 'b:2'], elastic: 1}");
  Elastic elastic(job);
  const Cluster cluster = several_hosts(job);
  CHECK_FALSE(elastic.note_work(cluster, {}, {0.9, 0.9, 0.8, 0.8}));
  CHECK(elastic.take_straggler().empty());
  CHECK(elastic.note_work(cluster, {}, {0.5, 0.5, 1, 1}));
  CHECK(elastic.take_straggler() == "host b takes 2.0 times as long for its work");
  std::string fault;
  const std::vector<JobSpec> jobs = elastic.jobs(fault);
  REQUIRE(jobs.size() > 1);
  const Ints& of_ranks = jobs[0].parallel.rank_micro_batches;
  CHECK(of_ranks == Ints{2, 2, 1, 1});
  CHECK(jobs[0].parallel.micro_batches == 6);
  CHECK(jobs[1].parallel.rank_micro_batches.empty());  // if the first cannot be planned
  CHECK_FALSE(elastic.note_work(cluster, of_ranks, {0.9, 0.9, 0.95, 0.95}));
  CHECK(elastic.note_work(cluster, of_ranks, {1, 1, 0.5, 0.5}));  // b is as fast as a again
  const Ints even = elastic.jobs(fault)[0].parallel.rank_micro_batches;
  REQUIRE(even.size() == 4);
  CHECK(even == Ints(4, even[0]));
}

TEST_CASE("elastic: a slow host of a plan that cannot divide its work is left out if the others are faster alone") {
  JobSpec job = job_of("{ranks: 3, hosts: ['a:1', 'b:1', 'c:1'], elastic: 1}");
  job.parallel.optimizer_shard.level = 3;
  const Cluster cluster = several_hosts(job);
  Elastic elastic(job);
  CHECK_FALSE(elastic.note_work(cluster, {}, {0.8, 1, 0.8}));
  CHECK(elastic.note_work(cluster, {}, {0.4, 1, 0.4}));
  std::string fault;
  CHECK(hosts_of(elastic.jobs(fault).at(0)) == std::vector<std::string>{"a:1", "c:1"});
  job.launch.elastic->straggler = 0;
  Elastic without_straggler_limit(job);
  CHECK_FALSE(without_straggler_limit.note_work(cluster, {}, {0.4, 1, 0.4}));
}

TEST_CASE("elastic: remaining hosts keep their machines") {
  const JobSpec job = job_of("{ranks: 4, hosts: ['a:1', 'b:2', 'c:1'], machine: [h100x8, h200x8, cpu], elastic: 1}");
  const JobSpec by_rank =
      job_of("{ranks: 4, hosts: ['a:1', 'b:2', 'c:1'], machine: [h100x8, cpu, cpu, h200x8], elastic: 1}");
  const Cluster cluster = several_hosts(job);
  std::string fault;
  Elastic by_host(job), of_ranks(by_rank);
  by_host.note_lost(cluster, reports_of(cluster, "b", "lost its agent process"));
  of_ranks.note_lost(cluster, reports_of(cluster, "b", "lost its agent process"));
  CHECK(by_host.jobs(fault).at(0).launch.machines == std::vector<std::string>{"h100x8", "cpu"});
  CHECK(of_ranks.jobs(fault).at(0).launch.machines == std::vector<std::string>{"h100x8", "h200x8"});
}
