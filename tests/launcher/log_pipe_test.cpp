// Tests of the way from a rank's pipe to its log files: every byte arrives, lines are whole, files are bounded, disks
// may be full, ranks may restart.
#include "launcher/log_pipe.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "engine/base/error.h"
#include "launcher/log_collector.h"
#include "launcher/log_disk.h"
#include "launcher/log_writer.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"
#include "tests/skip.h"

using namespace trainctl;
namespace fs = std::filesystem;
using Kind = TimesRecord::Kind;

namespace {

std::vector<TimesRecord> times_of(const LogFiles& files, int number = LogFiles::kCurrent) {
  const std::string bytes = slurp(files.times_path(number));
  REQUIRE(bytes.starts_with(kTimesMagic));
  std::vector<TimesRecord> records;
  for (size_t at = kTimesMagic.size(); at < bytes.size(); at += kTimesRecordBytes) {
    const auto record = decode_times(std::string_view(bytes).substr(at));
    REQUIRE(record.has_value());
    records.push_back(*record);
  }
  return records;
}

/// While this object exists, no file of this process grows beyond `bytes`, so that writes fail as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes, int pid = getpid()) : pid_(pid) {
    std::signal(SIGXFSZ, SIG_IGN);
    prlimit(pid_, RLIMIT_FSIZE, nullptr, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    prlimit(pid_, RLIMIT_FSIZE, &limit, nullptr);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() { prlimit(pid_, RLIMIT_FSIZE, &before_, nullptr); }

 private:
  int pid_;
  rlimit before_{};
};

}  // namespace

TEST_CASE("a log pipe writes every byte and hands out whole lines") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  std::vector<std::string> lines;
  LogWriter log(files, {}, 0, 1);
  LogPipe pipe([&](std::string_view bytes, int64_t ns) { log.write(bytes, ns); },
               [&](std::string_view line) { lines.emplace_back(line); });
  const auto put = [&](std::string_view text) { REQUIRE(write(pipe.write_end(), text.data(), text.size()) > 0); };
  CHECK(pipe.drain() == 0);
  put("epoch: 1 st");
  CHECK(pipe.drain() == 11);
  CHECK(lines.empty());
  put("ep: 2\n\nnext\nrest");
  pipe.drain();
  CHECK(lines == std::vector<std::string>{"epoch: 1 step: 2", "", "next"});
  CHECK_FALSE(pipe.ended());
  pipe.finish();
  CHECK(lines.back() == "rest");
  CHECK(slurp(files.path(LogFiles::kCurrent)) == "epoch: 1 step: 2\n\nnext\nrest");
}

TEST_CASE("a pipe that another process still writes to is finished anyway") {
  std::string read;
  LogPipe pipe([&](std::string_view bytes, int64_t) { read += bytes; });
  const int other = dup(pipe.write_end());
  REQUIRE(write(other, "left\n", 5) == 5);
  pipe.finish();
  CHECK(pipe.ended());
  close(other);
  CHECK(read == "left\n");
}

TEST_CASE("the last lines of a pipe are kept, however much was written before") {
  LogPipe pipe({});
  CHECK(pipe.tail(3).empty());
  const auto put = [&](const std::string& text) {
    REQUIRE(write(pipe.write_end(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    pipe.drain();
  };
  put("one\ntwo\nthree\nfo");
  put("ur\n");
  CHECK(pipe.tail(2) == "three\nfour");
  CHECK(pipe.tail(9) == "one\ntwo\nthree\nfour");
  for (int i = 0; i < 20; ++i) put(std::string(5000, 'x') + "\n");
  put("last");
  CHECK(pipe.tail(1) == "last");
  CHECK(pipe.tail(2) == std::string(5000, 'x') + "\nlast");
  CHECK(pipe.tail(100).size() <= 1 << 14);
}

TEST_CASE("the times next to a log tell when its bytes arrived") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {}, 0, 1);
  CHECK_FALSE(fs::exists(files.path(1)));
  log.write("one\ntw", 100);
  log.write("o\n", 200);
  CHECK(times_of(files) == std::vector<TimesRecord>{{Kind::bytes, 100, 6}, {Kind::bytes, 200, 8}});
}

TEST_CASE("a file that has reached its size is followed by the next one, at the end of a line") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {.file_bytes = 10, .files = 100}, 0, 1);
  log.write("12345678\nabc", 1);
  CHECK(files.numbers().empty());  // the line is not over
  log.write("def\nnext\n", 2);
  CHECK(slurp(files.path(1)) == "12345678\nabcdef\n");
  CHECK(slurp(files.path(LogFiles::kCurrent)) == "next\n");
  log.write("0123456789\n0123456789\n0123456789\n", 3);
  CHECK(slurp(files.path(2)) == "next\n0123456789\n");
  CHECK(slurp(files.path(3)) == "0123456789\n");
  CHECK(slurp(files.path(LogFiles::kCurrent)) == "0123456789\n");
  CHECK(times_of(files, 2) == std::vector<TimesRecord>{{Kind::bytes, 2, 5}, {Kind::bytes, 3, 16}});
  CHECK(times_of(files) == std::vector<TimesRecord>{{Kind::bytes, 3, 11}});
}

TEST_CASE("a line that never ends is cut at twice the size of a file") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {.file_bytes = 10, .files = 100}, 0, 1);
  for (int i = 0; i < 50; ++i) log.write("\rx", 1);
  REQUIRE(files.numbers().size() >= 3);
  for (const int number : files.numbers()) CHECK(fs::file_size(files.path(number)) == 20);
}

TEST_CASE("the oldest files are deleted together with their times") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stderr"};
  LogWriter log(files, {.file_bytes = 1, .files = 3}, 0, 1);
  for (int i = 0; i < 10; ++i) log.write(std::to_string(i) + "\n", 1);
  CHECK(files.numbers() == std::vector<int>{8, 9});
  CHECK(slurp(files.path(8)) == "7\n");
  CHECK(slurp(files.path(LogFiles::kCurrent)) == "9\n");
  CHECK_FALSE(fs::exists(files.times_path(7)));
  CHECK(fs::exists(files.times_path(8)));
}

TEST_CASE("only one file is kept if launch.log_files is 1") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {.file_bytes = 1, .files = 1}, 0, 1);
  for (int i = 0; i < 4; ++i) log.write(std::to_string(i) + "\n", 1);
  CHECK(files.numbers().empty());
  CHECK(slurp(files.path(LogFiles::kCurrent)) == "3\n");
}

TEST_CASE("a restart continues the same file on a new line, and the times say where") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  { LogWriter(files, {}, 0, 1).write("first\nbroken of", 10); }
  { LogWriter(files, {}, 1, 20).write("second\n", 30); }
  CHECK(slurp(files.path(LogFiles::kCurrent)) == "first\nbroken of\nsecond\n");
  CHECK(times_of(files) ==
        std::vector<TimesRecord>{
            {Kind::bytes, 10, 15}, {Kind::bytes, 20, 16}, {Kind::restart, 20, 1}, {Kind::bytes, 30, 23}});
}

TEST_CASE("truncated times continue after the last whole record") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  { LogWriter(files, {}, 0, 1).write("a\n", 10); }
  fs::resize_file(files.times_path(LogFiles::kCurrent), kTimesMagic.size() + kTimesRecordBytes + 5);
  { LogWriter(files, {}, 1, 20).write("b\n", 30); }
  CHECK(times_of(files) ==
        std::vector<TimesRecord>{
            {Kind::bytes, 10, 2}, {Kind::bytes, 20, 2}, {Kind::restart, 20, 1}, {Kind::bytes, 30, 4}});
}

TEST_CASE("a full disk loses lines, counts their bytes, and writing resumes with a whole line") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {}, 0, 1);
  log.write("before\n", 10);
  {
    const FileSizeLimit full(12);
    log.write("cut he|re\nlost\nbegun, ", 20);
    CHECK(log.error() == EFBIG);
    log.write("never ended", 30);
    CHECK(log.error() == EFBIG);
  }
  log.write("\nafter\n", 40);
  CHECK(log.error() == 0);
  CHECK(log.lost_bytes() == 29);
  CHECK(slurp(files.path(LogFiles::kCurrent)) == "before\ncut h\nafter\n");
  CHECK(times_of(files).back() == TimesRecord{Kind::bytes, 40, 19});
  CHECK(times_of(files)[times_of(files).size() - 2] == TimesRecord{Kind::lost, 40, 29});
}

TEST_CASE("bytes that were lost on the way to the log are counted and leave no half line") {
  const Scratch scratch;
  const LogFiles files{scratch.path(), "stdout"};
  LogWriter log(files, {}, 0, 1);
  log.write("before\nbeg", 10);
  log.skip(100, true);
  CHECK(log.error() == 0);
  log.write("end of the lost line\nafter\n", 20);
  CHECK(log.lost_bytes() == 121);
  CHECK(slurp(files.path(LogFiles::kCurrent)) == "before\nbeg\nafter\n");
  CHECK(times_of(files)[times_of(files).size() - 2] == TimesRecord{Kind::lost, 20, 121});
}

TEST_CASE("a log that cannot be opened is tried again by each write") {
  const Scratch scratch;
  const LogFiles files{scratch.path() + "/later", "stdout"};
  LogWriter log(files, {}, 0, 1);
  log.write("lost\n", 2);
  CHECK(log.error() == ENOENT);
  fs::create_directory(files.directory);
  log.write("kept\n", 3);
  CHECK(log.error() == 0);
  CHECK(log.lost_bytes() == 5);
  CHECK(slurp(files.path(LogFiles::kCurrent)) == "kept\n");
}

TEST_CASE("a device that is always full blocks no rank") {
  if (!fs::exists("/dev/full")) return skip_test("no /dev/full");
  const Scratch scratch;
  fs::create_symlink("/dev/full", scratch.path() + "/stdout");
  LogWriter log({scratch.path(), "stdout"}, {}, 0, 1);
  log.write("one\ntwo\n", 2);
  CHECK(log.error() == ENOSPC);
  CHECK(log.lost_bytes() == 8);
}

TEST_CASE("a full disk is reported once for all ranks, and so is its end, with the number of lost bytes") {
  const Scratch scratch;
  std::vector<std::string> notices;
  const RunDirectory directory = RunDirectory::create(scratch.path(), 3);
  boost::asio::io_context loop;
  LogDisk disk(loop, directory, {}, [&](const std::string& text) { notices.push_back(text); });
  LogCollector logs(loop, disk, 3, {});
  std::vector<int> writers;
  for (int rank = 0; rank < 3; ++rank) {
    writers.push_back(dup(logs.open(rank, 0).out));
    logs.started(rank);
  }
  const auto say = [&](std::string_view text) {
    for (const int fd : writers) REQUIRE(write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  };
  const auto settled = [&] {
    return eventually([&] {
      loop.poll();
      loop.restart();
      return disk.pending_bytes() == 0;
    });
  };
  const auto sizes_are = [&](size_t size) {
    return eventually([&] {
      loop.poll();
      loop.restart();
      for (int rank = 0; rank < 3; ++rank)
        if (slurp(directory.rank_file(rank, "stdout")).size() != size) return false;
      return true;
    });
  };
  {
    const FileSizeLimit full(4, disk.log_process());
    say("one\ntwo\n");
    CHECK(sizes_are(4));
    CHECK(settled());
    REQUIRE(notices.size() == 1);
    CHECK(notices[0].find("rank.0/stdout") != std::string::npos);
    CHECK(notices[0].find("training continues") != std::string::npos);
  }
  say("three\n");
  CHECK(sizes_are(10));
  CHECK(settled());
  REQUIRE(notices.size() == 2);
  CHECK(notices[1] == "logs are being written again: 12 bytes were lost");
  for (int rank = 0; rank < 3; ++rank) {
    close(writers[static_cast<size_t>(rank)]);
    logs.finish(rank);
  }
  disk.end();
  CHECK(notices.size() == 2);
}

// A regression: draining continued as long as there was anything to drain, and only then was the next rank started.
TEST_CASE("a rank that floods its output does not keep others from starting") {
  const Scratch scratch;
  const int launcher = start_launcher(
      scratch.path(), {"yes & while [ ! -e $DIR/go ]; do sleep 0.01; done; kill $!",
                       "yes >&2 & while [ ! -e $DIR/go ]; do sleep 0.01; done; kill $!", "echo > $DIR/go"});
  CHECK(wait_for(launcher) == 0);
}

TEST_CASE("a process that left its rank's group and keeps writing does not keep the run from ending") {
  const Scratch scratch;
  const int launcher =
      start_launcher(scratch.path(), {"setsid yes & echo $! > $DIR/pid.0; sleep 0.1; exit 0"}, {.grace_seconds = 1});
  CHECK(wait_for(launcher) == kExitRankFailed);
  CHECK(eventually([&] { return !alive(pid_in(scratch.path() + "/pid.0")); }));  // of its closed pipe
}

TEST_CASE("many ranks need more open files than a process usually may have") {
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const rlimit low{64, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &low);
  const Scratch scratch;
  const int launcher =
      start_launcher(scratch.path(), std::vector<std::string>(40, "echo out; echo err >&2; sleep 0.2"));
  CHECK(wait_for(launcher) == 0);
  setrlimit(RLIMIT_NOFILE, &before);
  for (int rank = 0; rank < 40; ++rank) {
    CHECK(slurp(RunDirectory(scratch.path(), 1).rank_file(rank, "stderr")) == "err\n");
  }
}
