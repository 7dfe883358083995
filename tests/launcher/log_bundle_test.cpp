// A run in a .tar.gz, read by the system's tar.
#include "launcher/log_bundle.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

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

TEST_CASE("a bundle holds the whole run folder and a word on the host") {
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

TEST_CASE("a bundle takes the place of the one before it, and nothing lies beside it") {
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
  if (pid == 0) {  // no file of it may have more than 100 kB: as where the disk is full
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

TEST_CASE("a long name is cut at a slash, as ustar has it") {
  const Scratch scratch;
  const std::string tar = scratch.path() + "/t.tar.gz", folder(90, 'd'), name(80, 'n');
  {
    TarGz archive(tar);
    archive.add_text(folder + "/" + name, "text");
    CHECK_THROWS_AS(archive.add_text(std::string(200, 'n'), ""), EnvError);
    archive.finish();
  }
  REQUIRE(shell("tar xzf " + tar + " -C " + scratch.path()));
  CHECK(slurp(scratch.path() + "/" + folder + "/" + name) == "text");
}
