// Any text as Slurm's list of nodes, and any bytes as mpiexec's answers to a process that speaks PMI: names and values, or
// an EnvError.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "launcher/clusters/node_list.h"
#include "launcher/clusters/pmi.h"

namespace {

using namespace trainctl;

constexpr size_t kMostAnswers = 1 << 14;  // bytes, which a socket takes at once

/// The answers are there before the questions.
void ask(std::string_view answers) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) std::abort();
  if (write(ends[1], answers.data(), answers.size()) != static_cast<ssize_t>(answers.size())) std::abort();
  shutdown(ends[1], SHUT_WR);
  try {
    clusters::Pmi pmi(1, ends[0]);
    pmi.put("key", "a value");
    pmi.fence();
    (void)pmi.get(0, "key");
  } catch (const EnvError&) {
    // mpiexec does not answer as it should.
  }
  close(ends[1]);
}

void expand(std::string_view list) {
  const auto names = clusters::expand_nodes(list);
  if (!names) return;
  if (names->size() > 65'536) std::abort();
  std::string joined;  // a list of plain names is itself
  for (const std::string& name : *names) joined += (joined.empty() ? "" : ",") + name;
  if (clusters::expand_nodes(joined) != names) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  data[0] % 2 == 0 ? expand(text) : ask(text.substr(0, kMostAnswers));
  return 0;
}
