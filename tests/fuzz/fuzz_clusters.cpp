// libFuzzer target: the readers of cluster input get any text as Slurm's list of nodes, as a hostfile and as the
// address of a listener, and any bytes as mpiexec's answers to a process that speaks PMI. Each returns a value, or the
// error that it documents.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "engine/spec/hosts.h"
#include "launcher/clusters/node_list.h"
#include "launcher/clusters/pmi.h"
#include "launcher/clusters/remote_listener.h"

namespace {

using namespace trainctl;

constexpr size_t kMostAnswers = 1 << 14;  // bytes, which a socket takes at once

/// Runs a PMI client against `answers`, which are written before the client asks.
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

void place(std::string_view text) {
  std::string fault;
  const auto hosts = parse_hostfile(text, fault);
  if (!hosts) return fault.empty() ? std::abort() : void();
  const Placement placement = place_ranks(*hosts, 8);
  int ranks = 0;
  for (const HostRanks& host : placement.hosts) ranks += host.ranks;
  if (placement.fault.empty() && ranks != 8) std::abort();
}

void reach(const std::string& text) {
  if (const auto address = clusters::parse_listener(text))
    if (clusters::to_json(*clusters::parse_listener(clusters::to_json(*address))) != clusters::to_json(*address))
      std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      expand(text);
      break;
    case 1:
      ask(text.substr(0, kMostAnswers));
      break;
    case 2:
      place(text);
      break;
    default:
      reach(std::string(text));
  }
  return 0;
}
