// Files of records on a disk that is full for a moment. A limit on the size of files stands for the full disk.
#include "engine/base/record_file.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace trainctl {
namespace {

class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

std::string record_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct RecordScratch {
  std::string path = std::filesystem::temp_directory_path() / ("trainctl-records-" + std::to_string(getpid()));
  ~RecordScratch() { std::filesystem::remove(path); }
};

TEST_CASE("records that a full disk refuses are written, whole and in order, once it has room") {
  const RecordScratch scratch;
  RecordFile file(scratch.path);
  REQUIRE(file.write("first\n"));
  {
    const FileSizeLimit full(9);
    CHECK_FALSE(file.write("second\n"));  // three bytes would fit
    CHECK(record_text(scratch.path) == "first\n");
    CHECK_FALSE(file.write("third\n"));
    CHECK(file.kept() == 2);
    CHECK(file.problem() != "");
  }
  CHECK(file.write("fourth\n"));
  CHECK(record_text(scratch.path) == "first\nsecond\nthird\nfourth\n");
  CHECK(file.kept() == 0);
  CHECK(file.problem() == "");
}

TEST_CASE("the lines kept while a disk is full are bounded, and dropped ones are counted") {
  const RecordScratch scratch;
  RecordFile file(scratch.path);
  const std::string large(RecordFile::kMostKeptBytes / 2, 'x');
  {
    const FileSizeLimit full(0);
    for (int i = 0; i < 4; ++i) CHECK_FALSE(file.write(large));
  }
  CHECK(file.kept() == 2);
  CHECK(file.lost() == 2);
  CHECK(file.write("end"));
  CHECK(record_text(scratch.path).size() == 2 * large.size() + 3);
}

TEST_CASE("a file that cannot be created yet is created with a later record") {
  const RecordScratch scratch;
  std::filesystem::remove(scratch.path);
  RecordFile file(scratch.path + "/inside");
  CHECK_FALSE(file.write("a"));
  std::filesystem::create_directory(scratch.path);
  CHECK(file.write("b"));
  CHECK(record_text(scratch.path + "/inside") == "ab");
  std::filesystem::remove(scratch.path + "/inside");
}

TEST_CASE("a file that is appended to keeps its content") {
  const RecordScratch scratch;
  RecordFile(scratch.path).write("one\n");
  RecordFile(scratch.path, RecordFile::Begin::append).write("two\n");
  CHECK(record_text(scratch.path) == "one\ntwo\n");
  RecordFile(scratch.path).write("three\n");
  CHECK(record_text(scratch.path) == "three\n");
}

}  // namespace
}  // namespace trainctl
