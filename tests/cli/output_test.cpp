// Output to a pipe whose reader is slow or gone (cli/render/output.h).
#include "cli/render/output.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "tests/launcher/launcher_process.h"
#include "tests/launcher/scratch.h"

using namespace trainctl;

namespace {

struct Pipe {
  Pipe() { REQUIRE(pipe2(ends, O_CLOEXEC) == 0); }
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }
  int ends[2];
};

}  // namespace

TEST_CASE("output that has not been read yet is kept, and the writer does not wait") {
  const Pipe pipe;
  std::string text;
  {
    Output output(pipe.ends[1]);
    for (int i = 0; i < 20; ++i) {
      text += std::string(1 << 20, static_cast<char>('a' + i));
      output.write(text.substr(text.size() - (1 << 20)));
    }
    CHECK(output.is_behind());
    std::string read(text.size(), '\0');
    for (size_t at = 0; at < read.size();) {
      const ssize_t got = ::read(pipe.ends[0], read.data() + at, read.size() - at);
      REQUIRE(got > 0);
      at += static_cast<size_t>(got);
    }
    CHECK((read == text));
    output.flush();
    CHECK_FALSE(output.is_behind());
  }
}

TEST_CASE("flush returns when the reader goes away") {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  Output output(pipe.ends[1]);
  output.write(std::string(1 << 20, 'x'));
  close(pipe.ends[0]);
  output.flush();
  output.write("more");
  output.flush();
  pipe.ends[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

TEST_CASE("output to a regular file is written at once") {
  const Scratch scratch;
  const std::string path = scratch.path() + "/out";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  Output output(fd);
  output.write("text\n");
  CHECK(slurp(path) == "text\n");
  close(fd);
}
