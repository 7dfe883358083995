// Tests of PMI 1.1 with a simulated mpiexec at the other end of the socket.
#include "launcher/clusters/pmi.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"

using namespace trainctl;
using namespace trainctl::clusters;

namespace {

/// The ends of both processes, and a thread that serves them as Hydra does: it answers a barrier when all processes
/// have asked for it.
class Mpiexec {
 public:
  explicit Mpiexec(int processes) {
    for (int i = 0; i < processes; ++i) {
      std::array<int, 2> ends{};
      REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
      theirs.push_back(ends[0]);
      ours_.push_back(ends[1]);
    }
    server_ = std::thread([this] { serve(); });
  }
  ~Mpiexec() {
    server_.join();
    for (const int fd : ours_) close(fd);
  }

  std::vector<int> theirs;
  std::vector<std::string> requests;  ///< read it when all processes have ended

 private:
  std::string line_of(int fd) {
    std::string line;
    for (char c = 0; read(fd, &c, 1) == 1 && c != '\n';) line += c;
    return line;
  }
  void say(int fd, const std::string& text) {
    const std::string line = text + "\n";
    // The line is sent in two pieces, because a reader must wait for the end of the line.
    if (write(fd, line.data(), 4) != 4) return;
    std::this_thread::yield();
    if (write(fd, line.data() + 4, line.size() - 4) < 0) return;
  }
  static std::string word(const std::string& line, const std::string& name) {
    const size_t at = line.find(name + "=") + name.size() + 1;
    return line.substr(at, line.find(' ', at) - at);
  }
  void serve() {
    std::map<std::string, std::string> values;
    // The processes are served in turn, since all of them make the same calls.
    for (bool left = true; left;) {
      left = false;
      std::vector<int> waiting;
      for (const int fd : ours_) {
        const std::string line = line_of(fd);
        if (line.empty()) continue;
        requests.push_back(line);
        left = true;
        if (line.starts_with("cmd=init ")) say(fd, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
        if (line == "cmd=get_my_kvsname") say(fd, "cmd=my_kvsname kvsname=kvs_7_0");
        if (line.starts_with("cmd=put ")) {
          values[word(line, "key")] = word(line, "value");
          say(fd, "cmd=put_result rc=0 msg=success");
        }
        if (line == "cmd=barrier_in") waiting.push_back(fd);
        if (line.starts_with("cmd=get ")) {
          const auto at = values.find(word(line, "key"));
          say(fd, at == values.end() ? "cmd=get_result rc=-1 msg=key_not_found"
                                     : "cmd=get_result rc=0 msg=success value=" + at->second);
        }
        if (line == "cmd=finalize") say(fd, "cmd=finalize_ack");
      }
      for (const int fd : waiting) say(fd, "cmd=barrier_out");
    }
  }

  std::vector<int> ours_;
  std::thread server_;
};

}  // namespace

TEST_CASE("processes of MPICH's mpiexec read what each has put, blanks included") {
  Mpiexec mpiexec(2);
  std::vector<std::string> found(2);
  std::vector<std::thread> processes;
  for (int index = 0; index < 2; ++index) {
    processes.emplace_back([&, index] {
      Pmi pmi(index, mpiexec.theirs[static_cast<size_t>(index)]);
      pmi.put("door", R"({"host": "n)" + std::to_string(index) + R"(", "port": 4})");
      pmi.fence();
      found[static_cast<size_t>(index)] = pmi.get(1 - index, "door");
    });
  }
  for (std::thread& process : processes) process.join();
  CHECK(found[0] == R"({"host": "n1", "port": 4})");
  CHECK(found[1] == R"({"host": "n0", "port": 4})");
}

TEST_CASE("a key that no process has put is an error, with the words of mpiexec") {
  Mpiexec mpiexec(1);
  Pmi pmi(0, mpiexec.theirs[0]);
  CHECK_THROWS_WITH_AS(pmi.get(0, "token"),
                       "PMI: mpiexec responded to 'cmd=get kvsname=kvs_7_0 key=token.0' with get_result key_not_found",
                       EnvError);
}

TEST_CASE("a socket whose other end is gone is an error, not a wait") {
  std::array<int, 2> ends{};
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
  shutdown(ends[1], SHUT_WR);
  CHECK_THROWS_WITH_AS(Pmi(0, ends[0]), doctest::Contains("mpiexec does not respond to 'cmd=init"), EnvError);
  close(ends[1]);
  close(ends[0]);
}
