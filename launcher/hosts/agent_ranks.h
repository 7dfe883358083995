// The ranks of a run on several hosts, reached through one agent a host (agent.h): starts the agents by a Transport,
// keeps their connections, passes the board and the store from host to host, writes what ranks wrote.
//
//   connecting ──▶ installing ──▶ connecting ──▶ joined ◀──▶ away          joined, away: orders are kept until they
//   arrive
//        │              │                           │          │ longer than launch.reconnect, or the agent is gone
//        └──────────────┴───────────────────────────┴──────────┴──▶ lost    its ranks count as killed
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/hosts/bundle.h"
#include "launcher/hosts/session.h"
#include "launcher/hosts/transport.h"
#include "launcher/hosts/wire.h"
#include "launcher/log_disk.h"
#include "launcher/rank_runner.h"
#include "launcher/supervisor.h"

namespace trainctl::hosts {

/// The launcher's board, on which what starts ranks reads how far they are. All members are required.
struct LauncherBoard {
  /// What the agents' HostShare::prepare is given.
  std::function<nlohmann::json()> workload;
  /// Changes that came from a host whose ranks are `ranks`; false: they are not of such ranks.
  std::function<bool(std::string_view changes, const std::vector<int>& ranks)> apply;
  /// What has changed since the last call for this host, of ranks of other hosts.
  std::function<std::string(int host)> changes_for;
  /// All ranks end after this step.
  std::function<void(uint64_t step)> stop_after;
};

struct HostsOptions {
  std::shared_ptr<const Transport> transport;  ///< how hosts are reached; required
  double reconnect_seconds = 15;
  std::string interface;
  BindMode bind = BindMode::none;
  bool hold_port = false;                    ///< the first host keeps a port for a server of rank 0
  std::map<std::string, std::string> files;  ///< for each agent's run folder: name -> text
};

class AgentRanks : public RankRunner {
 public:
  /// Of `launch` it uses cluster, directory, log_limits, command, limits.ranks_explain, on_line, on_error_line,
  /// on_rank_started (with pid 0), on_rank_ended and doing. In the words and variables of a command "{trainctl}" is the
  /// binary on the host, "{logs}" the agent's log folder, "{address}" the host's address for others, "{first_address}"
  /// and
  /// "{first_port}" those of the first host. All arguments must outlive it. Throws EnvError.
  AgentRanks(const Launch& launch, HostsOptions options, LauncherBoard board, boost::asio::io_context& loop);
  AgentRanks(const AgentRanks&) = delete;
  AgentRanks& operator=(const AgentRanks&) = delete;
  ~AgentRanks() override;

  void listen(Events events) override;
  void start(const RankPlace& place, int attempt) override;
  void signal(int rank, int signal) override;
  bool is_frozen(int rank) override { return frozen_.contains(rank); }
  void restart(int attempt) override;
  void look() override;
  void end() override;
  bool disk_hangs() const override { return disk_.hangs(); }

  /// See StepGate: all ranks of all hosts end after the same step.
  void ask_to_stop();
  /// Whether the rank's host has been heard of lately; if not, nothing is known of its progress.
  bool is_heard(int rank) const;

 private:
  enum class State { connecting, installing, joined, away, lost };
  struct Host {
    int index = 0;
    std::string name;
    std::vector<RankPlace> places;
    std::vector<int> ranks;
    State state = State::connecting;
    std::string id;  ///< of its agent
    uint64_t connection = 0;
    bool has_joined = false, was_installed = false, ready = false;
    std::string address;
    int port = 0;
    std::string fault;  ///< lost: why
    PipedChild child;
    std::shared_ptr<boost::asio::posix::stream_descriptor> errors;
    std::shared_ptr<std::string> said;  ///< to stderr, by the transport
    std::shared_ptr<Wire> wire;
    Session session;
    uint64_t told = 0;  ///< the number that the last alive frame has confirmed
    double heard = 0, tried = 0, alive_told = 0;
    std::optional<uint64_t> held;
  };
  struct Output {
    uint32_t out = 0, err = 0;     ///< streams of disk_
    std::string line, error_line;  ///< not yet complete
  };

  double now() const;
  Host& host_of(int rank) { return *hosts_[static_cast<size_t>(host_of_.at(rank))]; }
  void reset(Host& host);
  void connect(Host& host);
  void install(Host& host);
  void run_child(Host& host, const std::string& script, const Feed& feed = {});
  void drop_child(Host& host);
  void await_child();
  void installed(Host& host, int status);
  void received(Host& host, Frame frame);
  void broken(Host& host, const std::string& why);
  std::string last_words(Host& host);
  void lose(Host& host, const std::string& why);
  void send(Host& host, Message::Kind kind, int rank = -1, int64_t number = 0, std::string name = {},
            std::string text = {});
  void flush(Host& host);
  void prepare(Host& host);
  void send_starts();
  void handle(Host& host, Message& message);
  void ready(Host& host, const std::string& text);
  void rank_ended(int rank, RankReport report);
  void write_output(const Message& message);
  void write_file(const Message& message);
  void give_lines(int rank, bool is_error, std::string_view bytes, bool ends);
  void look(Host& host);
  void close_gates();

  const Launch& launch_;
  const HostsOptions options_;
  const LauncherBoard board_;
  boost::asio::io_context& loop_;
  Events events_;
  const Bundle bundle_;
  const std::string token_;
  LogDisk disk_;
  boost::asio::signal_set children_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::map<int, int> host_of_;
  uint32_t attempt_ = 0;
  std::vector<RankPlace> to_start_;
  std::set<int> running_;  ///< started, as far as Supervision knows, and not ended
  std::set<int> frozen_;
  std::map<int, Output> outputs_;
  uint32_t last_stream_ = 0;
  bool stop_asked_ = false, gates_closed_ = false, ending_ = false;
};

}  // namespace trainctl::hosts
