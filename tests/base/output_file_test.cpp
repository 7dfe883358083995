// Files that commands write where the user says.
#include "engine/base/output_file.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "engine/base/error.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;
namespace fs = std::filesystem;

namespace {

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

mode_t mode_of(const std::string& path) {
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

}  // namespace

TEST_CASE("an output replaces an existing file, keeps its mode, and leaves no other files") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/report.html";
  write_output(path, "one");
  CHECK(content(path) == "one");
  REQUIRE(chmod(path.c_str(), 0640) == 0);
  write_output(path, std::string(1 << 20, 'x'));
  CHECK(fs::file_size(path) == 1 << 20);
  CHECK(mode_of(path) == 0640);
  CHECK(std::distance(fs::directory_iterator(scratch.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("a private output is readable only by its owner, even if others could read the replaced file") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/secret.yaml";
  write_output(path, "public");
  REQUIRE(chmod(path.c_str(), 0644) == 0);
  const int reader = open(path.c_str(), O_RDONLY);
  write_output(path, "token", FileReaders::owner);
  CHECK(mode_of(path) == 0600);
  char bytes[16] = {};
  CHECK(read(reader, bytes, sizeof bytes) == 6);  // whoever had opened it reads the old one
  close(reader);
  CHECK(content(path) == "token");
}

TEST_CASE("an output follows no symbolic link, valid or dangling") {
  const Scratch scratch;
  const std::string victim = scratch.path() + "/victim", link = scratch.path() + "/job.yaml";
  std::ofstream(victim) << "mine";
  for (const std::string& target : {victim, scratch.path() + "/new"}) {
    fs::create_symlink(target, link);
    CHECK_THROWS_WITH_AS(write_output(link, "theirs"), doctest::Contains("it is a symbolic link"), EnvError);
    CHECK_THROWS_AS(require_no_link(link), EnvError);
    fs::remove(link);
  }
  CHECK(content(victim) == "mine");
  CHECK_FALSE(fs::exists(scratch.path() + "/new"));
}

TEST_CASE("a FIFO is written to and not replaced") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/fifo";
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  std::string got;
  std::thread reader([&] { got = content(path); });
  write_output(path, "through");
  reader.join();
  CHECK(got == "through");
}

TEST_CASE("an output that cannot be written is an error that names it") {
  const Scratch scratch;
  CHECK_THROWS_WITH_AS(write_output(scratch.path() + "/no/file", "x"), doctest::Contains("/no/file: No such file"),
                       EnvError);
}
