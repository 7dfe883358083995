// trainctl top: the resources that processes use, and how they are shown.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cli/render/progress.h"
#include "cli/text/display_width.h"
#include "cli/top/top_view.h"
#include "engine/base/error.h"
#include "tests/cli/command.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

constexpr HostUsage kHost = {
    .load = 3.14, .cpus = 8, .memory_bytes = int64_t{16} << 30, .available_bytes = int64_t{10} << 30};

RunUsage a_run(int ranks) {
  RunUsage run{.name = "run 3 (mlp)"};
  run.status.state = "running";
  run.status.step = 101;
  run.status.steps = 440;
  run.status.loss = 1.25f;
  for (int rank = 0; rank < ranks; ++rank)
    run.ranks.push_back({.rank = rank, .doing = "training", .cores = 0.98, .resident_bytes = 300 << 20});
  return run;
}

size_t widest_line(const std::string& text) {
  std::istringstream lines(text);
  size_t widest = 0;
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, display_width(line));
  return widest;
}

}  // namespace

TEST_CASE("each rank has a line with its cores, memory and what it does") {
  CHECK(top_text(kHost, {a_run(2)}, 0, 0) ==
        "1 run  load 3.1 of 8 cores  memory 6.0 GiB of 16.0 GiB\n"
        "\n"
        "run 3 (mlp)  step 101/440  loss 1.2500\n"
        "  rank  cpu     memory  state\n"
        "     0  98%  300.0 MiB  training\n"
        "     1  98%  300.0 MiB  training\n");
  CHECK(top_text(kHost, {}, 0, 0).ends_with("\n\nno run is active\n"));
}

TEST_CASE("the load of a GPU is shown with its rank") {
  RunUsage run = a_run(1);
  run.ranks[0].gpu = 5;
  run.ranks[0].gpu_load = CudaLoad{.watts = 312, .busy = 0.87, .used_bytes = int64_t{40} << 30};
  const std::string text = top_text(kHost, {run}, 0, 0);
  CHECK(contains(text, "gpu  busy  gpu memory  power"));
  CHECK(contains(text, "  5   87%    40.0 GiB  312 W"));
}

TEST_CASE("no line is wider than the terminal, and there are no more lines than it has") {
  const std::vector<RunUsage> runs = {a_run(64), a_run(3)};
  for (const size_t width : {20, 40, 80, 200}) {
    for (const size_t height : {6, 24, 50}) {
      const std::string text = top_text(kHost, runs, width, height);
      CHECK(widest_line(text) <= width);
      CHECK(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) <= height);
    }
  }
  CHECK(contains(top_text(kHost, runs, 80, 24), "… 57 more ranks"));
}

TEST_CASE("the usage of a process group is that of all of its processes") {
  const Scratch scratch;
  const auto process = [&](const std::string& pid, const std::string& stat) {
    std::filesystem::create_directories(scratch.path() + "/" + pid);
    std::ofstream(scratch.path() + "/" + pid + "/stat") << stat;
  };
  // The fields are those of /proc/PID/stat: pid (name) state ppid group session tty tpgid flags minflt cminflt majflt
  // cmajflt utime stime cutime cstime priority nice threads itrealvalue starttime vsize rss
  process("10", "10 (a) b) S 1 10 1 0 -1 0 0 0 0 0 200 100 0 0 20 0 1 0 5 1000 7");
  process("11", "11 (worker) R 10 10 1 0 -1 0 0 0 0 0 50 50 0 0 20 0 1 0 5 1000 3");
  process("12", "12 (other) R 1 12 1 0 -1 0 0 0 0 0 1 0 0 0 20 0 1 0 5 1000 1");
  process("13", "");  // it has just ended
  std::filesystem::create_directories(scratch.path() + "/sys");
  std::ofstream(scratch.path() + "/loadavg") << "1.25 1.00 0.50 2/300 999\n";
  std::ofstream(scratch.path() + "/meminfo")
      << "MemTotal:       1000 kB\nMemFree: 10 kB\nMemAvailable:    400 kB\nPages: 3\n";
  const auto usage = usage_by_group(scratch.path());
  REQUIRE(usage.count(10) == 1);
  CHECK(usage.at(10).processes == 2);
  CHECK(usage.at(10).cpu_seconds == doctest::Approx(400.0 / static_cast<double>(sysconf(_SC_CLK_TCK))));
  CHECK(usage.at(10).resident_bytes == 10 * sysconf(_SC_PAGESIZE));
  CHECK(usage.at(12).processes == 1);
  const HostUsage host = host_usage(scratch.path());
  CHECK(host.load == doctest::Approx(1.25));
  CHECK(host.memory_bytes == 1000 * 1024);
  CHECK(host.available_bytes == 400 * 1024);
}

TEST_CASE("without a terminal, trainctl top shows the ranks of a running job once") {
  const Scratch scratch;
  small_job(scratch.path());
  const int run = start_trainctl(
      scratch.path(), {"run", "job.yaml", "train.steps=100000000", "launch.ranks=2", "parallel.mode=data_parallel"});
  std::string seen;
  REQUIRE(eventually([&] {
    seen = trainctl_command(scratch.path(), {"top"}).out;
    return contains(seen, "training");
  }));
  CHECK(contains(seen, "  rank"));
  CHECK(contains(seen, "%"));
  CHECK(contains(seen, "MiB  training"));
  CHECK(trainctl_command(scratch.path(), {"stop", "--all"}).exit_code == kExitDone);
  finish_trainctl(scratch.path(), run);
}
