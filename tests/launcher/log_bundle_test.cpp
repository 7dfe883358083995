// Tests of a run that is packed into a .tar.gz, which the system's tar reads.
#include "launcher/log_bundle.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/base/error.h"
#include "launcher/tar_gz.h"
#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

bool shell(const std::string& command) { return std::system(command.c_str()) == 0; }

RunDirectory run_with_logs(const std::string& log_dir) {
  RunDirectory run = RunDirectory::create(log_dir, 2);
  run.write("job.yaml", "name: packed\n");
  fs::create_directory(run.rank_path(0) + "/times");
  std::ofstream(run.rank_file(0, "stdout")) << "current\n";
  std::ofstream(run.rank_file(0, "stdout.1")) << std::string(1000, 'x') << "\n";
  std::ofstream(run.rank_file(0, "times/stdout")) << std::string(48, '\0');
  std::ofstream(run.rank_file(1, "stderr"));
  return run;
}

}  // namespace

TEST_CASE("a bundle has the whole run folder and a description of the host") {
  const Scratch scratch;
  const RunDirectory run = run_with_logs(scratch.path() + "/logs");
  const std::string bundle = scratch.path() + "/run.tar.gz", out = scratch.path() + "/out";
  const int64_t bytes = write_bundle(run, bundle, "trainctl 1.2.3");
  CHECK(bytes == static_cast<int64_t>(fs::file_size(bundle)));
  fs::create_directory(out);
  REQUIRE(shell("tar xzf " + bundle + " -C " + out));
  CHECK(slurp(out + "/run-1/about.txt").find("trainctl 1.2.3") != std::string::npos);
  fs::remove(out + "/run-1/about.txt");
  CHECK(shell("diff -r " + out + "/run-1 " + run.path() + " > /dev/null"));
}

TEST_CASE("a bundle has no value of env, which it may carry to others") {
  const Scratch scratch;
  const RunDirectory run = run_with_logs(scratch.path() + "/logs");
  run.write("job.yaml", "name: packed\nenv:\n  API_KEY: s3cret\n", FileReaders::owner);
  const std::string bundle = scratch.path() + "/run.tar.gz";
  write_bundle(run, bundle, "trainctl 1.2.3");
  CHECK(shell("tar xzOf " + bundle + " run-1/job.yaml | grep -q API_KEY"));
  CHECK_FALSE(shell("tar xzOf " + bundle + " | grep -q s3cret"));
}

TEST_CASE("a bundle replaces an older one, and leaves no other file") {
  const Scratch scratch;
  const RunDirectory run = run_with_logs(scratch.path() + "/logs");
  const std::string folder = scratch.path() + "/here";
  fs::create_directory(folder);
  std::ofstream(folder + "/b.tar.gz") << "old";
  write_bundle(run, folder + "/b.tar.gz", "");
  CHECK(shell("tar tzf " + folder + "/b.tar.gz > /dev/null"));
  CHECK(std::distance(fs::directory_iterator(folder), {}) == 1);
}

TEST_CASE("a bundle that cannot be written whole is not written") {
  const Scratch scratch;
  const RunDirectory run = run_with_logs(scratch.path() + "/logs");
  CHECK_THROWS_AS(write_bundle(run, scratch.path() + "/no/such/folder/b.tar.gz", ""), EnvError);
  const std::string folder = scratch.path() + "/here";
  fs::create_directory(folder);
  std::ofstream random(run.rank_file(0, "stdout"), std::ios::binary);
  for (int i = 0; i < 300000; ++i) random << static_cast<char>(std::rand());
  random.close();
  const pid_t pid = fork();
  if (pid == 0) {  // its files are limited to 100 kB, which acts like a full disk
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100000, 100000};
    setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_bundle(run, folder + "/b.tar.gz", "");
    } catch (const EnvError&) {
      _exit(3);
    }
    _exit(0);
  }
  CHECK(wait_for(pid) == 3);
  CHECK(fs::is_empty(folder));
}

TEST_CASE("names of any length and any bytes are preserved") {
  const Scratch scratch;
  const std::string tar = scratch.path() + "/t.tar.gz", out = scratch.path() + "/out", folder(90, 'd');
  const std::vector<std::string> names = {folder + "/" + std::string(80, 'n'),
                                          std::string(200, 'n'),
                                          folder + "/" + folder + "/" + folder + "/" + std::string(150, 'x'),
                                          "\xc3\xa4\xe6\x97\xa5",
                                          "not utf-8 \xff",
                                          "a b\tc\nd"};
  {
    TarGz archive(tar);
    for (const std::string& name : names) archive.add_text(name, "in " + name);
    archive.finish();
  }
  fs::create_directory(out);
  REQUIRE(shell("tar xzf " + tar + " -C " + out + " 2> " + scratch.path() + "/said"));
  for (const std::string& name : names) CHECK(slurp(out + "/" + name) == "in " + name);
}

TEST_CASE("a file keeps its time, and anyone may read it") {
  const Scratch scratch;
  const std::string file = scratch.path() + "/file", tar = scratch.path() + "/t.tar.gz", out = scratch.path() + "/out";
  std::ofstream(file) << "text";
  const timespec times[2] = {{1'000'000'000, 5}, {1'234'567'890, 987'654'321}};
  REQUIRE(utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
  REQUIRE(chmod(file.c_str(), 0600) == 0);
  TarGz archive(tar);
  archive.add_file("file", file);
  archive.add_file("gone", scratch.path() + "/there/is/none");
  archive.finish();
  fs::create_directory(out);
  REQUIRE(shell("tar xpzf " + tar + " -C " + out));
  struct stat status {};
  REQUIRE(stat((out + "/file").c_str(), &status) == 0);
  CHECK((status.st_mode & 07777) == 0644);
  CHECK(status.st_mtim.tv_sec == 1'234'567'890);
  CHECK_FALSE(fs::exists(out + "/gone"));
}

TEST_CASE("a file that grows while it is read keeps its first size, and the next entry is whole") {
  const Scratch scratch;
  const std::string file = scratch.path() + "/log", tar = scratch.path() + "/t.tar.gz", out = scratch.path() + "/out";
  const std::string line(999, 'x');
  std::ofstream log(file);
  for (int i = 0; i < 5000; ++i) log << line << '\n';
  log.flush();
  std::atomic<bool> packed = false;
  std::thread writer([&] {
    while (!packed) log << line << std::endl;
  });
  TarGz archive(tar);
  for (const char* name : {"1", "2", "3"}) archive.add_file(name, file);
  archive.add_text("last", "all here");
  archive.finish();
  packed = true;
  writer.join();
  fs::create_directory(out);
  REQUIRE(shell("tar xzf " + tar + " -C " + out));
  for (const char* name : {"/1", "/2", "/3"}) {
    CHECK(fs::file_size(out + name) >= 5'000'000);
    CHECK(shell("cmp -n $(stat -c %s " + out + name + ") " + file + " " + out + name));
  }
  CHECK(slurp(out + "/last") == "all here");
}

TEST_CASE("a file that shrinks while it is read is padded with zeros") {
  const Scratch scratch;
  const std::string file = "/sys/devices/system/cpu/online";  // its size is a page, whatever it holds
  const std::string tar = scratch.path() + "/t.tar.gz", out = scratch.path() + "/out";
  TarGz archive(tar);
  archive.add_file("short", file);
  archive.add_text("last", "all here");
  archive.finish();
  fs::create_directory(out);
  REQUIRE(shell("tar xzf " + tar + " -C " + out));
  const std::string text = slurp(out + "/short");
  CHECK(text.size() == fs::file_size(file));
  CHECK(text.starts_with(slurp(file)));
  CHECK(text.find_first_not_of('\0', slurp(file).size()) == std::string::npos);
  CHECK(slurp(out + "/last") == "all here");
}
