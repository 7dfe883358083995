// Tests of remote-execution listeners on loopback: the scripts that they run, the job's token, and how they end.
#include "launcher/clusters/remote_listener.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "tests/tls_impostor.h"

using namespace trainctl;
using namespace trainctl::clusters;

namespace {

constexpr const char* kToken = "0123456789abcdef0123456789abcdef";

/// A listener in a process of its own.
struct RemoteListener {
  ListenerAddress address;
  pid_t pid;

  explicit RemoteListener(double orphan_seconds = 600) {
    const int listener = listen_at(0);
    address = {"b", {"127.0.0.1"}, port_of(listener)};
    pid = fork();
    if (pid == 0) {
      close(STDERR_FILENO);
      _exit(serve_remote_execution(listener, kToken, orphan_seconds));
    }
    close(listener);
  }
  int end() {
    int status = 0;
    waitpid(std::exchange(pid, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  ~RemoteListener() {
    if (pid < 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
};

/// Returns the output of the script that the listener runs; `input` is the script's input.
std::string dialled(const ListenerAddress& address, const std::string& script, const std::string& input) {
  int in[2], out[2];
  REQUIRE(pipe(in) == 0);
  REQUIRE(pipe(out) == 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(in[0], 0);
    dup2(out[1], 1);
    for (const int fd : {in[0], in[1], out[0], out[1]}) close(fd);
    _exit(dial(address, kToken, script));
  }
  close(in[0]);
  close(out[1]);
  const pid_t writer = fork();
  if (writer == 0) {
    close(out[0]);
    _exit(write(in[1], input.data(), input.size()) == static_cast<ssize_t>(input.size()) ? 0 : 1);
  }
  close(in[1]);
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = read(out[0], buffer.data(), buffer.size())) > 0;)
    text.append(buffer.data(), static_cast<size_t>(got));
  close(out[0]);
  waitpid(pid, nullptr, 0);
  waitpid(writer, nullptr, 0);
  return text;
}

}  // namespace

TEST_CASE("text that processes of mpirun exchange is the address of a listener, or refused") {
  const auto same = parse_listener(to_json({"b", {"10.0.0.2", "::1"}, 4242}));
  REQUIRE(same);
  CHECK(same->name == "b");
  CHECK(same->addresses == std::vector<std::string>{"10.0.0.2", "::1"});
  CHECK(same->port == 4242);
  for (const char* text :
       {"", "{}", "[]", "{\"port\": 1}", "{\"addresses\": [\"a\"]}", "{\"addresses\": [], \"port\": 0}",
        "{\"addresses\": [1], \"port\": 1}", "{\"addresses\": \"a\", \"port\": 1}",
        "{\"addresses\": [], \"port\": \"1\"}", "{\"addresses\": [], \"port\": 65536}",
        "{\"addresses\": [], \"port\": 4294967318}", "{\"addresses\": [], \"port\": 18446744073709551615}"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_listener(text));
  }
}

TEST_CASE("a script run through a listener reads and writes as if it ran here, to the end of its input") {
  RemoteListener listener;
  CHECK(await_listener(listener.address, kToken, 5) == "127.0.0.1");
  CHECK(dialled(listener.address, "cat; echo end $TRAINCTL_ADDRESS", "a\nb\n") == "a\nb\nend 127.0.0.1\n");
  const std::string large(3 << 20, 'x');
  CHECK(dialled(listener.address, "cat", large) == large);
}

TEST_CASE("a client without the token is refused, and the listener continues") {
  RemoteListener listener;
  CHECK_THROWS_AS(await_listener(listener.address, "another token of at least 32 characters", 0), EnvError);
  CHECK(await_listener(listener.address, kToken, 5) == "127.0.0.1");
}

TEST_CASE("a listener that does not belong to this job gets no ping, script or end, whatever its certificate") {
  std::signal(SIGPIPE, SIG_IGN);
  TlsImpostor impostor;
  const ListenerAddress address{"b", {"127.0.0.1"}, impostor.port()};
  CHECK_THROWS_WITH_AS(await_listener(address, kToken, 0),
                       doctest::Contains("did not prove that it has the job's token"), EnvError);
  int nowhere[2];
  REQUIRE(pipe(nowhere) == 0);
  const pid_t launcher = fork();  // its attempts end with it
  if (launcher == 0) {
    close(STDERR_FILENO);
    _exit(dial(address, kToken, "echo the job's secrets"));
  }
  end_listeners({address}, kToken, 0, 1);
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  for (const int fd : nowhere) close(fd);
  CHECK(impostor.heard() == "");
  CHECK(impostor.clients() >= 3);
}

TEST_CASE("a TLS client without the key gets no connection") {
  std::signal(SIGPIPE, SIG_IGN);
  RemoteListener listener;
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL* ssl = SSL_new(context);
  const int socket_of_client = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(static_cast<uint16_t>(listener.address.port));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(socket_of_client, reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0);
  SSL_set_fd(ssl, socket_of_client);
  CHECK(SSL_connect(ssl) != 1);
  SSL_free(ssl);
  SSL_CTX_free(context);
  close(socket_of_client);
}

TEST_CASE("a listener serves its launcher at once, however many connections are silent") {
  RemoteListener listener;
  std::vector<int> idle;
  for (int i = 0; i < 200; ++i) {
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_port = htons(static_cast<uint16_t>(listener.address.port));
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    idle.push_back(socket(AF_INET, SOCK_STREAM, 0));
    REQUIRE(connect(idle.back(), reinterpret_cast<const sockaddr*>(&there), sizeof there) == 0);
  }
  CHECK(await_listener(listener.address, kToken, 0) == "127.0.0.1");  // it tries once
  char byte = 0;
  CHECK(recv(idle.front(), &byte, 1, 0) <= 0);  // the oldest has been closed
  for (const int fd : idle) close(fd);
}

TEST_CASE("a listener whose launcher is connected ends with the run and its exit code, and not at SIGTERM") {
  RemoteListener listener;
  await_listener(listener.address, kToken, 5);
  kill(listener.pid, SIGTERM);
  CHECK(await_listener(listener.address, kToken, 5) == "127.0.0.1");
  end_listeners({listener.address}, kToken, 5);
  CHECK(listener.end() == 5);
}

// A regression: a pod whose launcher was lost, or never came, ignored SIGTERM until it was killed.
TEST_CASE("a listener without a launcher ends at SIGTERM, and one that loses its launcher ends at once") {
  constexpr double kOrphanSeconds = 0.1;
  RemoteListener listener(kOrphanSeconds);
  int to[2], from[2];
  REQUIRE(pipe(to) == 0);
  REQUIRE(pipe(from) == 0);
  pid_t launcher = -1;
  SUBCASE("without") { await_listener(listener.address, kToken, 5); }
  SUBCASE("lost") {
    launcher = fork();
    if (launcher == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      for (const int fd : {to[0], to[1], from[0], from[1]}) close(fd);
      _exit(dial(listener.address, kToken, "echo up; cat"));
    }
    char byte = 0;
    for (int i = 0; i < 3; ++i) REQUIRE(read(from[0], &byte, 1) == 1);  // "up\n"
  }
  kill(listener.pid, SIGTERM);
  if (launcher > 0) {
    char byte = 'x';
    for (int i = 0; i < 5; ++i) {  // it is served longer than an orphan would be
      usleep(100'000);
      REQUIRE(write(to[1], &byte, 1) == 1);
      REQUIRE(read(from[0], &byte, 1) == 1);
    }
    kill(launcher, SIGKILL);
    waitpid(launcher, nullptr, 0);
  }
  CHECK(listener.end() == 128 + SIGTERM);
  for (const int fd : {to[0], to[1], from[0], from[1]}) close(fd);
}

TEST_CASE("a listener that does not start is named, with the reason") {
  int port = 0;
  {
    const int listener = listen_at(0);
    port = port_of(listener);
    close(listener);
  }
  CHECK_THROWS_WITH_AS(await_listener({"pod-1", {"127.0.0.1"}, port}, kToken, 0),
                       "pod-1 cannot be reached: 127.0.0.1: Connection refused", EnvError);
}
