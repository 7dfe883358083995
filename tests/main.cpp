// main() of the test programs. doctest itself cannot skip a case that is already running, and it lets a case without
// checks and a run without a matching case pass. With this main(), a case can be skipped (tests/skip.h), and such cases
// and runs fail.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>

#include "tests/skip.h"

namespace {

struct Run {
  std::mutex mutex;  // a case's threads may skip it
  std::string test_case;
  std::map<std::string, std::string> skipped;  // case -> reason
  std::set<std::string> empty;                 // cases without a check
  unsigned cases = 0;
};

Run& run() {
  static Run run;
  return run;
}

struct Listener : doctest::IReporter {
  explicit Listener(const doctest::ContextOptions&) {}
  void test_case_start(const doctest::TestCaseData& data) override { run().test_case = data.m_name; }
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    const bool skipped = run().skipped.contains(run().test_case);
    if (stats.numAssertsCurrentTest == 0 && stats.failure_flags == 0 && !skipped) run().empty.insert(run().test_case);
  }
  void test_run_end(const doctest::TestRunStats& stats) override { run().cases = stats.numTestCasesPassingFilters; }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("skip", 1, Listener);

int exit_code(int result) {
  if (result == 0 && run().cases == 0) {
    std::fprintf(stderr, "no test case was run: none has a requested name\n");
    return 1;
  }
  for (const std::string& test_case : run().empty)
    std::fprintf(stderr, "FAILED: the test case checks nothing: %s\n", test_case.c_str());
  if (!run().empty.empty()) return 1;
  const auto skipped = static_cast<unsigned>(run().skipped.size());
  if (skipped == 0) return result;
  std::printf("SKIPPED %u of %u test cases\n", skipped, run().cases);
  for (const auto& [test_case, reason] : run().skipped) std::printf("  %s: %s\n", test_case.c_str(), reason.c_str());
  return result == 0 && skipped == run().cases ? trainctl::kExitSkipped : result;
}

}  // namespace

void trainctl::skip_test(const std::string& reason) {
  const std::lock_guard lock(run().mutex);
  if (run().skipped.emplace(run().test_case, reason).second) std::printf("SKIPPED: %s\n", reason.c_str());
}

namespace {

/// Resets signals that are ignored: a shell without job control ignores SIGINT for its background jobs, and nohup
/// ignores SIGHUP. The runs that tests start would inherit that.
void heed_signals(char** argv) {
  bool ignored = false;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE})
    ignored = std::signal(number, SIG_DFL) == SIG_IGN || ignored;
  if (ignored) execv("/proc/self/exe", argv);
}

}  // namespace

int main(int argc, char** argv) {
  heed_signals(argv);
  doctest::Context context(argc, argv);
  const int result = context.run();
  return context.shouldExit() ? result : exit_code(result);
}
